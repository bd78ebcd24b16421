"""Records of `tests.client.proof`: every message as part of a run of successive numbers of a key, in numpy columns.

A message's key is eight bytes; its value is the key and the message's number within the key, eight bytes each. A row is
written before anything that rests on it, by one call of the system; the last one of a killed process may be incomplete.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

RUN, PRODUCED, POSITION = range(3)
"""Kinds of rows: messages of a key; all those of a key that were produced; the last offset of a segment, in `last`."""
ROW = np.dtype([("at", "i8"), ("kind", "u1"), ("key", "u8"), ("first", "i8"), ("last", "i8")])
VALUE = np.dtype([("key", "u8"), ("number", "i8")])
Rows = NDArray[np.void]


def key_of(producer: int, life: int, number: int) -> int:
    """Return a key of one life of a producer."""
    return producer << 48 | life << 32 | number


def key_name(key: int) -> str:
    """Return it as people read it."""
    return f"p{key >> 48}.{key >> 32 & 0xFFFF}-{key & 0xFFFFFFFF}"


def rows_of(kind: int, at: int, keys: Any, first: Any, last: Any) -> Rows:
    """Return rows of one kind and time."""
    rows = np.empty(len(keys), ROW)
    rows["at"], rows["kind"], rows["key"], rows["first"], rows["last"] = at, kind, keys, first, last
    return rows


def runs_of(messages: list[Any], at: int) -> Rows:
    """Return the runs of received messages. Raises `ValueError` for a key or value that nobody has produced."""
    values = b"".join(map(type(messages[0]).value, messages))
    if len(values) != len(messages) * VALUE.itemsize:
        raise ValueError("values of another length than was produced")
    columns = np.frombuffer(values, VALUE)
    if b"".join(map(type(messages[0]).key, messages)) != columns["key"].tobytes():
        raise ValueError("a value came with another key")
    return _runs(columns, at)


def runs_of_values(values: list[bytes], at: int) -> Rows:
    """Return the runs of stored messages, in the order of their reports."""
    return _runs(np.frombuffer(b"".join(values), VALUE), at)


def _runs(columns: NDArray[np.void], at: int) -> Rows:
    order = np.argsort(columns["key"], kind="stable")
    keys, numbers = columns["key"][order], columns["number"][order]
    begins = np.append(True, (keys[1:] != keys[:-1]) | (numbers[1:] != numbers[:-1] + 1))
    ends = np.append(begins[1:], True)
    return rows_of(RUN, at, keys[begins], numbers[begins], numbers[ends])


class Recorder:
    """Writes the record of one process; its lives share it."""

    def __init__(self, file: Path) -> None:
        self._faults = file.with_suffix(".faults")
        self._file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        # A row that the former life has not finished.
        size = os.fstat(self._file).st_size
        os.ftruncate(self._file, size - size % ROW.itemsize)

    def write(self, runs: Rows, positions: dict[int, int]) -> None:
        """Add runs, and the last offsets of segments."""
        offsets = list(positions.values())
        rows = rows_of(POSITION, time.monotonic_ns(), list(positions), offsets, offsets)
        os.write(self._file, runs.tobytes() + rows.tobytes())

    def fault(self, text: str) -> None:
        """Add what should not have happened."""
        with self._faults.open("a") as file:
            file.write(text.replace("\n", " ") + "\n")


class Record:
    """Reads the record of one process while it grows."""

    def __init__(self, file: Path) -> None:
        self._file, self._faults, self._offset = file, file.with_suffix(".faults"), 0

    def read(self) -> Rows:
        """Return the rows since the last call."""
        if not self._file.exists():
            return np.empty(0, ROW)
        whole = (self._file.stat().st_size - self._offset) // ROW.itemsize
        rows = np.fromfile(self._file, ROW, whole, offset=self._offset)
        self._offset += rows.nbytes
        return rows

    def faults(self) -> list[str]:
        """Return all faults so far."""
        return self._faults.read_text().splitlines() if self._faults.exists() else []
