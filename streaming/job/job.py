"""The job: session, sources, operator, sink and ticks, started, watched and stopped.

Stage: the driver's main. It stops between batches; whatever happens, the next start continues from the checkpoint.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from engine.families import bucket_packer, event_sources, parts_of
from engine.kernel.packing import PACKED_DDL
from engine.kernel.records import OUTPUT_DDL
from engine.kernel.settings import UnfinishedBatch
from lake.job_lease import Claim, JobLease, hold_lake
from lake.upkeep import Upkeep
from schemas.settings.root import Settings, SettingsError
from streaming.checkpoint.claim import CheckpointUnfit, check_place, holder_name, lock_checkpoint, read_place
from streaming.checkpoint.first_start import first_start, state_ddl
from streaming.checkpoint.pinned import pin_settings
from streaming.checkpoint.storage import checkpoint_of, files_of, spark_location
from streaming.checkpoint.upgrade import adopt_operator
from streaming.job.backpressure import BatchPace, PacedSource
from streaming.job.failures import JobFailed, JvmLost, Patience, PersonNeeded, TooSlow, failure_of
from streaming.job.policy import NotAnnounced, announce_policy, configured_policy, engine_settings
from streaming.job.scratch import scratch_folder, socket_folder
from streaming.job.session import start_session
from streaming.job.sources import raw_rows
from streaming.job.ticks import TickWriter
from streaming.job.watch import JobWatch
from streaming.job.workers import DECODE, STAGE_VARIABLE, STATE
from streaming.operator.processor import BucketProcessor
from streaming.sink.sink import WRITTEN, LakeSink

log = logging.getLogger(__name__)

QUERY_NAME = "anabranch"
MAX_STOP_SECONDS = 50.0
"""Longest wait of a stop for the running batch; a supervisor must wait longer."""
_JVM_GONE = (Py4JNetworkError, ConnectionError)
"""Exceptions of calls to a JVM that has ended."""
_TERMINATED = "org.apache.spark.sql.execution.streaming.runtime.TERMINATED$"


def pace_of(settings: Settings) -> BatchPace:
    """Return the limits on the size of batches, starting with the first."""
    return BatchPace(settings.stream.max_stats_per_batch, settings.stream.batch_seconds)


def operator_output(spark: SparkSession, settings: Settings, repeated: UnfinishedBatch | None = None) -> DataFrame:
    """Return the streaming frame from Kafka to the operator's output (`OUTPUT_DDL`)."""
    stream, engine = settings.stream, engine_settings(settings)
    start = first_start(files_of(spark, checkpoint_of(settings)))
    if start is not None and start.buckets != stream.buckets:
        raise SettingsError(f"the checkpoint was rebuilt with {start.buckets} buckets, [stream] has {stream.buckets}")
    parts = parts_of(engine)
    if start is not None and not set(start.parts) <= set(parts):
        raise SettingsError("the checkpoint was rebuilt with [bundles] enabled, and that is false now")
    rows = raw_rows(
        spark,
        settings.kafka_connection(),
        stream.buckets,
        pace_of(settings).messages,
        stream.max_events_per_batch,
        event_sources(engine),
        start,
    )
    with _workers_of_their_own(spark, DECODE):
        packed = rows.mapInArrow(bucket_packer(stream.buckets, engine), PACKED_DDL)
    state = None if start is None else spark.read.schema(state_ddl(parts)).parquet(start.state).groupBy("bucket")
    with _workers_of_their_own(spark, STATE):
        return packed.groupBy("bucket").transformWithState(
            BucketProcessor(parts, engine, settings.lake_path, repeated), OUTPUT_DDL, "Append", "None", state
        )


@contextmanager
def _workers_of_their_own(spark: SparkSession, stage: str) -> Iterator[None]:
    """Give Python functions passed to Spark inside the context worker processes that no other stage uses.

    Spark uses idle workers in turn and distinguishes them only by their environment. Workers with decoded state must
    not be used for decoding, or every batch would find the state in another process.
    """
    environment = spark.sparkContext.environment
    environment[STAGE_VARIABLE] = stage
    try:
        yield
    finally:
        del environment[STAGE_VARIABLE]


def start_query(
    spark: SparkSession, settings: Settings, sink: LakeSink, repeated: UnfinishedBatch | None = None
) -> StreamingQuery:
    """Announce the policy and start the query. Raises `NotAnnounced` if Kafka does not accept it."""
    announce_policy(settings.kafka_connection(), configured_policy(settings))
    source = PacedSource(pace_of(settings))
    sink.also_report(source.observe_batch)
    query = (
        operator_output(spark, settings, repeated)
        .writeStream.queryName(QUERY_NAME)
        .option("checkpointLocation", spark_location(checkpoint_of(settings)))
        .outputMode("append")
        .trigger(processingTime="0 seconds")
        .foreachBatch(sink.write)
        .start()
    )
    source.follow(query)
    return query


@contextmanager
def own_session(settings: Settings, scratch: Path) -> Iterator[SparkSession]:
    """Open a session for one run of the job, and stop it at the end."""
    with socket_folder(scratch) as sockets:
        spark = start_session(settings, scratch=scratch, sockets=sockets)
        try:
            yield spark
        finally:
            with suppress(*_JVM_GONE):
                spark.stop()


def run_job(
    settings: Settings,
    stop: threading.Event,
    new_checkpoint: bool = False,
    session: Callable[[Settings, Path], AbstractContextManager[SparkSession]] = own_session,
    sink_type: type[LakeSink] = LakeSink,
) -> None:
    """Run the job until `stop` is set.

    `new_checkpoint`: create a missing checkpoint, even though the lake has rows of another. `session` provides the
    session, which is opened once only Spark can still fail the start. Raises `CheckpointInUse`, `NoLease`,
    `JobFailed`, `MetricsError`, `SettingsError`.
    """
    configured_policy(settings)
    own_files = scratch_folder(settings.path(settings.local.folder) / "scratch")
    checkpoint = checkpoint_of(settings)
    with ExitStack() as held:
        lock = held.enter_context(lock_checkpoint(checkpoint, holder := holder_name()))
        upkeep = Upkeep(settings.lake_path, WRITTEN, settings.lake.compact_minutes)
        scratch, watch = held.enter_context(own_files), held.enter_context(JobWatch(settings, upkeep))
        ticks = TickWriter(settings.kafka_connection(), settings.stream.tick_seconds)
        sink = sink_type(settings.lake_path, ticks.ask, watch.observe_batch)
        claim = Claim(holder, checkpoint, datetime.now(timezone.utc), gone=lock)
        lease = held.enter_context(hold_lake(settings.lake_path, claim, stop))
        sink.hold(lease)
        held.enter_context(upkeep)
        parts = _Parts(settings, ticks, watch, lease, stop)
        with session(settings, scratch) as spark:
            try:
                patience = Patience()
                while (delay := _run_query(spark, parts, sink, patience, new_checkpoint)) is not None:
                    if stop.wait(delay):
                        break
                    # The batch that the failed query began is repeated, as at any start.
                    sink = sink_type(settings.lake_path, ticks.ask, watch.observe_batch)
                    sink.hold(lease)
            except NotAnnounced as error:
                raise JobFailed(str(error)) from error
            except _JVM_GONE as error:
                raise JvmLost(
                    "the JVM of Spark's driver has ended: killed, or out of memory (its own lines stand above); the "
                    "next start goes on from the checkpoint"
                ) from error
            finally:
                ticks.stop()


@dataclass(frozen=True)
class _Parts:
    """Objects that outlive a query."""

    settings: Settings
    ticks: TickWriter
    watch: JobWatch
    lease: JobLease
    stop: threading.Event


def _run_query(
    spark: SparkSession, parts: _Parts, sink: LakeSink, patience: Patience, new_checkpoint: bool
) -> float | None:
    """Run one query until the job is told to stop; return the seconds until the next, or None.

    Raises `JobFailed`, or what calls to a JVM that has ended raise.
    """
    settings = parts.settings
    sink.also_report(lambda _batch: patience.renew())
    try:
        repeated = _check_checkpoint(spark, settings, sink, new_checkpoint)
        adopt_operator(spark, spark_location(checkpoint_of(settings)))
        query = start_query(spark, settings, sink, repeated)
        if parts.ticks.ident is None:
            parts.ticks.start()
        parts.watch.expect_evaluations()
        log.info(
            "reading %s, writing %s, checkpoint %s",
            settings.kafka.bootstrap,
            settings.lake_path,
            checkpoint_of(settings),
        )
        _run_until(parts.stop, query, parts.watch, parts.lease)
    except PySparkException as error:
        failure = failure_of(str(error))
        delay = patience.next_delay() if isinstance(failure, TooSlow) and parts.lease.lost is None else None
        if delay is None:
            raise failure from error
        log.warning("Spark gave up waiting; the query starts again in %g s, from the checkpoint: %s", delay, failure)
        return delay
    return None


def _check_checkpoint(
    spark: SparkSession, settings: Settings, sink: LakeSink, new_checkpoint: bool
) -> UnfinishedBatch | None:
    """Record settings; return the batch with earlier ones. Raises `PersonNeeded` for an unfit lake."""
    checkpoint, lake = checkpoint_of(settings), settings.lake_path
    files = files_of(spark, checkpoint)
    position = read_place(files)
    if sink.has_batches() and position is None and new_checkpoint:
        log.warning(
            "a new checkpoint on a lake with rows of another: Kafka is read from its earliest record, and the lake "
            "gets rows of the same records once more, under a new generation; `anabranch lake state rebuild` goes "
            "on instead"
        )
    elif sink.has_batches():
        try:
            newest_written = sink.newest_batch(position.query) if position else None
            check_place(checkpoint, position, lake, newest_written, has_first_start=first_start(files) is not None)
        except CheckpointUnfit as error:
            raise PersonNeeded(str(error)) from error
    return pin_settings(files, position, engine_settings(settings), settings.stream.buckets)


def _run_until(stop: threading.Event, query: StreamingQuery, watch: JobWatch, lease: JobLease) -> None:
    while not stop.is_set() and not query.awaitTermination(1):
        watch.look(query)
        if lease.lost is not None:
            query.stop()
            raise JobFailed(str(lease.lost)) from lease.lost
    if stop.is_set():
        _end_between_batches(query, MAX_STOP_SECONDS)
    if not stop.is_set():
        raise JobFailed("the query ended without an error")


def _end_between_batches(query: StreamingQuery, seconds: float) -> None:
    """Let the running batch finish and start no other; interrupt it after `seconds`.

    `stop()` alone interrupts the batch, and under load a batch is nearly always running. Spark checks its own state
    after every batch, so it is set here without the interrupt. An interrupted or just planned batch is repeated by
    the next start.
    """
    execution = query._jsq.streamingQuery()
    terminated = execution.getClass().getClassLoader().loadClass(_TERMINATED)
    execution.state().set(terminated.getField("MODULE$").get(None))
    if not query.awaitTermination(seconds):
        log.warning("the running batch is cut off, as it did not end within %.0f s; the next start repeats it", seconds)
    query.stop()
