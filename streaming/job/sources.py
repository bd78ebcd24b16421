"""Two Kafka sources as one stream of raw rows, each with its bucket.

Stage: first of the job (design "Facts that shape the job"). Events and samples are limited separately, so that
samples never delay events. No JSON is read here: values travel as bytes to `engine.kernel.packing`, which decodes
samples before the shuffle; most events are parsed after it, in the operator.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from engine.families import SAMPLE_SOURCES
from engine.kernel.recording import MAX_PIECE_BYTES
from schemas.base import MAX_KEY_BYTES
from schemas.kafka.connection import KafkaConnection
from schemas.kafka.messages import MAX_VALUE_BYTES
from streaming.checkpoint.first_start import FirstStart

KAFKA_OPTIONS = {
    # By default each action on a Kafka source waits for a long poll of 500 ms.
    "kafka.fetch.max.wait.ms": "10",
    "kafka.max.partition.fetch.bytes": str(8 * 1024 * 1024),
    # A fetch is limited by its compressed size; only this limits it in memory. With each poll Spark asks twice for
    # the partition's offsets: compared with 5,000, polls of 500 cost nothing, 250 a sixth of the reading time, 100
    # half of it.
    "kafka.max.poll.records": "500",
    "startingOffsets": "earliest",
    # If Kafka drops records before they are read, the query ends: no silent loss.
    "failOnDataLoss": "true",
}
EVENT_OPTIONS = {**KAFKA_OPTIONS, "kafka.max.poll.records": "256", "kafka.max.partition.fetch.bytes": str(1024 * 1024)}
"""Options for events: up to 1 MiB each, and a fleet's layouts come all at once.

Layouts compress thirtyfold, so a fetch holds many. Polls of 64 would take a third of the reading time.
"""


def raw_rows(
    spark: SparkSession,
    kafka: KafkaConnection,
    buckets: int,
    max_stats: int,
    max_events: int,
    event_topics: Sequence[str],
    start: FirstStart | None = None,
) -> DataFrame:
    """Return raw rows of both sources, each with the bucket of its key.

    `max_stats` and `max_events` limit each batch. `event_topics`: Kafka topics of events. `start`: offsets for a
    rebuilt checkpoint.
    """
    events = _source(spark, kafka, ",".join(event_topics), max_events, start, EVENT_OPTIONS)
    stats = _source(spark, kafka, ",".join(SAMPLE_SOURCES), max_stats, start, KAFKA_OPTIONS)
    return with_bucket(events, buckets).unionByName(with_bucket(stats, buckets))


def batch_time() -> Column:
    """Return the batch's time, milliseconds, which is the same in its replays.

    Written as an element of a transformed array, which Spark evaluates without generating code: as a literal, the
    time would be part of the stage's code, which the JVM would compile and load anew, twice per batch.
    """
    return F.transform(F.array(F.unix_millis(F.current_timestamp())), lambda time: time)[0]


def bucket_of(key: Column, buckets: int) -> Column:
    """Return the bucket of a Kafka key; a missing key counts as the empty one."""
    return F.pmod(F.xxhash64(F.coalesce(key, F.lit(b""))), F.lit(buckets)).cast("int")


def buckets_of(spark: SparkSession, names: list[str], buckets: int) -> dict[str, int]:
    """Return the bucket of each topic."""
    if not names:
        return {}
    keys = spark.createDataFrame([(name,) for name in names], "name STRING")
    rows = keys.select("name", bucket_of(F.encode("name", "UTF-8"), buckets).alias("bucket")).collect()
    return {row["name"]: row["bucket"] for row in rows}


def _source(
    spark: SparkSession,
    kafka: KafkaConnection,
    topics: str,
    most: int,
    start: FirstStart | None,
    options: dict[str, str],
) -> DataFrame:
    reader = spark.readStream.format("kafka").options(**kafka.spark()).option("subscribe", topics)
    reader = reader.options(**options).option("maxOffsetsPerTrigger", most)
    if start is not None:
        reader = reader.option("startingOffsets", start.offsets_json(topics))
    # One task per Kafka partition with new records would mean a round trip to a Python worker for a few events each.
    # As many tasks as state partitions keep all cores busy.
    return reader.load().coalesce(int(str(spark.conf.get("spark.sql.shuffle.partitions"))))


def with_bucket(source: DataFrame, buckets: int) -> DataFrame:
    """Return Kafka records, streaming or not, as the raw rows that the first stage decodes."""
    value = F.col("value")
    is_oversized = F.octet_length(value) > MAX_VALUE_BYTES
    columns = {
        "source": F.col("topic"),
        # A longer key belongs to no valid message.
        "key": F.substring(F.col("key"), 1, MAX_KEY_BYTES + 1),
        "value": F.when(is_oversized, F.substring(value, 1, MAX_PIECE_BYTES)).otherwise(value),
        "size": F.coalesce(F.octet_length(value).cast("long"), F.lit(-1).cast("long")),
        "sha256": F.when(is_oversized, F.sha2(value, 256)),
        "partition": F.col("partition"),
        "offset": F.col("offset"),
        "timestamp": F.unix_millis(F.col("timestamp")),
        "now": batch_time(),
        "bucket": bucket_of(F.col("key"), buckets),
    }
    return source.select([column.alias(name) for name, column in columns.items()])
