package anabranch.pulsar;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.BiConsumer;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.PulsarClientBuilder;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.async.AsyncMessageBuilder;
import org.apache.pulsar.client.api.v5.auth.AuthenticationFactory;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.schema.Schema;

/**
 * Keyed messages through a scalable topic by Pulsar's own V5 client, each with a number: SERVICE_URL TOPIC
 * MESSAGES_PER_SECOND KEYS MESSAGES_IN_FLIGHT WAVE_SECONDS. With a wave the rate rises and falls once in that time, and
 * two fifths of it nothing is sent: Pulsar's own scaler merges only what has been still; 0: it stays. A token is taken
 * from the environment (ANABRANCH_CONTROLLER_TOKEN), where no list of processes shows it. Values have no
 * schema: the broker of M1 deletes that of a topic when it prunes a segment, and refuses whoever has one from then on.
 * Counts on standard output, a JSON object a line, four times a second.
 * When standard input ends it stops to produce, waits until all that was acknowledged has been received, says so in a
 * last line (finished) and ends. The client of M1 can drop the last message of a segment that ends, without having
 * acknowledged it (docs/pulsar.md). As an application would, it subscribes again if messages do not come.
 */
public final class KeyedLoad {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final long DRAIN_SECONDS = 60;
    private static final long SUBSCRIBE_AGAIN_SECONDS = 20;
    private static final int ERRORS_KEPT = 10;

    /** Of this process: messages of an earlier one are acknowledged and not counted. */
    private final String run = Long.toHexString(System.currentTimeMillis()) + ":";
    private final Set sent = ConcurrentHashMap.newKeySet();
    /** Number to the place in Pulsar that it was first received from. */
    private final Map seen = new ConcurrentHashMap();
    private final Set errors = ConcurrentHashMap.newKeySet();
    private final Map lastOfKey = new ConcurrentHashMap();
    private final Set segments = ConcurrentHashMap.newKeySet();
    private final AtomicLong redelivered = new AtomicLong();
    private final AtomicLong resent = new AtomicLong();
    private final AtomicLong inversions = new AtomicLong();
    private volatile boolean producing = true;
    private volatile boolean consuming = true;
    /** The last line is out. */
    private boolean said;

    private KeyedLoad() {
    }

    public static void main(String[] arguments) throws Exception {
        final KeyedLoad load = new KeyedLoad();
        PulsarClient client = connect(arguments[0]);
        Thread receiver = load.subscribe(client, arguments[1]);
        start("end of input", new Runnable() {
            public void run() {
                load.awaitEndOfInput();
            }
        });
        start("counts", new Runnable() {
            public void run() {
                load.tell();
            }
        });
        Producer producer = (Producer) client.newProducer(Schema.bytes()).topic(arguments[1]).create();
        load.produce(producer, Integer.parseInt(arguments[2]), Integer.parseInt(arguments[3]),
                Integer.parseInt(arguments[4]), Double.parseDouble(arguments[5]));
        long ended = System.nanoTime();
        long subscribed = ended;
        PulsarClient receiving = client;
        while (secondsSince(ended) < DRAIN_SECONDS && !load.seen.keySet().containsAll(load.sent)) {
            Thread.sleep(20);
            if (secondsSince(subscribed) >= SUBSCRIBE_AGAIN_SECONDS) {
                subscribed = System.nanoTime();
                load.stopReceiving(receiver);
                try {
                    receiving.close();
                    receiving = connect(arguments[0]);
                    receiver = load.subscribe(receiving, arguments[1]);
                } catch (Exception error) {
                    System.err.println("not subscribed again, another try follows: " + error);
                }
            }
        }
        load.stopReceiving(receiver);
        load.say(true);
        System.exit(0);
    }

    private static long secondsSince(long nanos) {
        return TimeUnit.NANOSECONDS.toSeconds(System.nanoTime() - nanos);
    }

    private static PulsarClient connect(String serviceUrl) throws Exception {
        PulsarClientBuilder builder = PulsarClient.builder().serviceUrl(serviceUrl);
        String token = System.getenv("ANABRANCH_CONTROLLER_TOKEN");
        if (token != null && !token.isEmpty()) {
            builder.authentication(AuthenticationFactory.token(token));
        }
        return builder.build();
    }

    private Thread subscribe(PulsarClient client, String topic) throws Exception {
        final StreamConsumer consumer = (StreamConsumer) client.newStreamConsumer(Schema.bytes()).topic(topic)
                .subscriptionName("load").consumerName("load-0")
                .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST).subscribe();
        consuming = true;
        return start("receive", new Runnable() {
            public void run() {
                receive(consumer);
            }
        });
    }

    private void stopReceiving(Thread receiver) throws Exception {
        consuming = false;
        receiver.join();
    }

    private static Thread start(String name, Runnable work) {
        Thread thread = new Thread(work, name);
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    private void produce(Producer producer, int rate, int keys, final int inFlight, double wave) throws Exception {
        final Semaphore places = new Semaphore(inFlight);
        long started = System.nanoTime();
        long looked = started;
        double due = 1;
        for (long number = 0; producing; number++) {
            while (producing && number >= due) {
                Thread.sleep(1);
                long now = System.nanoTime();
                // What was not sent in time is not made up for.
                due = Math.min(due + (now - looked) / 1e9 * rate * share((now - started) / 1e9, wave), number + rate);
                looked = now;
            }
            places.acquire();
            final Long one = Long.valueOf(number);
            AsyncMessageBuilder message = (AsyncMessageBuilder) producer.async().newMessage();
            message.key("k" + number % keys);
            message.value((run + number).getBytes(StandardCharsets.UTF_8));
            message.send().whenComplete(new BiConsumer() {
                public void accept(Object id, Object error) {
                    if (error == null) {
                        sent.add(one);
                    } else {
                        failed("send: " + error);
                    }
                    places.release();
                }
            });
        }
        places.acquire(inFlight);
    }

    private static double share(double seconds, double wave) {
        // Begins where it rises.
        return wave == 0 ? 1 : Math.max(0, 0.25 - 0.75 * Math.cos(2 * Math.PI * (seconds / wave + 0.2)));
    }

    private void receive(StreamConsumer consumer) {
        while (consuming) {
            try {
                Message message = (Message) consumer.receive(Duration.ofMillis(200));
                if (message != null) {
                    count(message);
                    consumer.acknowledgeCumulative(message.id());
                }
            } catch (Exception error) {
                failed("receive: " + error);
            }
        }
    }

    private void count(Message message) {
        String value = new String((byte[]) message.value(), StandardCharsets.UTF_8);
        if (!value.startsWith(run)) {
            return;
        }
        Long number = Long.valueOf(value.substring(run.length()));
        segments.add(message.topic());
        String place = message.topic() + " " + message.id();
        Object first = seen.putIfAbsent(number, place);
        if (first != null) {
            (first.equals(place) ? redelivered : resent).incrementAndGet();
            return;
        }
        Long before = (Long) lastOfKey.put(message.key().orElse(""), number);
        if (before != null && before.longValue() > number.longValue()) {
            inversions.incrementAndGet();
        }
    }

    private void failed(String what) {
        if (errors.size() < ERRORS_KEPT) {
            errors.add(what);
        }
    }

    private void awaitEndOfInput() {
        try {
            BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            while (in.readLine() != null) {
                continue;
            }
        } catch (java.io.IOException error) {
            failed("input: " + error);
        }
        producing = false;
    }

    private void tell() {
        try {
            while (true) {
                say(false);
                Thread.sleep(250);
            }
        } catch (Exception error) {
            failed("tell: " + error);
        }
    }

    private synchronized void say(boolean finished) throws Exception {
        if (said) {
            return;
        }
        said = finished;
        Set lost = new TreeSet(sent);
        lost.removeAll(seen.keySet());
        Map counts = new TreeMap();
        counts.put("finished", Boolean.valueOf(finished));
        counts.put("acknowledged", Integer.valueOf(sent.size()));
        counts.put("received", Integer.valueOf(seen.size()));
        counts.put("missing", Integer.valueOf(lost.size()));
        counts.put("redelivered", Long.valueOf(redelivered.get()));
        counts.put("resent", Long.valueOf(resent.get()));
        counts.put("inversions", Long.valueOf(inversions.get()));
        counts.put("segments", new TreeSet(segments));
        counts.put("errors", new TreeSet(errors));
        System.out.println(JSON.writeValueAsString(counts));
        System.out.flush();
    }
}
