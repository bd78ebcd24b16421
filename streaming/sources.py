"""Two Kafka sources as one stream of raw rows, each with the bucket that it goes to.

Stage: first of the job (design "Facts that shape the job"). Events and samples are limited apart, so that samples never
delay events. No JSON is read here: the value travels as bytes and is parsed by the one validator inside the operator.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from engine.families import SAMPLE_SOURCES
from engine.kernel.recording import MAX_PIECE_BYTES
from schemas.base import MAX_KEY_BYTES
from schemas.kafka_connection import KafkaConnection
from schemas.messages import MAX_VALUE_BYTES
from streaming.first_start import FirstStart

KAFKA_OPTIONS = {
    # By default each action on a Kafka source waits for a long poll of 500 ms.
    "kafka.fetch.max.wait.ms": "10",
    "kafka.max.partition.fetch.bytes": str(8 * 1024 * 1024),
    # A fetch is bounded as it was sent, compressed; in memory only this bounds it. With each poll Spark asks twice for
    # the offsets of the partition: 500 cost nothing beside 5,000, 250 a sixth of the reading, 100 half of it.
    "kafka.max.poll.records": "500",
    "startingOffsets": "earliest",
    # Records that Kafka has dropped before they were read end the query: never silent loss.
    "failOnDataLoss": "true",
}
EVENT_OPTIONS = {
    **KAFKA_OPTIONS, "kafka.max.poll.records": "256", "kafka.max.partition.fetch.bytes": str(1024 * 1024)
}  # fmt: skip
"""Events may be of 1 MiB each, layouts compress thirtyfold, and those of a fleet come all at once: 64 in a poll would
take a third of the reading."""


def raw_rows(
    spark: SparkSession,
    kafka: KafkaConnection,
    buckets: int,
    max_stats: int,
    max_events: int,
    event_topics: Sequence[str],
    start: FirstStart | None = None,
) -> DataFrame:
    """Raw rows of both sources, each with the bucket of its key; `max_stats` and `max_events` bound a batch each.

    `event_topics`: Kafka topics of events. `start` says where a rebuilt checkpoint begins to read.
    """
    events = _source(spark, kafka, ",".join(event_topics), max_events, start, EVENT_OPTIONS)
    stats = _source(spark, kafka, ",".join(SAMPLE_SOURCES), max_stats, start, KAFKA_OPTIONS)
    return with_bucket(events, buckets).unionByName(with_bucket(stats, buckets))


def batch_time() -> Column:
    """The batch's time, milliseconds: fixed for the batch, and kept in its replays.

    As the element of an array that is transformed, which Spark computes without generating code: the time as it is
    would stand in the code of the whole stage, and the JVM would compile and load that anew for every batch, twice.
    """
    return F.transform(F.array(F.unix_millis(F.current_timestamp())), lambda time: time)[0]


def bucket_of(key: Column, buckets: int) -> Column:
    """The bucket of a Kafka key; a record without a key goes where the empty key goes."""
    return F.pmod(F.xxhash64(F.coalesce(key, F.lit(b""))), F.lit(buckets)).cast("int")


def buckets_of(spark: SparkSession, names: list[str], buckets: int) -> dict[str, int]:
    """The bucket of each topic."""
    if not names:
        return {}
    keys = spark.createDataFrame([(name,) for name in names], "name STRING")
    rows = keys.select("name", bucket_of(F.encode("name", "UTF-8"), buckets).alias("bucket")).collect()
    return {row["name"]: row["bucket"] for row in rows}


def _source(
    spark: SparkSession, kafka: KafkaConnection, topics: str, most: int, start: FirstStart | None,
    options: dict[str, str],
) -> DataFrame:  # fmt: skip
    reader = spark.readStream.format("kafka").options(**kafka.spark()).option("subscribe", topics)
    reader = reader.options(**options).option("maxOffsetsPerTrigger", most)
    if start is not None:
        reader = reader.option("startingOffsets", start.offsets_json(topics))
    # A task for each partition of Kafka with something new would be a round trip to a Python worker for a few events
    # each. As many as there are state partitions keep all cores busy.
    return reader.load().coalesce(int(str(spark.conf.get("spark.sql.shuffle.partitions"))))


def with_bucket(source: DataFrame, buckets: int) -> DataFrame:
    """Kafka records, streaming or not, as the raw rows that the first stage decodes."""
    value = F.col("value")
    is_oversized = F.octet_length(value) > MAX_VALUE_BYTES
    columns = {
        "source": F.col("topic"),
        # A longer one is of no valid message.
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
