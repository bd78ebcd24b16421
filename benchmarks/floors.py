"""Floors that the job's speed is compared with: the same records read without the job.

Stage: a part of `benchmarks.stream`. A floor is a batch read of records that the job reads too, on the same Spark. The
first reads and shuffles the raw rows by bucket. The second decodes them as the job does, in the job's own first stage,
and shuffles what that leaves; what the job costs beyond it is state, evaluation, tables and checkpoint.
"""

import json
import statistics
import time
from functools import partial

from pyspark.sql import SparkSession

from anabranch.local.offsets import partition_ends
from engine.families import bucket_packer
from engine.kernel.packing import PACKED_DDL
from schemas.kafka.topics import SEGMENT_STATS
from schemas.settings.root import Settings
from streaming.job.sources import KAFKA_OPTIONS, with_bucket

RUNS = 3


def measure_floors(spark: SparkSession, settings: Settings, messages: int) -> dict[str, float]:
    """Return messages per second of each floor: medians of `RUNS` interleaved runs after a warm-up run."""
    floors = {
        "read and shuffle": partial(_read, spark, settings, messages, decode=False),
        "and decode as the job does": partial(_read, spark, settings, messages, decode=True),
    }
    seconds: dict[str, list[float]] = {name: [] for name in floors}
    for _ in range(RUNS + 1):
        for name, run in floors.items():
            began = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - began)
    return {name: messages / statistics.median(several[1:]) for name, several in seconds.items()}


def _read(spark: SparkSession, settings: Settings, messages: int, decode: bool) -> None:
    """About `messages` records, the first of each partition, of each the same share."""
    buckets, there = settings.stream.buckets, partition_ends(settings.kafka_connection(), SEGMENT_STATS)
    share = min(1.0, messages / sum(there.values()))
    ends = {SEGMENT_STATS.name: {str(number): int(end * share) for number, end in there.items()}}
    reader = spark.read.format("kafka").options(**settings.kafka_connection().spark())
    reader = reader.options(**KAFKA_OPTIONS).option("subscribe", SEGMENT_STATS.name)
    rows = with_bucket(reader.option("endingOffsets", json.dumps(ends)).load(), buckets)
    if decode:
        rows = rows.mapInArrow(bucket_packer(buckets), PACKED_DDL)
    rows.repartition(2, "bucket").write.format("noop").mode("overwrite").save()
