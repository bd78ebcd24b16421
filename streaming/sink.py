"""foreachBatch: consumes the operator's output once, then writes each table idempotently.

Stage: last of the job (design "Tables"). The frame is consumed first and exactly once, also in a replay:
a batch that skips its plan leaves the state store without its version and never starts again. Each write carries the
Delta app transaction (query id, batch id); a table that already holds the batch is left as it is. Decisions go first:
the executor waits for them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pydantic_core
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from engine.kernel.records import DUE, LOAD
from lake.job_lease import LEASE, JobLease, check_lease
from lake.tables import OpenTable, create_lake, table_path
from schemas.ids import EVERY_TOPIC
from schemas.tables import BATCHES, DEAD_LETTERS, DECISIONS, EVENTS, HOLDS, SEGMENT_LOAD, TABLES, Table
from streaming.output import BatchOutput, Chunks
from streaming.replays import FirstAttempt
from streaming.rows import LOAD_DDL, rare_rows, unpack_loads
from streaming.spool import SPOOLED

log = logging.getLogger(__name__)

APP = "anabranch-stream"
_WRITTEN = frozenset(table.name for table in TABLES.values() if table.written_by == "streaming")


@dataclass
class WrittenBatch:
    """What a micro-batch has written, for those who watch the job."""

    row: dict[str, Any]
    """Its row in `batches`; instants are milliseconds."""
    rare: Mapping[str, Iterable[pa.Table]]
    """The rows of decisions, holds, events and dead letters, by table, in chunks."""
    operator_seconds: float
    """From the start of the batch's plan until the sink had the operator's output."""
    commit_seconds: dict[str, float]
    """Time of each Delta commit, by table."""

    def columns(self, table: Table, *names: str) -> Iterator[tuple[Any, ...]]:
        """The rows of a rare table, cut to some of its columns."""
        for rows in self.rare[table.name]:
            yield from zip(*(rows[name].to_pylist() for name in names), strict=True)

    @property
    def newest_tick(self) -> float | None:
        """The instant of the newest tick for every topic, Unix time in seconds; None: the batch had none."""
        ticks = (
            pc.max(rows.filter(pc.and_(pc.equal(rows["type"], "tick"), pc.equal(rows["subject"], EVERY_TOPIC)))["at"])
            for rows in self.rare[EVENTS.name]
        )
        newest = max((tick.as_py() for tick in ticks if tick.is_valid), default=None)
        return None if newest is None else newest.timestamp()


class LakeSink:
    """Writes micro-batches to the lake."""

    def __init__(
        self,
        lake: str,
        bulk_writer: str,
        ask_for_tick: Callable[[str, int], None],
        report: Callable[[WrittenBatch], None] = lambda _: None,
    ) -> None:
        """`bulk_writer` is `delta-rs` or `delta-spark`: who writes `segment_load`. `report` is told of each batch that
        is written; what it raises is logged and stops nothing. Raises `LakeError`."""
        self._lake, self._bulk_writer, self._ask_for_tick, self._report = lake, bulk_writer, ask_for_tick, report
        self._tables = {name: OpenTable(table) for name, table in create_lake(lake).items()}
        self._commit_seconds: dict[str, float] = {}
        self._lease: JobLease | None = None
        self._attempt: FirstAttempt | None = None
        self._is_first = True

    def hold(self, lease: JobLease) -> None:
        """From here on every commit stands under the lease, and no other job's does. Raises `LeaseLost`, or what Delta
        raises."""
        lease.shut_out_others({name: table for name, table in self._tables.items() if name in _WRITTEN})
        self._lease = lease

    def has_batches(self) -> bool:
        """Whether the lake has rows of any batch."""
        return bool(self._tables[BATCHES.name].newest().file_uris())

    def newest_batch(self, query: str) -> int | None:
        """The newest batch of a query that any table holds rows of."""
        found = [table.newest_transaction(f"{APP}:{query}") for table in self._tables.values()]
        return max((number for number in found if number is not None), default=None)

    def write(self, frame: DataFrame, batch_id: int) -> None:
        """One micro-batch; safe to repeat. Raises what Delta raises when a table cannot be written."""
        query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        self._check_lease(DECISIONS)
        self._attempt = FirstAttempt(self._tables, f"{APP}:{query}", batch_id) if self._is_first else None
        self._commit_seconds = {}
        began = time.perf_counter()
        if self._bulk_writer == "delta-spark":
            frame = frame.persist()
            try:
                with _shown_as(frame, batch_id, "read Kafka, evaluate"):
                    output = BatchOutput(frame.where(F.col("kind") != LOAD).toArrow(), batch_id)
                operator_seconds = time.perf_counter() - began
                rare = self._write_rare(output, query, batch_id)
                accepted = int(output.counts()["samples_accepted"])
                if self._attempt is not None:
                    self._attempt.check_number(SEGMENT_LOAD, accepted)
                if accepted:
                    with self._timed(SEGMENT_LOAD), _shown_as(frame, batch_id, "write segment_load"):
                        self._write_bulk_by_spark(frame, query, batch_id)
                row = self._write_batch_row(output, query, batch_id)
            finally:
                frame.unpersist()
        else:
            with _shown_as(frame, batch_id, "read Kafka, evaluate"):
                output = BatchOutput(frame.toArrow(), batch_id)
            operator_seconds = time.perf_counter() - began
            rare = self._write_rare(output, query, batch_id)
            self._commit(SEGMENT_LOAD, output.chunks(SEGMENT_LOAD), query, batch_id)
            row = self._write_batch_row(output, query, batch_id)
        self._is_first = False
        if row is not None:
            self._tell(WrittenBatch(row, rare, operator_seconds, self._commit_seconds), batch_id)
        output.remove_files()

    def _tell(self, batch: WrittenBatch, batch_id: int) -> None:
        try:
            self._report(batch)
        except Exception:
            log.exception("batch %d is written, but its metrics are not", batch_id, extra={"batch_id": batch_id})

    def _write_rare(self, output: BatchOutput, query: str, batch_id: int) -> dict[str, Chunks]:
        rare = {}
        for table in (DECISIONS, HOLDS, EVENTS, DEAD_LETTERS):
            rare[table.name] = output.chunks(table)
            self._commit(table, rare[table.name], query, batch_id)
        for topic, at in output.said(DUE):
            self._ask_for_tick(topic, at)
        return rare

    def _write_batch_row(self, output: BatchOutput, query: str, batch_id: int) -> dict[str, Any] | None:
        if output.now is None:
            return None
        row = {
            **output.counts(),
            "generation": query,
            "batch_at": output.now,
            "committed_at": time.time_ns() // 1_000_000,
        }
        self._commit(
            BATCHES,
            [rare_rows(BATCHES, [pydantic_core.to_json([row])], batch_id)],
            query,
            batch_id,
        )
        return row

    @contextmanager
    def _timed(self, table: Table) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._commit_seconds[table.name] = time.perf_counter() - began

    def _commit(self, table: Table, chunks: Iterable[pa.Table], query: str, batch_id: int) -> None:
        """One commit, however many chunks there are."""
        if self._attempt is not None:
            self._attempt.check(table, chunks)
        waiting = iter(chunks)
        first = next(waiting, None)
        if first is None:
            return
        opened, app = self._tables[table.name], f"{APP}:{query}"
        written = opened.newest_transaction(app)
        if written is not None and written >= batch_id:
            log.info("%s already holds batch %d: a replay", table.name, batch_id, extra={"batch_id": batch_id})
            return
        with self._timed(table):
            opened.append(first, app, batch_id, self._check_lease(table), waiting)

    def _check_lease(self, table: Table) -> dict[str, int]:
        """The lease as a commit to the table carries it. Raises `LeaseLost` when another job has it."""
        if self._lease is None:
            return {}
        check_lease(self._tables[table.name], self._lease.token)
        return {LEASE: self._lease.token}

    def _write_bulk_by_spark(self, frame: DataFrame, query: str, batch_id: int) -> None:
        loads = frame.where(F.col("kind").isin(LOAD, SPOOLED + LOAD)).mapInArrow(unpack_loads, LOAD_DDL)
        rows = loads.select(
            "topic", "segment_id", "msg_rate_in", "bytes_rate_in", "msg_rate_out", "bytes_rate_out", "reporter",
            F.timestamp_millis("sampled_at").alias("sampled_at"), F.timestamp_millis("now").alias("accepted_at"),
            "cause", "kafka_partition", "kafka_offset", F.timestamp_millis("kafka_timestamp").alias("kafka_timestamp"),
            F.lit(batch_id).cast("long").alias("batch_id"),
            F.to_date(F.timestamp_millis("now")).alias("day"),
        )  # fmt: skip
        path = table_path(self._lake, SEGMENT_LOAD)
        # Spark's writer carries one transaction only: the lease is looked at right before.
        self._check_lease(SEGMENT_LOAD)
        rows.coalesce(1).write.format("delta").mode("append").option("txnAppId", f"{APP}:{query}").option(
            "txnVersion", batch_id
        ).save(path if "://" in path else Path(path).as_uri())


@contextmanager
def _shown_as(frame: DataFrame, batch_id: int, what: str) -> Iterator[None]:
    """Spark jobs begun meanwhile are described so in the Spark UI."""
    context = frame.sparkSession.sparkContext
    before = context.getLocalProperty("spark.job.description")
    context.setJobDescription(f"anabranch, batch {batch_id}: {what}")
    try:
        yield
    finally:
        context.setJobDescription(before)
