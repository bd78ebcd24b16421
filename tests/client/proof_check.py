"""Checker of `tests.client.proof`: knows every message from the records of all processes.

It reads them while they grow. What it keeps are the intervals of each key's numbers that it has seen, so its memory
depends on keys and gaps, and not on messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tests.client.proof_record import POSITION, PRODUCED, ROW, RUN, Record, Rows, key_name

KINDS = ("stream", "queue", "checkpoint")
KEY_BITS = 40
"""Numbers of a key are smaller than this power of two, so that a key's rank and a number fit into one column."""
Numbers = NDArray[np.int64]


@dataclass
class Verdict:
    """Counts of messages; those of consumers by kind, and of checkpoint consumers, which read everything, summed."""

    produced: int = 0
    """Acknowledged by Kafka."""
    consumed: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    out_of_order: Counter[str] = field(default_factory=Counter)
    duplicates: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    """Where lost messages are: a consumer has not come so far, or has passed over them."""

    @property
    def is_unread(self) -> bool:
        """Return whether consumers may read more: those of a kind that none has left with a fault."""
        return any(self.lost[kind] and not any(f.startswith(f"{kind}:") for f in self.faults) for kind in KINDS)

    @property
    def is_right(self) -> bool:
        """Return whether everything arrived, in order where it has to."""
        return not (self.faults or self.lost.total() or self.out_of_order.total())

    def __str__(self) -> str:
        lines = [f"{self.produced} produced and acknowledged", *self.faults[:20]]
        lines += (
            f"{kind}: {self.consumed[kind]} consumed, {self.lost[kind]} lost, "
            f"{self.out_of_order[kind]} out of order, {self.duplicates[kind]} duplicates"
            for kind in KINDS
            if kind in self.consumed
        )
        return "\n".join(lines + self.losses)


class Coverage:
    """Numbers that a group of processes has recorded, by key."""

    def __init__(self) -> None:
        self._intervals = np.empty(0, ROW)
        """Disjoint, by key and number."""
        self.recorded = self.out_of_order = 0
        """Messages with repeated ones; runs that came before messages of their key in front of them."""
        self.produced: dict[int, int] = {}
        self.positions: dict[int, int] = {}
        """Greatest offset of each segment."""

    def add(self, rows: Rows) -> None:
        """Add rows in the order of their time."""
        for row in rows[rows["kind"] == PRODUCED]:
            self.produced[int(row["key"])] = int(row["last"]) + 1
        positions = rows[rows["kind"] == POSITION]
        for segment in np.unique(positions["key"]):
            last = int(positions["last"][positions["key"] == segment].max())
            self.positions[int(segment)] = max(last, self.positions.get(int(segment), -1))
        runs = rows[rows["kind"] == RUN]
        if not len(runs):
            return
        self.recorded += int((runs["last"] + 1 - runs["first"]).sum())
        both = np.concatenate((self._intervals, runs))
        _, ranks = np.unique(both["key"], return_inverse=True)
        firsts, ends = (ranks << KEY_BITS) + both["first"], (ranks << KEY_BITS) + both["last"] + 1
        # The first delivery of a message comes after those of all messages of its key before it.
        order = np.argsort(ranks, kind="stable")
        before = np.maximum(_reached_before(ends[order]), ranks[order] << KEY_BITS)
        self.out_of_order += int(((firsts[order] > before) & (order >= len(self._intervals))).sum())
        order = np.argsort(firsts, kind="stable")
        begins = firsts[order] > _reached_before(ends[order])
        last_end = np.maximum.accumulate(ends[order])[np.append(begins[1:], True)]
        self._intervals = both[order][begins]
        self._intervals["last"] = (last_end & ((1 << KEY_BITS) - 1)) - 1

    def counts(self) -> tuple[dict[int, int], dict[int, int]]:
        """Return by key the position after its greatest number, and how many different numbers there were."""
        tops: dict[int, int] = {}
        counts: Counter[int] = Counter()
        for row in self._intervals:
            key, end = int(row["key"]), int(row["last"]) + 1
            tops[key] = end
            counts[key] += end - int(row["first"])
        return tops, counts


def _reached_before(ends: Numbers) -> Numbers:
    """Return the greatest of the ends before each; -1 for the first."""
    return np.append(-1, np.maximum.accumulate(ends)[:-1])


class Checker:
    """The records of all processes, by kind: `producer` and those of `KINDS`."""

    def __init__(self, records: Mapping[str, list[Record]]) -> None:
        self._records = records
        # The consumers of a subscription share its messages; each checkpoint consumer reads all of them.
        self._groups = [
            (kind, Coverage(), group)
            for kind, all in records.items()
            for group in ([[record] for record in all] if kind == "checkpoint" else [all])
        ]
        self._later = [np.empty(0, ROW) for _ in self._groups]
        """Rows of each group that were read and not counted yet."""

    def read(self, until_ns: float = float("inf")) -> None:
        """Count what was recorded before a time: a process that was stopped may still add to what is younger."""
        for index, (_, coverage, group) in enumerate(self._groups):
            rows = np.concatenate([self._later[index], *(record.read() for record in group)])
            rows = rows[np.argsort(rows["at"], kind="stable")]
            count = int(np.searchsorted(rows["at"], until_ns))
            coverage.add(rows[:count])
            self._later[index] = rows[count:]

    def recorded(self, kind: str) -> int:
        """Return the number of messages that processes of a kind have recorded, with repeated ones."""
        return sum(coverage.recorded for name, coverage, _ in self._groups if name == kind)

    def verdict(self) -> Verdict:
        """Judge what was counted."""
        verdict = Verdict()
        for kind, records in self._records.items():
            verdict.faults += [f"{kind}: {fault}" for record in records for fault in record.faults()]
        acknowledged: dict[int, int] = {}
        stored: dict[int, int] = {}
        for kind, coverage, _ in self._groups:
            if kind == "producer":
                acknowledged, stored = coverage.counts()[0], coverage.positions
                _check_reports(verdict, coverage)
        for kind, coverage, _ in self._groups:
            if kind != "producer":
                _check_group(verdict, kind, coverage, acknowledged, stored)
        return verdict


def _check_reports(verdict: Verdict, coverage: Coverage) -> None:
    """Judge the reports of producers: each message's once, in the order of its key."""
    acknowledged, counts = coverage.counts()
    verdict.produced = sum(counts.values())
    if coverage.out_of_order:
        verdict.faults.append(f"producer: {coverage.out_of_order} reports out of order")
    if coverage.recorded > verdict.produced:
        verdict.faults.append(f"producer: {coverage.recorded - verdict.produced} reports of messages reported before")
    for key, count in coverage.produced.items():
        if acknowledged.get(key, 0) != count:
            verdict.faults.append(f"{key_name(key)}: {count} produced, {acknowledged.get(key, 0)} acknowledged")


def _check_group(
    verdict: Verdict, kind: str, coverage: Coverage, acknowledged: dict[int, int], stored: dict[int, int]
) -> None:
    tops, counts = coverage.counts()
    different = sum(counts.values())
    verdict.consumed[kind] += different
    verdict.duplicates[kind] += coverage.recorded - different
    verdict.out_of_order[kind] += coverage.out_of_order if kind != "queue" else 0
    # Beyond the acknowledged ones there may be some of a killed producer, but none without those before it.
    keys = acknowledged.keys() | tops.keys()
    lost = sum(max(acknowledged.get(key, 0), tops.get(key, 0)) - counts.get(key, 0) for key in keys)
    verdict.lost[kind] += lost
    if lost:
        short = [key for key, count in acknowledged.items() if tops.get(key, 0) < count]
        passed = [key for key, top in tops.items() if counts[key] < top]
        verdict.losses.append(f"{kind}: lost at the ends of {len(short)} keys, before later ones of {len(passed)} keys")
        verdict.losses += _unread_segments(kind, stored, coverage.positions)


def _unread_segments(kind: str, stored: dict[int, int], read: dict[int, int]) -> list[str]:
    """Return a sentence for each segment that was not read to its end, or for their lack."""
    behind = [segment for segment in sorted(stored) if read.get(segment, -1) < stored[segment]]
    unread = [f"{kind}: segment {id} read up to {read.get(id, -1)}, written up to {stored[id]}" for id in behind]
    return unread or [f"{kind}: every segment was read to its end, so messages were passed over"]
