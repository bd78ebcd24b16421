"""A new checkpoint out of the lake: made by `anabranch state rebuild`, taken up by the job's first start on it.

Stage: start-up, after a checkpoint was lost. The folder that is made holds an id for Spark's query, and beside it the
state of every bucket and where to read Kafka on. Spark is given them as long as no batch is committed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Consumer, KafkaException, TopicPartition

from engine.autoscale.topics import ConfiguredPolicy
from engine.families import PARTS
from engine.history import free_generation
from engine.kernel.settings import EngineSettings
from engine.replay import BucketReplay, RebuildError
from lake.tables import open_table
from schemas.kafka import KAFKA_TOPICS
from schemas.kafka_connection import KafkaConnection
from schemas.tables import TABLES
from streaming.checkpoint import REBUILT
from streaming.processor import FINGERPRINT
from streaming.recorded import RecordedHistory, newest_before
from streaming.sink import APP
from streaming.storage import IDENTITY, CheckpointFiles, spark_location

STATE_DDL = ", ".join(["bucket INT", *(f"{name} BINARY" for name in (FINGERPRINT, *PARTS))])
"""A bucket's packed state, as its state variables have it."""
_STATE = pa.schema([("bucket", pa.int32()), *((name, pa.binary()) for name in (FINGERPRINT, *PARTS))])
_START, _STATE_FILE = f"{REBUILT}/start.json", f"{REBUILT}/state.parquet"
_EARLIEST = -2
"""Spark's word for the earliest record of a partition."""

Offsets = Mapping[str, Mapping[int, int]]
"""By Kafka topic and partition."""


@dataclass(frozen=True)
class FirstStart:
    """What the first start on a rebuilt checkpoint begins with."""

    buckets: int
    starting_offsets: dict[str, dict[int, int]]
    state: str
    """Parquet file with rows of `STATE_DDL`."""

    def offsets_json(self, topics: str) -> str:
        """The offsets of some topics, comma-separated, as Spark's `startingOffsets`."""
        return json.dumps({topic: self.starting_offsets[topic] for topic in topics.split(",")})


@dataclass
class Rebuilt:
    """What was rebuilt."""

    generation: str
    rebuilt_from: str
    topics: int
    open_decisions: int
    until: int
    """Time of the last batch on record, milliseconds."""
    gone: list[str] = field(default_factory=list)
    """What Kafka has dropped of which nothing is on record; a line each."""


def first_start(files: CheckpointFiles) -> FirstStart | None:
    """What the next start has to begin with; None when the checkpoint was not rebuilt, or has already run."""
    said = files.text(_START)
    if said is None or files.numbers("commits"):
        return None
    start = json.loads(said)
    offsets = {
        topic: {int(partition): offset for partition, offset in of_topic.items()}
        for topic, of_topic in start["startingOffsets"].items()
    }
    return FirstStart(start["buckets"], offsets, f"{spark_location(files.checkpoint)}/{_STATE_FILE}")


def rebuild_checkpoint(
    lake: str, files: CheckpointFiles, settings: EngineSettings, configured: ConfiguredPolicy, buckets: int,
    bucket_of: Callable[[list[str]], Mapping[str, int]], bounds: Mapping[str, Mapping[int, tuple[int, int]]],
    scratch: Path | None = None,
) -> Rebuilt:  # fmt: skip
    """Makes the checkpoint, which must not exist yet, on any storage; the caller has its lock and the lake's lease.

    `bucket_of` says where topics belong; `bounds` are Kafka's first and next offset of every partition; `scratch` is a
    folder for temporary files. Memory: the state of the whole fleet, and a chunk of the lake. Raises `RebuildError`,
    and what Delta, the file system and Hadoop raise.
    """
    if settings.bundles:
        raise RebuildError(
            "the state of clusters with bundles cannot be rebuilt yet: `anabranch stream --new-checkpoint` learns it "
            "again from what Kafka has"
        )
    if not files.is_empty():
        raise RebuildError(
            f"there is a checkpoint in {files.checkpoint}: move it away first, if it is of no use any more"
        )
    with TemporaryDirectory(prefix="anabranch-rebuild-", dir=scratch) as folder:
        history = RecordedHistory(lake, Path(folder), horizon=newest_before(lake))
        if history.generation is None:
            raise RebuildError(f"no batch is on record in {lake}: a job that starts with nothing needs no state")
        offsets, gone = start_offsets(history.next_offsets, bounds)
        identity = free_generation(history.generation, lambda generation: _has_written(lake, generation))
        names: dict[int, list[str]] = {bucket: [] for bucket in range(buckets)}
        for name, bucket in bucket_of(history.topics).items():
            names[bucket].append(name)
        replays = {
            bucket: BucketReplay(settings, configured, **history.begun(topics)) for bucket, topics in names.items()
        }
        rebuilt = Rebuilt(identity, history.generation, 0, 0, 0, gone)
        for chunk in history.chunks():
            rebuilt.until = chunk.times[-1][0]
            for bucket, topics in names.items():
                for batch in chunk.of_bucket(topics):
                    replays[bucket].take(batch)
    with files.make() as made:
        (made / REBUILT).mkdir()
        _write_states(made / _STATE_FILE, replays, rebuilt)
        start = {"buckets": buckets, "startingOffsets": offsets, "rebuiltFrom": rebuilt.rebuilt_from}
        (made / _START).write_text(json.dumps(start, indent=1))
        (made / IDENTITY).write_text(json.dumps({"id": identity}))
    return rebuilt


def _write_states(target: Path, replays: dict[int, BucketReplay], rebuilt: Rebuilt) -> None:
    """A row for each bucket, whose replay is not kept any longer."""
    with pq.ParquetWriter(target, _STATE) as file:
        for bucket in sorted(replays):
            replay = replays.pop(bucket)
            states = replay.state.topics.values()
            rebuilt.topics += len(states)
            rebuilt.open_decisions += sum(topic.open_decision is not None for topic in states)
            packed = replay.packed()
            bases = {name: part.base for name, part in packed.parts.items()}
            row = {"bucket": bucket, FINGERPRINT: packed.fingerprint, **bases}
            file.write_table(pa.Table.from_pylist([row], _STATE))


def start_offsets(
    next_offsets: Offsets, bounds: Mapping[str, Mapping[int, tuple[int, int]]]
) -> tuple[dict[str, dict[int, int]], list[str]]:
    """Where to read every partition on, and what of it Kafka no longer has.

    Raises `RebuildError` when Kafka ends before what the lake has read of it.
    """
    offsets: dict[str, dict[int, int]] = {}
    gone: list[str] = []
    for topic, partitions in bounds.items():
        recorded = next_offsets.get(topic, {})
        if missing := sorted(recorded.keys() - partitions.keys()):
            raise RebuildError(
                f"the lake has records of {topic}-{missing[0]}, a partition that this Kafka does not have"
            )
        offsets[topic] = {}
        for partition, (first, end) in partitions.items():
            at = recorded.get(partition, _EARLIEST)
            if at > end:
                raise RebuildError(
                    f"the lake has read {topic}-{partition} up to offset {at - 1}, and Kafka has it up to {end - 1}: "
                    f"this is not the Kafka that the lake was filled from"
                )
            if 0 <= at < first:
                gone.append(f"{topic}-{partition}: {first - at} records from offset {at}")
                at = first
            offsets[topic][partition] = at
    return offsets, gone


def kafka_bounds(kafka: KafkaConnection) -> dict[str, dict[int, tuple[int, int]]]:
    """First and next offset of every partition of the three topics; raises `RebuildError` without Kafka."""
    reader = Consumer(kafka.librdkafka({"group.id": "anabranch-rebuild", "log_level": 3}))
    try:
        bounds: dict[str, dict[int, tuple[int, int]]] = {}
        for topic in KAFKA_TOPICS:
            known = reader.list_topics(topic.name, timeout=10).topics[topic.name]
            if known.error is not None:
                raise RebuildError(f"Kafka at {kafka.bootstrap} has no topic {topic.name}: {known.error.str()}")
            bounds[topic.name] = {
                partition: reader.get_watermark_offsets(TopicPartition(topic.name, partition), timeout=10)
                for partition in sorted(known.partitions)
            }
        return bounds
    except KafkaException as error:
        raise RebuildError(f"Kafka at {kafka.bootstrap} does not answer: {error.args[0].str()}") from error
    finally:
        reader.close()


def _has_written(lake: str, generation: str) -> bool:
    tables = [open_table(lake, table) for table in TABLES.values()]
    return any(table.transaction_version(f"{APP}:{generation}") is not None for table in tables if table is not None)
