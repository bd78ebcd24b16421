"""The loads of a bucket's segments, packed in columns, and the significant-change filter over them.

Stage: inside the stateful operator, after `streaming.intake` has parsed the samples (PIP-483 "Significant-change
threshold"). One structured numpy array holds the last accepted record of every segment; `absorb` lays a batch of
samples over it in arrival order, vectorised: repeated segments are taken in rounds.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np
import pydantic_core

from decisions.significance import accept_causes
from decisions.snapshot import Load
from schemas.messages import SegmentSample
from streaming.state import StateError

LOADS_VERSION = 1
NEVER = -1
"""Stands for an instant that is not set."""
STALE = -1
"""Code of a sample that was out of order or repeated."""

_RECORD = np.dtype([
    ("topic", "<i4"), ("segment", "<i8"), ("rates", "<f8", (4,)),
    ("modified_at", "<i8"), ("seen_at", "<i8"), ("cold_since", "<i8"), ("sampled_at", "<i8"),
])  # fmt: skip
_HEADER = struct.Struct(">BI")
_RATES_OF = attrgetter("msg_rate_in", "bytes_rate_in", "msg_rate_out", "bytes_rate_out")


@dataclass
class Samples:
    """Segment samples in arrival order, column by column."""

    topics: list[str] = field(default_factory=list)
    segments: list[int] = field(default_factory=list)
    rates: list[tuple[float, float, float, float]] = field(default_factory=list)
    sampled_at: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.segments)

    def add(self, topic: str, segments: Sequence[SegmentSample], sampled_at: int) -> None:
        """Appends one reporter's sample of a topic."""
        self.topics += [topic] * len(segments)
        self.segments += [segment.id for segment in segments]
        self.rates += map(_RATES_OF, segments)
        self.sampled_at += [sampled_at] * len(segments)


class LoadTable:
    """The last accepted load of every segment of a bucket."""

    def __init__(self, names: Sequence[str] = (), records: np.ndarray | None = None) -> None:
        self._names = list(names)
        self._records = np.zeros(0, _RECORD) if records is None else records
        self._count = len(self._records)
        self._number = {name: number for number, name in enumerate(self._names)}
        self._rows: dict[str, dict[int, int]] = {name: {} for name in self._names}
        for row, (topic, segment) in enumerate(zip(self._records["topic"], self._records["segment"], strict=True)):
            self._rows[self._names[topic]][int(segment)] = row
        self.changed = False

    def absorb(
        self, samples: Samples, now: int, change_threshold: float, thresholds: np.ndarray, merge_thresholds: np.ndarray
    ) -> np.ndarray:
        """Lays samples over the table; answers a code per sample: `STALE`, else as `accept_causes` (0: no change).

        `now` is the batch's time in milliseconds: a record is never dated later. `thresholds` (n x 8, NaN where
        crossing does not count) and `merge_thresholds` (n x 4) are those of each sample's topic.
        """
        rows = np.fromiter(
            (self._row(topic, segment) for topic, segment in zip(samples.topics, samples.segments, strict=True)),
            np.int64,
            len(samples),
        )
        rates = np.array(samples.rates, np.float64).reshape(-1, 4)
        sampled_at = np.array(samples.sampled_at, np.int64)
        codes = np.zeros(len(samples), np.int8)
        for chosen in _rounds(rows):
            codes[chosen] = self._absorb_distinct(
                rows[chosen], rates[chosen], sampled_at[chosen], now, change_threshold,
                thresholds[chosen], merge_thresholds[chosen],
            )  # fmt: skip
        self.changed = self.changed or bool(len(samples))
        return codes

    def _absorb_distinct(
        self, rows: np.ndarray, rates: np.ndarray, sampled_at: np.ndarray, now: int, change_threshold: float,
        thresholds: np.ndarray, merge_thresholds: np.ndarray,
    ) -> np.ndarray:  # fmt: skip
        table = self._records
        fresh = sampled_at > table["sampled_at"][rows]
        has_last = table["modified_at"][rows] != NEVER
        codes = accept_causes(table["rates"][rows], has_last, rates, change_threshold, thresholds).astype(np.int8)
        codes[~fresh] = STALE
        at = np.minimum(sampled_at, now)
        seen = rows[fresh]
        table["sampled_at"][seen] = sampled_at[fresh]
        table["seen_at"][seen] = np.maximum(table["seen_at"][seen], at[fresh])
        accepted = codes > 0
        written = rows[accepted]
        table["rates"][written] = rates[accepted]
        table["modified_at"][written] = np.maximum(table["modified_at"][written], at[accepted])
        cold = (rates[accepted] < merge_thresholds[accepted]).all(axis=1)
        since = table["cold_since"][written]
        table["cold_since"][written] = np.where(cold, np.where(since == NEVER, at[accepted], since), NEVER)
        return codes

    def loads_of(self, topic: str) -> dict[int, Load]:
        """The accepted loads of a topic by segment id."""
        loads = {}
        for segment, row in self._rows.get(topic, {}).items():
            record = self._records[row]
            if record["modified_at"] == NEVER:
                continue
            cold_since = int(record["cold_since"])
            loads[segment] = Load(
                *record["rates"].tolist(),
                modified_at=int(record["modified_at"]),
                seen_at=int(record["seen_at"]),
                cold_since=None if cold_since == NEVER else cold_since,
            )
        return loads

    def judge_coldness_again(self, topic: str, merge_thresholds: np.ndarray) -> None:
        """After a change of a topic's thresholds: what is cold under the new ones is so since its record at most."""
        rows = np.fromiter(self._rows.get(topic, {}).values(), np.int64)
        if len(rows):
            cold = (self._records["rates"][rows] < merge_thresholds).all(axis=1)
            since = np.maximum(self._records["cold_since"][rows], self._records["modified_at"][rows])
            self._records["cold_since"][rows] = np.where(cold, since, NEVER)
            self.changed = True

    def keep_segments(self, topic: str, kept: Iterable[int]) -> None:
        """Forgets the loads of a topic's other segments; all of them when `kept` is empty."""
        wanted = set(kept)
        rows = self._rows.get(topic, {})
        for segment in [segment for segment in rows if segment not in wanted]:
            self._records["topic"][rows.pop(segment)] = NEVER
            self.changed = True

    def segments_of(self, topic: str) -> tuple[int, ...]:
        """Ids of the segments of a topic that have a row."""
        return tuple(self._rows.get(topic, {}))

    def pack(self) -> bytes:
        """Version byte, length-prefixed topic names, then the records of what is kept, in the order of arrival."""
        records = self._records[: self._count]
        records = records[records["topic"] != NEVER]
        numbers, compact = np.unique(records["topic"], return_inverse=True)
        records = records.copy()
        records["topic"] = compact
        names = pydantic_core.to_json([self._names[number] for number in numbers])
        self.changed = False
        if len(records) < self._count // 2:
            self.__init__([self._names[number] for number in numbers], records)  # type: ignore[misc]
        return _HEADER.pack(LOADS_VERSION, len(names)) + names + records.tobytes()

    @classmethod
    def unpack(cls, packed: bytes) -> LoadTable:
        """The inverse of `pack`; raises `StateError` for a newer version or damaged bytes."""
        if len(packed) < _HEADER.size or packed[0] != LOADS_VERSION:
            raise StateError(f"loads version {packed[:1].hex() or 'none'}, this code reads {LOADS_VERSION:02x}")
        _, length = _HEADER.unpack_from(packed)
        start = _HEADER.size + length
        if (len(packed) - start) % _RECORD.itemsize:
            raise StateError("the packed loads are cut short")
        names = pydantic_core.from_json(packed[_HEADER.size : start])
        return cls(names, np.frombuffer(packed, _RECORD, offset=start).copy())

    def _row(self, topic: str, segment: int) -> int:
        rows = self._rows.get(topic)
        if rows is None:
            rows = self._rows[topic] = {}
            if topic not in self._number:
                self._number[topic] = len(self._names)
                self._names.append(topic)
        row = rows.get(segment)
        if row is None:
            row = rows[segment] = self._append(self._number[topic], segment)
        return row

    def _append(self, topic: int, segment: int) -> int:
        if self._count == len(self._records):
            self._records = np.concatenate([self._records, np.zeros(max(64, self._count), _RECORD)])
        record = self._records[self._count]
        record["topic"], record["segment"] = topic, segment
        record["rates"] = 0.0
        record["modified_at"] = record["seen_at"] = record["cold_since"] = record["sampled_at"] = NEVER
        self._count += 1
        return self._count - 1


def _rounds(rows: np.ndarray) -> list[np.ndarray]:
    """Positions grouped so that no row occurs twice in a group and each row's own order is kept."""
    if len(np.unique(rows)) == len(rows):
        return [np.arange(len(rows))] if len(rows) else []
    order = np.argsort(rows, kind="stable")
    sorted_rows = rows[order]
    starts = np.r_[True, sorted_rows[1:] != sorted_rows[:-1]]
    first = np.maximum.accumulate(np.where(starts, np.arange(len(rows)), 0))
    occurrence = np.empty(len(rows), np.int64)
    occurrence[order] = np.arange(len(rows)) - first
    return [np.flatnonzero(occurrence == number) for number in range(int(occurrence.max()) + 1)]
