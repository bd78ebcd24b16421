"""One round of a Pulsar cluster's bundles: what its brokers say of their load, who lives, who owns what, and which
policies hold; as messages of the family `bundles`.

Stage: reads through the admin client; `collectors.bundle_process` sends what it answers. A round that cannot be read
to its end says nothing: what is missing in it is not zero. Brokers with the modular load manager say their own load
report. Those with the extensible one have none; theirs is made of what they say of their topics and of their metrics,
in the same form, so the modular shedders decide for both. Its instant is when it was read.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, TypeVar

from admin.answers import Answered, Refused, Reply, ServerFault
from admin.bundles import Bundles
from admin.cluster import Cluster
from admin.transport import Transport
from schemas.broker_messages import BalancerPolicies, BundleOwnership, Circumstance, LiveBrokers, LocalBrokerReport
from schemas.bundles import BrokerLookupData, LocalBrokerData, NamespaceBundleStats, ResourceUsage

T = TypeVar("T")

_SETTINGS = ("loadBal", "minUnload", "maxUnload", "preferLaterVersions", "lowerBoundary", "defaultNamespaceBundleSplit")
_SWITCHES = frozenset({"loadBalancerSheddingEnabled", "loadBalancerAutoBundleSplitEnabled"})
"""They say whether Pulsar balances by itself, and not whether the job is to."""
_STRATEGIES = frozenset({
    "loadBalancerLoadSheddingStrategy", "loadBalancerLoadPlacementStrategy",
    "loadBalancerDistributeBundlesEvenlyEnabled",
})  # fmt: skip
_PROFILES = {"2": "2.10", "3": "3.0", "5": "5.0"}
_USAGE = re.compile(
    rb"^pulsar_lb_(cpu|memory|directMemory|bandwidth_in|bandwidth_out)_usage\{[^}\n]*\} ([0-9.eE+-]+)", re.M
)
_RESOURCES = {
    "cpu": "cpu", "memory": "memory", "directMemory": "direct_memory", "bandwidth_in": "bandwidth_in",
    "bandwidth_out": "bandwidth_out",
}  # fmt: skip
_OWN = re.compile(r"(?:pulsar|sla-monitor)/[^/]*:\d+|pulsar/system")
"""Namespaces that stay with their broker, and Pulsar's own."""


class Unread(Exception):
    """The cluster could not be read; the message says what."""


class BundleRounds:
    """Reads a cluster, round after round; one thread uses it."""

    def __init__(self, transport: Transport, configuration: Mapping[str, str] | None = None) -> None:
        """`configuration` is laid over what the brokers run with; `profile` in it stands for their version. With
        `default`, the strategies are ours and not theirs."""
        self._cluster, self._bundles = Cluster(transport), Bundles(transport)
        self._configuration = dict(configuration or {})
        self._profile = self._configuration.pop("profile", None)

    def read(self, now: int) -> list[LocalBrokerReport | Circumstance]:
        """All messages of a round at `now`, milliseconds: first the brokers, then policies and owners, then loads.
        Raises `Unread`."""
        settings = _value("the brokers' settings", self._cluster.broker_configuration())
        name = str(settings.get("clusterName", ""))
        brokers = _value("the brokers", self._cluster.brokers())
        owners: dict[str, dict[str, str]] = defaultdict(dict)
        reports = []
        for broker in sorted(brokers):
            for bundle in _value(f"the bundles of {broker}", self._bundles.owned(name, broker)):
                namespace, _, part = bundle.rpartition("/")
                if not _OWN.fullmatch(namespace):
                    owners[namespace][part] = broker
            load = self._load(broker, now)
            reports.append(LocalBrokerReport(
                v=1, type="local-broker-data", cluster=name, broker=broker, data=load, at=now
            ))  # fmt: skip
        ownership: list[BundleOwnership] = []
        groups = {}
        for namespace, owned in sorted(owners.items()):
            ranges = _value(f"the bundles of {namespace}", self._bundles.ranges(namespace))
            parts: dict[str, str | None] = {part: owned.get(part) for part in ranges}
            ownership.append(BundleOwnership(
                v=1, type="ownership", cluster=name, namespace=namespace, owners=parts, at=now
            ))  # fmt: skip
            if group := _value(f"the group of {namespace}", self._cluster.anti_affinity_group(namespace)):
                groups[namespace] = group
        policies = BalancerPolicies.model_validate_json(
            json.dumps({
                "v": 1, "type": "policies", "cluster": name, "at": now, "loadManager": "modular",
                "profile": self._profile or _PROFILES.get(_value("the version", self._cluster.version())[:1], "4.x"),
                "configuration": _chosen(settings, self._profile) | self._configuration, "antiAffinityGroups": groups,
                "isolationPolicies": _value("isolation policies", self._cluster.isolation_policies(name)),
                "failureDomains": _value("failure domains", self._cluster.failure_domains(name)),
            })
        )  # fmt: skip
        live = LiveBrokers(
            v=1, type="brokers", cluster=name, brokers={broker: BrokerLookupData() for broker in brokers}, at=now
        )
        return [live, policies, *ownership, *reports]

    def _load(self, broker: str, now: int) -> LocalBrokerData:
        way = self._cluster.at_broker(broker)
        if not isinstance(way, Transport):
            raise Unread(str(way))
        one = Cluster(way)
        report = one.load_report()
        if isinstance(report, Answered):
            return LocalBrokerData.model_validate_json(report.value)
        if not isinstance(report, (ServerFault, Refused)):
            raise Unread(f"the load of {broker}: {report}")
        stats = _value(f"the topics of {broker}", one.broker_stats())
        usage = read_usage(_value(f"the metrics of {broker}", one.metrics()))
        return LocalBrokerData(last_stats=read_bundle_stats(stats), last_update=now, **usage)  # type: ignore[arg-type]


def read_usage(metrics: bytes) -> dict[str, ResourceUsage]:
    """Usage in percent out of a broker's metrics."""
    return {
        _RESOURCES[name.decode()]: ResourceUsage(usage=max(0.0, float(percent)), limit=100.0)
        for name, percent in _USAGE.findall(metrics)
    }


def read_bundle_stats(body: bytes) -> dict[str, NamespaceBundleStats]:
    """Rates and counts of a broker's bundles, summed over their topics, out of `/broker-stats/topics`. Raises
    `Unread`."""
    found = {}
    try:
        for namespace, bundles in json.loads(body).items():
            if _OWN.fullmatch(namespace):
                continue
            for part, domains in bundles.items():
                topics = [topic for domain in domains.values() for topic in domain.values()]
                found[f"{namespace}/{part}"] = NamespaceBundleStats(
                    msg_rate_in=_sum(topics, "msgRateIn"), msg_rate_out=_sum(topics, "msgRateOut"),
                    msg_throughput_in=_sum(topics, "msgThroughputIn"),
                    msg_throughput_out=_sum(topics, "msgThroughputOut"), topics=len(topics),
                    producer_count=sum(len(topic.get("publishers", ())) for topic in topics),
                    consumer_count=sum(
                        len(one.get("consumers", ())) for topic in topics
                        for one in topic.get("subscriptions", {}).values()
                    ),
                )  # fmt: skip
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise Unread(f"{len(body)} bytes that are not a broker's topics: {str(error)[:200]}") from None
    return found


def _sum(topics: list[dict[str, Any]], name: str) -> float:
    return float(sum(topic.get(name, 0.0) for topic in topics))


def _chosen(settings: Mapping[str, Any], profile: str | None) -> dict[str, Any]:
    left_out = _SWITCHES | _STRATEGIES if profile == "default" else _SWITCHES
    chosen = {
        name: str(value) for name, value in settings.items() if name.startswith(_SETTINGS) and name not in left_out
    }
    for name, value in chosen.items():
        if value.startswith("[") and value.endswith("]"):
            chosen[name] = value[1:-1]
    return chosen


def _value(what: str, reply: Reply[T]) -> T:
    if isinstance(reply, Answered):
        return reply.value
    raise Unread(f"{what}: {reply}")
