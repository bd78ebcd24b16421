"""Which row of the load table a segment of a topic has.

Stage: under `engine.autoscale.loads`. A row is given to a segment that reports for the first time and taken away when
the layout no longer needs it; rows that were taken away are holes until the next base is packed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.kernel.generations import Generations

Ints = npt.NDArray[np.int64]
NO_ROW = -1


class RowIndex:
    """Rows by topic and segment, and the changes that the stored form does not hold yet."""

    def __init__(
        self, names: Sequence[str] = (), topic: npt.NDArray[Any] | None = None, segment: npt.NDArray[Any] | None = None,
        generations: Generations | None = None,
    ) -> None:  # fmt: skip
        """`topic` and `segment` of each row, a topic as its place in `names`."""
        self.names = list(names)
        self.topic = np.zeros(0, np.int32) if topic is None else topic.copy()
        """By row, the place of its topic in `names`; `NO_ROW` for a hole."""
        self.segment = np.zeros(0, np.int64) if segment is None else segment.copy()
        self.count = len(self.topic)
        """Rows that were given so far, holes included; the columns may be longer."""
        self.generations = generations or Generations()
        """When the rows of a topic changed last."""
        self._numbers = {name: number for number, name in enumerate(self.names)}
        self._rows: dict[str, dict[int, int]] = {name: {} for name in self.names}
        for row, (number, of) in enumerate(zip(self.topic.tolist(), self.segment.tolist(), strict=True)):
            self._rows[self.names[number]][of] = row
        self._has_holes = False
        self.forget_changes()

    def forget_changes(self) -> None:
        """All of it is packed."""
        self.packed_rows, self.packed_names = self.count, len(self.names)
        self.new_topics: list[int] = []
        """Of each row that was given since, the place of its topic."""
        self.removed: list[int] = []
        """Rows that were taken away since."""

    @property
    def is_changed(self) -> bool:
        """Whether rows were given or taken away since the last packing."""
        return bool(self.removed) or self.count > self.packed_rows

    def rows_of(self, topic: str, segments: Sequence[int]) -> Ints:
        """The row of each segment of a topic; given where there is none."""
        rows = self._rows.get(topic)
        if rows is None:
            if not len(segments):
                return np.zeros(0, np.int64)
            rows = self._rows[topic] = {}
            self.add_name(topic)
        before = self.count
        for segment in segments:
            if segment not in rows:
                rows[segment] = self._append(self._numbers[topic], segment)
        if self.count > before:
            self.generations.change(topic)
        return np.fromiter((rows[segment] for segment in segments), np.int64, len(segments))

    def known_rows(self, topic: str, segments: Iterable[int]) -> list[int]:
        """The row of each segment of a topic; `NO_ROW` where there is none."""
        rows = self._rows.get(topic)
        return [NO_ROW for _ in segments] if rows is None else [rows.get(segment, NO_ROW) for segment in segments]

    def of_topic(self, topic: str) -> dict[int, int]:
        """Rows by segment, oldest first; not to be changed."""
        return self._rows.get(topic, {})

    def rows_in(self, topic: str) -> int:
        """How many segments of a topic have a row."""
        return len(self._rows.get(topic, ()))

    def segments_of(self, topic: str) -> tuple[int, ...]:
        """Ids of the segments of a topic that have a row."""
        return tuple(self._rows.get(topic, {}))

    def topics(self) -> list[str]:
        """Names of the topics that have rows."""
        return list(self._rows)

    def keep_segments(self, topic: str, kept: Iterable[int]) -> None:
        """Takes away the rows of a topic's other segments; all of them when `kept` is empty."""
        wanted = set(kept)
        self.remove([row for segment, row in self.of_topic(topic).items() if segment not in wanted])

    def remove(self, rows: Iterable[int]) -> None:
        """Takes rows away."""
        for row in rows:
            name, segment = self.names[self.topic[row]], int(self.segment[row])
            of_topic = self._rows[name]
            if of_topic[segment] == row:
                del of_topic[segment]
            if not of_topic:
                del self._rows[name], self._numbers[name]
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
        names = [self.names[number] for number in numbers]
        self.generations.change_all()
        return RowIndex(names, topic.astype(np.int32), self.segment[kept], self.generations), kept

    def add_name(self, topic: str) -> None:
        """A topic that has had no row."""
        self._numbers[topic] = len(self.names)
        self.names.append(topic)

    def append(self, number: int, segment: int) -> None:
        """One more row, for a segment of a topic that is known by its place."""
        self._rows.setdefault(self.names[number], {})[segment] = self._append(number, segment)

    def _append(self, number: int, segment: int) -> int:
        row = self.count
        if row == len(self.topic):
            more = max(64, row)
            self.topic = np.concatenate([self.topic, np.zeros(more, np.int32)])
            self.segment = np.concatenate([self.segment, np.zeros(more, np.int64)])
        self.topic[row], self.segment[row] = number, segment
        self.new_topics.append(number)
        self.count += 1
        return row
