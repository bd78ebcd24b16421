"""Loads of a bucket's segments in columns: one row per segment, holding its last accepted record.

Stage: the state of the family, beside `engine.autoscale.topics`. `engine.autoscale.rows` maps segments to rows,
`engine.autoscale.filtering` selects significant samples, and `engine.autoscale.loads_codec` defines the bytes. The
rules for instants are in `decisions.autoscale.clocks`.
"""

import zlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from decisions.autoscale.clocks import (
    MAX_CLOCK_SKEW_MS,
    NEVER,
    claims_of_samples,
    cold_since_after_sample_all,
    cold_since_after_thresholds_all,
    instants_of_samples,
    modified_after_sample_all,
    returned_after_sample_all,
    seen_after_sample_all,
)
from decisions.autoscale.significance import are_cold
from decisions.autoscale.snapshot import Load
from engine.autoscale.rows import RowIndex

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
STALE = -1
"""Code of an out-of-order or repeated sample; other codes as `accept_causes` (0: no change)."""
INSTANTS = ("modified_at", "cold_since", "sampled_at", "seen_at")
COLUMNS = (*INSTANTS, "returned_after")
"""Integer columns of a row, `NEVER` where there is no value."""


@lru_cache(maxsize=100_000)
def reporter_code(name: str) -> int:
    """Return a reporter's number in a row; those whose numbers collide are treated as one."""
    return zlib.crc32(name.encode())


class Origins(NamedTuple):
    """Times and reporters of n samples."""

    sampled_at: Ints
    """By the reporter's clock."""
    kafka_at: Ints
    """Kafka's timestamp; `NEVER` if unknown."""
    at: Ints
    """Time assumed for the measurement."""
    claim: Ints
    """Instant up to which older samples of the reporter are stale."""
    reporter: Ints
    """Code of the reporter (`reporter_code`)."""

    @classmethod
    def judged(cls, sampled_at: Ints, kafka_at: Ints, reporter: Ints, now: int) -> "Origins":
        """Check the times of reporters and Kafka against the batch's time."""
        instants = instants_of_samples(sampled_at, kafka_at, now)
        return cls(sampled_at, kafka_at, instants, claims_of_samples(sampled_at, kafka_at, now), reporter)

    def of(self, chosen: Any) -> "Origins":
        """Select samples."""
        return Origins(*(column[chosen] for column in self))


class LoadTable:
    """The last accepted load of every segment of a bucket, in columns by row; columns may have spare rows."""

    def __init__(self, index: RowIndex | None = None) -> None:
        self.index = index or RowIndex()
        size = len(self.index.topic)
        self.rates: Floats = np.zeros((size, 4))
        """The four rates per second of the last accepted record."""
        self.modified_at: Ints = np.full(size, NEVER, np.int64)
        """Measurement time of that record, milliseconds; `NEVER` for a row without one."""
        self.cold_since: Ints = np.full(size, NEVER, np.int64)
        self.returned_after: Ints = np.full(size, NEVER, np.int64)
        """Pause after which the load last returned, milliseconds; 0: it fell, `NEVER`: it never fell."""
        self.sampled_at: Ints = np.full(size, NEVER, np.int64)
        """Claim of the last sample that was not stale (`decisions.autoscale.clocks.claims_of_samples`)."""
        self.seen_at: Ints = np.full(size, NEVER, np.int64)
        self.reporter: Ints = np.zeros(size, np.int64)
        """Reporter of that sample, as in `reporter_code`; 0 if unknown."""
        self.fresh: list[Ints] = []
        """Rows with a non-stale sample since the last packing."""
        self.accepted: list[Ints] = []
        """Rows with another record or another coldness since then."""
        self.moved: list[Ints] = []
        """Rows with another reporter since then."""

    @property
    def is_changed(self) -> bool:
        """True if the packed form lacks some changes."""
        return bool(self.fresh or self.accepted) or self.index.is_changed

    def rows_of(self, topic: str, segments: Sequence[int]) -> Ints:
        """Return the row of each segment of a topic; creates missing rows."""
        rows = self.index.rows_of(topic, segments)
        self.fit()
        return rows

    def record(
        self, rows: Ints, codes: npt.NDArray[np.int8], rates: Floats, origins: Origins, merge_thresholds: Floats
    ) -> None:
        """Apply n samples to their rows, at most one per row; `codes` marks stale and significant samples.

        `merge_thresholds` (n x 4, or 1 x 4 for all) are those of each sample's topic.
        """
        is_stale = codes == STALE
        fresh = np.flatnonzero(~is_stale) if is_stale.any() else slice(None)
        seen = rows[fresh]
        self.sampled_at[seen] = origins.claim[fresh]
        reporter = origins.reporter[fresh]
        moved = np.flatnonzero(self.reporter[seen] != reporter)
        if len(moved):
            self.moved.append(seen[moved])
            self.reporter[seen[moved]] = reporter[moved]
        self.seen_at[seen] = seen_after_sample_all(self.seen_at[seen], origins.at[fresh])
        self.fresh.append(seen)
        accepted = np.flatnonzero(codes > 0)
        if not len(accepted):
            return
        written, instants, rates = rows[accepted], origins.at[accepted], rates[accepted]
        self.rates[written] = rates
        before = self.modified_at[written]
        self.modified_at[written] = modified_after_sample_all(before, instants)
        cold = are_cold(rates, merge_thresholds if len(merge_thresholds) == 1 else merge_thresholds[accepted])
        since = self.cold_since[written]
        self.returned_after[written] = returned_after_sample_all(
            self.returned_after[written], before != NEVER, since, cold, instants
        )
        self.cold_since[written] = cold_since_after_sample_all(since, cold, instants)
        self.accepted.append(written)

    def judge_coldness_again(self, topic: str, merge_thresholds: Floats) -> None:
        """Recompute which segments of a topic are cold, and since when, after its thresholds changed."""
        rows = np.fromiter(self.index.of_topic(topic).values(), np.int64)
        if len(rows):
            cold = are_cold(self.rates[rows], merge_thresholds)
            self.cold_since[rows] = cold_since_after_thresholds_all(self.cold_since[rows], cold, self.modified_at[rows])
            self.accepted.append(rows)

    def keep_segments(self, topic: str, active: Iterable[int]) -> None:
        """Remove the loads of a topic's other segments; of all when `active` is empty."""
        self.index.keep_segments(topic, active)

    def set_back(self, now: int) -> None:
        """Clamp instants to `now` after the clock was set back; claims may lead by the allowed skew."""
        for name in INSTANTS:
            column, limit = getattr(self, name), now + (MAX_CLOCK_SKEW_MS if name == "sampled_at" else 0)
            rows = np.flatnonzero(column[: self.index.count] > limit)
            if len(rows):
                column[rows] = limit
                self.fresh.append(rows)
                self.accepted.append(rows)

    def forget_before(self, topic: str, since: int) -> None:
        """Remove loads of a topic last modified before an instant: they belong to an earlier incarnation."""
        self.index.remove([row for row in self.index.of_topic(topic).values() if self.modified_at[row] < since])

    def loads_of(self, topic: str) -> dict[int, Load]:
        """Return the accepted loads of a topic by segment id."""
        loads = {}
        for segment, row in self.index.of_topic(topic).items():
            modified_at = int(self.modified_at[row])
            if modified_at == NEVER:
                continue
            cold_since = int(self.cold_since[row])
            in_msg, in_bytes, out_msg, out_bytes = self.rates[row].tolist()
            since = None if cold_since == NEVER else cold_since
            back = int(self.returned_after[row])
            loads[segment] = Load(
                in_msg,
                in_bytes,
                out_msg,
                out_bytes,
                modified_at,
                int(self.seen_at[row]),
                since,
                None if back == NEVER else back,
            )
        return loads

    def returned_of(self, topic: str) -> dict[int, int]:
        """Return the load-return pauses of a topic's segments whose load ever fell, by segment id."""
        rows = self.index.of_topic(topic)
        return {segment: back for segment, row in rows.items() if (back := int(self.returned_after[row])) != NEVER}

    def fit(self) -> None:
        """Extend the columns to the length of the index."""
        if more := len(self.index.topic) - len(self.modified_at):
            self.rates = np.concatenate([self.rates, np.zeros((more, 4))])
            self.reporter = np.concatenate([self.reporter, np.zeros(more, np.int64)])
            for name in COLUMNS:
                setattr(self, name, np.concatenate([getattr(self, name), np.full(more, NEVER, np.int64)]))

    def compact(self) -> None:
        """Close gaps between rows."""
        if (compacted := self.index.compacted()) is not None:
            self.index, old_rows = compacted
            self.rates = self.rates[old_rows]
            for name in ("reporter", *COLUMNS):
                setattr(self, name, getattr(self, name)[old_rows])

    def forget_changes(self) -> None:
        """Reset change tracking after packing."""
        self.fresh, self.accepted, self.moved = [], [], []
        self.index.forget_changes()
