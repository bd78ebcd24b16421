"""The job's history: rows of the lake, put in the order in which the job ran.

Stage: beside the job; callers read the tables (`anabranch.history`), and `engine.replay` consumes what is made here. A
generation is one checkpoint, and batch ids restart with each. Only the last generation counts, and those that it was
rebuilt from.

Longer than other files, because reading order, generations and chunks share the numbering of batches.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timezone
from functools import reduce
from itertools import groupby, pairwise
from operator import or_
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from decisions.autoscale.clocks import NEVER
from engine.autoscale.samples import BY_SAMPLES, Samples
from engine.kernel.records import RawRecord
from engine.replay import RecordedBatch
from schemas.ids import EVERY_TOPIC
from schemas.kafka.topics import SEGMENT_STATS
from schemas.tables.rows import BATCHES, DEAD_LETTERS, DECISIONS, EVENTS, HOLDS, SEGMENT_LOAD, Table

_TIME_OF = {
    DECISIONS.name: "decided_at",
    HOLDS.name: "since",
    EVENTS.name: "accepted_at",
    DEAD_LETTERS.name: "rejected_at",
    SEGMENT_LOAD.name: "accepted_at",
}
"""Column with the batch's time."""
_COLUMNS = {
    DECISIONS.name: (
        "subject",
        "decision_id",
        "action",
        "arguments",
        "reason",
        "trigger",
        "layout_epoch",
        "policy_digest",
        "inputs",
        "gates",
        "seq",
        "engine_version",
    ),
    HOLDS.name: (
        "subject",
        "gate",
        "measured",
        "limit",
        "margin",
        "eligible_at",
        "trigger",
        "layout_epoch",
        "layout_digest",
        "policy_digest",
        "inputs",
        "seq",
        "engine_version",
    ),
    EVENTS.name: ("subject", "type", "body", "kafka_topic", "kafka_partition", "kafka_offset"),
    DEAD_LETTERS.name: ("kafka_topic", "kafka_partition", "kafka_offset"),
    SEGMENT_LOAD.name: (
        "topic",
        "segment_id",
        "msg_rate_in",
        "bytes_rate_in",
        "msg_rate_out",
        "bytes_rate_out",
        "reporter",
        "sampled_at",
        "kafka_partition",
        "kafka_offset",
        "kafka_timestamp",
    ),
}
_MAX_REBUILDS = 100
TOPIC_PREFIX = "topic://"
"""Prefix of subjects that are topics; subjects of other families lack it."""


def rebuilt_generation(generation: str, number: int) -> str:
    """Return the id of the `number`-th checkpoint rebuilt from a generation, for later rebuilds."""
    return str(uuid5(NAMESPACE_URL, f"anabranch:rebuilt:{generation}:{number}"))


def is_rebuilt_generation(generation: str) -> bool:
    """Return whether an id is of a rebuilt checkpoint; Spark's own ids are random."""
    try:
        return UUID(generation).version == 5
    except ValueError:
        return False


def free_generation(generation: str, is_used: Callable[[str], bool]) -> str:
    """Return the first id for a checkpoint rebuilt from `generation` that is not used yet."""
    ids = (rebuilt_generation(generation, number) for number in range(_MAX_REBUILDS))
    return next(identity for identity in ids if not is_used(identity))


Place = tuple[int, int]
"""Start of the generation, and batch id within it; sorts batches in the order in which they ran."""
_BATCH_COLUMNS = ("generation", "batch_id", "batch_at", "samples_accepted", "events", "decisions", "holds")
_LOAD_BYTES, _ROW_BYTES = 128, 4096
"""Estimated size in memory of a load, and of a row with layouts or snapshots."""
_NUMBERS = 1 << 21
"""Factor of the time in a sort key; the bits below it hold the batch number."""


class Batches:
    """Batches of all generations that count, from the table `batches`, in arrays (maybe millions)."""

    def __init__(self, batches: pa.Table) -> None:
        numbers, ats = batches["batch_id"].to_numpy(), _millis_array(batches["batch_at"])
        names, codes = _generations(batches)
        began = np.full(len(names), np.iinfo(np.int64).max, np.int64)
        np.minimum.at(began, codes, ats)
        last = np.full(len(names), -1, np.int64)
        np.maximum.at(last, codes, numbers)
        self.generations: list[str] = _lineage([names[code] for code in np.argsort(began, kind="stable")])
        """Oldest first."""
        self._first = int(began[names.index(self.generations[0])]) if self.generations else 0
        self._began: list[int] = sorted(began.tolist())
        self._last = dict(zip(began.tolist(), last.tolist(), strict=True))
        ended = np.full(len(names), np.iinfo(np.int64).min, np.int64)
        np.maximum.at(ended, codes, ats)
        self._ended = dict(zip(began.tolist(), ended.tolist(), strict=True))
        keys = _batch_key(numbers, ats)
        order = np.argsort(keys, kind="stable")
        self._keys, self._places = keys[order], np.column_stack([began[codes], numbers])[order]
        ranked = np.lexsort((self._places[:, 1], self._places[:, 0]))
        self._ranked, self._bytes = self._places[ranked], _bytes_of(batches)[order][ranked]
        self._ats = ats[order][ranked]
        """Time of each batch."""
        self._newest = np.maximum.accumulate(self._ats) if len(ranked) else ats
        """Latest time up to and including each batch."""

    def place(self, number: int, batch_at: int) -> Place | None:
        """Return the position of a row's batch; None if its generation does not count.

        A batch may be missing from `batches`: it was the last of its generation, in which the job died; the first of
        a generation without others; or left out of an outline, or removed by retention.
        """
        if (row := self._row(number, batch_at)) is None:
            began = max((start for start in self._began if start <= batch_at), default=batch_at)
            is_of_it = number > self._last.get(began, -1) or batch_at <= self._ended.get(began, batch_at - 1)
            position = (began, number) if is_of_it else (batch_at, number)
        else:
            position = (int(self._places[row][0]), int(self._places[row][1]))
        return position if position[0] >= self._first else None

    def is_set_back(self, number: int, batch_at: int) -> bool:
        """Return whether an earlier batch had a later time."""
        position = self.place(number, batch_at)
        before = 0 if position is None else self._rank(position)
        return before > 0 and bool(self._newest[before - 1] > batch_at)

    def is_complete(self, number: int, batch_at: int) -> bool:
        """Return whether the batch's own row, which is written last, exists."""
        return self._row(number, batch_at) is not None

    def begins_before(self, day: date) -> bool:
        """Return whether the first batch that counts ran before a day (UTC)."""
        return bool(len(self._ats)) and datetime.fromtimestamp(self._first / 1000, timezone.utc).date() < day

    @property
    def span(self) -> tuple[datetime, datetime] | tuple[None, None]:
        """Times of the first and last batch that count (UTC)."""
        counts = self._ats[self._ranked[:, 0] >= self._first] if len(self._ats) else self._ats
        if not len(counts):
            return None, None
        first, last = (
            datetime.fromtimestamp(int(millis) / 1000, timezone.utc) for millis in (counts.min(), counts.max())
        )
        return first, last

    def goes_on_after(self, instant: datetime) -> bool:
        """Return whether a batch that counts ran at an instant (aware) or later."""
        return bool((self._ats >= int(instant.timestamp() * 1000)).any())

    def is_parted(self, instant: datetime) -> bool:
        """Return whether an instant (aware) separates all batches: no clock was set back across it."""
        later = self._ats >= int(instant.timestamp() * 1000)
        return bool((np.diff(later.astype(np.int8)) >= 0).all())

    def chunks(self, most_bytes: int) -> list[Place]:
        """Return where chunks after the first begin: each has about `most_bytes`, or is one batch."""
        filled = np.cumsum(self._bytes) // most_bytes
        begins = np.flatnonzero(np.diff(filled, prepend=0)) if len(filled) else filled
        return [(int(began), int(number)) for began, number in self._ranked[begins]]

    def _rank(self, position: Place) -> int:
        """Return the number of recorded batches before a position."""
        began, number = position
        first, end = (int(np.searchsorted(self._ranked[:, 0], began, side)) for side in ("left", "right"))
        return first + int(np.searchsorted(self._ranked[first:end, 1], number))

    def _row(self, number: int, batch_at: int) -> int | None:
        row = int(np.searchsorted(self._keys, _batch_key(number, batch_at)))
        is_known = row < len(self._keys) and self._keys[row] == _batch_key(number, batch_at)
        return row if is_known and self._places[row][1] == number else None


def _generations(batches: pa.Table) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Return the names of all generations, and by row the index of its generation."""
    encoded = pa.chunked_array(batches["generation"]).combine_chunks().dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)


def _batch_key(number: Any, batch_at: Any) -> Any:
    return batch_at * _NUMBERS + number % _NUMBERS


def _bytes_of(batches: pa.Table) -> npt.NDArray[np.int64]:
    if "samples_accepted" not in batches.column_names:
        return np.zeros(len(batches), np.int64)
    rows = sum(batches[name].to_numpy() for name in ("events", "decisions", "holds"))
    weights: npt.NDArray[np.int64] = rows * _ROW_BYTES + batches["samples_accepted"].to_numpy() * _LOAD_BYTES
    return weights


def _lineage(generations: list[str]) -> list[str]:
    """Return the last generation and those that it was rebuilt from, oldest first."""
    lineage = generations[-1:]
    older = generations[:-1]
    while older:
        rebuilt_from = older.pop()
        if lineage[0] in {rebuilt_generation(rebuilt_from, number) for number in range(_MAX_REBUILDS)}:
            lineage.insert(0, rebuilt_from)
    return lineage


@dataclass(frozen=True)
class BatchHistory:
    """All rows that count, or a chunk; `place` is the rank of a row's batch, by which tables are sorted."""

    generation: str | None
    """The last generation; None: the job has never written."""
    tables: Mapping[str, pa.Table]
    times: list[tuple[int, bool]]
    """By rank: the batch's time in milliseconds, and whether it is complete."""
    next_offsets: dict[str, dict[int, int]]
    """By Kafka topic and partition: the offset after the last recorded message."""

    def topics(self) -> list[str]:
        """Return every topic with a row."""
        names = {row for name, rows in self.tables.items() if name != DEAD_LETTERS.name for row in _subjects(rows)}
        return sorted(names - {EVERY_TOPIC})

    def of_bucket(self, topics: Collection[str]) -> Iterator[RecordedBatch]:
        """Yield the batches of a bucket with these topics, except those that did not change it."""
        names = {*topics, EVERY_TOPIC}
        wanted = pa.array([*names], pa.string())
        rows: dict[str, dict[int, list[dict[str, Any]]]] = {}
        for name in (DECISIONS.name, HOLDS.name, EVENTS.name):
            table = self.tables[name]
            concerned = [subject for subject in _subjects(table) if _owner_of_subject(subject) in names]
            chosen = table.filter(pc.is_in(table["subject"], pa.array(concerned, pa.string()))).to_pylist()
            rows[name] = {position: list(group) for position, group in groupby(chosen, key=lambda row: row["place"])}
        loads = self.tables[SEGMENT_LOAD.name]
        samples = dict(_samples(loads.filter(pc.is_in(loads["topic"], wanted))))
        for position in sorted({*samples, *(position for by_place in rows.values() for position in by_place)}):
            now, is_complete = self.times[position]
            yield RecordedBatch(
                now=now,
                is_complete=is_complete,
                events=[_event_record(row) for row in rows[EVENTS.name].get(position, ())],
                samples=samples.get(position),
                decisions=rows[DECISIONS.name].get(position, ()),
                holds=rows[HOLDS.name].get(position, ()),
            )


_RATES = ("msg_rate_in", "bytes_rate_in", "msg_rate_out", "bytes_rate_out")

HISTORY_TABLES = (EVENTS, SEGMENT_LOAD, DEAD_LETTERS, DECISIONS, HOLDS)
"""Tables with the inputs and results of batches."""


def columns_of(table: Table) -> tuple[str, ...]:
    """Return the columns that a history needs of a table."""
    return _BATCH_COLUMNS if table is BATCHES else (*_COLUMNS[table.name], "batch_id", _TIME_OF[table.name])


def rows_of_topic(table: Table, topic: str, until: datetime) -> pc.Expression:
    """Return a filter for rows about a topic up to an instant."""
    return is_of_topics(table, [topic]) & is_until(table, until)


def is_of_clusters(clusters: Collection[str] | None = None) -> pc.Expression:
    """Return a filter of `events`, `decisions`, `holds` for rows about clusters (None: all) or everything."""
    subject = pc.field("subject")
    if clusters is None:
        return pc.invert(pc.starts_with(subject, TOPIC_PREFIX))
    return reduce(
        or_, (pc.starts_with(subject, f"{name}/") for name in clusters), subject.isin([*clusters, EVERY_TOPIC])
    )


def is_of_topics(table: Table, topics: Collection[str]) -> pc.Expression:
    """Return a filter for rows about these topics."""
    subject = "topic" if table is SEGMENT_LOAD else "subject"
    return pc.field(subject).isin([*topics, EVERY_TOPIC] if table is EVENTS else list(topics))


def is_until(table: Table, until: datetime) -> pc.Expression:
    """Return a filter for rows of batches up to an instant."""
    return (pc.field(_TIME_OF[table.name]) <= pa.scalar(until)) & (pc.field("day") <= pa.scalar(until.date()))


def is_since(table: Table, since: datetime) -> pc.Expression:
    """Return a filter for rows of batches from an instant on."""
    return (pc.field(_TIME_OF[table.name]) >= pa.scalar(since)) & (pc.field("day") >= pa.scalar(since.date()))


def instants_of(tables: Mapping[str, pa.Table]) -> pa.Array:
    """Return the distinct batch times of rows of `HISTORY_TABLES`."""
    times = [chunk for name, table in tables.items() for chunk in table[_TIME_OF[name]].chunks]
    return pa.chunked_array(times, pa.timestamp("us", tz="UTC")).unique()


class HistoryRows:
    """Filter of table rows for a history, fed in any number and order."""

    def __init__(
        self, batches: Batches, begins: Sequence[Place] = (), *, with_ticks: bool = False, of_clusters: bool = False
    ) -> None:
        """Create a filter.

        `begins` is the result of `Batches.chunks`. `with_ticks` keeps all ticks, for callers that evaluate at each.
        `of_clusters` selects clusters with bundles instead of topics, with ticks.
        """
        self._known, self._begins, self._of_clusters = batches, begins, of_clusters
        self._with_ticks = with_ticks or of_clusters
        self.topics: set[str] = set()
        """Every topic, or cluster, with a row."""
        self.has_others = False
        """True if rows of the other kind (clusters or topics) were skipped."""
        self.next_offsets: dict[str, dict[int, int]] = {}
        """By Kafka topic and partition: the offset after the last recorded message."""

    def take(self, name: str, rows: pa.Table) -> tuple[pa.Table, npt.NDArray[np.int64]]:
        """Return the rows of a table that a history needs, and the chunk of each."""
        keys, owners = _batches_of(name, rows)
        positions = [self._known.place(*key) for key in keys]
        chunks = np.array(
            [-1 if position is None else bisect_right(self._begins, position) for position in positions], np.int64
        )
        all_chunks = chunks[owners] if len(rows) else owners
        counts = all_chunks >= 0
        chosen, chunk, owner = rows.filter(pa.array(counts)), all_chunks[counts], owners[counts]
        _take_offsets(self.next_offsets, name, chosen)
        if name == DEAD_LETTERS.name or (self._of_clusters and name == SEGMENT_LOAD.name):
            return chosen.slice(0, 0), chunk[:0]
        if name in (DECISIONS.name, HOLDS.name, EVENTS.name):
            is_wanted = pc.starts_with(chosen["subject"], TOPIC_PREFIX)
            is_wanted = pc.invert(is_wanted) if self._of_clusters else is_wanted
            is_wanted = np.asarray(pc.or_(is_wanted, pc.equal(chosen["subject"], EVERY_TOPIC)), np.bool_)
            self.has_others |= not is_wanted.all()
            chosen, chunk, owner = chosen.filter(pa.array(is_wanted)), chunk[is_wanted], owner[is_wanted]
        self.topics.update(map(_owner_of_subject, _subjects(chosen)))
        self.topics.discard(EVERY_TOPIC)
        if name == EVENTS.name and not self._with_ticks:
            # A tick has no effect beyond its recorded decisions and holds, unless the job's clock was set back
            # before it.
            is_needed = np.array([self._known.is_set_back(*key) for key in keys], np.bool_)[owner]
            is_wanted = np.asarray(pc.not_equal(chosen["type"], "tick"), np.bool_) | is_needed
            chosen, chunk = chosen.filter(pa.array(is_wanted)), chunk[is_wanted]
        return chosen, chunk


def history_of(
    batches: pa.Table, tables: Mapping[str, pa.Table], *, with_ticks: bool = False, of_clusters: bool = False
) -> BatchHistory:
    """Build the history from rows of `batches` (an outline is enough) and `HISTORY_TABLES`."""
    recorded = Batches(batches)
    rows = HistoryRows(recorded, with_ticks=with_ticks, of_clusters=of_clusters)
    chosen = {name: rows.take(name, table)[0] for name, table in tables.items()}
    return replace(history_chunk(recorded, chosen), next_offsets=rows.next_offsets)


def history_chunk(batches: Batches, tables: Mapping[str, pa.Table]) -> BatchHistory:
    """Build part of a history from rows kept by `HistoryRows`; each batch must be complete."""
    read = {name: _batches_of(name, table) for name, table in tables.items()}
    placed = {key: position_of for keys, _ in read.values() for key in keys if (position_of := batches.place(*key))}
    ordered = sorted(placed, key=lambda key: placed[key])
    number = {key: position for position, key in enumerate(ordered)}
    sorted_tables: dict[str, pa.Table] = {}
    for name, table in tables.items():
        keys, owners = read[name]
        ranks = np.array([number[key] for key in keys], np.int64)[owners] if len(table) else owners
        placed_rows = table.select(_COLUMNS[name]).append_column("place", pa.array(ranks, pa.int64()))
        sorted_tables[name] = placed_rows.sort_by(
            [(column, "ascending") for column in ("place", *_ORDER.get(name, ()))]
        )
    return BatchHistory(
        generation=batches.generations[-1] if batches.generations else None,
        tables=sorted_tables,
        times=[(batch_at, batches.is_complete(batch_id, batch_at)) for batch_id, batch_at in ordered],
        next_offsets={},
    )


def _batches_of(name: str, rows: pa.Table) -> tuple[list[tuple[int, int]], npt.NDArray[np.int64]]:
    """Return the number and time of each distinct batch, and by row the index of its batch."""
    pairs = np.column_stack([rows["batch_id"].to_numpy(), _millis_array(rows[_TIME_OF[name]])])
    # Rows of a batch are contiguous: look at one row per run.
    starts = np.flatnonzero(np.r_[np.ones(min(1, len(pairs)), np.bool_), (pairs[1:] != pairs[:-1]).any(axis=1)])
    distinct, runs = np.unique(pairs[starts].astype(np.int64), axis=0, return_inverse=True)
    owners = np.repeat(runs.reshape(-1), np.diff([*starts.tolist(), len(pairs)]))
    return [(int(number), int(batch_at)) for number, batch_at in distinct], owners.astype(np.int64)


_ORDER = {
    SEGMENT_LOAD.name: ("kafka_partition", "kafka_offset", "segment_id"),
    DECISIONS.name: ("seq",),
    HOLDS.name: ("seq",),
}


def _take_offsets(offsets: dict[str, dict[int, int]], name: str, table: pa.Table) -> None:
    if name == SEGMENT_LOAD.name:
        table = table.append_column("kafka_topic", pa.repeat(pa.scalar(SEGMENT_STATS.name), len(table)))
    elif name not in (EVENTS.name, DEAD_LETTERS.name):
        return
    newest = table.group_by(["kafka_topic", "kafka_partition"]).aggregate([("kafka_offset", "max")])
    for row in newest.to_pylist():
        of_topic = offsets.setdefault(row["kafka_topic"], {})
        partition = row["kafka_partition"]
        of_topic[partition] = max(of_topic.get(partition, 0), row["kafka_offset_max"] + 1)


def _event_record(row: Mapping[str, Any]) -> RawRecord:
    value = row["body"].encode()
    return RawRecord(
        row["kafka_topic"],
        row["subject"].encode(),
        value,
        len(value),
        row["kafka_partition"],
        row["kafka_offset"],
        timestamp=0,
        home=True,
    )


def _samples(loads: pa.Table) -> Iterator[tuple[int, Samples]]:
    """Yield accepted load records as samples by the rank of their batch.

    All rows become arrays at once: for each batch it would take most of the time of a replay.
    """
    ranks, partitions, offsets = (loads[name].to_numpy() for name in ("place", "kafka_partition", "kafka_offset"))
    changed = (np.diff(ranks) != 0) | (np.diff(partitions) != 0) | (np.diff(offsets) != 0)
    heads = np.flatnonzero(np.r_[np.ones(min(1, len(ranks)), np.bool_), changed])
    counts = np.diff(np.r_[heads, len(ranks)])
    rates = np.column_stack([loads[name].to_numpy() for name in _RATES])
    segments, (topics, topic_names) = loads["segment_id"].to_numpy(), _coded(loads["topic"])
    of_messages = loads.take(heads)
    reporters, reporter_names = _coded(of_messages["reporter"])
    sampled_at = _millis_array(of_messages["sampled_at"])
    stamped_at = _millis_array(pc.fill_null(pc.cast(of_messages["kafka_timestamp"], pa.int64()), NEVER * 1000))
    batches = np.flatnonzero(np.r_[np.ones(min(1, len(heads)), np.bool_), np.diff(ranks[heads]) != 0])
    for begin, end in pairwise([*batches.tolist(), len(heads)]):
        messages, rows = slice(begin, end), slice(heads[begin], heads[end] if end < len(heads) else len(ranks))
        topic, names = _used(topics[rows], topic_names)
        reporter, reporting = _used(reporters[messages], reporter_names)
        yield (
            int(ranks[rows.start]),
            Samples(
                topics=names,
                reporters=reporting,
                topic=topic,
                segment=segments[rows],
                rates=rates[rows],
                reporter=reporter,
                sampled_at=sampled_at[messages],
                partition=partitions[heads[messages]],
                offset=offsets[heads[messages]],
                timestamp=stamped_at[messages],
                counted=np.full(end - begin, BY_SAMPLES, np.int8),
                counts=counts[messages],
            ),
        )


def _coded(names: pa.ChunkedArray) -> tuple[npt.NDArray[np.int32], pa.Array]:
    """Return the distinct names, and for each row the index of its own."""
    coded = names.combine_chunks().dictionary_encode()
    return coded.indices.to_numpy(), coded.dictionary


def _used(codes: npt.NDArray[np.int32], names: pa.Array) -> tuple[npt.NDArray[np.int32], pa.Array]:
    """Cut names to those that are used, in the order of their first use."""
    if len(names) == 1:
        return codes, names
    distinct, first, owners = np.unique(codes, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return np.argsort(order).astype(np.int32)[owners.reshape(-1)], names.take(distinct[order])


def _subjects(table: pa.Table) -> list[str]:
    column = table["topic" if "topic" in table.column_names else "subject"]
    subjects: list[str] = pc.unique(column).to_pylist()
    return subjects


def _owner_of_subject(subject: str) -> str:
    """Return the topic or cluster of a subject, which may be a broker (`cluster/broker`)."""
    return subject if subject.startswith(TOPIC_PREFIX) else subject.partition("/")[0]


def _millis_array(instants: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    return np.asarray(pc.divide(pc.cast(instants, pa.int64()), 1000), np.int64)
