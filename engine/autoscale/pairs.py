"""Hash table of rows by topic and segment, with open addressing, probed for many keys at a time.

Stage: under `engine.autoscale.rows`, which owns the key columns. The table holds row numbers only; a match is
verified in those columns. Slots of one topic's segments are adjacent, those of different topics far apart and spread
evenly; collisions continue in wide steps.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
NO_ROW = -1
_MIN_SLOTS = 128
_TOPIC_STEP, _NEXT_STEP = 0x61C8864680B583EB, 0x6A09E667F3BCC909
"""Golden ratio and root of two in 63 bits, odd so that multiples fill a table evenly."""


class PairTable:
    """Hash slots of rows, at most half of them used."""

    def __init__(self, rows: int = 0) -> None:
        """Create a table with room for `rows` rows."""
        self._slots = np.full(max(_MIN_SLOTS, 1 << (2 * rows).bit_length()), NO_ROW, np.int32)
        self._mask = len(self._slots) - 1
        self._room = len(self._slots) // 2

    def put(self, numbers: npt.NDArray[Any], segments: Ints, rows: npt.NDArray[np.int32]) -> bool:
        """Insert rows by topic number and segment, all absent; False if there is no room."""
        if len(rows) > self._room:
            return False
        self._room -= len(rows)
        slots, left = self._first(numbers.astype(np.int64), segments), rows
        # Vectorized insertion: write all rows to their free slots, then retry those overwritten by another row.
        while len(left):
            free = self._slots[slots] == NO_ROW
            self._slots[slots[free]] = left[free]
            missed = self._slots[slots] != left
            slots, left = self._next(slots[missed]), left[missed]
        return True

    def find(self, numbers: Ints, segments: Ints, topic: npt.NDArray[np.int32], segment: Ints) -> Ints:
        """Return the row of each topic number and segment, or `NO_ROW`.

        `topic` and `segment` are the key columns by row; a removed row carries a number that is never looked up.
        """
        slots = self._first(numbers, segments)
        rows = self._slots[slots].astype(np.int64)
        if not len(topic):
            return rows
        left = np.flatnonzero((rows != NO_ROW) & ((topic[rows] != numbers) | (segment[rows] != segments)))
        slots = slots[left]
        while len(left):
            slots = self._next(slots)
            candidates = rows[left] = self._slots[slots]
            other = (candidates != NO_ROW) & (
                (topic[candidates] != numbers[left]) | (segment[candidates] != segments[left])
            )
            left, slots = left[other], slots[other]
        return rows

    def _first(self, numbers: Ints, segments: Ints) -> Ints:
        return (numbers * _TOPIC_STEP + segments + (segments >> 16) * _NEXT_STEP) & self._mask

    def _next(self, slots: Ints) -> Ints:
        return (slots + (_NEXT_STEP & self._mask)) & self._mask
