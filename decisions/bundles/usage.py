"""Usage of a broker's resources, as fractions (1.0 = 100 %).

Source: `LocalBrokerData`, `ResourceUsage`. Percentages are single-precision as upstream; weights and all that follows
are double.
"""

from decisions.bundles.configuration import Configuration
from decisions.bundles.numbers import to_float32
from schemas.bundles import BrokerLoadData, LocalBrokerData, ResourceUsage


def percent(resource: ResourceUsage) -> float:
    """Usage in percent of the limit, single-precision; 0 without a limit."""
    limit = to_float32(resource.limit)
    return 0.0 if limit <= 0 else to_float32(to_float32(to_float32(resource.usage) / limit) * 100)


def max_usage(broker: LocalBrokerData | BrokerLoadData, conf: Configuration) -> float:
    """The fullest resource, without weights."""
    signals = [broker.cpu, broker.direct_memory, broker.bandwidth_in, broker.bandwidth_out]
    if not conf.on("fix19559"):
        signals.append(broker.memory)
    return to_float32(max(percent(signal) for signal in signals) / 100)


def weighted_signals(broker: LocalBrokerData | BrokerLoadData, conf: Configuration) -> list[float]:
    """Each resource in percent, times its weight."""
    signals = [
        percent(broker.cpu) * conf.number("loadBalancerCPUResourceWeight"),
        percent(broker.direct_memory) * conf.number("loadBalancerDirectMemoryResourceWeight"),
        percent(broker.bandwidth_in) * conf.number("loadBalancerBandwidthInResourceWeight"),
        percent(broker.bandwidth_out) * conf.number("loadBalancerBandwidthOutResourceWeight"),
    ]
    if not conf.on("fix19559"):
        signals.append(percent(broker.memory) * conf.number("loadBalancerMemoryResourceWeight"))
    return signals


def weighted_max(broker: LocalBrokerData | BrokerLoadData, conf: Configuration) -> float:
    """The fullest resource after weights."""
    return max(weighted_signals(broker, conf)) / 100


def weighted_max_within_limit(broker: LocalBrokerData, conf: Configuration) -> float:
    """Return the weighted maximum without readings above 100 %, which cannot be right."""
    return max((signal for signal in weighted_signals(broker, conf) if 0 < signal <= 100), default=0.0) / 100
