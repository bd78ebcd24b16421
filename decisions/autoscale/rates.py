"""Rates of a segment against a policy's thresholds: its overload, its heat, and if it is cold.

*Overload* is the largest rate over its split threshold, *heat* the largest rate over its merge threshold.

Stage: under both passes of `decisions.autoscale.decide`, one segment at a time; `decisions.autoscale.fleet` has the
same over columns. Rates are per second in the PIP's order: msgRateIn, bytesRateIn, msgRateOut, bytesRateOut.
"""

from decisions.autoscale.policy import Policy
from schemas.metadata import RATES

Rates = tuple[float, float, float, float]

MAX_RATIO = 1.7976931348623157e308
"""A ratio that overflows, or whose threshold is 0, is shown as this: JSON knows no infinity."""


def segment_overload(rates: Rates, policy: Policy) -> tuple[float, str]:
    """Return the largest of the four ratios rate / split threshold, and its rate (the first of equals).

    Above 1 exactly when that rate is above its threshold: PIP-483 "Pass 1 — SPLIT (fast, lightly coalesced)", (b).
    """
    limits = policy.split_thresholds
    score, reason = rates[0] / limits[0], RATES[0]
    ratio = rates[1] / limits[1]
    if ratio > score:
        score, reason = ratio, RATES[1]
    ratio = rates[2] / limits[2]
    if ratio > score:
        score, reason = ratio, RATES[2]
    ratio = rates[3] / limits[3]
    if ratio > score:
        score, reason = ratio, RATES[3]
    return score, reason


def is_cold(rates: Rates, policy: Policy) -> bool:
    """Tell if all four rates are strictly below the merge thresholds.

    PIP-483 "Pass 2 — MERGE (lazy, rate-limited)".
    """
    limits = policy.merge_thresholds
    return rates[0] < limits[0] and rates[1] < limits[1] and rates[2] < limits[2] and rates[3] < limits[3]


def segment_heat(rates: Rates, policy: Policy) -> float:
    """The largest rate / merge threshold: below 1 exactly when cold. No rate is below a threshold of 0."""
    limits = policy.merge_thresholds
    if 0.0 in limits:
        return MAX_RATIO
    worst = rates[0] / limits[0]
    ratio = rates[1] / limits[1]
    if ratio > worst:
        worst = ratio
    ratio = rates[2] / limits[2]
    if ratio > worst:
        worst = ratio
    ratio = rates[3] / limits[3]
    if ratio > worst:
        worst = ratio
    return worst if worst < MAX_RATIO else MAX_RATIO


def combined_rate(left: Rates, right: Rates, policy: Policy) -> float:
    """The combined rate of two cold neighbours: the pair with the lowest merges.

    All eight rates added up: PIP-483 "Pass 2 — MERGE (lazy, rate-limited)". With the guard `normalizedColdness` the
    heat of their union; the merge thresholds of what is cold are above 0.
    """
    if policy.normalized_coldness:
        limits = policy.merge_thresholds
        return max((rate + other) / limit for rate, other, limit in zip(left, right, limits, strict=True))
    return (left[0] + left[1] + left[2] + left[3]) + (right[0] + right[1] + right[2] + right[3])
