package anabranch.bookies;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Semaphore;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Access to the ledgers of several BookKeeper clusters for another process: one JSON request a line on standard input,
 * one answer a line on standard output, {"id":…,"ok":true,…} or {"id":…,"ok":false,"error":NAME,"message":…}. Answers
 * come in any order. CONCURRENCY requests at a time (the only argument); more are not read before one has ended. When
 * standard input ends, it ends at once: who asked is gone, and another may be asking already.
 *
 * connect {cluster, uri, properties}: properties are those of BookKeeper's client, such as credentials.
 * list {cluster, after, limit}: ids in ascending order.
 * open {cluster, ledger}: without recovery, which changes nothing. seal {cluster, ledger}: with recovery, which closes
 * the ledger and fences whoever writes it.
 * copy {from, to, ledger, until}, verify {from, to, ledger}: see LedgerCopy. delete {cluster, ledger, until}.
 */
public final class Sidecar {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int LIMIT = 100000;

    private final Map clusters = new ConcurrentHashMap();
    private final PrintStream answers;

    private Sidecar(PrintStream answers) {
        this.answers = answers;
    }

    /** The clients of a cluster. */
    static final class Cluster {
        final BookKeeper client;
        final BookKeeperAdmin admin;
        /** A walk over all ids that has not ended, and the id that it has come to. */
        private Iterator walk;
        private long walked;

        Cluster(BookKeeper client) {
            this.client = client;
            this.admin = new BookKeeperAdmin(client);
        }
    }

    /** What BookKeeper has no name for. */
    static final class Refused extends Exception {
        final String name;

        Refused(String name, String message) {
            super(message);
            this.name = name;
        }
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(new FileOutputStream(FileDescriptor.out), true, "UTF-8");
        // What BookKeeper writes to standard output is log.
        System.setOut(System.err);
        new Sidecar(answers).serve(Integer.parseInt(arguments[0]));
        Runtime.getRuntime().halt(0);
    }

    private void serve(int concurrency) throws Exception {
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        ExecutorService threads = Executors.newFixedThreadPool(concurrency);
        final Semaphore places = new Semaphore(concurrency);
        String line;
        while ((line = requests.readLine()) != null) {
            final JsonNode request = JSON.readTree(line);
            places.acquire();
            threads.execute(new Runnable() {
                public void run() {
                    try {
                        answer(request);
                    } finally {
                        places.release();
                    }
                }
            });
        }
    }

    private void answer(JsonNode request) {
        ObjectNode answer = JSON.createObjectNode();
        answer.set("id", request.get("id"));
        try {
            perform(request, answer);
            answer.put("ok", true);
        } catch (Throwable thrown) {
            Throwable why = thrown instanceof ExecutionException && thrown.getCause() != null ? thrown.getCause() : thrown;
            answer.put("ok", false).put("error", nameOf(why)).put("message", String.valueOf(why.getMessage()));
        }
        synchronized (answers) {
            answers.println(answer);
        }
    }

    /** NoSuchLedgerExists, LedgerFenced, NotEnoughBookies …: BookKeeper's name without its prefix and suffix. */
    static String nameOf(Throwable why) {
        if (why instanceof Refused) {
            return ((Refused) why).name;
        }
        String name = why.getClass().getSimpleName();
        if (!(why instanceof BKException)) {
            return name;
        }
        name = name.startsWith("BK") ? name.substring(2) : name;
        return name.endsWith("Exception") ? name.substring(0, name.length() - "Exception".length()) : name;
    }

    private void perform(JsonNode request, ObjectNode answer) throws Exception {
        String what = text(request, "op");
        long ledger = number(request, "ledger", -1);
        long until = number(request, "until", 0);
        if (what.equals("connect")) {
            connect(request);
        } else if (what.equals("list")) {
            list(cluster(request, "cluster"), number(request, "after", -1), (int) number(request, "limit", LIMIT), answer);
        } else if (what.equals("open")) {
            LedgerCopy.describe(cluster(request, "cluster"), ledger, false, answer);
        } else if (what.equals("seal")) {
            LedgerCopy.describe(cluster(request, "cluster"), ledger, true, answer);
        } else if (what.equals("copy")) {
            new LedgerCopy(cluster(request, "from"), cluster(request, "to"), ledger, until).copy(answer);
        } else if (what.equals("verify")) {
            new LedgerCopy(cluster(request, "from"), cluster(request, "to"), ledger, until).verify(answer);
        } else if (what.equals("delete")) {
            LedgerCopy.delete(cluster(request, "cluster"), ledger, until);
        } else {
            throw new Refused("UnknownRequest", what);
        }
    }

    private void connect(JsonNode request) throws Exception {
        String name = text(request, "cluster");
        ClientConfiguration settings = new ClientConfiguration();
        settings.setAddEntryTimeout(10).setReadEntryTimeout(10).setNumWorkerThreads(2).setZkTimeout(10000);
        Iterator given = fields(request, "properties");
        while (given.hasNext()) {
            Map.Entry one = (Map.Entry) given.next();
            settings.setProperty((String) one.getKey(), ((JsonNode) one.getValue()).asText());
        }
        settings.setMetadataServiceUri(text(request, "uri"));
        Cluster before = (Cluster) clusters.put(name, new Cluster(new BookKeeper(settings)));
        if (before != null) {
            before.client.close();
        }
    }

    private Cluster cluster(JsonNode request, String role) throws Refused {
        Cluster found = (Cluster) clusters.get(text(request, role));
        if (found == null) {
            throw new Refused("NotConnected", text(request, role));
        }
        return found;
    }

    /** The next page goes on where the last one ended; any other begins a walk of its own. */
    private static void list(Cluster cluster, long after, int limit, ObjectNode answer) throws Exception {
        ArrayNode ledgers = answer.putArray("ledgers");
        synchronized (cluster) {
            if (cluster.walk == null || after < 0 || cluster.walked != after) {
                cluster.walk = cluster.admin.listLedgers().iterator();
            }
            Iterator walk = cluster.walk;
            cluster.walk = null;
            while (ledgers.size() < limit && walk.hasNext()) {
                long one = ((Long) walk.next()).longValue();
                if (one > after) {
                    ledgers.add(one);
                    cluster.walked = one;
                }
            }
            // After a fault, and at the end, there is none to go on with.
            cluster.walk = walk.hasNext() ? walk : null;
        }
    }

    private static String text(JsonNode request, String name) {
        JsonNode found = request.get(name);
        return found == null ? "" : found.asText();
    }

    private static long number(JsonNode request, String name, long otherwise) {
        JsonNode found = request.get(name);
        return found == null ? otherwise : found.asLong();
    }

    private static Iterator fields(JsonNode request, String name) {
        JsonNode found = request.get(name);
        return found == null ? JSON.createObjectNode().fields() : found.fields();
    }
}
