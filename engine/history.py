"""What the lake has on record of the job, in the order in which the job did it.

Stage: beside the job; `engine.replay` takes it in. A generation is the life of a checkpoint: batch ids start again
with each. Only generations count that led to the state of the last one: it, and those that it was rebuilt from.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from decisions.autoscale.clocks import NEVER
from engine.autoscale.samples import Samples
from engine.kernel.records import RawRecord
from engine.replay import RecordedBatch
from schemas.ids import EVERY_TOPIC
from schemas.kafka import SEGMENT_STATS
from schemas.tables import BATCHES, DEAD_LETTERS, DECISIONS, EVENTS, HOLDS, SEGMENT_LOAD, Table

_TIME_OF = {
    DECISIONS.name: "decided_at",
    HOLDS.name: "since",
    EVENTS.name: "accepted_at",
    DEAD_LETTERS.name: "rejected_at",
    SEGMENT_LOAD.name: "accepted_at",
}
"""The column that holds the batch's time."""
_COLUMNS = {
    DECISIONS.name: ("subject", "decision_id", "action", "arguments", "trigger", "layout_epoch", "policy_digest",
                     "inputs", "seq", "engine_version"),
    HOLDS.name: ("subject", "gate", "trigger", "policy_digest", "inputs", "seq", "engine_version"),
    EVENTS.name: ("subject", "type", "body", "kafka_topic", "kafka_partition", "kafka_offset"),
    DEAD_LETTERS.name: ("kafka_topic", "kafka_partition", "kafka_offset"),
    SEGMENT_LOAD.name: ("topic", "segment_id", "msg_rate_in", "bytes_rate_in", "msg_rate_out", "bytes_rate_out",
                        "reporter", "sampled_at", "kafka_partition", "kafka_offset", "kafka_timestamp"),
}  # fmt: skip
_MAX_REBUILDS = 100


def rebuilt_generation(generation: str, number: int) -> str:
    """The id of the `number`-th checkpoint that is rebuilt from a generation: by it the next rebuild knows that."""
    return str(uuid5(NAMESPACE_URL, f"anabranch:rebuilt:{generation}:{number}"))


def is_rebuilt_generation(generation: str) -> bool:
    """Whether the id is of a checkpoint that was rebuilt; Spark's own ids are random."""
    try:
        return UUID(generation).version == 5
    except ValueError:
        return False


def free_generation(generation: str, is_used: Callable[[str], bool]) -> str:
    """The first id for a checkpoint rebuilt from `generation` under which nothing was written yet."""
    ids = (rebuilt_generation(generation, number) for number in range(_MAX_REBUILDS))
    return next(identity for identity in ids if not is_used(identity))


Place = tuple[int, int]
"""When the generation began, and the batch id in it: sorts batches as they were run."""


class Batches:
    """The batches of all generations that count, from the table `batches`."""

    def __init__(self, batches: pa.Table) -> None:
        columns = (batches["generation"].to_pylist(), batches["batch_id"].to_pylist(), _millis(batches["batch_at"]))
        rows = list(zip(*columns, strict=True))
        began: dict[str, int] = {}
        for generation, _, at in rows:
            began[generation] = min(at, began.get(generation, at))
        self.generations: list[str] = _lineage(sorted(began, key=lambda generation: began[generation]))
        """Oldest first."""
        self._first = began[self.generations[0]] if self.generations else 0
        self._known: dict[tuple[int, int], Place] = {
            (number, at): (began[generation], number) for generation, number, at in rows
        }
        times = sorted((place, at) for (_, at), place in self._known.items())
        self._order = [place for place, _ in times]
        self._newest = list(accumulate((at for _, at in times), max))
        """Of each batch and those before it, the latest time."""
        self._began = sorted(began.values())
        self._last = {began[generation]: 0 for generation in began}
        for generation, number, _ in rows:
            self._last[began[generation]] = max(number, self._last[began[generation]])

    def place(self, number: int, at: int) -> Place | None:
        """Where a row of that batch id and time belongs; None: to a generation that does not count.

        A batch that is not in the table was the last of its generation, and the job died in it; or it was the first of
        a generation that has no other.
        """
        place = self._known.get((number, at))
        if place is None:
            began = max((start for start in self._began if start <= at), default=at)
            place = (began, number) if number > self._last.get(began, -1) else (at, number)
        return place if place[0] >= self._first else None

    def is_set_back(self, number: int, at: int) -> bool:
        """Whether a batch before that one had a later time."""
        place = self.place(number, at)
        before = 0 if place is None else bisect_left(self._order, place)
        return before > 0 and self._newest[before - 1] > at

    def is_complete(self, number: int, at: int) -> bool:
        """Whether the batch's own row is there, which is written last."""
        return (number, at) in self._known


def _lineage(generations: list[str]) -> list[str]:
    """The last generation and those that it was rebuilt from, oldest first."""
    found = generations[-1:]
    older = generations[:-1]
    while older:
        rebuilt_from = older.pop()
        if found[0] in {rebuilt_generation(rebuilt_from, number) for number in range(_MAX_REBUILDS)}:
            found.insert(0, rebuilt_from)
    return found


@dataclass(frozen=True)
class History:
    """All rows that count, each table sorted by `place`, which numbers the batches in their order."""

    generation: str | None
    """The last one; None: the job has never written."""
    tables: Mapping[str, pa.Table]
    times: list[tuple[int, bool]]
    """By place: the batch's time in milliseconds, and whether it is complete."""
    next_offsets: dict[str, dict[int, int]]
    """By Kafka topic and partition: the offset behind the last record of which something is on record."""

    def topics(self) -> list[str]:
        """Every topic of which there is a row."""
        names = {row for name in _TIME_OF if name != DEAD_LETTERS.name for row in _subjects(self.tables[name])}
        return sorted(names - {EVERY_TOPIC})

    def of_bucket(self, topics: Collection[str]) -> Iterator[RecordedBatch]:
        """The batches of a bucket that holds these topics, those that changed nothing in it left out."""
        wanted = pa.array([*topics, EVERY_TOPIC], pa.string())
        rows: dict[str, dict[int, list[dict[str, Any]]]] = {}
        for name in (DECISIONS.name, HOLDS.name, EVENTS.name):
            table = self.tables[name]
            chosen = table.filter(pc.is_in(table["subject"], wanted)).to_pylist()
            rows[name] = {place: list(group) for place, group in groupby(chosen, key=lambda row: row["place"])}
        loads = self.tables[SEGMENT_LOAD.name]
        samples = dict(_samples(loads.filter(pc.is_in(loads["topic"], wanted))))
        for place in sorted({*samples, *(place for by_place in rows.values() for place in by_place)}):
            now, is_complete = self.times[place]
            yield RecordedBatch(
                now=now,
                is_complete=is_complete,
                events=[_event(row) for row in rows[EVENTS.name].get(place, ())],
                samples=samples.get(place),
                decisions=rows[DECISIONS.name].get(place, ()),
                holds=rows[HOLDS.name].get(place, ()),
            )


ReadColumns = Callable[[Table, Sequence[str]], pa.Table]
"""All rows of a table of the lake, cut to some columns; none when the table is missing (`lake.tables.read_columns`)."""


def read_history(read: ReadColumns) -> History:
    """The history that is on record where `read` reads."""
    batches = read(BATCHES, ("generation", "batch_id", "batch_at"))
    tables = (EVENTS, SEGMENT_LOAD, DEAD_LETTERS, DECISIONS, HOLDS)
    found = {
        table.name: read(table, (*_COLUMNS[table.name], "batch_id", _TIME_OF[table.name])) for table in tables
    }  # fmt: skip
    return history_of(batches, found)


def history_of(batches: pa.Table, tables: Mapping[str, pa.Table]) -> History:
    """The history out of rows of `batches` and of the five tables that hold what a batch accepted and said."""
    known = Batches(batches)
    ids: dict[str, list[tuple[int, int]]] = {}
    for name, table in tables.items():
        ids[name] = list(zip(table["batch_id"].to_pylist(), _millis(table[_TIME_OF[name]]), strict=True))
    placed = {key: place for key in {key for keys in ids.values() for key in keys} if (place := known.place(*key))}
    ordered = sorted(placed, key=lambda key: placed[key])
    number = {key: position for position, key in enumerate(ordered)}
    found: dict[str, pa.Table] = {}
    for name, table in tables.items():
        places = pa.array([number.get(key) for key in ids[name]], pa.int64())
        kept = table.select(_COLUMNS[name]).append_column("place", places).filter(pc.is_valid(places))
        order = [(column, "ascending") for column in ("place", *_ORDER.get(name, ()))]
        found[name] = kept.sort_by(order)
    return History(
        generation=known.generations[-1] if known.generations else None,
        tables={**found, EVENTS.name: _without_ticks(found[EVENTS.name], [known.is_set_back(*key) for key in ordered])},
        times=[(at, known.is_complete(batch_id, at)) for batch_id, at in ordered],
        next_offsets=_next_offsets(found),
    )


_ORDER = {SEGMENT_LOAD.name: ("kafka_partition", "kafka_offset", "segment_id")}


def _without_ticks(events: pa.Table, is_set_back: Sequence[bool]) -> pa.Table:
    """A tick changes nothing but by the decisions and holds that come of it, and those are on record; unless the job's
    clock was set back before it."""
    places = pa.array([place for place, is_needed in enumerate(is_set_back) if is_needed], pa.int64())
    return events.filter(pc.or_(pc.not_equal(events["type"], "tick"), pc.is_in(events["place"], places)))


def _next_offsets(tables: Mapping[str, pa.Table]) -> dict[str, dict[int, int]]:
    offsets: dict[str, dict[int, int]] = {}
    for name in (EVENTS.name, DEAD_LETTERS.name, SEGMENT_LOAD.name):
        table = tables[name]
        if name == SEGMENT_LOAD.name:
            table = table.append_column("kafka_topic", pa.repeat(pa.scalar(SEGMENT_STATS.name), len(table)))
        newest = table.group_by(["kafka_topic", "kafka_partition"]).aggregate([("kafka_offset", "max")])
        for row in newest.to_pylist():
            of_topic = offsets.setdefault(row["kafka_topic"], {})
            partition = row["kafka_partition"]
            of_topic[partition] = max(of_topic.get(partition, 0), row["kafka_offset_max"] + 1)
    return offsets


def _event(row: Mapping[str, Any]) -> RawRecord:
    value = row["body"].encode()
    return RawRecord(
        row["kafka_topic"], row["subject"].encode(), value, len(value), row["kafka_partition"], row["kafka_offset"],
        timestamp=0, home=True,
    )  # fmt: skip


def _samples(loads: pa.Table) -> Iterator[tuple[int, Samples]]:
    """Accepted load records as the messages that they came in, by the place of their batch."""
    places = loads["place"].to_numpy()
    starts = np.flatnonzero(np.r_[True, places[1:] != places[:-1]]) if len(places) else places
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(places)], strict=False):
        yield int(places[start]), _messages(loads.slice(start, end - start))


def _messages(loads: pa.Table) -> Samples:
    partitions, offsets = loads["kafka_partition"].to_numpy(), loads["kafka_offset"].to_numpy()
    first = np.flatnonzero(np.r_[True, (np.diff(partitions) != 0) | (np.diff(offsets) != 0)])
    rates = [loads[name].to_numpy() for name in ("msg_rate_in", "bytes_rate_in", "msg_rate_out", "bytes_rate_out")]
    heads = loads.take(first)
    return Samples(
        topics=heads["topic"].to_pylist(),
        reporters=heads["reporter"].to_pylist(),
        sampled_at=np.array(_millis(heads["sampled_at"]), np.int64),
        partitions=partitions[first],
        offsets=offsets[first],
        timestamps=np.array([NEVER if at is None else at for at in _millis(heads["kafka_timestamp"])], np.int64),
        counts=np.diff(np.r_[first, len(loads)]),
        segments=loads["segment_id"].to_numpy(),
        rates=np.column_stack(rates),
    )


def _subjects(table: pa.Table) -> list[str]:
    column = table["topic" if "topic" in table.column_names else "subject"]
    found: list[str] = pc.unique(column).to_pylist()
    return found


def _millis(instants: pa.ChunkedArray) -> list[int]:
    found: list[int] = pc.divide(pc.cast(instants, pa.int64()), 1000).to_pylist()
    return found
