package org.apache.pulsar.broker.service.scalable;

import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import org.apache.pulsar.broker.resources.ScalableTopicMetadata;
import org.apache.pulsar.common.scalable.SegmentLoadStats;

/**
 * Pulsar's own auto-scale decision on our snapshots: one JSON object a line in, one a line out. The policy of a
 * snapshot names every field. In the package of the evaluator, so that nothing of it needs to be public.
 */
public final class Evaluator {
    private static final ObjectMapper JSON =
            new ObjectMapper().configure(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES, false);
    /** What Pulsar passes for an action that never was. */
    private static final long NEVER = Long.MIN_VALUE;

    private Evaluator() {
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(answer(line));
            if (!in.ready()) {
                out.flush();
            }
        }
        out.flush();
    }

    private static String answer(String line) throws Exception {
        JsonNode snapshot = JSON.readTree(line);
        AutoScaleDecision decision;
        try {
            decision = decide(snapshot);
        } catch (IllegalArgumentException error) {
            return "{\"error\":" + JSON.writeValueAsString(error.toString()) + "}";
        }
        if (decision instanceof AutoScaleDecision.Split) {
            AutoScaleDecision.Split split = (AutoScaleDecision.Split) decision;
            return "{\"action\":\"split\",\"segment\":" + split.segmentId() + ",\"reason\":\"" + split.reason() + "\"}";
        }
        if (decision instanceof AutoScaleDecision.Merge) {
            AutoScaleDecision.Merge merge = (AutoScaleDecision.Merge) decision;
            return "{\"action\":\"merge\",\"segments\":[" + merge.segmentId1() + "," + merge.segmentId2()
                    + "],\"reason\":\"" + merge.reason() + "\"}";
        }
        return "{\"action\":\"none\"}";
    }

    private static AutoScaleDecision decide(JsonNode snapshot) throws Exception {
        ScalableTopicMetadata metadata =
                (ScalableTopicMetadata) JSON.treeToValue(snapshot.get("layout"), ScalableTopicMetadata.class);
        return AutoScalePolicyEvaluator.decide(
                SegmentLayout.fromMetadata(metadata), loads(snapshot.get("loads")), sessions(snapshot.get("consumers")),
                config(snapshot.get("policy")).validated(), snapshot.get("now").asLong(), instant(snapshot.get("lastSplitAt")),
                instant(snapshot.get("lastMergeAt")));
    }

    private static Map<Long, SegmentLoadSample> loads(JsonNode records) {
        Map<Long, SegmentLoadSample> found = new HashMap<Long, SegmentLoadSample>();
        for (Iterator<String> ids = records.fieldNames(); ids.hasNext();) {
            String id = (String) ids.next();
            JsonNode load = records.get(id);
            SegmentLoadStats stats = new SegmentLoadStats(rate(load, "msgRateIn"), rate(load, "bytesRateIn"),
                    rate(load, "msgRateOut"), rate(load, "bytesRateOut"));
            found.put(Long.valueOf(id), new SegmentLoadSample(stats, load.get("modifiedAt").asLong()));
        }
        return found;
    }

    /** Sessions of each subscription: of a QUEUE there are none. */
    private static Map<String, Integer> sessions(JsonNode subscriptions) {
        Map<String, Integer> found = new HashMap<String, Integer>();
        for (Iterator<String> names = subscriptions.fieldNames(); names.hasNext();) {
            String name = (String) names.next();
            JsonNode one = subscriptions.get(name);
            found.put(name, Integer.valueOf("QUEUE".equals(one.get("type").asText()) ? 0 : one.get("count").asInt()));
        }
        return found;
    }

    private static AutoScaleConfig config(JsonNode policy) {
        return new AutoScaleConfig(
                policy.get("enabled").asBoolean(), policy.get("maxSegments").asInt(), policy.get("minSegments").asInt(),
                policy.get("maxDagDepth").asInt(), seconds(policy, "splitCooldownSeconds"),
                seconds(policy, "mergeCooldownSeconds"), seconds(policy, "mergeWindowSeconds"),
                rate(policy, "splitMsgRateInThreshold"), rate(policy, "splitBytesRateInThreshold"),
                rate(policy, "splitMsgRateOutThreshold"), rate(policy, "splitBytesRateOutThreshold"),
                rate(policy, "mergeMsgRateInThreshold"), rate(policy, "mergeBytesRateInThreshold"),
                rate(policy, "mergeMsgRateOutThreshold"), rate(policy, "mergeBytesRateOutThreshold"));
    }

    private static Duration seconds(JsonNode policy, String name) {
        return Duration.ofSeconds(policy.get(name).asLong());
    }

    private static double rate(JsonNode from, String name) {
        return from.get(name).asDouble();
    }

    private static long instant(JsonNode at) {
        return at == null || at.isNull() ? NEVER : at.asLong();
    }
}
