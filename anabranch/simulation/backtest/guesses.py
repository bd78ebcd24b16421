"""Assumptions of a backtest: the periods that rest on them, and their share of the time.

Stage: under `running`. Pure. Intervals are arrays m x 2 of milliseconds, each up to before its second instant; they say
when an assumption may have changed an answer, not by how much.

- `gap`      nothing was reported: the job was down, or the load of a segment was missing or stale
- `ceiling`  a segment carried more than a split threshold of the policy that ran: clients may have wanted even more
- `band`     a segment's load is known to within the filter's band, and a threshold lies in that band
- `uneven`   the policy splits hashes that were never in segments of their own: demand is assumed to be even there
- `carried`  it splits hashes that were, but at another time: demand is divided as it was then
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from anabranch.simulation.backtest.demand import Wanted
from anabranch.simulation.backtest.lives import Life
from anabranch.simulation.topics.timeline import Floats, Ints
from decisions.autoscale.policy import Policy
from decisions.topic.layout import LayoutError, SegmentLayout

KINDS = ("gap", "ceiling", "band", "uneven", "carried")
Flags = npt.NDArray[np.bool_]
_NONE: Ints = np.zeros((0, 2), np.int64)


class Guessed(NamedTuple):
    """Milliseconds of the period that rest on assumptions, by kind."""

    total: int
    by_kind: Mapping[str, int]
    any_kind: int
    """Of one kind at least."""

    @property
    def confidence(self) -> float:
        """Return the share of the time that rests on no assumption."""
        return 1.0 - self.any_kind / self.total if self.total else 0.0

    def to_json(self) -> dict[str, object]:
        """Return the shares of the time."""
        total = max(1, self.total)
        return {
            "confidence": round(self.confidence, 4),
            "guessed": {kind: round(self.by_kind[kind] / total, 4) for kind in KINDS},
        }


def together(parts: Iterable[Guessed]) -> Guessed:
    """Return the sum of all parts."""
    of_all = list(parts)
    return Guessed(
        sum(one.total for one in of_all),
        {kind: sum(one.by_kind[kind] for one in of_all) for kind in KINDS},
        sum(one.any_kind for one in of_all),
    )


def guessed(intervals: Mapping[str, Ints], begin: int, end: int) -> Guessed:
    """Sum up the intervals between two instants."""
    cut = {kind: merged([intervals.get(kind, _NONE)], begin, end) for kind in KINDS}
    lengths = {kind: length(one) for kind, one in cut.items()}
    return Guessed(end - begin, lengths, length(merged(list(cut.values()), begin, end)))


def merged(intervals: Sequence[Ints], begin: int, end: int) -> Ints:
    """Return the union of intervals, cut to a period, ascending."""
    found = np.clip(np.concatenate([_NONE, *intervals]), begin, end)
    found = found[found[:, 0] < found[:, 1]]
    if not len(found):
        return _NONE
    found = found[np.argsort(found[:, 0], kind="stable")]
    furthest = np.maximum.accumulate(found[:, 1])
    is_new = np.r_[True, found[1:, 0] > furthest[:-1]]
    starts = np.flatnonzero(is_new)
    return np.stack([found[starts, 0], furthest[np.r_[starts[1:] - 1, len(found) - 1]]], axis=1)


def length(intervals: Ints) -> int:
    """Return the length of a union."""
    return int((intervals[:, 1] - intervals[:, 0]).sum())


def covers(intervals: Ints, at: int) -> bool:
    """Return True if an instant lies in a union."""
    place = int(np.searchsorted(intervals[:, 0], at, "right")) - 1
    return place >= 0 and at < int(intervals[place, 1])


def ceilings(wanted: Wanted, ran: Policy) -> Ints:
    """Return the intervals in which a segment exceeded a split threshold of the policy that ran."""
    limits = np.array(ran.split_thresholds)

    def over(rates: Floats) -> Flags:
        found: Flags = np.asarray((rates > limits).any(axis=1))
        return found

    return _when(wanted, over)


def banded(wanted: Wanted, policy: Policy, ran: Policy, band: float) -> Ints:
    """Return the intervals in which a segment may have been on the other side of a threshold.

    Its load is known to within the filter's band; where the filter watched a threshold, no load crossed it unseen.
    """
    limits = np.array([policy.split_thresholds, policy.merge_thresholds])
    watched = np.array([ran.split_thresholds, ran.merge_thresholds])
    unknown = np.full(limits.shape, not ran.threshold_crossing) | (limits != watched)

    def near(rates: Floats) -> Flags:
        inside = np.abs(limits[None] - rates[:, None, :]) < band * rates[:, None, :]
        found: Flags = (inside & unknown[None]).any(axis=(1, 2))
        return found

    return _when(wanted, near)


def divided(
    layouts: Sequence[tuple[int, frozenset[int]]], lives: Sequence[Life], edges: Ints, end: int
) -> tuple[Ints, Ints]:
    """Return two kinds of intervals: a segment begins where none ever did on record, or none did then.

    `layouts`: instants, ascending, and the hashes at which segments begin from then on.
    """
    ever = frozenset(edges.tolist())
    changes = sorted({*(at for at, _ in layouts), *(one.begins for one in lives), *(one.ends for one in lives)})
    uneven, carried = [], []
    place, starts = 0, layouts[0][1]
    for at, following in zip(changes, [*changes[1:], end], strict=True):
        while place + 1 < len(layouts) and layouts[place + 1][0] <= at:
            place += 1
            starts = layouts[place][1]
        there = {one.start for one in lives if one.begins <= at < one.ends}
        if at >= following or not there:
            continue
        new = starts - there
        if new - ever:
            uneven.append((at, following))
        if new & ever:
            carried.append((at, following))
    return _array(uneven), _array(carried)


def layouts_of(
    first: SegmentLayout, began_at: int, actions: Iterable[tuple[int, str, tuple[int, ...]]]
) -> tuple[list[tuple[int, frozenset[int]]], list[tuple[int, int]]]:
    """Apply actions to a layout; return the starts of segments over time, and the hashes of each action.

    `actions`: instant, kind and segments.
    """
    layout = first
    found = [(began_at, frozenset(one.start for one in first.active))]
    ranges: list[tuple[int, int]] = []
    for at, kind, segments in actions:
        of = [layout.segments[one] for one in segments]
        ranges.append((min(one.start for one in of), max(one.end for one in of)))
        try:
            if kind == "split":
                layout = layout.split_segment(segments[0], at)
            elif kind == "merge":
                layout = layout.merge_segments(segments[0], segments[1], at)
            else:
                layout = layout.rebucket_segment(segments[0], layout.segments[segments[0]].bucket_count + 1, at)
        except LayoutError:
            continue
        found.append((at, frozenset(one.start for one in layout.active)))
    return found, ranges


def _when(wanted: Wanted, is_so: Callable[[Floats], Flags]) -> Ints:
    found = []
    for piece in wanted.pieces:
        at, rates = piece.carried
        ends = np.r_[at[1:], piece.life.ends]
        flags = is_so(rates)
        found.append(np.stack([at[flags], ends[flags]], axis=1))
    return merged(found, wanted.began_at, wanted.ends_at)


def _array(pairs: Sequence[tuple[int, int]]) -> Ints:
    return np.array(pairs, np.int64).reshape(-1, 2)
