"""Moves under way: brokers and owners as they will be once every open unload has been applied.

Stage: between the state of a cluster and the snapshot of its cycle. Reports describe the past. A shedder that saw
only reports would keep emptying a broker while decisions on its bundles wait for an approval, a window or an
executor. A move therefore counts from its decision until a report made after its application shows it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from decisions.bundles.averages import message_rate, total_throughput
from decisions.bundles.projection import SETTLED_MS
from schemas.base import build_model
from schemas.bundles import BrokerLoadData, LocalBrokerData, NamespaceBundleStats, ResourceUsage, TopBundlesLoadData
from schemas.kafka.broker_messages import BrokerLoadReport, LocalBrokerReport, Report

Amounts: TypeAlias = tuple[float, float, float, float]
"""Usage by a bundle: CPU, network in and out, in its broker's units, and the weighted maximum.

Stored with the state: `engine.bundles.codec` writes and reads exactly these four.
"""
DataT = TypeVar("DataT", LocalBrokerData, BrokerLoadData)

_RATES = ("msg_rate_in", "msg_rate_out", "msg_throughput_in", "msg_throughput_out")
_USED = ("cpu", "bandwidth_in", "bandwidth_out")
"""Resources of the first three `Amounts`, in their order."""


@dataclass(slots=True)
class BundleMove:
    """An unload that was decided."""

    decision_id: str
    source: str
    destination: str
    at: int
    """Time of the decision, milliseconds."""
    stats: NamespaceBundleStats
    """Statistics of the bundle on its source."""
    amounts: Amounts
    applied_at: int | None = None
    """Time of its application by the executor's clock; None while open."""

    def is_shown_by(self, bundle: str, report: Report | None) -> bool:
        """Return whether a report has the move's load, or the broker no longer reports it."""
        if report is None:
            return True
        if self.applied_at is None or report.last_update <= self.applied_at:
            return False
        if report.broker != self.destination or report.last_update > self.applied_at + SETTLED_MS:
            return True
        if (stats := _stats_of(report, bundle)) is None:
            return isinstance(report, BrokerLoadReport)  # it names its busiest bundles only
        return self.is_load(stats)

    def is_load(self, stats: NamespaceBundleStats) -> bool:
        """Return whether a destination's statistics have at least half of the bundle's messages."""
        return message_rate(stats) >= message_rate(self.stats) / 2


def new_move(
    decision_id: str, bundle: str, source: str, destination: str, decided_at: int, report: Report | None
) -> BundleMove:
    """Return the move of a bundle; `report` is the source's."""
    stats, amounts = NamespaceBundleStats(), (0.0, 0.0, 0.0, 0.0)
    if report is not None and (bundle_stats := _stats_of(report, bundle)) is not None:
        stats, amounts = bundle_stats, _amounts(report, bundle_stats)
    return BundleMove(decision_id, source, destination, decided_at, stats, amounts)


def project_reports(reports: Mapping[str, Report], moves: Mapping[str, BundleMove]) -> dict[str, Report]:
    """Return the reports as if every moving bundle had reached its destination."""
    changed = dict(reports)
    for bundle, move in sorted(moves.items()):
        source, destination = changed.get(move.source), changed.get(move.destination)
        stats, amounts = move.stats, move.amounts
        if source is not None and (there := _stats_of(source, bundle)) is not None:
            stats, amounts = there, _amounts(source, there)
            if not move.is_shown_by(bundle, reports.get(move.source)):
                changed[move.source] = _change_report(source, bundle, stats, amounts, -1)
        if destination is None or move.is_shown_by(bundle, reports.get(move.destination)):
            continue
        if (early := _stats_of(destination, bundle)) is not None:
            if move.is_load(early):
                continue
            destination = _change_report(destination, bundle, early, _amounts(destination, early), -1)
        changed[move.destination] = _change_report(destination, bundle, stats, amounts, 1)
    return changed


def _stats_of(report: Report, bundle: str) -> NamespaceBundleStats | None:
    if isinstance(report, LocalBrokerReport):
        return report.data.last_stats.get(bundle)
    return next((top.stats for top in report.top_bundles.top_bundles_load_data if top.bundle_name == bundle), None)


def _amounts(report: Report, stats: NamespaceBundleStats) -> Amounts:
    """Return a bundle's share of its broker's usage: CPU by messages, network by bytes."""
    loads = _every_bundle(report)
    messages = sum(stat.msg_rate_in + stat.msg_rate_out for stat in loads)
    coming, going = sum(stat.msg_throughput_in for stat in loads), sum(stat.msg_throughput_out for stat in loads)
    if isinstance(report, BrokerLoadReport):
        data = report.data
        messages = max(messages, data.msg_rate_in + data.msg_rate_out)
        coming, going = max(coming, data.msg_throughput_in), max(going, data.msg_throughput_out)
    cpu = _share_of(report.data.cpu.usage, stats.msg_rate_in + stats.msg_rate_out, messages)
    network_in = _share_of(report.data.bandwidth_in.usage, stats.msg_throughput_in, coming)
    network_out = _share_of(report.data.bandwidth_out.usage, stats.msg_throughput_out, going)
    average = getattr(report.data, "weighted_max_e_m_a", None) or 0.0
    return cpu, network_in, network_out, _share_of(average, total_throughput(stats), coming + going)


def _every_bundle(report: Report) -> list[NamespaceBundleStats]:
    if isinstance(report, LocalBrokerReport):
        return list(report.data.last_stats.values())
    return [top.stats for top in report.top_bundles.top_bundles_load_data]


def _share_of(usage: float, load: float, total: float) -> float:
    return usage * min(1.0, load / total) if total > 0 else 0.0


def _change_report(report: Report, bundle: str, stats: NamespaceBundleStats, amounts: Amounts, sign: int) -> Report:
    """Return a broker's report after gaining a bundle, or with `sign` -1 after losing it."""
    if isinstance(report, LocalBrokerReport):
        local = report.data
        last_stats = {name: entry for name, entry in local.last_stats.items() if name != bundle}
        bundles = None if local.bundles is None else [name for name in local.bundles if name != bundle]
        if sign > 0:
            last_stats[bundle] = stats
            bundles = None if bundles is None else [*bundles, bundle]
        topics = None if local.num_topics is None else max(0, local.num_topics + sign * stats.topics)
        more = {"last_stats": last_stats, "bundles": bundles, "num_topics": topics}
        return report.model_copy(update={"data": _with_load(local, stats, amounts, sign).model_copy(update=more)})
    data_of = report.data
    top = {entry.bundle_name: entry.stats for entry in report.top_bundles.top_bundles_load_data}
    top.pop(bundle, None)
    if sign > 0:
        top[bundle] = stats
    values: dict[str, object] = {
        "bundle_count": max(0, data_of.bundle_count + sign),
        "topics": max(0, data_of.topics + sign * stats.topics),
    }
    if data_of.weighted_max_e_m_a is not None:
        values["weighted_max_e_m_a"] = max(0.0, data_of.weighted_max_e_m_a + sign * amounts[3])
    if data_of.msg_throughput_e_m_a is not None:
        values["msg_throughput_e_m_a"] = max(0.0, data_of.msg_throughput_e_m_a + sign * total_throughput(stats))
    return report.model_copy(
        update={
            "data": _with_load(data_of, stats, amounts, sign).model_copy(update=values),
            "top_bundles": TopBundlesLoadData.of_busiest(top, len(top)),
        }
    )


def _with_load(data: DataT, stats: NamespaceBundleStats, amounts: Amounts, sign: int) -> DataT:
    values: dict[str, object] = {
        name: max(0.0, total + sign * getattr(stats, name))
        for name in _RATES
        if (total := getattr(data, name)) is not None
    }
    for name, amount in zip(_USED, amounts, strict=False):
        resource: ResourceUsage = getattr(data, name)
        values[name] = build_model(
            ResourceUsage, {"usage": max(0.0, resource.usage + sign * amount), "limit": resource.limit}
        )
    return data.model_copy(update=values)
