package anabranch.bookies;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.charset.Charset;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.Arrays;
import java.util.Enumeration;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.AsyncCallback;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LedgerMetadata;

/**
 * A ledger of one cluster and its copy in another: same ledger id, entry ids, quorums, digest type, password and custom
 * metadata. Neither is ever opened for recovery, which would fence the id of the copy at its bookies.
 *
 * What is there already under the id is half a copy when it is not whole, says the same of itself as the source, and what
 * can be read of it is a beginning of the source. It is open if who made it was killed, and closed, shorter, if writing
 * to it failed. It cannot be resumed, so it is deleted and copied again at once, before the bookies have collected it and
 * remember its id as fenced; after a fault it stays for the same reason. All else is compared and never changed.
 */
final class LedgerCopy {
    private static final int WINDOW = 64;
    private static final int READ_ENTRIES = 64;
    private static final long READ_BYTES = 1 << 20;

    private final Sidecar.Cluster from;
    private final Sidecar.Cluster to;
    private final long ledger;
    private final long until;

    /** After the instant until (ms since 1970) nothing is deleted any more: who asked may be forgotten by then. */
    LedgerCopy(Sidecar.Cluster from, Sidecar.Cluster to, long ledger, long until) {
        this.from = from;
        this.to = to;
        this.ledger = ledger;
        this.until = until;
    }

    /**
     * Deletes before the instant until (ms since 1970), or not at all. BookKeeper's client goes on trying when its
     * ZooKeeper is away, and a request that was given to it cannot be taken back: so the program ends when there is no
     * answer in time. After a freeze this comes first, as the session of the request has ended by then.
     */
    static void delete(Sidecar.Cluster cluster, long ledger, long until) throws Exception {
        long left = until - System.currentTimeMillis();
        if (left <= 0) {
            throw new Sidecar.Refused("TooLate", "ledger " + ledger + " is not deleted: the deadline has passed");
        }
        final CountDownLatch ended = new CountDownLatch(1);
        final AtomicInteger code = new AtomicInteger(BKException.Code.OK);
        cluster.client.asyncDeleteLedger(ledger, new AsyncCallback.DeleteCallback() {
            public void deleteComplete(int result, Object context) {
                code.set(result);
                ended.countDown();
            }
        }, null);
        if (!ended.await(left, TimeUnit.MILLISECONDS)) {
            System.err.println("ledger " + ledger + " was not deleted before the deadline: the program ends");
            Runtime.getRuntime().halt(1);
        }
        if (code.get() != BKException.Code.OK) {
            throw BKException.create(code.get());
        }
    }

    /** Takes what has been read of a ledger. */
    private interface Sink {
        void take(long entry, byte[] content) throws Exception;
    }

    /**
     * State, last entry, length in bytes, quorums, when it was made (ms) and custom metadata of a ledger. Of one whose
     * bookies are away, why it is unreadable, with what its metadata say: when it was made tells where it belongs.
     */
    static void describe(Sidecar.Cluster cluster, long ledger, boolean recover, ObjectNode answer) throws Exception {
        LedgerHandle handle;
        try {
            handle = recover ? cluster.admin.openLedger(ledger) : cluster.admin.openLedgerNoRecovery(ledger);
        } catch (BKException fault) {
            if (recover || fault instanceof BKException.BKNoSuchLedgerExistsOnMetadataServerException) {
                throw fault;
            }
            LedgerMetadata metadata = (LedgerMetadata) cluster.client.getLedgerMetadata(ledger).get();
            answer.put("unreadable", Sidecar.nameOf(fault) + ": " + fault.getMessage());
            describe(metadata, metadata.isClosed() ? metadata.getLastEntryId() : -1, metadata.getLength(), answer);
            return;
        }
        try {
            describe(handle.getLedgerMetadata(), handle.getLastAddConfirmed(), handle.getLength(), answer);
        } finally {
            handle.close();
        }
    }

    private static void describe(LedgerMetadata metadata, long last, long length, ObjectNode answer) {
        answer.put("closed", metadata.isClosed()).put("last", last);
        answer.put("length", length).put("made", metadata.getCtime());
        answer.putArray("quorums").add(metadata.getEnsembleSize()).add(metadata.getWriteQuorumSize())
                .add(metadata.getAckQuorumSize());
        ObjectNode custom = answer.putObject("custom");
        Iterator all = readable(metadata, StandardCharsets.UTF_8).entrySet().iterator();
        while (all.hasNext()) {
            Map.Entry one = (Map.Entry) all.next();
            custom.put((String) one.getKey(), (String) one.getValue());
        }
    }

    /** Answers how: copied, again (a half copy was there), or same (a whole one was). */
    void copy(ObjectNode answer) throws Exception {
        LedgerHandle source = from.admin.openLedgerNoRecovery(ledger);
        try {
            if (!source.getLedgerMetadata().isClosed()) {
                throw new Sidecar.Refused("SourceOpen", "ledger " + ledger + " is still open in the source: seal it, or "
                        + "wait until its writer has closed it");
            }
            String how = "copied";
            LedgerHandle target = create(source);
            if (target == null && isHalf(source)) {
                delete(to, ledger, until);
                how = "again";
                target = create(source);
            }
            if (target == null) {
                verify(answer);
                if (!answer.get("same").asBoolean()) {
                    throw new Sidecar.Refused("Conflict", "the target has another ledger " + ledger + ": "
                            + answer.get("differences"));
                }
                answer.put("how", "same");
                return;
            }
            fill(source, target);
            target.close();
            answer.put("how", how).put("last", target.getLastAddConfirmed()).put("length", target.getLength());
        } finally {
            source.close();
        }
    }

    /** Answers whether both are closed and equal, and the names of all differences. */
    void verify(ObjectNode answer) throws Exception {
        LedgerHandle source = from.admin.openLedgerNoRecovery(ledger);
        try {
            LedgerHandle target = to.admin.openLedgerNoRecovery(ledger);
            try {
                ArrayNode differences = answer.putArray("differences");
                compare(source, target, differences);
                answer.put("last", target.getLastAddConfirmed()).put("length", target.getLength());
                if (differences.isEmpty()) {
                    String digest = digest(source);
                    answer.put("sha256", digest);
                    if (!digest.equals(digest(target))) {
                        differences.add("contents");
                    }
                }
                answer.put("same", differences.isEmpty());
            } finally {
                target.close();
            }
        } finally {
            source.close();
        }
    }

    private LedgerHandle create(LedgerHandle source) throws Exception {
        LedgerMetadata like = source.getLedgerMetadata();
        try {
            return to.client.createLedgerAdv(ledger, like.getEnsembleSize(), like.getWriteQuorumSize(),
                    like.getAckQuorumSize(), BookKeeper.DigestType.fromApiDigestType(like.getDigestType()),
                    like.getPassword(), new HashMap(like.getCustomMetadata()));
        } catch (BKException.BKLedgerExistException there) {
            return null;
        }
    }

    private void fill(LedgerHandle source, final LedgerHandle target) throws Exception {
        final Semaphore window = new Semaphore(WINDOW);
        final AtomicInteger fault = new AtomicInteger(BKException.Code.OK);
        final AsyncCallback.AddCallback added = new AsyncCallback.AddCallback() {
            public void addComplete(int code, LedgerHandle handle, long entry, Object context) {
                if (code != BKException.Code.OK) {
                    fault.compareAndSet(BKException.Code.OK, code);
                }
                window.release();
            }
        };
        read(source, source.getLastAddConfirmed(), new Sink() {
            public void take(long entry, byte[] content) throws Exception {
                window.acquire();
                if (fault.get() != BKException.Code.OK) {
                    throw BKException.create(fault.get());
                }
                target.asyncAddEntry(entry, content, 0, content.length, added, null);
            }
        });
        window.acquire(WINDOW);
        if (fault.get() != BKException.Code.OK) {
            throw BKException.create(fault.get());
        }
    }

    /** Whether the target's ledger is half a copy, as is said above. */
    private boolean isHalf(LedgerHandle source) throws Exception {
        LedgerHandle target = to.admin.openLedgerNoRecovery(ledger);
        try {
            LedgerMetadata metadata = target.getLedgerMetadata();
            long last = target.getLastAddConfirmed();
            boolean shorter = last < source.getLastAddConfirmed();
            return (shorter || !metadata.isClosed() && last == source.getLastAddConfirmed())
                    && alike(source.getLedgerMetadata(), metadata) && digest(source, last).equals(digest(target, last));
        } finally {
            target.close();
        }
    }

    private static void compare(LedgerHandle source, LedgerHandle target, ArrayNode differences) {
        LedgerMetadata left = source.getLedgerMetadata();
        LedgerMetadata right = target.getLedgerMetadata();
        if (!left.isClosed()) {
            differences.add("source open");
        }
        if (!right.isClosed()) {
            differences.add("target open");
        }
        if (source.getLastAddConfirmed() != target.getLastAddConfirmed()) {
            differences.add("last entry " + source.getLastAddConfirmed() + ", not " + target.getLastAddConfirmed());
        }
        if (source.getLength() != target.getLength()) {
            differences.add("length " + source.getLength() + ", not " + target.getLength());
        }
        if (!alike(left, right)) {
            differences.add("quorums, digest type, password or custom metadata");
        }
    }

    private static boolean alike(LedgerMetadata left, LedgerMetadata right) {
        return left.getEnsembleSize() == right.getEnsembleSize()
                && left.getWriteQuorumSize() == right.getWriteQuorumSize()
                && left.getAckQuorumSize() == right.getAckQuorumSize()
                && left.getDigestType() == right.getDigestType()
                && Arrays.equals(left.getPassword(), right.getPassword()) && exact(left).equals(exact(right));
    }

    /** Custom metadata as text of a byte a character: arrays of bytes do not equal each other. */
    private static Map exact(LedgerMetadata metadata) {
        return readable(metadata, StandardCharsets.ISO_8859_1);
    }

    private static Map readable(LedgerMetadata metadata, Charset charset) {
        Map texts = new TreeMap();
        Iterator all = metadata.getCustomMetadata().entrySet().iterator();
        while (all.hasNext()) {
            Map.Entry one = (Map.Entry) all.next();
            texts.put(one.getKey(), new String((byte[]) one.getValue(), charset));
        }
        return texts;
    }

    private static String digest(LedgerHandle handle) throws Exception {
        return digest(handle, handle.getLastAddConfirmed());
    }

    /** SHA-256 over id, length and content of every entry up to `last`, in hex. */
    private static String digest(LedgerHandle handle, long last) throws Exception {
        final MessageDigest digest = MessageDigest.getInstance("SHA-256");
        read(handle, last, new Sink() {
            public void take(long entry, byte[] content) {
                digest.update((entry + ":" + content.length + "\n").getBytes(StandardCharsets.US_ASCII));
                digest.update(content);
            }
        });
        StringBuilder hex = new StringBuilder();
        byte[] bytes = digest.digest();
        for (int at = 0; at < bytes.length; at++) {
            hex.append(Character.forDigit((bytes[at] >> 4) & 15, 16)).append(Character.forDigit(bytes[at] & 15, 16));
        }
        return hex.toString();
    }

    /** A few entries at a time, about a mebibyte. */
    private static void read(LedgerHandle handle, long last, Sink sink) throws Exception {
        long each = Math.max(1, handle.getLength() / (handle.getLastAddConfirmed() + 2));
        long batch = Math.max(1, Math.min(READ_ENTRIES, READ_BYTES / each));
        for (long first = 0; first <= last; first += batch) {
            Enumeration entries = handle.readEntries(first, Math.min(last, first + batch - 1));
            while (entries.hasMoreElements()) {
                LedgerEntry entry = (LedgerEntry) entries.nextElement();
                sink.take(entry.getEntryId(), entry.getEntry());
            }
        }
    }
}
