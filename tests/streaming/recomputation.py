"""What the lake of a job must contain, computed again: Kafka's records, cut into Spark's batches, through one engine.

Independent of what the job did in between: of kills, replays, buckets, workers and Delta. Only which records made a
batch, and its time, are taken from the checkpoint's log of offsets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pydantic_core
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from engine.families import bucket_engine
from engine.kernel.bucket import BucketEngine
from engine.kernel.packed import Packed
from engine.kernel.records import RawRecord
from schemas.kafka.topics import KAFKA_TOPICS
from schemas.settings.root import Settings
from schemas.snapshot import ENGINE_VERSION
from schemas.tables.rows import DEAD_LETTERS, DECISIONS, EVENTS, HOLDS, SEGMENT_LOAD
from streaming.job.policy import configured_policy, engine_settings, stored_policy
from streaming.operator.rows import rare_rows, rows_of
from tests.engine.buckets import knowing, run
from tests.streaming.jobs import rows

RARE_TABLES = (DECISIONS, HOLDS, EVENTS, DEAD_LETTERS)


@dataclass(frozen=True)
class Batch:
    """A micro-batch as the checkpoint's log tells it."""

    number: int
    at: int
    """Milliseconds."""
    ends: dict[tuple[str, int], int]
    """Kafka topic and partition to the offset behind the last record."""


def logged_batches(checkpoint: Path) -> list[Batch]:
    """All batches of a checkpoint, oldest first; fails when the log no longer begins with the first."""
    found = []
    for file in sorted(checkpoint.glob("offsets/[0-9]*"), key=lambda file: int(file.name)):
        _version, about, *sources = file.read_text().splitlines()
        ends = {
            (topic, int(partition)): end
            for source in sources
            if source != "-"
            for topic, partitions in json.loads(source).items()
            for partition, end in partitions.items()
        }
        found.append(Batch(int(file.name), json.loads(about)["batchTimestampMs"], ends))
    assert [batch.number for batch in found] == list(range(len(found)))
    return found


def kafka_records(bootstrap: str) -> Iterator[RawRecord]:
    """Every record of the three topics, as it reaches a bucket."""
    reader = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "recomputation", "fetch.message.max.bytes": 20_000_000}
    )
    try:
        for topic in KAFKA_TOPICS:
            for partition in range(topic.partitions):
                place = TopicPartition(topic.name, partition, OFFSET_BEGINNING)
                _, end = reader.get_watermark_offsets(place, timeout=10)
                reader.assign([place])
                following = 0
                while following < end:
                    message = reader.poll(10)
                    assert message is not None
                    assert message.error() is None
                    value, following = message.value(), message.offset() + 1
                    yield RawRecord(
                        topic.name,
                        message.key(),
                        value,
                        -1 if value is None else len(value),
                        partition,
                        message.offset(),
                        message.timestamp()[1],
                        True,
                    )
    finally:
        reader.close()


def recomputed(settings: Settings) -> dict[str, list[dict[str, Any]]]:
    """The rows of each table that has the operator's output."""
    engine, packed = bucket_engine(engine_settings(settings)), knowing(stored_policy(configured_policy(settings)))
    of_older = {
        (row["subject"], row["seq"]): row["decision_id"]
        for row in rows(settings, DECISIONS)
        if row["engine_version"] != ENGINE_VERSION
    }
    left = list(kafka_records(settings.kafka.bootstrap))
    tables: dict[str, list[pa.Table]] = {table.name: [] for table in (*RARE_TABLES, SEGMENT_LOAD)}
    for batch in logged_batches(Path(settings.stream.checkpoint)):
        mine = [record for record in left if record.offset < batch.ends.get((record.source, record.partition), 0)]
        left = [record for record in left if record.offset >= batch.ends.get((record.source, record.partition), 0)]
        if not mine:
            continue
        written, output = run(engine, packed, mine, batch.at)
        for row in output.decisions:
            take_over_id(engine, row, of_older.get((row["subject"], row["seq"])))
        packed = Packed(written.fingerprint)
        for table in RARE_TABLES:
            bodies = [pydantic_core.to_json(getattr(output, table.name), bytes_mode="base64")]
            tables[table.name].append(rare_rows(table, bodies, batch.number))
        if output.loads is not None:
            loads = [output.loads.serialize().to_pybytes()]
            tables[SEGMENT_LOAD.name].append(rows_of(SEGMENT_LOAD, loads, batch.at, batch.number))
    assert not left
    return {name: in_order([row for rows in found for row in rows.to_pylist()]) for name, found in tables.items()}


def take_over_id(engine: BucketEngine, row: dict[str, Any], identity: str | None) -> None:
    """A decision has the id that an older release gave it: outcomes speak of it by that."""
    if identity is not None:
        known = engine._decoded[0].states[0].topics.topics[row["subject"]]
        known.open_decision = replace(known.open_decision, decision_id=identity)
        row["decision_id"] = identity


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows in a fixed order, independent of the order of writing."""
    return sorted(rows, key=repr)
