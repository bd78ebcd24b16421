"""Which row of the load table a segment of a topic has.

Stage: under `engine.autoscale.loads`. A row is given to a segment that reports for the first time and taken away when
the layout no longer needs it; rows that were taken away are holes until the next base is packed. All of it is columns:
`engine.autoscale.pairs` finds rows by topic and segment, many at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.autoscale.pairs import NO_ROW, PairTable
from engine.kernel.generations import Generations

Ints = npt.NDArray[np.int64]
NO_TOPIC = -2
"""The number of a topic that has no row; no row is of it, and no hole either."""


class RowIndex:
    """Rows by topic and segment, and the changes that the stored form does not hold yet.

    A topic has a number, its place in `names`, as long as it has rows; one that gets rows again gets another number.
    """

    def __init__(
        self, names: Sequence[str] = (), topic: npt.NDArray[Any] | None = None, segment: npt.NDArray[Any] | None = None,
        generations: Generations | None = None,
    ) -> None:  # fmt: skip
        """`topic` and `segment` of each row, a topic as its place in `names`. Raises `IndexError` for a place beyond
        them."""
        self.names = list(names)
        self.topic = np.zeros(0, np.int32) if topic is None else topic.astype(np.int32)
        """By row, the number of its topic; `NO_ROW` for a hole."""
        self.segment = np.zeros(0, np.int64) if segment is None else segment.astype(np.int64)
        if len(self.topic) and not 0 <= self.topic.min() <= self.topic.max() < len(self.names):
            raise IndexError(f"a row is of a topic beyond the {len(self.names)} that have names")
        self.count = len(self.topic)
        """Rows that were given so far, holes included; the columns may be longer."""
        self.generations = generations or Generations()
        """When the rows of a topic changed last."""
        self._numbers = {name: number for number, name in enumerate(self.names)}
        self._sizes = np.bincount(self.topic, minlength=len(self.names)).tolist()
        """By number, how many rows a topic has."""
        self._newest = [NO_ROW] * len(self.names)
        """By number, the last row that its topic was given."""
        self._older = np.full(self.count, NO_ROW, np.int32)
        """By row, the one before it of the same topic; of holes too."""
        self._chain(0)
        self._pairs = self._pairs_anew()
        self._has_holes = False
        self.forget_changes()

    def forget_changes(self) -> None:
        """All of it is packed."""
        self.packed_rows, self.packed_names = self.count, len(self.names)
        self.removed: list[int] = []
        """Rows that were taken away since."""
        self._new_topics: list[npt.NDArray[np.int32]] = []

    @property
    def new_topics(self) -> npt.NDArray[np.int32]:
        """Of each row that was given since the last packing, the number of its topic."""
        return np.concatenate(self._new_topics) if self._new_topics else np.zeros(0, np.int32)

    @property
    def is_changed(self) -> bool:
        """Whether rows were given or taken away since the last packing."""
        return bool(self.removed) or self.count > self.packed_rows

    def numbers_of(self, topics: Sequence[str]) -> Ints:
        """The number of each topic; `NO_TOPIC` where it has no row."""
        return np.fromiter(map(self._numbers.get, topics, repeat(NO_TOPIC)), np.int64, len(topics))

    def number_of(self, topic: str) -> int:
        """The number of a topic; `NO_TOPIC` where it has no row."""
        return self._numbers.get(topic, NO_TOPIC)

    def number_for(self, topic: str) -> int:
        """The number of a topic that gets a row now."""
        number = self._numbers.get(topic)
        return self.add_name(topic) if number is None else number

    def find(self, numbers: Ints, segments: Ints) -> Ints:
        """The row of each of n segments of topics, by number; `NO_ROW` where there is none."""
        return self._pairs.find(numbers, segments, self.topic, self.segment)

    def known_rows(self, topic: str, segments: Iterable[int]) -> list[int]:
        """The row of each segment of a topic; `NO_ROW` where there is none."""
        rows = self.of_topic(topic)
        return [rows.get(segment, NO_ROW) for segment in segments]

    def of_topic(self, topic: str) -> dict[int, int]:
        """Rows by segment, oldest first."""
        number = self._numbers.get(topic)
        if number is None:
            return {}
        row, rows = self._newest[number], []
        while row != NO_ROW:
            if self.topic.item(row) == number:
                rows.append(row)
            row = self._older.item(row)
        return {self.segment.item(row): row for row in reversed(rows)}

    def rows_in(self, topic: str) -> int:
        """How many segments of a topic have a row."""
        number = self._numbers.get(topic)
        return 0 if number is None else int(self._sizes[number])

    def segments_of(self, topic: str) -> tuple[int, ...]:
        """Ids of the segments of a topic that have a row."""
        return tuple(self.of_topic(topic))

    def topics(self) -> list[str]:
        """Names of the topics that have rows."""
        return list(self._numbers)

    def keep_segments(self, topic: str, kept: Iterable[int]) -> None:
        """Takes away the rows of a topic's other segments; all of them when `kept` is empty."""
        wanted = set(kept)
        self.remove([row for segment, row in self.of_topic(topic).items() if segment not in wanted])

    def remove(self, rows: Iterable[int]) -> None:
        """Takes rows away."""
        for row in rows:
            number = self.topic.item(row)
            name = self.names[number]
            self._sizes[number] -= 1
            if not self._sizes[number] and self._numbers.get(name) == number:
                del self._numbers[name]
            self.topic[row] = NO_ROW
            self.removed.append(row)
            self._has_holes = True
            self.generations.change(name)

    def compacted(self) -> tuple[RowIndex, Ints] | None:
        """The same without holes and without names that have no rows, and the rows of this one that it renumbers, in
        order; None when nothing has to move."""
        kept = np.flatnonzero(self.topic[: self.count] != NO_ROW)
        numbers, topic = np.unique(self.topic[kept], return_inverse=True)
        if not self._has_holes and len(numbers) == len(self.names):
            return None
        names = [self.names[number] for number in numbers.tolist()]
        self.generations.change_all()
        return RowIndex(names, topic.astype(np.int32), self.segment[kept], self.generations), kept

    def add_name(self, topic: str) -> int:
        """A topic that has had no row, with its number."""
        number = self._numbers[topic] = len(self.names)
        self.names.append(topic)
        self._sizes.append(0)
        self._newest.append(NO_ROW)
        return number

    def rows_of(self, topic: str, segments: Sequence[int]) -> Ints:
        """The row of each segment of a topic; given where there is none."""
        known = self.of_topic(topic)
        if new := [segment for segment in dict.fromkeys(segments) if segment not in known]:
            known.update(zip(new, range(self.count, self.count + len(new)), strict=True))
            self.add_rows(np.full(len(new), self.number_for(topic), np.int32), np.array(new, np.int64))
        return np.fromiter((known[segment] for segment in segments), np.int64, len(segments))

    def add_rows(self, numbers: npt.NDArray[np.int32], segments: Ints) -> None:
        """The next rows, for segments of topics, by number, that have none."""
        start, end = self.count, self.count + len(numbers)
        if end > len(self.topic):
            more = max(64, start, len(numbers))
            self.topic = np.concatenate([self.topic, np.full(more, NO_ROW, np.int32)])
            self.segment = np.concatenate([self.segment, np.zeros(more, np.int64)])
            self._older = np.concatenate([self._older, np.full(more, NO_ROW, np.int32)])
        self.topic[start:end], self.segment[start:end] = numbers, segments
        self.count = end
        self._new_topics.append(np.array(numbers, np.int32))
        found, sizes = np.unique(numbers, return_counts=True)
        for number, size in zip(found.tolist(), sizes.tolist(), strict=True):
            self._sizes[number] += size
            self.generations.change(self.names[number])
        self._chain(start)
        if not self._pairs.put(numbers, segments, np.arange(start, end, dtype=np.int32)):
            self._pairs = self._pairs_anew()

    def _pairs_anew(self) -> PairTable:
        """All rows that are no holes, with room for as many again."""
        rows = np.flatnonzero(self.topic[: self.count] != NO_ROW).astype(np.int32)
        pairs = PairTable(2 * len(rows))
        pairs.put(self.topic[rows], self.segment[rows], rows)
        return pairs

    def _chain(self, start: int) -> None:
        """Ties the rows from one on to those before them of their topics."""
        of = self.topic[start : self.count]
        order = np.argsort(of, kind="stable")
        of, rows = of[order], (order + start).astype(np.int32)
        is_first = np.r_[True, of[1:] != of[:-1]][: len(of)]
        self._older[rows[1:]] = rows[:-1]
        starts = np.flatnonzero(is_first)
        numbers = of[starts].tolist()
        self._older[rows[starts]] = [self._newest[number] for number in numbers]
        for number, row in zip(numbers, rows[np.r_[starts[1:], len(of)][: len(starts)] - 1].tolist(), strict=True):
            self._newest[number] = row
