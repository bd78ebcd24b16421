"""foreachBatch: consumes the operator's output once, then commits each table idempotently.

Stage: last of the job (design "Tables"). The frame is consumed first and exactly once, also in a replay: a batch
that skips its plan leaves the state store without its version and never starts again. Large output is in files that
workers have written by then (`streaming.operator.outbox`), and only needs the commit. Each commit carries the Delta app
transaction (query id, batch id); a table that already holds the batch is not written. Decisions go first, because
the executor waits for them. The other tables follow in parallel, and `batches` last. The tables' logs are read while
Spark works; if another job takes the lease after that, our commit fails.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pydantic_core
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from pyspark.sql import DataFrame

from engine.kernel.records import DUE, FAULTS, LAYOUTS
from lake.files import write_file
from lake.job_lease import LEASE, JobLease, check_lease, check_token
from lake.lease import LeaseLost
from lake.tables import OpenTable, create_lake
from schemas.ids import EVERY_TOPIC
from schemas.tables.rows import BATCHES, DEAD_LETTERS, DECISIONS, EVENTS, HOLDS, TABLES, Table
from streaming.operator.rows import rare_rows
from streaming.sink.output import BatchOutput, TableRows
from streaming.sink.replays import TURNS, FirstAttempt

log = logging.getLogger(__name__)

APP = "anabranch-stream"
WRITTEN = tuple(table for table in TABLES.values() if table.written_by == "streaming")


@dataclass
class WrittenBatch:
    """A written micro-batch, for observers of the job."""

    row: dict[str, Any]
    """Its row in `batches`; instants are milliseconds."""
    rare: Mapping[str, TableRows]
    """Rows of decisions, holds, events and dead letters, by table."""
    decided_at: int | None
    """Time of the commit of `decisions`, milliseconds; None without decisions."""
    operator_seconds: float
    """Time from the start of the batch's plan until the sink had the operator's output."""
    commit_seconds: dict[str, float]
    """Duration of each Delta commit, by table."""
    layouts: Sequence[pa.RecordBatch] = ()
    """Topics with a new or newly decoded layout (`engine.kernel.records.LAYOUT_SCHEMA`)."""

    def columns(self, table: Table, *names: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a rare table, cut to some of its columns."""
        for rows in self.rare[table.name].chunks(names):
            yield from zip(*(rows[name].to_pylist() for name in names), strict=True)

    def count(self, table: Table, name: str) -> dict[str, int]:
        """Return the number of rows of a rare table by value of a column."""
        counts: Counter[str] = Counter()
        for rows in self.rare[table.name].chunks([name]):
            for counted in rows[name].value_counts().to_pylist():
                counts[counted["values"]] += counted["counts"]
        return counts

    def where(self, table: Table, name: str, values: Collection[str], *names: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a rare table with one of these values in a column, cut to some columns."""
        for rows in self.rare[table.name].chunks(list(dict.fromkeys((name, *names)))):
            chosen = rows.filter(pc.is_in(rows[name], pa.array(values, pa.string())))
            yield from zip(*(chosen[each].to_pylist() for each in names), strict=True)

    @property
    def newest_tick(self) -> float | None:
        """Time of the newest tick for every topic, Unix time in seconds; None without one."""
        ticks = self.where(EVENTS, "type", ["tick"], "subject", "at")
        newest = max((ticked_at for subject, ticked_at in ticks if subject == EVERY_TOPIC), default=None)
        return None if newest is None else float(newest.timestamp())


class LakeSink:
    """Writer of micro-batches to the lake."""

    def __init__(
        self,
        lake: str,
        ask_for_tick: Callable[[str, int], None],
        report: Callable[[WrittenBatch], None] = lambda _: None,
    ) -> None:
        """Create a sink; `report` gets each batch, its exceptions are logged. Raises `LakeError`."""
        self._lake, self._ask_for_tick, self._reports = lake, ask_for_tick, [report]
        self._tables = {name: OpenTable(table) for name, table in create_lake(lake).items()}
        self._commit_seconds: dict[str, float] = {}
        self._looks: dict[str, Future[DeltaTable]] = {}
        """Reads of the logs of tables that the running batch probably writes, by table."""
        self._lease: JobLease | None = None
        self._is_first = True
        self._side_by_side = ThreadPoolExecutor(len(TURNS[1]), "commit")

    def hold(self, lease: JobLease) -> None:
        """Put every later commit under the lease. Raises `LeaseLost`, or what Delta raises."""
        lease.shut_out_others({table.name: self._tables[table.name] for table in WRITTEN})
        self._lease = lease

    def also_report(self, report: Callable[[WrittenBatch], None]) -> None:
        """Add an observer of written batches."""
        self._reports.append(report)

    def has_batches(self) -> bool:
        """Return whether the lake has rows of any batch."""
        return bool(self._tables[BATCHES.name].newest().file_uris())

    def newest_batch(self, query: str) -> int | None:
        """Return the newest batch of a query in any table."""
        numbers = [table.newest_transaction(f"{APP}:{query}") for table in self._tables.values()]
        return max((number for number in numbers if number is not None), default=None)

    def write(self, frame: DataFrame, batch_id: int) -> None:
        """Write one micro-batch; safe to repeat. Raises what Delta raises when a table cannot be written."""
        query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if self._lease is not None and self._lease.lost is not None:
            raise self._lease.lost
        self._look_meanwhile()
        began = time.perf_counter()
        with _shown_as(frame, batch_id, "read Kafka, evaluate"):
            output = BatchOutput(frame.toArrow(), batch_id, self._lake)
        operator_seconds = time.perf_counter() - began
        wait(self._looks.values())
        self._newest_written(DECISIONS, query)
        if self._is_first:
            attempt = FirstAttempt(self._tables, f"{APP}:{query}", batch_id)
            for table in (table for turn in TURNS[:-1] for table in turn):
                attempt.check(table, output.rows(table))
        self._commit(DECISIONS, output.rows(DECISIONS), query, batch_id)
        decided_at = time.time_ns() // 1_000_000 if len(output.rows(DECISIONS)) else None
        self._commit_side_by_side(TURNS[1], output, query, batch_id)
        for topic, due_at in output.entries_of(DUE):
            self._ask_for_tick(topic, due_at)
        for family, subject, fault in output.entries_of(FAULTS):
            log.error(
                "evaluating %s (%s) failed; it is held with the gate internal-error:\n%s",
                subject,
                family,
                fault,
                extra={"batch_id": batch_id},
            )
        row = self._write_batch_row(output, query, batch_id)
        self._is_first = False
        if row is not None:
            rare = {table.name: output.rows(table) for table in (DECISIONS, HOLDS, EVENTS, DEAD_LETTERS)}
            layouts = list(output.batches_of(LAYOUTS))
            row["batch_id"] = batch_id
            written = WrittenBatch(row, rare, decided_at, operator_seconds, self._commit_seconds, layouts)
            self._tell(written, batch_id)

    def _look_meanwhile(self) -> None:
        """Start reading the logs of tables that every batch, or the previous one, wrote."""
        likely = {DECISIONS.name, BATCHES.name, *self._commit_seconds}
        self._commit_seconds = {}
        self._looks = {name: self._side_by_side.submit(self._tables[name].newest) for name in likely}

    def _newest_written(self, table: Table, query: str) -> int | None:
        """Return the newest batch of the query in a table; raises `LeaseLost` if another job took it over.

        As of the version on which our next commit is based: later changes make it fail.
        """
        opened, look = self._tables[table.name], self._looks.get(table.name)
        if look is None:
            opened.newest()
        else:
            look.result()
        holder, version = opened.transactions_as_read(LEASE, f"{APP}:{query}")
        if self._lease is not None:
            check_token(holder, self._lease.token)
        return version

    def _tell(self, batch: WrittenBatch, batch_id: int) -> None:
        for report in self._reports:
            try:
                report(batch)
            except Exception:
                log.exception("batch %d is written, but its metrics are not", batch_id, extra={"batch_id": batch_id})

    def _write_batch_row(self, output: BatchOutput, query: str, batch_id: int) -> dict[str, Any] | None:
        if output.now is None:
            return None
        row = {
            **output.counts,
            "generation": query,
            "batch_at": output.now,
            "previous": self._newest_written(BATCHES, query),
            "committed_at": time.time_ns() // 1_000_000,
        }
        rows = rare_rows(BATCHES, [pydantic_core.to_json([row])], batch_id)
        self._commit(BATCHES, TableRows(rows, []), query, batch_id)
        return row

    def _commit_side_by_side(self, tables: Iterable[Table], output: BatchOutput, query: str, batch_id: int) -> None:
        """Commit tables in parallel until all have ended. Raises the first failure, `LeaseLost` before others."""

        def commit(table: Table) -> None:
            self._commit(table, output.rows(table), query, batch_id)

        begun = [self._side_by_side.submit(commit, table) for table in tables if output.says(table)]
        wait(begun)
        failures = [failure for commit_future in begun if (failure := commit_future.exception()) is not None]
        for failure in sorted(failures, key=lambda failure: not isinstance(failure, LeaseLost)):
            raise failure

    def _commit(self, table: Table, rows: TableRows, query: str, batch_id: int) -> None:
        """Commit a table, unless there are no rows or it already holds the batch."""
        if not len(rows):
            return
        began = time.perf_counter()
        written = self._newest_written(table, query)
        if written is not None and written >= batch_id:
            log.info("%s already holds batch %d: a replay", table.name, batch_id, extra={"batch_id": batch_id})
            return
        try:
            self._append(table, rows, f"{APP}:{query}", batch_id)
        except CommitFailedError:
            if self._lease is not None:
                # A takeover between read and commit makes the commit fail.
                check_lease(self._tables[table.name], self._lease.token)
            raise
        self._commit_seconds[table.name] = time.perf_counter() - began

    def _append(self, table: Table, rows: TableRows, app: str, batch_id: int) -> None:
        opened = self._tables[table.name]
        lease = {} if self._lease is None else {LEASE: self._lease.token}
        if not rows.files:
            opened.append(rows.inline, app, batch_id, lease)
        else:
            inline = [write_file(self._lake, table, rows.inline)] if len(rows.inline) else []
            opened.add([*inline, *rows.files], app, batch_id, lease)


@contextmanager
def _shown_as(frame: DataFrame, batch_id: int, phase: str) -> Iterator[None]:
    """Set the description of Spark jobs started in the context, for the Spark UI."""
    context = frame.sparkSession.sparkContext
    before = context.getLocalProperty("spark.job.description")
    context.setJobDescription(f"anabranch, batch {batch_id}: {phase}")
    try:
        yield
    finally:
        context.setJobDescription(before)
