"""View of a cluster in one cycle: the snapshot with defaults filled in, and the memory to change.

Stage: made once by `decide`, passed to every rule. Rules read `reports`, `bundles` and `configuration`; they change
only `memory`, a copy of the snapshot's state, and `account`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from decisions.bundles.account import BundleAccount
from decisions.bundles.averages import add_bundle_sample, broker_average, message_rate
from decisions.bundles.configuration import Configuration
from decisions.bundles.gates import BundleGate
from decisions.bundles.memory import BalancerMemory, load_memory
from decisions.bundles.projected import ProjectedBroker
from decisions.bundles.usage import max_usage, weighted_max
from schemas.bundles import BundleData, BundleSnapshot, IsolationPolicy, LocalBrokerData, TimeAverageBrokerData

_NEVER_MOVED = re.compile(r"sla-monitor/|pulsar/([^/]+/)?[^/]+:\d+/")
"""Namespaces of a broker's heartbeat and SLA monitor."""
SYSTEM_NAMESPACE = "pulsar/system"

_Numbers = tuple[object, ...]
"""Averages of a bundle, the key of AvgShedder's plan."""
ALONE = frozenset({"findBundlesForUnloading", "selectBroker"})
"""Operations that run one strategy without the load manager."""


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """Report of a broker, with totals."""

    broker: str
    data: LocalBrokerData
    bundles: tuple[str, ...]
    msg_rate_in: float
    msg_rate_out: float
    msg_throughput_in: float
    msg_throughput_out: float
    topics: int

    @property
    def rate(self) -> float:
        """Messages per second, in and out."""
        return self.msg_rate_in + self.msg_rate_out

    @property
    def throughput(self) -> float:
        """Bytes per second, in and out."""
        return self.msg_throughput_in + self.msg_throughput_out


@dataclass(slots=True)
class ClusterCache:
    """Results computed once per cycle; whoever changes their inputs also updates them."""

    weighted: dict[str, float] = field(default_factory=dict)
    long_term: dict[str, TimeAverageBrokerData] = field(default_factory=dict)
    owned: dict[str, dict[str, int]] = field(default_factory=dict)
    """Number of bundles of each namespace, by broker."""
    given: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Messages per second and topics of assigned bundles that are not reported yet, by broker."""
    preallocated: dict[str, str] | None = None
    """Broker to which a bundle was assigned, the first by name."""
    reported: dict[str, set[str]] = field(default_factory=dict)
    planned: dict[_Numbers, str] | None = None
    """AvgShedder's plan by the bundles' averages, as before apache/pulsar#26246."""
    owners: dict[str, set[str]] | None = None
    """The snapshot's `ownership`, by broker."""
    projected: dict[str, ProjectedBroker] | None = None
    policies: dict[str, IsolationPolicy | None] = field(default_factory=dict)
    """Isolation policy by namespace."""
    namespaces: tuple[str, ...] | None = None
    """Namespaces with a bundle."""
    is_namespace: frozenset[str] = frozenset()
    named: dict[tuple[str, ...], frozenset[str]] = field(default_factory=dict)
    """Brokers that match, by patterns."""
    permitted: dict[str, set[str]] = field(default_factory=dict)
    """Brokers to which GainShedder may move a bundle."""
    unreadable: dict[str, str] | None = None
    """Isolation policies that cannot be applied, with the reason."""
    unknown: dict[str, str | None] = field(default_factory=dict)
    """By namespace: which of them may be its own."""
    isolated: dict[tuple[str | None, tuple[str, ...]], tuple[Sequence[str], list[str]]] = field(default_factory=dict)
    """By namespace with a policy (None: any other) and brokers: these, and those of them that may have a bundle."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """View of a cluster in one cycle."""

    snapshot: BundleSnapshot
    configuration: Configuration
    reports: dict[str, BrokerReport]
    bundles: dict[str, BundleData]
    memory: BalancerMemory
    account: BundleAccount
    cache: ClusterCache = field(default_factory=ClusterCache)

    @property
    def now(self) -> int:
        """Milliseconds since 1970."""
        return self.snapshot.now

    def candidates(self, broker: str) -> list[tuple[str, BundleData]]:
        """Return a broker's bundles that may be moved; record the reason for the others.

        For OverloadShedder, ThresholdShedder, UniformLoadShedder and AvgShedder; other shedders have their own rules.
        """
        bundles = []
        for bundle in self.reports[broker].bundles:
            data = self.bundles.get(bundle)
            if never_moved(bundle):
                self.account.held(BundleGate.EXCLUDED, broker, bundle, "heartbeat or monitor of a broker")
            elif data is None:
                self.account.held(BundleGate.KNOWN, broker, bundle)
            elif bundle in self.memory.unloaded_bundles:
                grace = self.configuration.number("loadBalancerSheddingGracePeriodMinutes") * 60_000
                since = self.now - self.memory.unloaded_bundles[bundle]
                self.account.held(
                    BundleGate.RECENTLY_UNLOADED,
                    broker,
                    bundle,
                    f"{since / 60_000:.1f} of {grace / 60_000:g} minutes ago",
                )
            else:
                bundles.append((bundle, data))
        return bundles

    def long_term(self, broker: str) -> TimeAverageBrokerData:
        """Return a broker's long-term rates, from the snapshot or summed over its bundles."""
        cache = self.cache.long_term
        if broker not in cache:
            average = self.snapshot.broker_time_average.get(broker)
            cache[broker] = average or broker_average(self.reports[broker].bundles, self.bundles)
        return cache[broker]

    def weighted(self, broker: str) -> float:
        """Return the weighted usage of the fullest resource of a broker with a report."""
        cache = self.cache.weighted
        if broker not in cache:
            cache[broker] = weighted_max(self.reports[broker].data, self.configuration)
        return cache[broker]

    def fullest(self, broker: str) -> float:
        """Return the usage by which placement decides if a broker is overloaded."""
        if self.configuration.on("fix22888"):
            return self.weighted(broker)
        return max_usage(self.reports[broker].data, self.configuration)

    def plan(self, bundle: str, broker: str) -> None:
        """Record AvgShedder's target for a bundle."""
        self.memory.plan.pop(bundle, None)
        self.memory.plan[bundle] = broker
        if self.cache.planned is not None and bundle in self.bundles:
            self.cache.planned[_compared_numbers(self.bundles[bundle])] = broker

    def planned(self, bundle: str) -> str | None:
        """Return AvgShedder's target for a bundle.

        Before apache/pulsar#26246 it is the last target of any bundle with the same averages.
        """
        if self.configuration.on("fix26246") or bundle not in self.bundles:
            return self.memory.plan.get(bundle)
        if self.cache.planned is None:
            self.cache.planned = {
                _compared_numbers(self.bundles[name]): broker
                for name, broker in self.memory.plan.items()
                if name in self.bundles
            }
        return self.cache.planned.get(_compared_numbers(self.bundles[bundle]))

    def preallocated_to(self, bundle: str) -> str | None:
        """Return the broker to which an unreported bundle was assigned; forget dead brokers."""
        if (cache := self.cache.preallocated) is None:
            cache = self.cache.preallocated = {}
            for dead in self.memory.preallocated.keys() - self.reports.keys():
                del self.memory.preallocated[dead]
            for broker, bundles in sorted(self.memory.preallocated.items()):
                for name in bundles:
                    cache.setdefault(name, broker)
        return cache.get(bundle)

    def give(self, broker: str, bundle: str, data: BundleData) -> None:
        """Record the assignment of a bundle until the broker reports it."""
        cache, preallocated = self.cache, self.memory.preallocated.setdefault(broker, {})
        again = bundle in preallocated
        preallocated[bundle] = data
        if cache.preallocated is not None:
            cache.preallocated[bundle] = min(broker, cache.preallocated.get(bundle, broker))
        if again:
            cache.given.pop(broker, None)
            return
        if broker in cache.given:
            rate, topics = cache.given[broker]
            cache.given[broker] = (rate + message_rate(data.long_term_data), topics + data.topics)
        if broker in cache.owned and not self.owns(broker, bundle):
            counts, namespace = cache.owned[broker], bundle.rpartition("/")[0]
            counts[namespace] = counts.get(namespace, 0) + 1

    def given(self, broker: str) -> tuple[float, int]:
        """Return long-term messages per second and topics of a broker's assigned, unreported bundles."""
        cache = self.cache.given
        if broker not in cache:
            rate, topics = 0.0, 0
            for data in self.memory.preallocated.get(broker, {}).values():
                rate, topics = rate + message_rate(data.long_term_data), topics + data.topics
            cache[broker] = (rate, topics)
        return cache[broker]

    def owns(self, broker: str, bundle: str) -> bool:
        """Return True if a broker owns a bundle, by the ownership or by its report."""
        if (ownership := self.snapshot.ownership) is not None:
            return ownership.get(bundle) == broker
        if broker not in self.cache.reported:
            self.cache.reported[broker] = set(self.reports[broker].bundles) if broker in self.reports else set()
        return bundle in self.cache.reported[broker]


def never_moved(bundle: str) -> bool:
    """Return True if a bundle is of a broker's heartbeat or SLA monitor."""
    return _NEVER_MOVED.match(bundle) is not None


def _compared_numbers(data: BundleData) -> _Numbers:
    """Return the averages that AvgShedder compares."""
    return (
        data.topics,
        *(
            (
                average.msg_rate_in,
                average.msg_rate_out,
                average.msg_throughput_in,
                average.msg_throughput_out,
                average.num_samples,
            )
            for average in (data.short_term_data, data.long_term_data)
        ),
    )


def complete_report(broker: str, data: LocalBrokerData) -> BrokerReport:
    """Return a broker's report with missing totals filled in."""
    loads = list(data.last_stats.values())

    def total(reported: float | None, attribute: str) -> float:
        return float(sum(map(attrgetter(attribute), loads))) if reported is None else reported

    bundles = data.last_stats if data.bundles is None else data.bundles
    topics = sum(load.topics for load in loads) if data.num_topics is None else data.num_topics
    return BrokerReport(
        broker,
        data,
        tuple(dict.fromkeys(bundles)),
        total(data.msg_rate_in, "msg_rate_in"),
        total(data.msg_rate_out, "msg_rate_out"),
        total(data.msg_throughput_in, "msg_throughput_in"),
        total(data.msg_throughput_out, "msg_throughput_out"),
        topics,
    )


def view_cluster(snapshot: BundleSnapshot) -> ClusterView:
    """Return the view of a snapshot. Raises `ConfigurationError`."""
    configuration = dict(snapshot.configuration)
    if snapshot.load_manager is not None and "loadManagerClassName" not in configuration:
        configuration["loadManagerClassName"] = f"{snapshot.load_manager.capitalize()}LoadManagerImpl"
    elif snapshot.broker_load_data and "loadManagerClassName" not in configuration:
        configuration["loadManagerClassName"] = "ExtensibleLoadManagerImpl"
    if (bundles := snapshot.bundles) is None:
        bundles = {
            name: add_bundle_sample(None, stats)
            for broker in snapshot.brokers.values()
            for name, stats in broker.last_stats.items()
        }
    return ClusterView(
        snapshot,
        Configuration(configuration, snapshot.profile, alone=snapshot.operation in ALONE),
        {broker: complete_report(broker, data) for broker, data in sorted(snapshot.brokers.items())},
        dict(bundles),
        load_memory(snapshot.state),
        BundleAccount(snapshot.seed),
    )
