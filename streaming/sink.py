"""foreachBatch: consumes the operator's output once, then writes each table idempotently.

Stage: last of the job (DESIGN sections 4.2 and 7). The frame is consumed first and exactly once, also in a replay:
a batch that skips its plan leaves the state store without its version and never starts again. Each write carries the
Delta app transaction (query id, batch id); a table that already holds the batch is left as it is. Decisions go first:
the executor waits for them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pydantic_core
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from schemas.delta import create_lake, table_path
from schemas.tables import BATCHES, DEAD_LETTERS, DECISIONS, EVENTS, HOLDS, SEGMENT_LOAD, Table
from streaming.records import COUNTS, DUE, LOAD
from streaming.rows import bulk_rows, rare_rows

log = logging.getLogger(__name__)

APP = "anabranch-stream"


class LakeSink:
    """Writes micro-batches to the lake."""

    def __init__(self, lake: str, bulk_writer: str, ask_for_tick: Callable[[str, int], None]) -> None:
        """`bulk_writer` is `delta-rs` or `delta-spark`: who writes `segment_load`."""
        self._lake, self._bulk_writer, self._ask_for_tick = lake, bulk_writer, ask_for_tick
        self._tables: dict[str, DeltaTable] = create_lake(lake)

    def write(self, frame: DataFrame, batch_id: int) -> None:
        """One micro-batch; safe to repeat. Raises what Delta raises when a table cannot be written."""
        query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if self._bulk_writer == "delta-spark":
            frame = frame.persist()
            try:
                output = frame.where(F.col("kind") != LOAD).toArrow()
                self._write_rare(output, query, batch_id)
                if _counts(output)["samples_accepted"]:
                    self._write_bulk_by_spark(frame, query, batch_id)
                self._write_batch_row(output, query, batch_id)
            finally:
                frame.unpersist()
        else:
            output = frame.toArrow()
            self._write_rare(output, query, batch_id)
            self._commit(SEGMENT_LOAD, bulk_rows(_of_kind(output, LOAD), batch_id), query, batch_id)
            self._write_batch_row(output, query, batch_id)

    def _write_rare(self, output: pa.Table, query: str, batch_id: int) -> None:
        for table in (DECISIONS, HOLDS, EVENTS, DEAD_LETTERS):
            self._commit(table, rare_rows(table, _of_kind(output, table.name), batch_id), query, batch_id)
        for body in _of_kind(output, DUE)["body"].to_pylist():
            self._ask_for_tick(*pydantic_core.from_json(body))

    def _write_batch_row(self, output: pa.Table, query: str, batch_id: int) -> None:
        if not output.num_rows:
            return
        row = {
            **_counts(output),
            "generation": query,
            "batch_at": output["now"][0].as_py(),
            "committed_at": time.time_ns() // 1_000_000,
        }
        self._commit(
            BATCHES,
            rare_rows(BATCHES, pa.table({"body": [pydantic_core.to_json(row).decode()]}), batch_id),
            query,
            batch_id,
        )

    def _commit(self, table: Table, rows: pa.Table, query: str, batch_id: int) -> None:
        if not rows.num_rows:
            return
        delta = self._tables[table.name]
        delta.update_incremental()
        app = f"{APP}:{query}"
        written = delta.transaction_version(app)
        if written is not None and written >= batch_id:
            log.info("%s already holds batch %d: a replay", table.name, batch_id)
            return
        write_deltalake(
            delta, rows, mode="append",
            commit_properties=CommitProperties(app_transactions=[Transaction(app, batch_id)]),
        )  # fmt: skip

    def _write_bulk_by_spark(self, frame: DataFrame, query: str, batch_id: int) -> None:
        rows = frame.where(F.col("kind") == LOAD).select(
            "topic", "segment_id", "msg_rate_in", "bytes_rate_in", "msg_rate_out", "bytes_rate_out", "reporter",
            F.timestamp_millis("sampled_at").alias("sampled_at"), F.timestamp_millis("now").alias("accepted_at"),
            "cause", "kafka_partition", "kafka_offset", F.lit(batch_id).cast("long").alias("batch_id"),
            F.to_date(F.timestamp_millis("now")).alias("day"),
        )  # fmt: skip
        path = table_path(self._lake, SEGMENT_LOAD)
        rows.coalesce(1).write.format("delta").mode("append").option("txnAppId", f"{APP}:{query}").option(
            "txnVersion", batch_id
        ).save(path if "://" in path else Path(path).as_uri())


def _of_kind(output: pa.Table, kind: str) -> pa.Table:
    return output.filter(pc.equal(output["kind"], kind))


def _counts(output: pa.Table) -> dict[str, float]:
    """The sum over all buckets of what became of their messages and samples."""
    total: dict[str, float] = {"samples_accepted": 0}
    for body in _of_kind(output, COUNTS)["body"].to_pylist():
        for name, value in pydantic_core.from_json(body).items():
            total[name] = total.get(name, 0) + value
    return total
