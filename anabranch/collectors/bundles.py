"""One round over a Pulsar cluster's bundles, as messages of the family `bundles`.

The messages have the brokers' loads, which brokers live, who owns which bundle, and the policies in force.

Stage: reads through the admin client; `anabranch.collectors.bundle_process` sends what it answers. A round that cannot
be read to its end says nothing: what is missing in it is not zero. Brokers with the modular load manager say their own
load report. Those with the extensible one have none; theirs is made of what they say of their topics and of their
metrics. It has the same form, so that the modular shedders decide for both; where TransferShedder is asked for, it has
that of the extensible manager's own topics. Its instant is when it was read.
"""

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from anabranch.admin.answers import Answered, Refused, Reply, ServerFault
from anabranch.admin.bundles import BundleAdmin
from anabranch.admin.cluster import ClusterAdmin
from anabranch.admin.transport import Transport
from anabranch.collectors.load_reports import PublishedLoads, UnknownLoad
from schemas.bundles import (
    BrokerLoadData,
    BrokerLookupData,
    LocalBrokerData,
    NamespaceBundleStats,
    ResourceUsage,
    TopBundlesLoadData,
)
from schemas.kafka.broker_messages import (
    BalancerPolicies,
    BrokerLoadReport,
    BundleOwnership,
    Circumstance,
    LiveBrokers,
    LocalBrokerReport,
    Report,
)

T = TypeVar("T")

_SETTINGS = (
    "loadBal",
    "minUnload",
    "maxUnload",
    "preferLaterVersions",
    "lowerBoundary",
    "defaultNamespaceBundleSplit",
    "failureDomainsEnabled",
    "flowOrQpsDifference",
)
_SWITCH = "loadBalancerSheddingEnabled"
"""It says whether Pulsar balances by itself, and not whether the job is to: the executor acts while it is off."""
_STRATEGIES = frozenset(
    {
        "loadBalancerLoadSheddingStrategy",
        "loadBalancerLoadPlacementStrategy",
        "loadBalancerDistributeBundlesEvenlyEnabled",
    }
)
_EXTENSIBLE = "ExtensibleLoadManagerImpl"
_PROFILES = {"2": "2.10", "3": "3.0", "5": "5.0"}
_USAGE = re.compile(
    rb"^pulsar_lb_(cpu|memory|directMemory|bandwidth_in|bandwidth_out)_usage\{[^}\n]*\} ([0-9.eE+-]+)", re.M
)
_AVERAGE = re.compile(rb'^pulsar_lb_resource_usage\{[^}\n]*feature="max_ema"[^}\n]*\} ([0-9.eE+-]+)', re.M)
_RESOURCES = {
    "cpu": "cpu",
    "memory": "memory",
    "directMemory": "direct_memory",
    "bandwidth_in": "bandwidth_in",
    "bandwidth_out": "bandwidth_out",
}
_OWN = re.compile(r"(?:pulsar|sla-monitor)/(?:[^/]+/)?[^/]*:\d+|pulsar/system")
"""Namespaces that stay with their broker, up to Pulsar 4 with the cluster's name inside as well, and Pulsar's own."""
_AT_ONCE = 8
"""Brokers that are asked at the same time."""
_TOP_BUNDLES = 200
"""Busiest bundles of a broker in a report: more than brokers publish, as those with policies are left out later."""


class Unread(Exception):
    """The cluster could not be read; the message says what."""

    def __init__(self, message: str, *, is_load: bool = False) -> None:
        """`is_load`: only the broker's published load could not be read."""
        super().__init__(message)
        self.is_load = is_load


class BundleRounds:
    """Reader of a cluster, round after round; for one thread."""

    def __init__(
        self,
        transport: Transport,
        configuration: Mapping[str, str] | None = None,
        published: PublishedLoads | None = None,
    ) -> None:
        """Set up a reader.

        `configuration` is laid over what the brokers run with; `profile` in it stands for their version. With
        `default`, the strategies are ours and not theirs. `published`: read loads there instead of asking brokers.
        """
        self._published = published
        self._cluster, self._bundles = ClusterAdmin(transport), BundleAdmin(transport)
        self._configuration = dict(configuration or {})
        self._profile = self._configuration.pop("profile", None)
        self.unread: dict[str, Unread] = {}
        """Brokers that did not answer in the last round, and why."""
        self._owned = set[str]()
        """Namespaces with an owner in the round before: when they lose all owners, that is told once."""

    def read(self, now: int) -> list[Report | Circumstance]:
        """Return all messages of a round at `now` (ms): brokers first, then policies and owners, then loads.

        Brokers that do not answer (`unread`) count as not there, so that they neither give nor get; and owners and
        policies are not told then, for what is missing in them is not zero. A published load that cannot be read holds
        the cluster: its policies are then told to be unreadable. Raises `Unread` when nothing can be read.
        """
        settings = _value_of_reply("the brokers' settings", self._cluster.broker_configuration())
        name, chosen = (
            str(settings.get("clusterName", "")),
            _chosen_settings(settings, self._profile) | self._configuration,
        )
        listed = _value_of_reply("the brokers", self._cluster.brokers())
        brokers = sorted(listed)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            looks = list(pool.map(lambda broker: self._look(name, broker, chosen, now), brokers))
        self.unread = {broker: look for broker, look in zip(brokers, looks, strict=True) if isinstance(look, Unread)}
        seen = {broker: look for broker, look in zip(brokers, looks, strict=True) if not isinstance(look, Unread)}
        unknown = [
            f"the load of {name} is not known: {unread}" for name, unread in self.unread.items() if unread.is_load
        ]
        if unknown:
            return [BalancerPolicies(v=1, type="policies", cluster=name, at=now, unreadable="; ".join(unknown)[:2000])]
        if brokers and not seen:
            raise next(iter(self.unread.values()))
        reports = [look.report for look in seen.values()]
        registry = {broker: look.registered for broker, look in seen.items()}
        live = LiveBrokers(v=1, type="brokers", cluster=name, brokers=registry, at=now)
        if self.unread:
            return [live, *reports]
        owners: dict[str, dict[str, str]] = defaultdict(dict)
        for broker, look in seen.items():
            for bundle in look.owned:
                namespace, _, part = bundle.rpartition("/")
                if not _OWN.fullmatch(namespace):
                    owners[namespace][part] = broker
        ownership: list[BundleOwnership] = []
        groups = {}
        for namespace in sorted(self._owned - owners.keys()):
            reply = self._bundles.ranges(namespace)
            is_gone = isinstance(reply, Refused) and reply.status == 404 and reply.from_interface
            remaining = () if is_gone else _value_of_reply(f"the bundles of {namespace}", reply)
            ownership.append(
                BundleOwnership(
                    v=1, type="ownership", cluster=name, namespace=namespace, owners=dict.fromkeys(remaining), at=now
                )
            )
        for namespace, owned in sorted(owners.items()):
            ranges = _value_of_reply(f"the bundles of {namespace}", self._bundles.ranges(namespace))
            parts: dict[str, str | None] = {part: owned.get(part) for part in ranges}
            ownership.append(
                BundleOwnership(v=1, type="ownership", cluster=name, namespace=namespace, owners=parts, at=now)
            )
            if group := _value_of_reply(f"the group of {namespace}", self._cluster.anti_affinity_group(namespace)):
                groups[namespace] = group
        extensible = any(isinstance(report, BrokerLoadReport) for report in reports)
        policies = BalancerPolicies.model_validate_json(
            json.dumps(
                {
                    "v": 1,
                    "type": "policies",
                    "cluster": name,
                    "at": now,
                    "loadManager": "extensible" if extensible else "modular",
                    "profile": self._profile
                    or _PROFILES.get(_value_of_reply("the version", self._cluster.version())[:1], "4.x"),
                    "configuration": chosen,
                    "antiAffinityGroups": groups,
                    "isolationPolicies": _value_of_reply("isolation policies", self._cluster.isolation_policies(name)),
                    "failureDomains": _value_of_reply("failure domains", self._cluster.failure_domains(name)),
                }
            )
        )
        self._owned = set(owners)
        return [live, policies, *ownership, *reports]

    def _look(self, cluster: str, broker: str, settings: Mapping[str, str], now: int) -> "_Look | Unread":
        """Ask one broker; several threads ask several brokers at once."""
        try:
            owned = _value_of_reply(f"the bundles of {broker}", self._bundles.owned(cluster, broker))
            way = self._cluster.at_broker(broker)
            if not isinstance(way, Transport):
                return Unread(str(way))
            admin = ClusterAdmin(way)
            own = _value_of_reply(f"the settings of {broker}", admin.broker_configuration())
            version = _value_of_reply(f"the version of {broker}", admin.version())
            report = self._load(admin, cluster, broker, settings, str(own.get("loadManagerClassName", "")), now)
            return _Look(owned, report, _registry_entry(own, version))
        except UnknownLoad as error:
            return Unread(str(error), is_load=True)
        except (Unread, ValueError) as error:
            return error if isinstance(error, Unread) else Unread(f"the load of {broker}: {error}")

    def _load(
        self, admin: ClusterAdmin, cluster: str, broker: str, settings: Mapping[str, str], manager: str, now: int
    ) -> Report:
        """Return a broker's load. Modular shedders need reports that the extensible manager does not publish."""
        if self._published is None:
            return _read_report(admin, cluster, broker, settings, now)
        if not manager.endswith(_EXTENSIBLE):
            return self._published.read_local(cluster, broker, now)
        if _by_load_data(settings):
            return self._published.read_load_data(cluster, broker, now)
        return _read_report(admin, cluster, broker, settings, now)


@dataclass(frozen=True)
class _Look:
    """Answers of a broker in a round."""

    owned: frozenset[str]
    report: Report
    registered: BrokerLookupData


def _registry_entry(settings: Mapping[str, Any], version: str) -> BrokerLookupData:
    """Registry entry of a broker with the extensible manager, out of its settings."""

    def on(name: str) -> bool:
        return str(settings.get(name, "true")).lower() != "false"

    return BrokerLookupData(
        load_manager_class_name=settings.get("loadManagerClassName"),
        broker_version=version or None,
        persistent_topics_enabled=on("enablePersistentTopics"),
        non_persistent_topics_enabled=on("enableNonPersistentTopics"),
    )


def _read_report(admin: ClusterAdmin, cluster: str, broker: str, settings: Mapping[str, str], now: int) -> Report:
    """A broker's load. Raises `Unread`."""
    report = admin.load_report()
    if isinstance(report, Answered):
        data = LocalBrokerData.model_validate_json(report.value)
    elif not isinstance(report, (ServerFault, Refused)):
        raise Unread(f"the load of {broker}: {report}")
    else:
        stats = read_bundle_stats(_value_of_reply(f"the topics of {broker}", admin.broker_stats()))
        metrics = _value_of_reply(f"the metrics of {broker}", admin.metrics())
        if _by_load_data(settings):
            return BrokerLoadReport(
                v=1,
                type="broker-load-data",
                cluster=cluster,
                broker=broker,
                at=now,
                data=read_broker_load(stats, metrics, now),
                top_bundles=TopBundlesLoadData.of_busiest(stats, _TOP_BUNDLES),
            )
        data = LocalBrokerData(last_stats=stats, last_update=now, **read_usage(metrics))  # type: ignore[arg-type]
    return LocalBrokerReport(v=1, type="local-broker-data", cluster=cluster, broker=broker, data=data, at=now)


def _by_load_data(settings: Mapping[str, str]) -> bool:
    """Return whether decisions use the extensible manager's own load data."""
    return settings.get("loadBalancerLoadSheddingStrategy", "").endswith("TransferShedder")


def read_broker_load(stats: Mapping[str, NamespaceBundleStats], metrics: bytes, now: int) -> BrokerLoadData:
    """Return an extensible broker's load data: averaged usage, and throughput that is not averaged."""
    average = _AVERAGE.search(metrics)
    values: dict[str, Any] = dict(read_usage(metrics))
    values |= {
        name: float(sum(getattr(bundle, name) for bundle in stats.values()))
        for name in ("msg_rate_in", "msg_rate_out", "msg_throughput_in", "msg_throughput_out")
    }
    return BrokerLoadData(
        **values,
        bundle_count=len(stats),
        topics=sum(bundle.topics for bundle in stats.values()),
        weighted_max_e_m_a=None if average is None else max(0.0, float(average[1])),
        updated_at=now,
    )


def read_usage(metrics: bytes) -> dict[str, ResourceUsage]:
    """Usage in percent out of a broker's metrics."""
    return {
        _RESOURCES[name.decode()]: ResourceUsage(usage=max(0.0, float(percent)), limit=100.0)
        for name, percent in _USAGE.findall(metrics)
    }


def read_bundle_stats(body: bytes) -> dict[str, NamespaceBundleStats]:
    """Return a broker's bundles, summed over topics, from `/broker-stats/topics`. Raises `Unread`."""
    stats = {}
    try:
        for namespace, bundles in json.loads(body).items():
            if _OWN.fullmatch(namespace):
                continue
            for part, domains in bundles.items():
                topics = [topic for domain in domains.values() for topic in domain.values()]
                stats[f"{namespace}/{part}"] = NamespaceBundleStats(
                    msg_rate_in=_sum(topics, "msgRateIn"),
                    msg_rate_out=_sum(topics, "msgRateOut"),
                    msg_throughput_in=_sum(topics, "msgThroughputIn"),
                    msg_throughput_out=_sum(topics, "msgThroughputOut"),
                    topics=len(topics),
                    producer_count=sum(len(topic.get("publishers", ())) for topic in topics),
                    consumer_count=sum(
                        len(subscription.get("consumers", ()))
                        for topic in topics
                        for subscription in topic.get("subscriptions", {}).values()
                    ),
                )
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise Unread(f"{len(body)} bytes that are not a broker's topics: {str(error)[:200]}") from None
    return stats


def _sum(topics: list[dict[str, Any]], name: str) -> float:
    return float(sum(topic.get(name, 0.0) for topic in topics))


def _chosen_settings(settings: Mapping[str, Any], profile: str | None) -> dict[str, Any]:
    """Return the broker settings that rules read, as text; with profile `default` without the strategies."""
    left_out = {_SWITCH} | (_STRATEGIES if profile == "default" else frozenset())
    chosen = {
        name: str(value) for name, value in settings.items() if name.startswith(_SETTINGS) and name not in left_out
    }
    for name, value in chosen.items():
        if value.startswith("[") and value.endswith("]"):
            chosen[name] = value[1:-1]
    return chosen


def _value_of_reply(subject: str, reply: Reply[T]) -> T:
    if isinstance(reply, Answered):
        return reply.value
    raise Unread(f"{subject}: {reply}")
