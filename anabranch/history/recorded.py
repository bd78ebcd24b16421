"""The job's whole history from the lake, in order, in the memory of one chunk.

Stage: under `anabranch.history.rebuild` and `anabranch decisions replay`. A lake may hold years, and compacted files
are unordered. Every table is read once, a few rows at a time; relevant rows go to temporary files by chunk, a run of
successive batches. Then the chunks are returned in order. A lake of a single chunk needs no files.
"""

import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import reduce
from operator import and_
from pathlib import Path
from typing import TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from engine.autoscale.regrouping import names_in, regroup_topics
from engine.bundles.clusters import Clusters
from engine.bundles.codec import pack as pack_clusters
from engine.bundles.codec import unpack as unpack_clusters
from engine.history import (
    HISTORY_TABLES,
    Batches,
    BatchHistory,
    HistoryRows,
    columns_of,
    history_chunk,
    is_of_clusters,
    is_of_topics,
    is_since,
    is_until,
)
from engine.kernel.packed import StateError, StoredPart
from engine.replay import RebuildError
from lake.batches import read_batches, read_outline
from lake.state_snapshots import Horizon, RowsForgotten, horizon_for
from lake.tables import stream_columns
from schemas.tables.arrow import arrow_schema
from schemas.tables.rows import BATCHES, DEAD_LETTERS, DECISIONS, EVENTS, HOLDS, SEGMENT_LOAD, Table

CHUNK_BYTES = 64 << 20
"""Approximate size of a chunk in memory, and of the rows that wait to be written to files."""
_ROWS_AT_ONCE = {SEGMENT_LOAD.name: 65_536}
"""Rows read at a time, by table: loads are short, other rows are kilobytes."""


class Begun(TypedDict, total=False):
    """Starting point of a replay."""

    begun: Mapping[str, StoredPart]
    of_older: Collection[str]


class BegunClusters(TypedDict, total=False):
    """Starting point of a replay of clusters."""

    begun: bytes
    of_older: Collection[str]


_CLUSTER_TABLES = (EVENTS, DECISIONS, HOLDS)
Choice = Callable[[Batches], Horizon | None]


def newest_before(lake: str, until: datetime | None = None, subjects: Collection[str] | None = None) -> Choice:
    """Return a chooser that calls `lake.state_snapshots.horizon_for`; its error becomes `RebuildError`."""

    def choose(batches: Batches) -> Horizon | None:
        try:
            return horizon_for(lake, batches, until, subjects)
        except RowsForgotten as error:
            raise RebuildError(str(error)) from error

    return choose


class RecordedHistory:
    """History of a lake, spooled to `folder`, which takes some of the lake's size."""

    def __init__(
        self,
        lake: str,
        folder: Path,
        chunk_bytes: int = CHUNK_BYTES,
        *,
        with_ticks: bool = False,
        until: datetime | None = None,
        topics: Collection[str] | None = None,
        horizon: Choice = lambda _: None,
        of_clusters: bool = False,
    ) -> None:
        """Read the whole lake; raises `DeltaError` or `OSError`.

        `folder` is for this object alone. `with_ticks`: include ticks; `until` (aware): nothing after it; `topics`:
        only these; `horizon`: chooses a horizon, and nothing before it is read; `of_clusters`: clusters with bundles
        instead of topics, with ticks.
        """
        course = read_outline(lake, columns_of(BATCHES), until)
        self.horizon = horizon(Batches(course))
        since = None if self.horizon is None else self.horizon.at
        batches = read_batches(lake, columns_of(BATCHES), since, until)
        if since is not None:
            batches = pa.concat_tables([course.filter(pc.less(course["batch_at"], pa.scalar(since))), batches])
        self._batches = Batches(batches)
        self._begun_topics = set[str]()
        if self.horizon is not None:
            with _readable(self.horizon):
                self._begun_topics = {*_clusters_of(self.horizon)} if of_clusters else names_in(self.horizon.pieces)
        self._files = _ChunkFiles(folder, chunk_bytes)
        begins = self._batches.chunks(chunk_bytes)
        self._number = len(begins) + 1
        self._rows = HistoryRows(self._batches, begins, with_ticks=with_ticks, of_clusters=of_clusters)
        if self.generation is not None:
            for table in _CLUSTER_TABLES if of_clusters else HISTORY_TABLES:
                columns, rows = columns_of(table), _ROWS_AT_ONCE.get(table.name, 1024)
                where = _where(table, since, until, topics, of_clusters)
                for read in stream_columns(lake, table, columns, rows, where):
                    self._files.add(table.name, *self._rows.take(table.name, read))
        if of_clusters and self.horizon is not None and self.horizon.clusters is None and self._rows.topics:
            raise RebuildError(
                f"rows before {self.horizon.day} were forgotten by a release that kept nothing of clusters with bundles"
            )

    @property
    def generation(self) -> str | None:
        """The last generation; None: the job has never written."""
        return self._batches.generations[-1] if self._batches.generations else None

    @property
    def topics(self) -> list[str]:
        """Every topic, or cluster, with a row or in the horizon."""
        return sorted(self._rows.topics | self._begun_topics)

    @property
    def has_clusters(self) -> bool:
        """True if there are records of clusters with bundles; for histories of all topics."""
        return self._rows.has_others or (self.horizon is not None and bool(_clusters_of(self.horizon)))

    @property
    def next_offsets(self) -> dict[str, dict[int, int]]:
        """By Kafka topic and partition: the offset after the last recorded message."""
        by_topic = (
            {} if self.horizon is None else {name: dict(offsets) for name, offsets in self.horizon.next_offsets.items()}
        )
        for name, offsets in self._rows.next_offsets.items():
            by_topic[name] = {**by_topic.get(name, {}), **offsets}
        return by_topic

    def begun(self, names: Collection[str]) -> Begun:
        """Return a replay's starting point for these topics (`BucketReplay`). Raises `RebuildError`."""
        if self.horizon is None:
            return {}
        with _readable(self.horizon):
            return {"begun": regroup_topics(self.horizon.pieces, names), "of_older": self.horizon.of_older & {*names}}

    def begun_clusters(self, names: Collection[str]) -> BegunClusters:
        """Return the starting point of a replay of clusters (arguments of `ClustersReplay`)."""
        if self.horizon is None:
            return {}
        with _readable(self.horizon):
            clusters = {name: state for name, state in _clusters_of(self.horizon).items() if name in names}
            return {"begun": pack_clusters(clusters), "of_older": self.horizon.of_older & {*names}}

    @property
    def span(self) -> tuple[int, int] | None:
        """Time of the first and last batch read, milliseconds since 1970; None without any."""
        first, last = self._batches.span
        if first is None or last is None:
            return None
        first = first if self.horizon is None else max(first, self.horizon.at)
        return int(first.timestamp() * 1000), int(last.timestamp() * 1000)

    def chunks(self, *, keep: bool = False) -> Iterator[BatchHistory]:
        """Yield the chunks in order; with `keep` they can be read again."""
        for number in range(self._number):
            tables = self._files.take(number, keep)
            if any(len(rows) for rows in tables.values()):
                yield history_chunk(self._batches, tables)


def _where(
    table: Table, since: datetime | None, until: datetime | None, topics: Collection[str] | None, of_clusters: bool
) -> pc.Expression | None:
    conditions = [is_since(table, since)] if since is not None else []
    conditions += [is_until(table, until)] if until is not None else []
    if of_clusters:
        conditions.append(is_of_clusters(topics))
    elif topics is not None and table is not DEAD_LETTERS:
        conditions.append(is_of_topics(table, topics))
    return reduce(and_, conditions) if conditions else None


def _clusters_of(horizon: Horizon) -> Clusters:
    """Return the clusters of a horizon; raises `StateError`."""
    return unpack_clusters(StoredPart(horizon.clusters or b""))


@contextmanager
def _readable(horizon: Horizon | None) -> Iterator[None]:
    try:
        yield
    except StateError as error:
        day = None if horizon is None else horizon.day
        raise RebuildError(f"what was kept of the rows before {day} cannot be read: {error}") from error


class _ChunkFiles:
    """Rows by chunk and table: in memory until there are too many, then in files."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder, self._most = folder, most_bytes
        self._waiting: list[tuple[str, np.ndarray, pa.Table]] = []
        self._bytes = self._written = 0

    def add(self, name: str, rows: pa.Table, chunks: np.ndarray) -> None:
        if not len(rows):
            return
        self._waiting.append((name, chunks, rows))
        self._bytes += rows.nbytes
        if self._bytes >= self._most:
            self._write()

    def take(self, number: int, keep: bool = False) -> dict[str, pa.Table]:
        """Read the rows of a chunk, and delete its files unless `keep`."""
        tables = {table.name: [_nothing(table.name)] for table in HISTORY_TABLES}
        folder = self._folder / str(number)
        for file in sorted(folder.glob("*.arrow"), key=lambda file: int(file.stem.rpartition("-")[2])):
            with pa.OSFile(str(file)) as opened, pa.ipc.open_file(opened) as reader:
                tables[file.stem.rpartition("-")[0]].append(reader.read_all())
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
        for name, chunks, rows in self._waiting:
            tables[name].append(rows.filter(pa.array(chunks == number)))
        return {name: pa.concat_tables(parts) for name, parts in tables.items()}

    def _write(self) -> None:
        """Write a file for each table and chunk with rows."""
        by_table: dict[str, list[tuple[np.ndarray, pa.Table]]] = {}
        for name, chunks, rows in self._waiting:
            by_table.setdefault(name, []).append((chunks, rows))
        self._waiting, self._bytes = [], 0
        for name, parts in by_table.items():
            rows, chunks = pa.concat_tables(part for _, part in parts), np.concatenate([part for part, _ in parts])
            for number in np.unique(chunks).tolist():
                folder = self._folder / str(number)
                folder.mkdir(parents=True, exist_ok=True)
                self._written += 1
                options = pa.ipc.IpcWriteOptions(compression="lz4")
                file = str(folder / f"{name}-{self._written}.arrow")
                with pa.OSFile(file, "wb") as opened, pa.ipc.new_file(opened, rows.schema, options=options) as writer:
                    writer.write_table(rows.filter(pa.array(chunks == number)))


def _nothing(name: str) -> pa.Table:
    table = next(table for table in HISTORY_TABLES if table.name == name)
    return arrow_schema(table.row).empty_table().select(list(columns_of(table)))
