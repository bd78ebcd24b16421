"""The job's Prometheus metrics: a closed table of names with labels and a sentence each.

Stage: the vocabulary of `streaming.job.meter`, which fills them. docs/metrics.md is generated from this table (`python
-m streaming.job.metrics > docs/metrics.md`). The five names of PIP-483 "Observability" are exactly as written there;
the two that count holds are defined beside their gates in `decisions.autoscale.gates`.
"""

from typing import Literal, NamedTuple


class JobMetric(NamedTuple):
    """One metric: its name, which includes its unit, its labels, and a sentence for people."""

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    labels: tuple[str, ...]
    sentence: str


BATCH_SECONDS = JobMetric(
    "histogram",
    "anabranch_stream_batch_seconds",
    ("stage",),
    "Time of a micro-batch by stage. `triggerExecution` is the whole; `addBatch`, `queryPlanning`, `latestOffset`, "
    "`getBatch`, `walCommit` and `commitOffsets` are Spark's parts of it; `operator`, within `addBatch`, is reading "
    "Kafka and the stateful operator, until the sink has the output.",
)
WRITE_SECONDS = JobMetric(
    "histogram", "anabranch_stream_write_seconds", ("table",), "Time of a Delta commit, by table."
)
OPERATOR_SECONDS = JobMetric(
    "counter",
    "anabranch_stream_operator_seconds_total",
    (),
    "Time in the stateful operator's Python, summed over buckets.",
)
BATCHES = JobMetric("counter", "anabranch_stream_batches_total", (), "Micro-batches written.")
LAST_BATCH = JobMetric(
    "gauge", "anabranch_stream_last_batch_timestamp_seconds", (), "When the last micro-batch was written; Unix time."
)
LAG = JobMetric(
    "gauge",
    "anabranch_stream_lag_records",
    ("source",),
    "Records in the Kafka topic that the job had not read when its last batch ended.",
)
KAFKA_ANSWERS = JobMetric(
    "gauge",
    "anabranch_stream_kafka_answers",
    (),
    "1 while Kafka answers the job's driver, which asks it every five seconds, else 0.",
)
MESSAGES = JobMetric(
    "counter",
    "anabranch_stream_messages_total",
    ("result",),
    "Kafka records read: `accepted`, `suppressed` (stats in which nothing was significant), `dead_letter`.",
)
SAMPLES = JobMetric(
    "counter",
    "anabranch_stream_samples_total",
    ("result",),
    "Segment samples: `accepted`, `insignificant` (within the band), `stale` (old, repeated, of a sealed segment, or "
    "beyond the limit for segments that no layout names), `refused` (a dead letter of its own).",
)
EVENTS_TAKEN = JobMetric("counter", "anabranch_stream_events_total", ("type",), "Accepted consumer and control events.")
DEAD_LETTERS_MADE = JobMetric(
    "counter",
    "anabranch_stream_dead_letters_total",
    ("reason",),
    "Messages that were not accepted, and single entries of messages in columns.",
)
LAYOUTS_UNKNOWN = JobMetric(
    "counter",
    "anabranch_stream_layouts_unknown_total",
    (),
    "Layouts that were repeated by their digests and are not those that the job knows. A few when layouts change; if "
    "it grows on, layouts do not reach the job. Each comes again in full in every twelfth round.",
)
EVALUATIONS = JobMetric("counter", "anabranch_stream_evaluations_total", (), "Evaluations of a topic.")
DECISIONS_MADE = JobMetric(
    "counter", "anabranch_stream_decisions_total", ("action", "reason", "trigger"), "Decisions taken."
)
HOLDS_BEGUN = JobMetric(
    "counter",
    "anabranch_stream_holds_total",
    ("gate",),
    "Changes of the binding reason for not acting, by the gate that binds from then on (docs/gates.md).",
)
OUTCOMES = JobMetric(
    "counter",
    "anabranch_stream_outcomes_total",
    ("status",),
    "Outcomes of decisions that the executor reported: `applied`, `superseded`, `rejected`, `failed`, `observed`.",
)
TICK_LAG = JobMetric(
    "gauge",
    "anabranch_stream_tick_lag_seconds",
    (),
    "From the instant of the newest tick for every topic until its evaluation was written.",
)
TICK_INTERVAL = JobMetric("gauge", "anabranch_stream_tick_interval_seconds", (), "`stream.tick_seconds`.")
LAST_EVALUATION = JobMetric(
    "gauge",
    "anabranch_stream_last_evaluation_timestamp_seconds",
    (),
    "When the last evaluation of every topic was written; Unix time, the job's start before the first.",
)
MISSED_TICKS = JobMetric(
    "gauge", "anabranch_stream_missed_ticks", (), "Whole tick intervals since the last evaluation of every topic."
)
OUTAGE = JobMetric(
    "gauge",
    "anabranch_stream_evaluation_outage",
    (),
    "1 while there has been no evaluation of every topic for three ticks, else 0.",
)
STATE_BYTES = JobMetric(
    "gauge",
    "anabranch_stream_state_bytes",
    ("kind",),
    "Size of the operator's state after the last batch: `memory` of the state stores, `disk` of their RocksDB files.",
)
LAKE_FILES = JobMetric(
    "gauge",
    "anabranch_lake_files",
    ("table",),
    "Files of a table of the lake, as of the last look at it (`lake.compact_minutes`); each makes a commit longer.",
)
ACTIVE_SEGMENTS = JobMetric(
    "gauge",
    "pulsar_scalable_topic_active_segments",
    ("topic",),
    "Active segments of the topic, by the newest layout that was read since the job's start.",
)
CONSUMERS_WANTED = JobMetric(
    "gauge",
    "anabranch_topic_consumers_wanted",
    ("topic",),
    "Consumers that each STREAM and CHECKPOINT subscription of the topic should have: one per active segment, and one "
    "fewer while `merge-consumers` holds the topic, so that it can merge.",
)
AUTO_SPLITS = JobMetric(
    "counter",
    "pulsar_scalable_topic_auto_splits_total",
    ("topic",),
    "Splits that were decided since the job's start and reported as applied.",
)
AUTO_MERGES = JobMetric(
    "counter",
    "pulsar_scalable_topic_auto_merges_total",
    ("topic",),
    "Merges that were decided since the job's start and reported as applied.",
)
SPLIT_SUPPRESSED = JobMetric(
    "counter",
    "pulsar_scalable_topic_split_suppressed_max_segments_total",
    ("topic",),
    "How often the topic began to be held by `max-segments`: it wants to split and has all the segments it may have.",
)
MERGE_SUPPRESSED = JobMetric(
    "counter",
    "pulsar_scalable_topic_merge_suppressed_max_depth_total",
    ("topic",),
    "How often the topic began to be held by `max-dag-depth`: it wants to merge and its lineages have merged enough.",
)

METRICS = tuple(constant for constant in list(globals().values()) if isinstance(constant, JobMetric))
"""All of the above, in their order."""


def metrics_page() -> str:
    """Return the text of docs/metrics.md: its prose, and a row for each of `METRICS`."""
    rows = [
        f"| `{metric.name}` | {metric.kind} | {', '.join(f'`{label}`' for label in metric.labels) or '-'} "
        f"| {metric.sentence} |"
        for metric in METRICS
    ]
    return _PAGE.format(rows="\n".join(rows))


_PAGE = """# Metrics

Every long-running process answers on one port, `metrics_port` of its section: `[stream]`, `[executor]`, `[collect]`,
`[controller]`, `[web]`, `[alerts]`, `[bookies]`; 0, the default, is off. A port that
is taken ends the start with one line that says so. `[metrics] host` is loopback until another is set: whoever reaches
the port reads the names of topics.

| path | answers |
| --- | --- |
| `/metrics` | metrics for Prometheus |
| `/livez` | 200 while the loops of the process make progress, else 503: restart it |
| `/readyz` | 200 while it does its work or stands by, else 503 with a reason: it waits for something, such as Kafka |

Each process exports its own `process_*` figures, `anabranch_build_info{{part,version}}`, `anabranch_live{{part}}` and
`anabranch_ready{{part}}`. Below: the metrics of the Spark job. Those of others: docs/operations.md, docs/pulsar.md,
docs/alerts.md.

- Counters begin at zero with every start of the job, as Prometheus expects: use `rate()` and `increase()`. What has
  ever happened is in the lake (docs/sql.md).
- A micro-batch is counted after its last commit. The first batch after a crash is counted even if the run before had
  written it.
- The five `pulsar_scalable_topic_*` names are those of PIP-483 "Observability", one series a topic. A topic has a
  series from the first layout, outcome or hold that is read of it, and none any more once it is deleted. Applied splits
  and merges are counted by the outcome that the executor reports. Ten thousand topics make a scrape of 2.5 MB in 0.7 s:
  scrape such a job once a minute rather than every few seconds.
- KEDA scales consumers with a trigger of type `prometheus`: `query: anabranch_topic_consumers_wanted{{topic="topic://acme/shop/orders"}}`,
  `threshold: "1"` and `ignoreNullValues: "false"`: a job that has just started does not know all topics.
- Rules for alerts: `conf/prometheus-alerts.yml`. The watchdog behind `anabranch_stream_evaluation_outage` also logs:
  once when the evaluation of every topic has stopped for three ticks, with what to do, and once
  when it goes on.

| metric | type | labels | meaning |
| --- | --- | --- | --- |
{rows}

## Logs and the Spark UI

`[log] format = "json"`, or `--log-format json`, makes every line of ours one JSON object: `ts` (UTC), `level`, `part`,
`logger`, `message`, with `batch_id` on lines about one micro-batch and `error` where there is a traceback. Lines of
the JVM (`conf/log4j2-json.properties`) have the same fields, with `jvm` as `part`; the last line of a part that fails
stays text: it is for people.

The Spark UI is off by default (`spark.ui.enabled` in `conf/spark.conf`). The query is called `anabranch`; the
description of a job says its batch and what it does: `read Kafka, evaluate`, or `write segment_load`.

This page is generated: `python -m streaming.job.metrics > docs/metrics.md`.
"""

if __name__ == "__main__":
    print(metrics_page(), end="")
