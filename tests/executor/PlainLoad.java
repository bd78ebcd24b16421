import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;

/** Sends to the topics NAMESPACE/t0, t1, … without an end: SERVICE_URL NAMESPACE TOPICS MESSAGES_A_SECOND_OF_EACH. */
public class PlainLoad {
    public static void main(String[] args) throws Exception {
        PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).operationTimeout(60, TimeUnit.SECONDS).build();
        Producer<byte[]>[] producers = new Producer[Integer.parseInt(args[2])];
        for (int i = 0; i < producers.length; i++) {
            producers[i] = client.newProducer().topic("persistent://" + args[1] + "/t" + i).create();
        }
        byte[] message = new byte[100];
        long pause = 1_000_000_000L / Long.parseLong(args[3]);
        while (true) {
            for (Producer<byte[]> producer : producers) {
                producer.sendAsync(message);
            }
            TimeUnit.NANOSECONDS.sleep(pause);
        }
    }
}
