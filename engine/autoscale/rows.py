"""Index from topics and segments to rows of the load table.

Stage: under `engine.autoscale.loads`. A segment gets a row with its first report and loses it when the layout no
longer needs it; removed rows are holes until the next base is packed. Everything is in columns:
`engine.autoscale.pairs` looks up many rows at a time.
"""

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.autoscale.pairs import NO_ROW, PairTable
from engine.kernel.generations import Generations

Ints = npt.NDArray[np.int64]
NO_TOPIC = -2
"""Number of a topic without rows; matches no row and no hole."""


class RowIndex:
    """Rows by topic and segment, with the changes that are not packed yet.

    A topic's number is its index in `names` as long as it has rows; when it gets rows again, it gets a new number.
    """

    def __init__(
        self,
        names: Sequence[str] = (),
        topic: npt.NDArray[Any] | None = None,
        segment: npt.NDArray[Any] | None = None,
        generations: Generations | None = None,
    ) -> None:
        """Create an index from topics (indexes in `names`) and segments of rows. Raises `IndexError`."""
        self.names = list(names)
        self.topic = np.zeros(0, np.int32) if topic is None else topic.astype(np.int32)
        """By row, the number of its topic; `NO_ROW` for a hole."""
        self.segment = np.zeros(0, np.int64) if segment is None else segment.astype(np.int64)
        if len(self.topic) and not 0 <= self.topic.min() <= self.topic.max() < len(self.names):
            raise IndexError(f"a row is of a topic beyond the {len(self.names)} that have names")
        self.count = len(self.topic)
        """Number of rows used, holes included; the columns may be longer."""
        self.generations = generations or Generations()
        """Generation of the last row change of each topic."""
        self._numbers = {name: number for number, name in enumerate(self.names)}
        self._sizes = np.bincount(self.topic, minlength=len(self.names)).tolist()
        """Number of rows by topic number."""
        self._newest = [NO_ROW] * len(self.names)
        """Last row added, by topic number."""
        self._older = np.full(self.count, NO_ROW, np.int32)
        """By row, the previous row of the same topic, holes included."""
        self._chain(0)
        self._pairs = self._pairs_anew()
        self._has_holes = False
        self.forget_changes()

    def forget_changes(self) -> None:
        """Reset change tracking after packing."""
        self.packed_rows, self.packed_names = self.count, len(self.names)
        self.removed: list[int] = []
        """Rows removed since the last packing."""
        self._new_topics: list[npt.NDArray[np.int32]] = []

    @property
    def new_topics(self) -> npt.NDArray[np.int32]:
        """Topic number of each row added since the last packing."""
        return np.concatenate(self._new_topics) if self._new_topics else np.zeros(0, np.int32)

    @property
    def is_changed(self) -> bool:
        """True if rows were added or removed since the last packing."""
        return bool(self.removed) or self.count > self.packed_rows

    def numbers_of(self, topics: Sequence[str]) -> Ints:
        """Return the number of each topic; `NO_TOPIC` where it has no row."""
        return np.fromiter(map(self._numbers.get, topics, repeat(NO_TOPIC)), np.int64, len(topics))

    def number_of(self, topic: str) -> int:
        """Return the number of a topic; `NO_TOPIC` if it has no row."""
        return self._numbers.get(topic, NO_TOPIC)

    def number_for(self, topic: str) -> int:
        """Return the number of a topic, assigning one if it has none."""
        number = self._numbers.get(topic)
        return self.add_name(topic) if number is None else number

    def find(self, numbers: Ints, segments: Ints) -> Ints:
        """Return the row of each of n segments by topic number; `NO_ROW` where there is none."""
        return self._pairs.find(numbers, segments, self.topic, self.segment)

    def of_topic(self, topic: str) -> dict[int, int]:
        """Return rows by segment, oldest first."""
        if (number := self._numbers.get(topic)) is None:
            return {}
        row, rows = self._newest[number], []
        while row != NO_ROW:
            if self.topic.item(row) == number:
                rows.append(row)
            row = self._older.item(row)
        return {self.segment.item(row): row for row in reversed(rows)}

    def rows_in(self, topic: str) -> int:
        """Return the number of rows of a topic."""
        number = self._numbers.get(topic)
        return 0 if number is None else int(self._sizes[number])

    def segments_of(self, topic: str) -> tuple[int, ...]:
        """Return the segments of a topic that have a row."""
        return tuple(self.of_topic(topic))

    def topics(self) -> list[str]:
        """Return the topics that have rows."""
        return list(self._numbers)

    def keep_segments(self, topic: str, active: Iterable[int]) -> None:
        """Remove the rows of a topic's other segments; all of them when `active` is empty."""
        wanted = set(active)
        self.remove([row for segment, row in self.of_topic(topic).items() if segment not in wanted])

    def remove(self, rows: Iterable[int]) -> None:
        """Remove rows."""
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

    def compacted(self) -> "tuple[RowIndex, Ints] | None":
        """Return a copy without holes and unused names, and the old rows in new order; None if unchanged."""
        used = np.flatnonzero(self.topic[: self.count] != NO_ROW)
        numbers, topic = np.unique(self.topic[used], return_inverse=True)
        if not self._has_holes and len(numbers) == len(self.names):
            return None
        names = [self.names[number] for number in numbers.tolist()]
        self.generations.change_all()
        return RowIndex(names, topic.astype(np.int32), self.segment[used], self.generations), used

    def add_name(self, topic: str) -> int:
        """Assign a number to a topic that has none."""
        number = self._numbers[topic] = len(self.names)
        self.names.append(topic)
        self._sizes.append(0)
        self._newest.append(NO_ROW)
        return number

    def rows_of(self, topic: str, segments: Sequence[int]) -> Ints:
        """Return the row of each segment of a topic; adds missing rows."""
        row_of = self.of_topic(topic)
        if new := [segment for segment in dict.fromkeys(segments) if segment not in row_of]:
            row_of.update(zip(new, range(self.count, self.count + len(new)), strict=True))
            self.add_rows(np.full(len(new), self.number_for(topic), np.int32), np.array(new, np.int64))
        return np.fromiter((row_of[segment] for segment in segments), np.int64, len(segments))

    def add_rows(self, numbers: npt.NDArray[np.int32], segments: Ints) -> None:
        """Append rows for segments, by topic number, that have none."""
        start, end = self.count, self.count + len(numbers)
        if end > len(self.topic):
            more = max(64, start, len(numbers))
            self.topic = np.concatenate([self.topic, np.full(more, NO_ROW, np.int32)])
            self.segment = np.concatenate([self.segment, np.zeros(more, np.int64)])
            self._older = np.concatenate([self._older, np.full(more, NO_ROW, np.int32)])
        self.topic[start:end], self.segment[start:end] = numbers, segments
        self.count = end
        self._new_topics.append(np.array(numbers, np.int32))
        distinct, sizes = np.unique(numbers, return_counts=True)
        for number, size in zip(distinct.tolist(), sizes.tolist(), strict=True):
            self._sizes[number] += size
            self.generations.change(self.names[number])
        self._chain(start)
        if not self._pairs.put(numbers, segments, np.arange(start, end, dtype=np.int32)):
            self._pairs = self._pairs_anew()

    def _pairs_anew(self) -> PairTable:
        """Build the hash table of all rows that are no holes, with room for as many again."""
        rows = np.flatnonzero(self.topic[: self.count] != NO_ROW).astype(np.int32)
        pairs = PairTable(2 * len(rows))
        pairs.put(self.topic[rows], self.segment[rows], rows)
        return pairs

    def _chain(self, start: int) -> None:
        """Link the rows from `start` on to the previous row of their topic."""
        topic_of = self.topic[start : self.count]
        order = np.argsort(topic_of, kind="stable")
        topic_of, rows = topic_of[order], (order + start).astype(np.int32)
        # A stable sort by topic makes a topic's rows adjacent: each but the first follows its neighbour.
        is_first = np.r_[True, topic_of[1:] != topic_of[:-1]][: len(topic_of)]
        self._older[rows[1:]] = rows[:-1]
        starts = np.flatnonzero(is_first)
        numbers = topic_of[starts].tolist()
        self._older[rows[starts]] = [self._newest[number] for number in numbers]
        for number, row in zip(
            numbers, rows[np.r_[starts[1:], len(topic_of)][: len(starts)] - 1].tolist(), strict=True
        ):
            self._newest[number] = row
