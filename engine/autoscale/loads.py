"""The loads of a bucket's segments, packed in columns, and the significant-change filter over them.

Stage: inside the stateful operator, after `engine.autoscale.intake` has found the rows of the samples (PIP-483
"Significant-change threshold"). A row per segment holds the last accepted record. The packed form is a base and a log:
each batch adds to the log what it changed, and the base is written anew when the log has outgrown it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from decisions.autoscale.significance import accept_causes
from decisions.autoscale.snapshot import Load
from engine.arrays import DamagedArrays, pack_arrays, unpack_arrays, version_of
from engine.autoscale.state import StateError, unpack_loads_v1

LOADS_VERSION = 2
NEVER = -1
"""Stands for an instant that is not set."""
STALE = -1
"""Code of a sample that was out of order or repeated."""

Ints = npt.NDArray[np.int64]
_I4, _I8, _F8 = np.dtype("<i4"), np.dtype("<i8"), np.dtype("<f8")
_INSTANTS = ("modified_at", "cold_since", "sampled_at", "seen_at")
_BASE: dict[str, np.dtype[Any]] = {"topic": _I4, "segment": _I8, "rates": _F8, **dict.fromkeys(_INSTANTS, _I8)}
_LOG: dict[str, np.dtype[Any]] = {
    "new_topic": _I4, "new_segment": _I8, "removed": _I4,
    "accepted": _I4, "rates": _F8, "modified_at": _I8, "cold_since": _I8,
    "run_start": _I4, "run_length": _I4, "sampled_at": _I8, "seen_at": _I8,
}  # fmt: skip


class LoadTable:
    """The last accepted load of every segment of a bucket."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._count = 0
        self._topic = np.zeros(0, np.int32)
        self._segment = np.zeros(0, np.int64)
        self.rates: npt.NDArray[np.float64] = np.zeros((0, 4))
        """Per row the four rates per second, of the last accepted record."""
        self.modified_at: Ints = np.zeros(0, np.int64)
        """When that record was taken, milliseconds; `NEVER` for a row without one."""
        self.cold_since: Ints = np.zeros(0, np.int64)
        self._sampled_at: Ints = np.zeros(0, np.int64)
        self.seen_at: Ints = np.zeros(0, np.int64)
        self._rows: dict[str, dict[int, int]] = {}
        self._numbers: dict[str, int] = {}
        self._has_holes = False
        self._forget_changes()

    @property
    def is_changed(self) -> bool:
        """Whether the packed form does not hold everything yet."""
        return bool(self._fresh or self._accepted or self._removed) or self._count > self._packed_rows

    def rows_of(self, topic: str, segments: Sequence[int]) -> Ints:
        """The row of each segment of a topic; made where there is none."""
        rows = self._rows.get(topic)
        if rows is None:
            if not len(segments):
                return np.zeros(0, np.int64)
            rows = self._rows[topic] = {}
            self._numbers[topic] = len(self._names)
            self._names.append(topic)
        for segment in segments:
            if segment not in rows:
                rows[segment] = self._append(self._numbers[topic], segment)
        return np.fromiter((rows[segment] for segment in segments), np.int64, len(segments))

    def known_rows(self, topic: str, segments: Iterable[int]) -> list[int]:
        """The row of each segment of a topic; `NEVER` where there is none."""
        rows = self._rows.get(topic)
        return [NEVER for _ in segments] if rows is None else [rows.get(segment, NEVER) for segment in segments]

    def absorb(
        self, rows: Ints, rates: npt.NDArray[np.float64], sampled_at: Ints, now: int, change_threshold: float,
        thresholds: npt.NDArray[np.float64], merge_thresholds: npt.NDArray[np.float64], distinct: bool = False,
    ) -> npt.NDArray[np.int8]:  # fmt: skip
        """Lays n samples over their rows; answers a code per sample: `STALE`, else as `accept_causes` (0: no change).

        `now` is the batch's time in milliseconds: a record is never dated later. `thresholds` (n x 8, or 1 x 8 for all;
        NaN where crossing does not count) and `merge_thresholds` (n x 4, or 1 x 4) are those of each sample's topic.
        `distinct`: no row occurs twice.
        """
        codes = np.zeros(len(rows), np.int8)
        chosen: Ints | slice
        for chosen in [slice(None)] if distinct else _rounds(rows):
            one_for_all = slice(None) if len(thresholds) == 1 else chosen
            codes[chosen] = self._absorb_distinct(
                rows[chosen], rates[chosen], sampled_at[chosen], now, change_threshold,
                thresholds[one_for_all], merge_thresholds[one_for_all],
            )  # fmt: skip
        return codes

    def _absorb_distinct(
        self, rows: Ints, rates: npt.NDArray[np.float64], sampled_at: Ints, now: int, change_threshold: float,
        thresholds: npt.NDArray[np.float64], merge_thresholds: npt.NDArray[np.float64],
    ) -> npt.NDArray[np.int8]:  # fmt: skip
        fresh = sampled_at > self._sampled_at[rows]
        has_last = self.modified_at[rows] != NEVER
        codes = accept_causes(self.rates[rows], has_last, rates, change_threshold, thresholds)
        codes[~fresh] = STALE
        at = np.minimum(sampled_at, now)
        seen = rows[fresh]
        self._sampled_at[seen] = sampled_at[fresh]
        self.seen_at[seen] = np.maximum(self.seen_at[seen], at[fresh])
        accepted = np.flatnonzero(codes > 0)
        written, at = rows[accepted], at[accepted]
        self.rates[written] = rates[accepted]
        self.modified_at[written] = np.maximum(self.modified_at[written], at)
        limits = merge_thresholds if len(merge_thresholds) == 1 else merge_thresholds[accepted]
        cold = (rates[accepted] < limits).all(axis=1)
        since = self.cold_since[written]
        self.cold_since[written] = np.where(cold, np.where(since == NEVER, at, since), NEVER)
        self._fresh.append(seen)
        self._accepted.append(written)
        return codes

    def loads_of(self, topic: str) -> dict[int, Load]:
        """The accepted loads of a topic by segment id."""
        loads = {}
        for segment, row in self._rows.get(topic, {}).items():
            modified_at = int(self.modified_at[row])
            if modified_at == NEVER:
                continue
            cold_since = int(self.cold_since[row])
            in_msg, in_bytes, out_msg, out_bytes = self.rates[row].tolist()
            since = None if cold_since == NEVER else cold_since
            loads[segment] = Load(in_msg, in_bytes, out_msg, out_bytes, modified_at, int(self.seen_at[row]), since)
        return loads

    def judge_coldness_again(self, topic: str, merge_thresholds: npt.NDArray[np.float64]) -> None:
        """After a change of a topic's thresholds: what is cold under the new ones is so since its record at most."""
        rows = np.fromiter(self._rows.get(topic, {}).values(), np.int64)
        if len(rows):
            cold = (self.rates[rows] < merge_thresholds).all(axis=1)
            since = np.maximum(self.cold_since[rows], self.modified_at[rows])
            self.cold_since[rows] = np.where(cold, since, NEVER)
            self._accepted.append(rows)

    def keep_segments(self, topic: str, kept: Iterable[int]) -> None:
        """Forgets the loads of a topic's other segments; all of them when `kept` is empty."""
        wanted = set(kept)
        rows = self._rows.get(topic, {})
        self._remove([row for segment, row in rows.items() if segment not in wanted])

    def rows_in(self, topic: str) -> int:
        """How many segments of a topic have a row."""
        return len(self._rows.get(topic, ()))

    def segments_of(self, topic: str) -> tuple[int, ...]:
        """Ids of the segments of a topic that have a row."""
        return tuple(self._rows.get(topic, {}))

    def topics(self) -> list[str]:
        """Names of the topics that have rows."""
        return list(self._rows)

    # The packed form

    def pack(self) -> bytes:
        """The whole table as a base; rows that were forgotten are gone and the others have moved up."""
        kept = np.flatnonzero(self._topic[: self._count] != NEVER)
        numbers, topic = np.unique(self._topic[kept], return_inverse=True)
        arrays = {
            "topic": topic.astype(np.int32), "segment": self._segment[kept], "rates": self.rates[kept].ravel(),
            **{name: getattr(self, _ATTRIBUTE[name])[kept] for name in _INSTANTS},
        }  # fmt: skip
        packed = pack_arrays(LOADS_VERSION, {"names": [self._names[number] for number in numbers]}, arrays)
        if self._has_holes or len(numbers) < len(self._names):
            self.__dict__ = LoadTable.unpack(packed).__dict__
        self._forget_changes()
        return packed

    def pack_changes(self) -> bytes:
        """What has changed since the last call of this or of `pack`, as an entry of the log."""
        fresh, accepted = _once(self._fresh), _once(self._accepted)
        sampled, seen = self._sampled_at[fresh], self.seen_at[fresh]
        breaks = (np.diff(fresh) != 1) | (np.diff(sampled) != 0) | (np.diff(seen) != 0)
        starts = np.flatnonzero(np.r_[True, breaks]) if len(fresh) else fresh
        new = slice(self._packed_rows, self._count)
        arrays = {
            "new_topic": np.array(self._new_topics, np.int32),
            "new_segment": self._segment[new],
            "removed": np.array(self._removed, np.int32),
            "accepted": accepted.astype(np.int32),
            "rates": self.rates[accepted].ravel(),
            "modified_at": self.modified_at[accepted],
            "cold_since": self.cold_since[accepted],
            "run_start": fresh[starts].astype(np.int32),
            "run_length": np.diff(np.r_[starts, len(fresh)]).astype(np.int32),
            "sampled_at": sampled[starts],
            "seen_at": seen[starts],
        }
        packed = pack_arrays(LOADS_VERSION, {"names": self._names[self._packed_names :]}, arrays)
        self._forget_changes()
        return packed

    @classmethod
    def unpack(cls, packed: bytes, log: Iterable[bytes] = ()) -> LoadTable:
        """The inverse of `pack` and of what `pack_changes` added since; raises `StateError` for a newer version or
        damaged bytes."""
        table = cls()
        try:
            if packed:
                table._load_base(packed)
            for entry in log:
                table._apply(entry)
        except (DamagedArrays, IndexError) as error:
            raise StateError(f"the packed loads are damaged: {error}") from error
        table._forget_changes()
        return table

    def _load_base(self, packed: bytes) -> None:
        if version_of(packed) == 1:
            names, arrays = unpack_loads_v1(packed)
        else:
            _check(packed)
            fields, arrays = unpack_arrays(packed, _BASE)
            names = fields["names"]
        self._names = names
        self._numbers = {name: number for number, name in enumerate(names)}
        self._rows = {name: {} for name in names}
        self._topic, self._segment = arrays["topic"].copy(), arrays["segment"].copy()
        self.rates = arrays["rates"].reshape(-1, 4).copy()
        for name in _INSTANTS:
            setattr(self, _ATTRIBUTE[name], arrays[name].copy())
        self._count = len(self._topic)
        for row, (number, segment) in enumerate(zip(self._topic.tolist(), self._segment.tolist(), strict=True)):
            self._rows[names[number]][segment] = row

    def _apply(self, entry: bytes) -> None:
        _check(entry)
        fields, arrays = unpack_arrays(entry, _LOG)
        for name in fields["names"]:
            self._numbers[name] = len(self._names)
            self._names.append(name)
        for number, segment in zip(arrays["new_topic"].tolist(), arrays["new_segment"].tolist(), strict=True):
            self._rows.setdefault(self._names[number], {})[segment] = self._append(number, segment)
        accepted = arrays["accepted"]
        self.rates[accepted] = arrays["rates"].reshape(-1, 4)
        self.modified_at[accepted], self.cold_since[accepted] = arrays["modified_at"], arrays["cold_since"]
        lengths = arrays["run_length"]
        fresh = np.repeat(arrays["run_start"] - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
        self._sampled_at[fresh] = np.repeat(arrays["sampled_at"], lengths)
        self.seen_at[fresh] = np.repeat(arrays["seen_at"], lengths)
        self._remove(arrays["removed"].tolist())

    def _forget_changes(self) -> None:
        self._fresh: list[Ints] = []
        self._accepted: list[Ints] = []
        self._removed: list[int] = []
        self._new_topics: list[int] = []
        self._packed_rows, self._packed_names = self._count, len(self._names)

    def _remove(self, rows: Iterable[int]) -> None:
        for row in rows:
            name, segment = self._names[self._topic[row]], int(self._segment[row])
            of_topic = self._rows[name]
            if of_topic[segment] == row:
                del of_topic[segment]
            if not of_topic:
                del self._rows[name], self._numbers[name]
            self._topic[row] = NEVER
            self._removed.append(row)
            self._has_holes = True

    def _append(self, topic: int, segment: int) -> int:
        row = self._count
        if row == len(self._topic):
            more = max(64, row)
            self._topic = np.concatenate([self._topic, np.zeros(more, np.int32)])
            self._segment = np.concatenate([self._segment, np.zeros(more, np.int64)])
            self.rates = np.concatenate([self.rates, np.zeros((more, 4))])
            for name in _ATTRIBUTE.values():
                setattr(self, name, np.concatenate([getattr(self, name), np.full(more, NEVER, np.int64)]))
        self._topic[row], self._segment[row] = topic, segment
        self._new_topics.append(topic)
        self._count += 1
        return row


_ATTRIBUTE = {
    "modified_at": "modified_at",
    "cold_since": "cold_since",
    "sampled_at": "_sampled_at",
    "seen_at": "seen_at",
}


def _check(packed: bytes) -> None:
    if version_of(packed) != LOADS_VERSION:
        raise StateError(f"loads version {packed[0]}, this code reads {LOADS_VERSION}: run the release that wrote it")


def _once(rows: list[Ints]) -> Ints:
    """Each row once, in order."""
    if not rows:
        return np.zeros(0, np.int64)
    together = np.concatenate(rows)
    together.sort()
    return together[np.r_[True, together[1:] != together[:-1]]] if len(together) else together


def _rounds(rows: Ints) -> list[Ints]:
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
