"""Broker reports: usage from demand, and Pulsar's rule for when a report is written.

Stage: under `run`, for both load managers. Numbers change once a minute, so the rule is applied once a minute.
"""

from collections.abc import Mapping

import numpy as np

from anabranch.simulation.bundles.fleet import Broker, Fleet
from decisions.bundles.configuration import Configuration
from decisions.bundles.reports import CHECK_EVERY_MS
from decisions.bundles.usage import weighted_max
from schemas.base import build_model
from schemas.bundles import BrokerLoadData, LocalBrokerData, NamespaceBundleStats, ResourceUsage

LOOKS = 60_000 // CHECK_EVERY_MS
"""Samples of a minute, of which each moves the averages of the extensible load manager (PIP-192)."""
BUSIEST = 10
"""`loadBalancerMaxNumberOfBundlesInBundleLoadReport`."""


def averaged(before: float | None, now: float, history: float) -> float:
    """Return an average after a minute in which every sample had the same value."""
    if before is None:
        return now
    share = history**LOOKS
    return share * before + (1 - share) * now


def load_data(last: BrokerLoadData | None, data: LocalBrokerData, conf: Configuration) -> BrokerLoadData:
    """Return a broker's load data of this minute, after `last`, which need not have been published."""
    history = conf.number("loadBalancerHistoryResourcePercentage")
    loads = data.last_stats.values()
    coming, going = (sum(getattr(bundle, f"msg_throughput_{way}") for bundle in loads) for way in ("in", "out"))
    current = BrokerLoadData(
        cpu=data.cpu,
        bandwidth_in=data.bandwidth_in,
        bandwidth_out=data.bandwidth_out,
        msg_throughput_in=coming,
        msg_throughput_out=going,
        msg_rate_in=sum(bundle.msg_rate_in for bundle in loads),
        msg_rate_out=sum(bundle.msg_rate_out for bundle in loads),
        bundle_count=len(loads),
        topics=sum(bundle.topics for bundle in loads),
        updated_at=data.last_update,
    )
    usage_before = last.weighted_max_e_m_a if last else None
    bytes_before = last.msg_throughput_e_m_a if last else None
    return current.model_copy(
        update={
            "weighted_max_e_m_a": averaged(usage_before, weighted_max(current, conf), history),
            "msg_throughput_e_m_a": averaged(bytes_before, coming + going, history),
        }
    )


LONGEST_MS, THRESHOLD = 15 * 60_000, 10.0


def stats(fleet: Fleet, minute: int) -> dict[str, NamespaceBundleStats]:
    """Return the statistics of each bundle for a minute."""
    counted = {}
    for name, (rate, out, received, sent) in zip(fleet.bundles, _rates(fleet, minute), strict=True):
        values = {
            "msg_rate_in": rate,
            "msg_rate_out": out,
            "msg_throughput_in": received,
            "msg_throughput_out": sent,
            "consumer_count": 5,
            "producer_count": 5,
            "topics": 10,
            "cache_size": 0,
        }
        counted[name] = build_model(NamespaceBundleStats, values)
    return counted


def _rates(fleet: Fleet, minute: int) -> list[list[float]]:
    """Return messages in and out, bytes in and out of each bundle."""
    if fleet.recorded is not None:
        recorded: list[list[float]] = fleet.recorded[minute].astype(np.float64).tolist()
        return recorded
    rates = fleet.messages[minute]
    out = rates * fleet.fan_out
    of_all: list[list[float]] = np.column_stack([rates, out, rates * fleet.sizes, out * fleet.sizes]).tolist()
    return of_all


def usage(broker: Broker, own: Mapping[str, NamespaceBundleStats]) -> tuple[float, float, float]:
    """Return CPU, network in and network out of a broker with these bundles, without noise."""
    messages = sum(bundle.msg_rate_in + bundle.msg_rate_out for bundle in own.values())
    throughput = [sum(getattr(bundle, f"msg_throughput_{way}") for bundle in own.values()) for way in ("in", "out")]
    return broker.idle + messages / broker.messages, throughput[0] / broker.network, throughput[1] / broker.network


def report(
    broker: Broker, own: Mapping[str, NamespaceBundleStats], now: int, noise: float, random: np.random.Generator
) -> LocalBrokerData:
    """Return a broker's report of this minute."""
    cpu, coming, going = usage(broker, own)
    cpu = max(0.0, cpu + float(random.normal(0, noise)))
    return LocalBrokerData(
        cpu=_percent_of(cpu),
        bandwidth_in=_percent_of(coming),
        bandwidth_out=_percent_of(going),
        last_stats=dict(own),
        last_update=now,
    )


def _percent_of(share: float) -> ResourceUsage:
    return ResourceUsage(usage=min(share, 10.0) * 100, limit=100.0)


def is_due(last: LocalBrokerData | None, new: LocalBrokerData) -> bool:
    """Return whether the new report is written: usage changes in points, others in percent."""
    if last is None or new.last_update - last.last_update > LONGEST_MS:
        return True
    old_sums, new_sums = _sums(last), _sums(new)
    changes = [_percent(old, now) for old, now in zip(old_sums[:3], new_sums[:3], strict=True)]
    return max(*changes, abs(old_sums[3] - new_sums[3])) > THRESHOLD


def _sums(data: LocalBrokerData) -> tuple[float, float, float, float]:
    loads = data.last_stats.values()
    full = max(resource.usage for resource in (data.cpu, data.bandwidth_in, data.bandwidth_out))
    rate = sum(bundle.msg_rate_in + bundle.msg_rate_out for bundle in loads)
    return rate, sum(bundle.msg_throughput_in + bundle.msg_throughput_out for bundle in loads), float(len(loads)), full


def _percent(old: float, new: float) -> float:
    if old == 0:
        return 0.0 if new == 0 else float("inf")
    return 100 * abs(new - old) / abs(old)
