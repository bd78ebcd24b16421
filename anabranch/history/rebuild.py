"""Rebuild of a checkpoint from the lake (`anabranch lake state rebuild`), for the job's next start.

Stage: start-up, after a checkpoint was lost. The new folder holds an id for Spark's query, and beside it the state
of every bucket and the Kafka offsets to continue from. Spark is given these until a batch is committed.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Consumer, KafkaException, TopicPartition

from anabranch.history.recorded import RecordedHistory, newest_before
from anabranch.history.state_snapshots import refuse
from engine.autoscale.topics import ConfiguredPolicy
from engine.cluster_replay import ClustersReplay
from engine.families import parts_of
from engine.history import free_generation
from engine.kernel.packed import pack_anew
from engine.kernel.settings import EngineSettings
from engine.replay import BucketReplay, RebuildError
from lake.tables import open_table
from schemas.kafka.connection import KafkaConnection
from schemas.kafka.topics import KafkaTopic
from schemas.tables.rows import TABLES
from streaming.checkpoint.claim import REBUILT
from streaming.checkpoint.first_start import START, STATE_FILE
from streaming.checkpoint.storage import IDENTITY, CheckpointFiles
from streaming.operator.processor import FINGERPRINT
from streaming.sink.sink import APP

_EARLIEST = -2
"""Spark's value for the earliest record of a partition."""

Offsets = Mapping[str, Mapping[int, int]]
"""Offsets by Kafka topic and partition."""


@dataclass
class Rebuilt:
    """Result of a rebuild."""

    generation: str
    rebuilt_from: str
    topics: int
    open_decisions: int
    until: int
    """Time of the last recorded batch, milliseconds."""
    clusters: int = 0
    """Number of clusters with bundles."""
    gone: list[str] = field(default_factory=list)
    """Records that Kafka has dropped before they were recorded, one line per partition."""


def rebuild_checkpoint(
    lake: str,
    files: CheckpointFiles,
    settings: EngineSettings,
    configured: ConfiguredPolicy,
    buckets: int,
    bucket_of: Callable[[list[str]], Mapping[str, int]],
    bounds: Mapping[str, Mapping[int, tuple[int, int]]],
    scratch: Path | None = None,
) -> Rebuilt:
    """Create the checkpoint, which must not exist yet, on any storage.

    The caller holds its lock and the lake's lease. `bucket_of` maps topics to buckets; `bounds` are Kafka's first
    and next offset of every partition; `scratch` is a folder for temporary files. Memory: the state of the whole
    fleet, and a chunk of the lake. Raises `RebuildError`, and what Delta, the file system and Hadoop raise.
    """
    if not files.is_empty():
        raise RebuildError(
            f"there is a checkpoint in {files.checkpoint}: move it away first, if it is of no use any more"
        )
    with TemporaryDirectory(prefix="anabranch-rebuild-", dir=scratch) as folder:
        history = RecordedHistory(lake, Path(folder), horizon=newest_before(lake))
        if history.generation is None:
            raise RebuildError(f"no batch is on record in {lake}: a job that starts with nothing needs no state")
        offsets, missing = start_offsets(history.next_offsets, bounds)
        identity = free_generation(history.generation, lambda generation: _has_written(lake, generation))
        names = _by_bucket(history.topics, bucket_of, buckets)
        replays = {
            bucket: BucketReplay(settings, configured, **history.begun(topics)) for bucket, topics in names.items()
        }
        rebuilt = Rebuilt(identity, history.generation, 0, 0, 0, gone=missing)
        for chunk in history.chunks():
            rebuilt.until = chunk.times[-1][0]
            for bucket, topics in names.items():
                for batch in chunk.of_bucket(topics):
                    replays[bucket].take(batch)
    has_clusters = settings.bundles and history.has_clusters
    clusters = _clusters(lake, bucket_of, buckets, scratch) if has_clusters else {}
    with files.make() as folder_of_state:
        (folder_of_state / REBUILT).mkdir()
        _write_states(folder_of_state / STATE_FILE, parts_of(settings), replays, clusters, rebuilt)
        start = {
            "buckets": buckets,
            "startingOffsets": offsets,
            "rebuiltFrom": rebuilt.rebuilt_from,
            "parts": parts_of(settings),
        }
        (folder_of_state / START).write_text(json.dumps(start, indent=1))
        (folder_of_state / IDENTITY).write_text(json.dumps({"id": identity}))
    return rebuilt


def _by_bucket(
    names: list[str], bucket_of: Callable[[list[str]], Mapping[str, int]], buckets: int
) -> dict[int, list[str]]:
    by_bucket: dict[int, list[str]] = {bucket: [] for bucket in range(buckets)}
    for name, bucket in bucket_of(names).items():
        by_bucket[bucket].append(name)
    return by_bucket


def _clusters(
    lake: str, bucket_of: Callable[[list[str]], Mapping[str, int]], buckets: int, scratch: Path | None
) -> dict[int, ClustersReplay]:
    """Return the clusters of each bucket that has any."""
    with TemporaryDirectory(prefix="anabranch-rebuild-", dir=scratch) as folder:
        history = RecordedHistory(lake, Path(folder), horizon=newest_before(lake), of_clusters=True)
        names = {bucket: some for bucket, some in _by_bucket(history.topics, bucket_of, buckets).items() if some}
        replays = {bucket: ClustersReplay(**history.begun_clusters(some)) for bucket, some in names.items()}
        for chunk in history.chunks():
            for bucket, some in names.items():
                for batch in chunk.of_bucket(some):
                    refuse(replays[bucket].take(batch))
    return replays


def _write_states(
    target: Path,
    parts: Sequence[str],
    replays: dict[int, BucketReplay],
    clusters: dict[int, ClustersReplay],
    rebuilt: Rebuilt,
) -> None:
    """Write a row per bucket, releasing its replays."""
    schema = pa.schema([("bucket", pa.int32()), *((name, pa.binary()) for name in (FINGERPRINT, *parts))])
    with pq.ParquetWriter(target, schema) as file:
        for bucket in sorted(replays):
            replay, clusters_replay = replays.pop(bucket), clusters.pop(bucket, None)
            states = replay.state.topics.values()
            rebuilt.topics += len(states)
            rebuilt.open_decisions += sum(topic.open_decision is not None for topic in states)
            if clusters_replay is not None:
                rebuilt.clusters += len(clusters_replay.clusters)
                rebuilt.open_decisions += sum(len(state.open) for state in clusters_replay.clusters.values())
            packed = pack_anew({**replay.parts, **(clusters_replay.parts if clusters_replay is not None else {})})
            bases = {name: part.base for name, part in packed.parts.items()}
            row = {"bucket": bucket, FINGERPRINT: packed.fingerprint, **bases}
            file.write_table(pa.Table.from_pylist([row], schema))


def start_offsets(
    next_offsets: Offsets, bounds: Mapping[str, Mapping[int, tuple[int, int]]]
) -> tuple[dict[str, dict[int, int]], list[str]]:
    """Return the offset from which to read each partition, and the records that Kafka no longer has.

    Raises `RebuildError` when Kafka ends before the lake's newest record.
    """
    offsets: dict[str, dict[int, int]] = {}
    lost: list[str] = []
    for topic, partitions in bounds.items():
        recorded = next_offsets.get(topic, {})
        if missing := sorted(recorded.keys() - partitions.keys()):
            raise RebuildError(
                f"the lake has records of {topic}-{missing[0]}, a partition that this Kafka does not have"
            )
        offsets[topic] = {}
        for partition, (first, end) in partitions.items():
            offset = recorded.get(partition, _EARLIEST)
            if offset > end:
                raise RebuildError(
                    f"the lake has read {topic}-{partition} up to offset {offset - 1}, and Kafka has it up to "
                    f"{end - 1}: this is not the Kafka that the lake was filled from"
                )
            if 0 <= offset < first:
                lost.append(f"{topic}-{partition}: {first - offset} records from offset {offset}")
                offset = first
            offsets[topic][partition] = offset
    return offsets, lost


def kafka_bounds(kafka: KafkaConnection, topics: Iterable[KafkaTopic]) -> dict[str, dict[int, tuple[int, int]]]:
    """Return first and next offset of every partition of some topics; raises `RebuildError` without Kafka."""
    reader = Consumer(kafka.librdkafka({"group.id": "anabranch-rebuild", "log_level": 3}))
    try:
        bounds: dict[str, dict[int, tuple[int, int]]] = {}
        for topic in topics:
            metadata = reader.list_topics(topic.name, timeout=10).topics[topic.name]
            if metadata.error is not None:
                raise RebuildError(f"Kafka at {kafka.bootstrap} has no topic {topic.name}: {metadata.error.str()}")
            bounds[topic.name] = {
                partition: reader.get_watermark_offsets(TopicPartition(topic.name, partition), timeout=10)
                for partition in sorted(metadata.partitions)
            }
        return bounds
    except KafkaException as error:
        raise RebuildError(f"Kafka at {kafka.bootstrap} does not answer: {error.args[0].str()}") from error
    finally:
        reader.close()


def _has_written(lake: str, generation: str) -> bool:
    tables = [open_table(lake, table) for table in TABLES.values()]
    return any(table.transaction_version(f"{APP}:{generation}") is not None for table in tables if table is not None)
