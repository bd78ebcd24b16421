"""Lower bounds with foresight for policies that halve ranges and join the halves again.

Stage: beside `traces`, under `weeks`. Actions are free and immediate. A range is halved if it carries more than a split
threshold, so a topic needs one segment more than there are such ranges among its halves, their halves, and so on. Where
one hash alone is over the threshold the topic is over it in any layout; the bound has a single segment then, and counts
the time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from anabranch.simulation.topics.timeline import STEP_MS, Floats
from anabranch.simulation.topics.traces import Series

_ROUNDING = 1e-9


class HalvingBound(NamedTuple):
    """Fewest segment-hours with the fewest minutes over the threshold."""

    segment_hours: float
    minutes_over: float


def levels(series: Series) -> Floats:
    """Return the load at each step, in split thresholds."""
    return np.interp(np.arange(series.at[0], series.at[-1], STEP_MS), series.at, series.values)


def fewest_halves(load: Floats, shares: Floats) -> tuple[Floats, Floats]:
    """Return for each load the fewest segments, and 1 where one hash alone is over the threshold.

    `shares`: of the load, by slices of the key space; their number is a power of two.
    """
    limit = (1 + _ROUNDING) / np.maximum(load, _ROUNDING)
    is_over = shares.max() > limit
    halves, ranges = shares, []
    while len(halves) > 1:
        halves = halves.reshape(-1, 2).sum(axis=1)
        ranges.append(halves)
    split = np.sort(np.concatenate(ranges))
    segments = 1.0 + len(split) - np.searchsorted(split, limit, side="right")
    return np.where(is_over, 1.0, segments), is_over.astype(np.float64)


def halving_bound(series: Series, shares: Floats) -> HalvingBound:
    """Return the bound for a series whose load is spread over the key space by `shares`."""
    segments, is_over = fewest_halves(levels(series), shares)
    return HalvingBound(float(segments.sum()) * STEP_MS / 3_600_000, float(is_over.sum()) * STEP_MS / 60_000)
