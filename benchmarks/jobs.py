"""A broker and the job on it, as the benchmarks need them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from anabranch.local.broker import EmbeddedBroker, create_topics
from anabranch.local.setup import ensure_jars
from lake.tables import open_table
from schemas.settings.root import Settings, load_settings
from schemas.tables.rows import BATCHES


@contextmanager
def on_a_broker(work: Path, buckets: int, most: int) -> Iterator[Settings]:
    """Start a broker with the three topics in `work`; yield the job's settings. `most`: messages a batch."""
    settings = bench_settings(work, buckets, most)
    broker = EmbeddedBroker(work / "kafka", ensure_jars(settings, print).kafka, heap="512m")
    broker.start()
    try:
        create_topics(broker.connection)
        kafka = settings.kafka.model_copy(update={"bootstrap": broker.bootstrap})
        yield settings.model_copy(update={"kafka": kafka})
    finally:
        broker.stop()


def bench_settings(work: Path, buckets: int, most: int) -> Settings:
    """The job's settings for a benchmark in the folder `work`; whoever wants ticks writes them."""
    file, policy = work / "bench.toml", work / "policy.toml"
    # Samples lie in Kafka for minutes before they are read: they are to be decided on all the same.
    policy.write_text("maxLoadAgeSeconds = 86400\n")
    file.write_text(
        f'[policy]\ncluster = "{policy}"\n'
        f'[lake]\npath = "{work}/lake"\n[stream]\ncheckpoint = "{work}/checkpoint"\nbuckets = {buckets}\n'
        f"tick_seconds = 86400\nmax_stats_per_batch = {most}\n"
        f'max_events_per_batch = 50000\n[local]\nfolder = "{work}"\n'
    )
    return load_settings([file], environment={})


def batches_of(settings: Settings) -> list[dict[str, Any]]:
    """The rows of `batches`, in order."""
    table = open_table(settings.lake_path, BATCHES)
    rows = [] if table is None else table.to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: row["batch_id"])


def seconds_between(start: datetime, end: datetime) -> float:
    """Seconds from one instant to another."""
    return (end - start).total_seconds()
