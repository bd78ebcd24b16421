"""Significant change: which samples become load records (PIP-483 "Significant-change threshold").

Stage: the ±25 % filter (`stream.change_threshold` = 0.25), before anything is decided. A rate is compared with the last
*accepted* value, strictly: exactly the band is not significant; from 0 any move is. With `threshold_crossing` a sample
that lands on the other side of a policy threshold is significant too, so that no load crosses one unseen.

Each rule comes twice, for one sample and for columns of them; a property test compares the two. The job's filter
(`engine.autoscale.filtering`) calls the one over columns; the one for a sample is the rule to read and to compare with.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt

from decisions.autoscale.policy import Policy
from decisions.autoscale.rates import Rates, is_cold

Cause = Literal["first", "changed", "crossed"]

__all__ = ["CAUSES", "Cause", "Rates", "accept_cause", "accept_causes", "any_of_four", "are_cold", "is_cold"]

CAUSES: dict[int, Cause] = {1: "first", 2: "changed", 3: "crossed"}
"""Codes of `accept_causes`; 0 is no significant change."""


def accept_cause(last: Rates | None, current: Rates, threshold: float, policy: Policy | None) -> Cause | None:
    """Return why a sample is significant, or None; without `policy` crossings are not tested."""
    if last is None:
        return "first"
    if any(_is_significant(before, now, threshold) for before, now in zip(last, current, strict=True)):
        return "changed"
    if policy is not None and policy.threshold_crossing:
        split = zip(last, current, policy.split_thresholds, strict=True)
        limits = (*policy.merge_thresholds, *policy.written_merge_thresholds)
        merge = zip((*last, *last), (*current, *current), limits, strict=True)
        if any((before > limit) != (now > limit) for before, now, limit in split):
            return "crossed"
        if any((before < limit) != (now < limit) for before, now, limit in merge):
            return "crossed"
    return None


def accept_causes(
    last: npt.NDArray[np.float64],
    has_last: npt.NDArray[np.bool_],
    current: npt.NDArray[np.float64],
    threshold: float,
    thresholds: npt.NDArray[np.float64] | None = None,
) -> npt.NDArray[np.int8]:
    """`accept_cause` over n samples: codes as in `CAUSES`, 0 for none.

    `last` and `current` are n x 4 rates per second; `thresholds` n x 12, of each sample's topic as
    `crossing_thresholds` has them, a row of NaN where crossing does not count.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        moved = any_of_four(np.where(last == 0, current != 0, np.abs(current - last) / last > threshold))
    codes = np.where(moved, 2, 0).astype(np.int8)
    if thresholds is not None:
        split, merge, written = thresholds[:, :4], thresholds[:, 4:8], thresholds[:, 8:]
        crossed = ((last > split) != (current > split)) | ((last < merge) != (current < merge))
        if (merge != written).any():
            crossed |= (last < written) != (current < written)
        codes[(codes == 0) & any_of_four(crossed)] = 3
    codes[~has_last] = 1
    return codes


def crossing_thresholds(policy: Policy) -> tuple[float, ...]:
    """Return the twelve thresholds whose crossing counts: split, merge, and merge without headroom."""
    return (*policy.split_thresholds, *policy.merge_thresholds, *policy.written_merge_thresholds)


def are_cold(rates: npt.NDArray[np.float64], merge_thresholds: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """`is_cold` over n x 4 rates; `merge_thresholds` is n x 4, or 4 for all."""
    return ~any_of_four(~(rates < merge_thresholds))


def any_of_four(flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """`flags.any(axis=1)` of n x 4 flags, read as one number a row: several times as fast."""
    any_set: npt.NDArray[np.bool_] = np.ascontiguousarray(flags).view(np.uint32)[:, 0] != 0
    return any_set


def _is_significant(last: float, current: float, threshold: float) -> bool:
    return current != 0 if last == 0 else abs(current - last) / last > threshold
