"""Reports of broker load: when one is written, and which come twice.

Source: PIP-192's `BrokerLoadDataReporter` and the modular manager's `needBrokerDataUpdate`. The last report is the only
state; instants are arguments, milliseconds since 1970.
"""

import math
from typing import NamedTuple

CHECK_EVERY_MS = 5_000
"""`loadBalancerReportUpdateMinIntervalMillis`: how often the rule is asked."""
MAX_INTERVAL_MS = 900_000
"""`loadBalancerReportUpdateMaxIntervalMinutes`."""
THRESHOLD_PERCENT = 10.0
"""`loadBalancerReportUpdateThresholdPercentage`."""


class LoadOfReport(NamedTuple):
    """Load of a report as the rule reads it.

    `usage` is a fraction (1.0 = 100 %): with weights for the modular manager (`usage.weighted_max`), without for the
    extensible one (`usage.max_usage`). `rate` and `throughput` are in and out together, a second.
    """

    at: int
    """`lastUpdate` (modular); `reportedAt`, set by a publish that succeeded (extensible)."""
    usage: float
    rate: float
    throughput: float
    bundles: int


def is_reported(
    last: LoadOfReport | None,
    now: LoadOfReport,
    forced: bool = False,
    threshold: float = THRESHOLD_PERCENT,
    max_interval_ms: int = MAX_INTERVAL_MS,
) -> bool:
    """Tell if a report is written. Both limits are strict; without a report before it always is."""
    if forced or last is None or now.at - last.at > max_interval_ms:
        return True
    return largest_change(last, now) > threshold


def largest_change(last: LoadOfReport, now: LoadOfReport) -> float:
    """The largest change in percent: of usage in points, of the rest relative to what it was."""
    return max(
        relative_change(last.rate, now.rate),
        relative_change(last.throughput, now.throughput),
        relative_change(last.bundles, now.bundles),
        100 * abs(last.usage - now.usage),
    )


def relative_change(old: float, new: float) -> float:
    """The change in percent of the old value: 0 from 0 to 0, infinite from 0 to anything else."""
    if old == 0:
        return 0.0 if new == 0 else math.inf
    return 100 * abs(new - old) / abs(old)
