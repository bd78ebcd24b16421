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
import java.util.Enumeration;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import java.util.Random;
import java.util.zip.CRC32;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Writes ledgers for tests, as Pulsar writes those of its schemas and cursors (CRC32C, empty password): one JSON request
 * a line, {uri, ledger, count, entries, bytes, seed, quorum, custom, open}; one answer a line, {ledgers}. `ledger` -1: the
 * cluster chooses the id. Contents depend on the seed and the place of the entry only. `open` leaves them open.
 * {uri, read} with an id reads that ledger: {entries, checksum}.
 */
public final class LedgerWriter {
    private static final ObjectMapper JSON = new ObjectMapper();

    private LedgerWriter() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(new FileOutputStream(FileDescriptor.out), true, "UTF-8");
        System.setOut(System.err);
        Map clients = new HashMap();
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = requests.readLine()) != null) {
            JsonNode request = JSON.readTree(line);
            ObjectNode answer = JSON.createObjectNode();
            try {
                String uri = text(request, "uri");
                BookKeeper client = (BookKeeper) clients.get(uri);
                if (client == null) {
                    client = new BookKeeper((ClientConfiguration) new ClientConfiguration().setMetadataServiceUri(uri));
                    clients.put(uri, client);
                }
                if (request.has("read")) {
                    read(client, number(request, "read", -1), answer);
                    answers.println(answer);
                    continue;
                }
                ArrayNode ledgers = answer.putArray("ledgers");
                for (int at = 0; at < (int) number(request, "count", 1); at++) {
                    ledgers.add(write(client, request));
                }
            } catch (Exception error) {
                answer.put("error", error.toString());
            }
            answers.println(answer);
        }
        Runtime.getRuntime().halt(0);
    }

    private static long write(BookKeeper client, JsonNode request) throws Exception {
        long id = number(request, "ledger", -1);
        int quorum = (int) number(request, "quorum", 1);
        Map custom = new HashMap();
        Iterator given = fields(request, "custom");
        while (given.hasNext()) {
            Map.Entry one = (Map.Entry) given.next();
            custom.put(one.getKey(), ((JsonNode) one.getValue()).asText().getBytes(StandardCharsets.UTF_8));
        }
        LedgerHandle ledger = id < 0
                ? client.createLedgerAdv(quorum, quorum, quorum, BookKeeper.DigestType.CRC32C, new byte[0], custom)
                : client.createLedgerAdv(id, quorum, quorum, quorum, BookKeeper.DigestType.CRC32C, new byte[0], custom);
        Random random = new Random(number(request, "seed", 1));
        byte[] content = new byte[(int) number(request, "bytes", 200)];
        for (long entry = 0; entry < (int) number(request, "entries", 3); entry++) {
            random.nextBytes(content);
            ledger.addEntry(entry, (byte[]) content.clone());
        }
        if (number(request, "open", 0) == 0) {
            ledger.close();
        }
        return ledger.getId();
    }

    private static void read(BookKeeper client, long id, ObjectNode answer) throws Exception {
        LedgerHandle ledger = client.openLedgerNoRecovery(id, BookKeeper.DigestType.CRC32C, new byte[0]);
        CRC32 checksum = new CRC32();
        long count = 0;
        if (ledger.getLastAddConfirmed() >= 0) {
            Enumeration entries = ledger.readEntries(0, ledger.getLastAddConfirmed());
            for (; entries.hasMoreElements(); count++) {
                byte[] content = ((LedgerEntry) entries.nextElement()).getEntry();
                checksum.update(content, 0, content.length);
            }
        }
        ledger.close();
        answer.put("entries", count);
        answer.put("checksum", checksum.getValue());
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
