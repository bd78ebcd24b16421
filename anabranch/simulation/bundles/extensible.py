"""Reports of the extensible load manager: `BrokerLoadData` and a broker's busiest bundles (PIP-192).

Stage: under `run`, beside `reports`. A broker updates its averages whenever it samples its load, every five seconds;
the simulated numbers change once a minute, so a minute moves them twelve times.
"""

from __future__ import annotations

from decisions.bundles.configuration import Configuration
from decisions.bundles.reports import CHECK_EVERY_MS
from decisions.bundles.usage import weighted_max
from schemas.bundles import BrokerLoadData, LocalBrokerData

LOOKS = 60_000 // CHECK_EVERY_MS
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
