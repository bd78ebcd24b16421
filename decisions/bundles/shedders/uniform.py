"""UniformLoadShedder: the broker with the highest rate or throughput gives if far above the lowest.

The rule since apache/pulsar#21025, and `shed_21016`, the rule before it, with its fault: one slot for "overloaded" and
one for "underloaded", which either signal takes over and which then holds both values.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from decisions.bundles.averages import message_rate, total_throughput
from decisions.bundles.cluster import BrokerReport, ClusterView
from decisions.bundles.gates import BundleGate
from decisions.bundles.numbers import INT_MAX, java_int, wrapped_sum

DELTA = 1000
"""Messages or bytes per second by which a bundle may be larger than what is needed."""
EPSILON = 1e-6


@dataclass(slots=True)
class _Extreme:
    """The broker with the highest or the lowest value seen so far."""

    value: float
    broker: str | None = None


def shed_uniform(cluster: ClusterView) -> dict[str, list[str]]:
    """The bundles to unload, by broker."""
    if not cluster.configuration.on("fix21025"):
        return shed_21016(cluster)
    by_rate = _extremes((report.broker, report.rate) for report in cluster.reports.values())
    by_bytes = _extremes((report.broker, report.throughput) for report in cluster.reports.values())
    for _, low in (by_rate, by_bytes):
        if -EPSILON <= low.value <= EPSILON:
            low.value = 1.0
    return _pick_from_extreme(cluster, *by_rate, *by_bytes)


def shed_21016(cluster: ClusterView) -> dict[str, list[str]]:
    """Shed as releases up to 2.10.5, 3.0.1 and 3.1.0 do; the order of `brokers` in the snapshot counts."""
    rates, sizes = (_Extreme(-1), _Extreme(INT_MAX)), (_Extreme(-1), _Extreme(INT_MAX))
    for broker in cluster.snapshot.brokers:
        report = cluster.reports[broker]
        if len(report.bundles) > 1 and (report.rate > rates[0].value or report.throughput > sizes[0].value):
            rates[0].value, sizes[0].value = report.rate, report.throughput
            rates[0].broker = sizes[0].broker = broker
        if report.rate < rates[1].value or report.throughput < sizes[1].value:
            rates[1].value, sizes[1].value = report.rate, report.throughput
            rates[1].broker = sizes[1].broker = broker
    return _pick_from_extreme(cluster, *rates, *sizes)


def _extremes(values: Iterable[tuple[str, float]]) -> tuple[_Extreme, _Extreme]:
    high, low = _Extreme(-1), _Extreme(INT_MAX)
    for broker, value in values:
        if value > high.value:
            high = _Extreme(value, broker)
        if value < low.value:
            low = _Extreme(value, broker)
    return high, low


def _pick_from_extreme(
    cluster: ClusterView, rate_high: _Extreme, rate_low: _Extreme, bytes_high: _Extreme, bytes_low: _Extreme
) -> dict[str, list[str]]:
    conf, account = cluster.configuration, cluster.account
    rate_limit = conf.number("loadBalancerMsgRateDifferenceShedderThreshold")
    bytes_limit = conf.number("loadBalancerMsgThroughputMultiplierDifferenceShedderThreshold")
    rate_apart = _java_ratio((rate_high.value - rate_low.value) * 100, rate_low.value)
    bytes_apart = _java_ratio(bytes_high.value, bytes_low.value)
    rate_hot = rate_limit > 0 and account.measured(
        BundleGate.RATE_DIFFERENCE,
        rate_apart,
        ">",
        rate_limit,
        rate_high.broker,
        detail=f"percent above {rate_low.broker}",
    )
    bytes_hot = bytes_limit > 0 and account.measured(
        BundleGate.THROUGHPUT_DIFFERENCE,
        bytes_apart,
        ">",
        bytes_limit,
        bytes_high.broker,
        detail=f"times that of {bytes_low.broker}",
    )
    if not rate_hot and not bytes_hot:
        return {}
    high, low = (rate_high, rate_low) if rate_hot else (bytes_high, bytes_low)
    if high.broker is None:
        return {}
    source = cluster.reports[high.broker]
    need = java_int((high.value - low.value) * conf.number("maxUnloadPercentage"))
    least = conf.number("minUnloadMessage" if rate_hot else "minUnloadMessageThroughput")
    several = account.measured(BundleGate.SOLE_BUNDLE, len(source.bundles), ">", 1, source.broker)
    if not several or not account.measured(BundleGate.MIN_MESSAGES, need, ">=", least, source.broker):
        return {}
    bundles = _pick_bundles(cluster, source, need, rate_hot)
    return {source.broker: bundles} if bundles else {}


def _java_ratio(value: float, by: float) -> float:
    """A division as Java does it: by zero it is infinite, here the largest number."""
    if by == 0:
        return 0.0 if value == 0 else 1e300
    return value / by


def _pick_bundles(cluster: ClusterView, source: BrokerReport, need: int, by_rate: bool) -> list[str]:
    most = cluster.configuration.whole("maxUnloadBundleNumPerShedding")
    filtered = cluster.configuration.on("fix21214")
    weigh = message_rate if by_rate else total_throughput
    loads = [(weigh(data.short_term_data), bundle) for bundle, data in cluster.candidates(source.broker)]
    picked = list[str]()
    for load, bundle in sorted(loads, key=lambda entry: (-entry[0], entry[1])):
        where = (source.broker, bundle)
        if filtered and not cluster.account.measured(BundleGate.HAS_TRAFFIC, load, ">", 0, *where):
            continue
        if most != -1 and not cluster.account.measured(BundleGate.BUNDLE_COUNT, len(picked), "<", most, *where):
            continue
        if cluster.account.measured(BundleGate.FITS, load, "<=", wrapped_sum(need + DELTA), *where):
            need = wrapped_sum(need - java_int(load))
            picked.append(bundle)
    return picked
