package anabranch.pulsar;

import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;

/** Sends to the topics NAMESPACE/t0, t1, … without an end: SERVICE_URL NAMESPACE TOPICS MESSAGES_A_SECOND_OF_EACH. */
public final class PlainLoad {
    private PlainLoad() {
    }

    public static void main(String[] arguments) throws Exception {
        PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0])
                .operationTimeout(60, TimeUnit.SECONDS).build();
        Producer[] producers = new Producer[Integer.parseInt(arguments[2])];
        for (int number = 0; number < producers.length; number++) {
            producers[number] = client.newProducer().topic("persistent://" + arguments[1] + "/t" + number).create();
        }
        byte[] message = new byte[100];
        long pause = TimeUnit.SECONDS.toNanos(1) / Long.parseLong(arguments[3]);
        while (true) {
            for (int number = 0; number < producers.length; number++) {
                producers[number].sendAsync(message);
            }
            TimeUnit.NANOSECONDS.sleep(pause);
        }
    }
}
