"""Assumptions of a backtest: the periods that rest on them, and their share of the time.

Stage: under `running`, which collects the intervals of each kind; `report` words the kinds. Pure. Intervals are arrays
m x 2 of milliseconds, each up to before its second instant; they say when an assumption may have changed an answer, not
by how much.

- `gap`      nothing was reported: the job was down, or the load of a segment was missing or stale
- `ceiling`  a segment carried more than a split threshold of the policy that ran: clients may have wanted even more
- `band`     a segment's load is known to within the filter's band, and a threshold lies in that band
- `uneven`   the policy splits hashes that were never in segments of their own: demand is assumed to be even there
- `carried`  it splits hashes that were, but at another time: demand is divided as it was then
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from anabranch.simulation.backtest.demand import EstimatedDemand
from anabranch.simulation.backtest.incarnations import Life
from anabranch.simulation.topics.timeline import Floats, Ints
from decisions.autoscale.policy import Policy
from decisions.topic.layout import LayoutError, SegmentLayout

KINDS = ("gap", "ceiling", "band", "uneven", "carried")
Flags = npt.NDArray[np.bool_]
_NONE: Ints = np.zeros((0, 2), np.int64)


class AssumedTime(NamedTuple):
    """Milliseconds of a period that rest on assumptions, by kind."""

    total: int
    by_kind: Mapping[str, int]
    any_kind: int
    """Milliseconds that rest on at least one kind."""

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


def sum_assumptions(parts: Iterable[AssumedTime]) -> AssumedTime:
    """Return the sum of all parts."""
    parts = list(parts)
    return AssumedTime(
        sum(part.total for part in parts),
        {kind: sum(part.by_kind[kind] for part in parts) for kind in KINDS},
        sum(part.any_kind for part in parts),
    )


def measure_assumptions(intervals: Mapping[str, Ints], begin: int, end: int) -> AssumedTime:
    """Measure the assumed time between two instants; `intervals` by kind."""
    cut = {kind: merged([intervals.get(kind, _NONE)], begin, end) for kind in KINDS}
    lengths = {kind: length(spans) for kind, spans in cut.items()}
    return AssumedTime(end - begin, lengths, length(merged(list(cut.values()), begin, end)))


def merged(intervals: Sequence[Ints], begin: int, end: int) -> Ints:
    """Return the union of intervals, cut to a period, ascending."""
    spans = np.clip(np.concatenate([_NONE, *intervals]), begin, end)
    spans = spans[spans[:, 0] < spans[:, 1]]
    if not len(spans):
        return _NONE
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    furthest = np.maximum.accumulate(spans[:, 1])
    starts = np.flatnonzero(np.r_[True, spans[1:, 0] > furthest[:-1]])
    return np.stack([spans[starts, 0], furthest[np.r_[starts[1:] - 1, len(spans) - 1]]], axis=1)


def length(intervals: Ints) -> int:
    """Return the length of a union."""
    return int((intervals[:, 1] - intervals[:, 0]).sum())


def covers(intervals: Ints, instant: int) -> bool:
    """Return True if an instant lies in a union."""
    index = int(np.searchsorted(intervals[:, 0], instant, "right")) - 1
    return index >= 0 and instant < int(intervals[index, 1])


def ceiling_intervals(demand: EstimatedDemand, ran: Policy) -> Ints:
    """Return the intervals in which a segment exceeded a split threshold of the policy that ran."""
    limits = np.array(ran.split_thresholds)

    def over(rates: Floats) -> Flags:
        exceeding: Flags = np.asarray((rates > limits).any(axis=1))
        return exceeding

    return _intervals_where(demand, over)


def band_intervals(demand: EstimatedDemand, policy: Policy, ran: Policy, band: float) -> Ints:
    """Return the intervals in which a segment may have been on the other side of a threshold.

    Its load is known to within the filter's band; where the filter watched a threshold, no load crossed it unseen.
    """
    limits = np.array([policy.split_thresholds, policy.merge_thresholds])
    watched = np.array([ran.split_thresholds, ran.merge_thresholds])
    unknown = np.full(limits.shape, not ran.threshold_crossing) | (limits != watched)

    def near(rates: Floats) -> Flags:
        inside = np.abs(limits[None] - rates[:, None, :]) < band * rates[:, None, :]
        doubtful: Flags = (inside & unknown).reshape(-1, 8).view(np.uint64)[:, 0] != 0
        return doubtful

    return _intervals_where(demand, near)


def division_intervals(
    layouts: Sequence[tuple[int, frozenset[int]]], lives: Sequence[Life], edges: Ints, end: int
) -> tuple[Ints, Ints]:
    """Return the intervals `uneven` and `carried`: segments start where none did on record, ever or then.

    `layouts`: instants, ascending, and the hashes at which segments begin from then on.
    """
    ever = frozenset(edges.tolist())
    changes = sorted(
        {
            *(announced_at for announced_at, _ in layouts),
            *(life.begins for life in lives),
            *(life.ends for life in lives),
        }
    )
    uneven, carried = [], []
    index, starts = 0, layouts[0][1]
    for begun_at, following in zip(changes, [*changes[1:], end], strict=True):
        while index + 1 < len(layouts) and layouts[index + 1][0] <= begun_at:
            index += 1
            starts = layouts[index][1]
        recorded = {life.start for life in lives if life.begins <= begun_at < life.ends}
        if begun_at >= following or not recorded:
            continue
        new = starts - recorded
        if new - ever:
            uneven.append((begun_at, following))
        if new & ever:
            carried.append((begun_at, following))
    return _array(uneven), _array(carried)


def layouts_of(
    first: SegmentLayout, began_at: int, actions: Iterable[tuple[int, str, tuple[int, ...]]]
) -> tuple[list[tuple[int, frozenset[int]]], list[tuple[int, int]]]:
    """Apply actions (instant, kind, segments); return segments' starts over time, and hashes by action."""
    layout = first
    starts = [(began_at, frozenset(segment.start for segment in first.active))]
    ranges: list[tuple[int, int]] = []
    for acted_at, kind, segments in actions:
        parents = [layout.segments[number] for number in segments]
        ranges.append((min(parent.start for parent in parents), max(parent.end for parent in parents)))
        try:
            if kind == "split":
                layout = layout.split_segment(segments[0], acted_at)
            elif kind == "merge":
                layout = layout.merge_segments(segments[0], segments[1], acted_at)
            else:
                layout = layout.rebucket_segment(segments[0], layout.segments[segments[0]].bucket_count + 1, acted_at)
        except LayoutError:
            continue
        starts.append((acted_at, frozenset(segment.start for segment in layout.active)))
    return starts, ranges


def _intervals_where(demand: EstimatedDemand, is_so: Callable[[Floats], Flags]) -> Ints:
    spans = []
    for piece in demand.pieces:
        instants, rates = piece.carried
        ends = np.r_[instants[1:], piece.life.ends]
        flags = is_so(rates)
        spans.append(np.stack([instants[flags], ends[flags]], axis=1))
    return merged(spans, demand.began_at, demand.ends_at)


def _array(pairs: Sequence[tuple[int, int]]) -> Ints:
    return np.array(pairs, np.int64).reshape(-1, 2)
