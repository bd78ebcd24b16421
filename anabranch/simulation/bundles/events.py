"""Recorded events of a cluster with bundles: broker reports, live brokers, and balancer policies.

Stage: under `recorded`, from the table `events`. Only the fields of a report that a backtest needs are kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow.compute as pc
import pydantic_core

from engine.history import is_until
from lake.tables import stream_columns
from schemas.ids import EVERY_TOPIC
from schemas.kafka.broker_messages import BalancerPolicies
from schemas.tables.rows import EVENTS

_TYPES = ("local-broker-data", "broker-load-data", "brokers", "policies")
_ROWS = 1024


class Report(NamedTuple):
    """Report of a broker. Usage as fractions."""

    at: int
    """Milliseconds."""
    broker: str
    cpu: float
    network_in: float
    network_out: float
    bundles: Mapping[str, tuple[float, float, float, float]]
    """Messages in and out, bytes in and out, a second."""


@dataclass
class Recorded:
    """Record of a cluster, in no order."""

    reports: list[Report] = field(default_factory=list)
    partial: int = 0
    """Reports of the extensible manager, which name the busiest bundles only."""
    living: list[tuple[int, frozenset[str]]] = field(default_factory=list)
    """Announcements of live brokers: instant and names."""
    policies: BalancerPolicies | None = None
    """The newest."""
    policies_changed: bool = False

    @property
    def rules(self) -> dict[str, Any]:
        """Return the policies beside the settings, as fields of a snapshot."""
        if self.policies is None:
            return {}
        return {
            "isolation_policies": self.policies.isolation_policies,
            "anti_affinity_groups": self.policies.anti_affinity_groups,
            "failure_domains": self.policies.failure_domains,
        }


def clusters_on_record(lake: str) -> list[str]:
    """Return the clusters with reports on record. Raises what Delta raises."""
    where = pc.field("type").isin(_TYPES[:2])
    clusters = {name for rows in stream_columns(lake, EVENTS, ("subject",), 65_536, where) for name in _names(rows)}
    return sorted(clusters - {EVERY_TOPIC})


def read(
    lake: str, cluster: str, since: datetime | None = None, until: datetime | None = None, *, with_partial: bool = False
) -> Recorded:
    """Read the record of a cluster from `since` to `until` (aware; None: all). Raises what Delta raises.

    `with_partial`: also read reports that name only the busiest bundles; a broker's other bundles count as one.
    """
    where = (pc.field("subject") == cluster) & pc.field("type").isin(_TYPES)
    where = where if until is None else where & is_until(EVENTS, until)
    begin, recorded = 0 if since is None else int(since.timestamp() * 1000), Recorded()
    for rows in stream_columns(lake, EVENTS, ("type", "body"), _ROWS, where):
        for row in rows.to_pylist():
            _take(recorded, row["type"], row["body"], begin, with_partial)
    return recorded


def _take(recorded: Recorded, kind: str, body: str, begin: int, with_partial: bool) -> None:
    if kind == "policies":
        policies = BalancerPolicies.model_validate_json(body)
        if policies.unreadable is not None:
            return
        if (previous := recorded.policies) is not None:
            recorded.policies_changed |= previous.model_copy(update={"at": 0}) != policies.model_copy(update={"at": 0})
        if previous is None or policies.at > previous.at:
            recorded.policies = policies
        return
    message = pydantic_core.from_json(body)
    if kind == "brokers":
        recorded.living.append((message["at"], frozenset(message["brokers"])))
    elif kind == "broker-load-data":
        if (reported_at := message["data"]["updatedAt"]) >= begin:
            recorded.partial += 1
            if with_partial:
                recorded.reports.append(_partial(reported_at, message))
    elif (reported_at := message["data"]["lastUpdate"]) >= begin:
        data = message["data"]
        bundles = {name: _rates(rates) for name, rates in (data.get("lastStats") or {}).items()}
        recorded.reports.append(Report(reported_at, message["broker"], *_shares(data), bundles))


def _partial(reported_at: int, message: Mapping[str, Any]) -> Report:
    """Return a report of the extensible manager: its busiest bundles, and the remaining load as one more."""
    data, broker = message["data"], message["broker"]
    top = (message.get("topBundles") or {}).get("topBundlesLoadData") or []
    bundles = {bundle["bundleName"]: _rates(bundle.get("stats") or {}) for bundle in top}
    named_rates = [float(sum(rates)) for rates in zip(*bundles.values(), strict=True)] or [0.0] * 4
    rate, out, received, sent = (
        max(0.0, total - named) for total, named in zip(_rates(data), named_rates, strict=True)
    )
    if any((rate, out, received, sent)):
        bundles[f"other bundles of {broker}"] = (rate, out, received, sent)
    return Report(reported_at, broker, *_shares(data), bundles)


def _shares(data: Mapping[str, Any]) -> tuple[float, float, float]:
    cpu, coming, going = (_share(data.get(name)) for name in ("cpu", "bandwidthIn", "bandwidthOut"))
    return cpu, coming, going


def _rates(stats: Mapping[str, Any]) -> tuple[float, float, float, float]:
    values = (stats.get(name) or 0.0 for name in ("msgRateIn", "msgRateOut", "msgThroughputIn", "msgThroughputOut"))
    rate, out, received, sent = (float(value) for value in values)
    return rate, out, received, sent


def _share(resource: Mapping[str, Any] | None) -> float:
    stats = resource or {}
    usage, limit = float(stats.get("usage") or 0.0), float(stats.get("limit") or 0.0)
    return usage / limit if limit > 0 else 0.0


def _names(rows: Any) -> list[str]:
    names: list[str] = pc.unique(rows["subject"]).to_pylist()
    return names
