"""Rows by topic and segment, many looked up at once: an open-addressing table in one array.

Stage: under `engine.autoscale.rows`, which owns the columns that say whose a row is. The table holds row numbers only;
whether the row in a slot is the one that is wanted is seen in those columns. The slots of a topic's segments lie side
by side, those of the next topic far away, spread evenly; what finds its slot taken goes further in wide steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
NO_ROW = -1
_MIN_SLOTS = 128
_TOPIC_STEP, _NEXT_STEP = 0x61C8864680B583EB, 0x6A09E667F3BCC909
"""The golden ratio and the root of two in 63 bits, both odd: multiples of them fill any number of slots evenly."""


class PairTable:
    """Slots of rows; at most half of them are taken."""

    def __init__(self, rows: int = 0) -> None:
        """With room for so many rows."""
        self._slots = np.full(max(_MIN_SLOTS, 1 << (2 * rows).bit_length()), NO_ROW, np.int32)
        self._mask = len(self._slots) - 1
        self._room = len(self._slots) // 2

    def put(self, numbers: npt.NDArray[Any], segments: Ints, rows: npt.NDArray[np.int32]) -> bool:
        """Puts rows in, each of a topic, by number, and a segment; none of these pairs may be in it. False: there is no
        room, and nothing was put in."""
        if len(rows) > self._room:
            return False
        self._room -= len(rows)
        slots, left = self._first(numbers.astype(np.int64), segments), rows
        while len(left):
            free = self._slots[slots] == NO_ROW
            self._slots[slots[free]] = left[free]
            missed = self._slots[slots] != left
            slots, left = self._next(slots[missed]), left[missed]
        return True

    def find(self, numbers: Ints, segments: Ints, topic: npt.NDArray[np.int32], segment: Ints) -> Ints:
        """The row of each pair of a topic's number and a segment, or `NO_ROW`; `topic` and `segment` say whose each row
        is, with a number that nobody asks for where it has been taken away."""
        slots = self._first(numbers, segments)
        rows = self._slots[slots].astype(np.int64)
        if not len(topic):
            return rows
        left = np.flatnonzero((rows != NO_ROW) & ((topic[rows] != numbers) | (segment[rows] != segments)))
        slots = slots[left]
        while len(left):
            slots = self._next(slots)
            found = rows[left] = self._slots[slots]
            other = (found != NO_ROW) & ((topic[found] != numbers[left]) | (segment[found] != segments[left]))
            left, slots = left[other], slots[other]
        return rows

    def _first(self, numbers: Ints, segments: Ints) -> Ints:
        return (numbers * _TOPIC_STEP + segments + (segments >> 16) * _NEXT_STEP) & self._mask

    def _next(self, slots: Ints) -> Ints:
        return (slots + (_NEXT_STEP & self._mask)) & self._mask
