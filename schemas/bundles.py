"""A Pulsar cluster with bundles as one JSON object: input of `decide` for the family `bundles`.

Names are those of Pulsar's own objects: `LocalBrokerData`, `BrokerLoadData`, `BundleData`, `NamespaceBundleStats`,
and of `broker.conf` (`configuration`). `decisions.bundles` decides; docs/bundles.md shows how to fill it in.
Instants are milliseconds since 1970, rates per second, throughput in bytes per second.
"""

from collections.abc import Mapping
from math import floor
from typing import Annotated, Any, Literal

from pydantic import Field

from schemas.base import Count, Millis, Name, Wire, build_model

Amount = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]
Usage = Annotated[float, Field(allow_inf_nan=False)]
Bundle = Name
"""`tenant/namespace/0x00000000_0x40000000`; any name where the range is not used."""

Profile = Literal["2.10", "3.0", "4.x", "5.0", "default"]
Operation = Literal["shed", "assign", "split", "average", "findBundlesForUnloading", "selectBroker"]


class ResourceUsage(Wire):
    """One resource of a broker. A limit of 0 or less means unknown: usage counts as 0."""

    usage: Amount = 0.0
    limit: Annotated[float, Field(ge=-1e15, le=1e15)] = 0.0


class TopicLoad(Wire):
    """Load of one topic, for the algorithm `flow_or_qps_equally_divide`."""

    msg_rate_in: Amount = 0.0
    msg_rate_out: Amount = 0.0
    msg_throughput_in: Amount = 0.0
    msg_throughput_out: Amount = 0.0


class HashedTopicLoad(TopicLoad):
    """Load of one topic with its hash, if that is not the CRC-32 of its name."""

    hash: Annotated[int, Field(ge=0, le=2**32 - 1)] | None = None


class NamespaceBundleStats(TopicLoad):
    """A broker's counters of one bundle."""

    consumer_count: Count = 0
    producer_count: Count = 0
    topics: Count = 0
    cache_size: Annotated[int, Field(ge=0)] = 0

    @property
    def load_rank(self) -> tuple[int, ...]:
        """Rank by load, as `NamespaceBundleStats.compareTo` of 4.0.7: equal within a step of each measure."""
        return (
            floor(self.msg_throughput_in / 100_000 + 0.5),
            floor(self.msg_throughput_out / 100_000 + 0.5),
            floor((self.msg_rate_in + self.msg_rate_out) / 100 + 0.5),
            (self.topics + self.consumer_count + self.producer_count) // 500,
            self.cache_size // 100_000,
        )


class TimeAverageMessageData(TopicLoad):
    """Averages over the last samples of a bundle."""

    max_samples: Annotated[int, Field(ge=1, le=10**6)] | None = None
    """Default: 10 for the short term, 1000 for the long term."""
    num_samples: Count = 0


class BundleData(Wire):
    """The leader's averages of a bundle."""

    short_term_data: TimeAverageMessageData = TimeAverageMessageData()
    long_term_data: TimeAverageMessageData = TimeAverageMessageData()
    topics: Count = 0


class LocalBrokerData(Wire):
    """A broker's load report with the modular load manager. Missing totals are summed over `lastStats`."""

    cpu: ResourceUsage = ResourceUsage()
    memory: ResourceUsage = ResourceUsage()
    direct_memory: ResourceUsage = ResourceUsage()
    bandwidth_in: ResourceUsage = ResourceUsage()
    bandwidth_out: ResourceUsage = ResourceUsage()
    msg_rate_in: Amount | None = None
    msg_rate_out: Amount | None = None
    msg_throughput_in: Amount | None = None
    msg_throughput_out: Amount | None = None
    num_topics: Count | None = None
    bundles: list[Bundle] | None = None
    """Absent: the bundles of `lastStats`."""
    last_stats: dict[Bundle, NamespaceBundleStats] = Field(default_factory=dict)
    last_update: Millis = 0
    broker_version_string: str | None = None
    load_manager_class_name: str | None = None
    persistent_topics_enabled: bool = True
    non_persistent_topics_enabled: bool = True


class TimeAverageBrokerData(Wire):
    """Sums over a broker's bundles. Absent in a snapshot: computed from `bundles`."""

    long_term_msg_rate_in: Amount = 0.0
    long_term_msg_rate_out: Amount = 0.0


class BrokerLoadData(Wire):
    """A broker's load report with the extensible load manager."""

    cpu: ResourceUsage = ResourceUsage()
    memory: ResourceUsage = ResourceUsage()
    direct_memory: ResourceUsage = ResourceUsage()
    bandwidth_in: ResourceUsage = ResourceUsage()
    bandwidth_out: ResourceUsage = ResourceUsage()
    msg_throughput_in: Amount = 0.0
    msg_throughput_out: Amount = 0.0
    msg_rate_in: Amount = 0.0
    msg_rate_out: Amount = 0.0
    bundle_count: Count = 0
    topics: Count = 0
    weighted_max_e_m_a: Annotated[Amount | None, Field(alias="weightedMaxEMA")] = None
    """Absent: the weighted maximum of the resources, as after the first report."""
    msg_throughput_e_m_a: Annotated[Amount | None, Field(alias="msgThroughputEMA")] = None
    """Absent: throughput in and out, as after the first report."""
    updated_at: Millis = 0


class TopBundle(Wire):
    """One of a broker's busiest bundles."""

    bundle_name: Bundle
    stats: NamespaceBundleStats = NamespaceBundleStats()


class TopBundlesLoadData(Wire):
    """A broker's busiest bundles, in ascending order of load as the broker publishes them."""

    top_bundles_load_data: list[TopBundle] = Field(default_factory=list)

    @classmethod
    def of_busiest(cls, loads: Mapping[str, NamespaceBundleStats], most: int) -> "TopBundlesLoadData":
        """Return the `most` busiest bundles. Names decide among equals, where brokers follow a hash map's order."""
        ordered = sorted(loads, key=lambda bundle: (loads[bundle].load_rank, bundle))
        chosen = ordered[max(0, len(ordered) - most) :]
        top = [build_model(TopBundle, {"bundle_name": bundle, "stats": loads[bundle]}) for bundle in chosen]
        return build_model(cls, {"top_bundles_load_data": top})


class BrokerLookupData(Wire):
    """A live broker of the extensible load manager's registry."""

    broker_version: str | None = None
    load_manager_class_name: str | None = None
    persistent_topics_enabled: bool = True
    non_persistent_topics_enabled: bool = True


class AutoFailoverPolicy(Wire):
    """Condition for secondaries: `{"policy_type": "min_available", "parameters": {"min_limit": "1"}}`."""

    policy_type: Annotated[str, Field(alias="policy_type")] = "min_available"
    parameters: dict[str, str | int | float] = Field(default_factory=dict)


class IsolationPolicy(Wire):
    """A namespace isolation policy of the admin interface; all lists are of regular expressions."""

    namespaces: list[str] = Field(default_factory=list)
    primary: list[str] = Field(default_factory=list)
    secondary: list[str] = Field(default_factory=list)
    auto_failover_policy: Annotated[AutoFailoverPolicy, Field(alias="auto_failover_policy")] = AutoFailoverPolicy()


class FailureDomain(Wire):
    """Brokers that fail together."""

    brokers: list[Name] = Field(default_factory=list)


class HitCounts(Wire):
    """AvgShedder's memory: successive appearances in a pair, and destinations of picked bundles."""

    broker_hit_count_for_low: dict[Name, Count] = Field(default_factory=dict)
    broker_hit_count_for_high: dict[Name, Count] = Field(default_factory=dict)
    bundle_broker_map: dict[Bundle, Name] = Field(default_factory=dict)


class GainMove(Wire):
    """A move, or an assignment without source, that reports may not show yet; with its load."""

    source: Name | None = None
    destination: Name
    at: Millis
    messages: Amount = 0.0
    """Messages per second, in and out."""
    bytes_in: Amount = 0.0
    bytes_out: Amount = 0.0


class GainCost(Wire):
    """A broker's cost of messages, averaged over its last reports."""

    cost: Amount
    """Weighted CPU, as a fraction, for one message per second."""
    samples: Annotated[int, Field(ge=1, le=10**6)] = 1
    last_update: Millis = 0
    """Time of its newest report."""


class GainMemory(Wire):
    """GainShedder's memory: successive cycles with brokers apart, costs of messages, and its moves."""

    hits: Count = 0
    costs: dict[Name, GainCost] = Field(default_factory=dict)
    moves: dict[Bundle, GainMove] = Field(default_factory=dict)


class BalancerState(Wire):
    """The balancer's memory between cycles: pass the state of the last answer."""

    recently_unloaded_bundles: dict[Bundle, Millis] = Field(default_factory=dict)
    recently_unloaded_brokers: dict[Name, Millis] = Field(default_factory=dict)
    broker_avg_resource_usage: dict[Name, Usage] = Field(default_factory=dict)
    """Averages of ThresholdShedder, fractions."""
    broker_avg_resource_usage_with_weight: dict[Name, Usage] = Field(default_factory=dict)
    """Averages of LeastResourceUsageWithWeight, fractions."""
    avg_shedder: HitCounts = HitCounts()
    unload_condition_hit_count: Count = 0
    """Successive hits of TransferShedder's condition."""
    preallocated_bundle_data: dict[Name, dict[Bundle, BundleData]] = Field(default_factory=dict)
    """By broker: bundles assigned to it that it has not reported yet."""
    round_robin_brokers: list[Name] = Field(default_factory=list)
    round_robin_count: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    bundle_split_hit_counts: dict[Bundle, Count] = Field(default_factory=dict)
    bundles: dict[Bundle, BundleData] = Field(default_factory=dict)
    """Only in answers of `average`: the bundles' new averages."""
    gain_shedder: GainMemory | None = None
    """Absent: initial state."""


class BundleSnapshot(Wire):
    """Full input of one cycle of a cluster's balancer."""

    family: Literal["bundles"] = "bundles"
    cluster: Name = "standalone"
    now: Millis
    operation: Operation = "shed"
    """Operation of the balancer, `shed` by default.

    `shed`: a shedding cycle with placement. `assign`: place `assign`'s bundles. `split`: choose bundles to split.
    `average`: add one sample of every reported bundle to its averages. `findBundlesForUnloading` and `selectBroker`:
    only the strategy, without the load manager's switches, policies and filters.
    """
    profile: Profile = "4.x"
    """Pulsar version whose defaults and fixes apply, or `default`: our own strategies."""
    load_manager: Literal["modular", "extensible"] | None = None
    """Absent: extensible with `brokerLoadData` or if configured, otherwise modular."""
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
    """Seed of every random choice; the answer shows the options."""
    leader: bool = True
    configuration: dict[str, Any] = Field(default_factory=dict)
    """Settings by their names in `broker.conf`, which override the profile's defaults; text is parsed too."""
    brokers: dict[Name, LocalBrokerData] = Field(default_factory=dict)
    bundles: dict[Bundle, BundleData] | None = None
    """Absent: each bundle of `lastStats` as after its first sample."""
    broker_time_average: dict[Name, TimeAverageBrokerData] = Field(default_factory=dict)
    broker_load_data: dict[Name, BrokerLoadData] = Field(default_factory=dict)
    top_bundles: dict[Name, TopBundlesLoadData] = Field(default_factory=dict)
    available_brokers: dict[Name, BrokerLookupData] | None = None
    """Absent: those with a load report."""
    ownership: dict[Bundle, Name] | None = None
    """Absent: a bundle belongs to the broker that reports it."""
    isolation_policies: dict[Name, IsolationPolicy] = Field(default_factory=dict)
    anti_affinity_groups: dict[Name, str] = Field(default_factory=dict)
    """Namespace to group."""
    failure_domains: dict[Name, FailureDomain] = Field(default_factory=dict)
    namespace_bundles: dict[Name, Count] = Field(default_factory=dict)
    """Number of bundles of a namespace, for the limit on splits. Absent: those reported."""
    assign: list[Bundle] = Field(default_factory=list)
    state: BalancerState = BalancerState()
    candidates: list[Name] | None = None
    """For `selectBroker`: the options. Absent: all of `brokers`."""
    affinity: dict[Bundle, Name] = Field(default_factory=dict)
    """Forced destinations of bundles."""
    split: list[Bundle] = Field(default_factory=list)
    """With `operation` `split`: split these regardless of load, as by the admin interface."""
    topics: dict[Bundle, dict[str, HashedTopicLoad]] = Field(default_factory=dict)
    """By bundle and full topic name: data for the position of a split."""
    split_algorithm: str | None = None
    """Absent: `defaultNamespaceBundleSplitAlgorithm`."""
    split_positions: dict[Bundle, list[Annotated[int, Field(ge=0, le=2**32 - 1)]]] = Field(default_factory=dict)
    deviation_loads: dict[Name, dict[Bundle, Amount]] = Field(default_factory=dict)
    """For DeviationShedder: the load of each bundle on each broker, in any unit."""
    deviation_threshold: Annotated[float, Field(ge=0, le=1e6)] = 1.0


class BundleReading(Wire):
    """A gate evaluated for a broker or a bundle."""

    gate: str
    passed: bool
    broker: str | None = None
    bundle: str | None = None
    measured: float | None = None
    limit: float | None = None
    margin: float | None = None
    """Distance from the limit, positive on the passing side."""
    detail: str | None = None


class BundleDecision(Wire):
    """One action to take."""

    action: Literal["unload", "assign", "split"]
    bundle: str
    source_broker: str | None = None
    destination_broker: str | None = None
    reason: str
    boundaries: list[str] | None = None
    """Boundaries of a split, when the bundle's topics are known."""


class TieSet(Wire):
    """A random choice: its options and its result."""

    bundle: str
    brokers: list[str]
    chosen: str


class BundleAnswer(Wire):
    """Answer of a cycle."""

    family: Literal["bundles"] = "bundles"
    operation: Operation
    action: Literal["hold", "unload", "assign", "split", "average"]
    strategy: str
    profile: str
    gate: str | None = None
    """First failing gate of the last subject evaluated, for a hold."""
    label: str | None = None
    """TransferShedder's own result of the cycle: `Success`, `Skip` or `Failure`."""
    reason: str | None = None
    """TransferShedder's own reason: `HitCount`, `CoolDown`, …"""
    selected: dict[str, list[str]] = Field(default_factory=dict)
    """By broker: the shedder's selection, before placement and policies."""
    decisions: list[BundleDecision] = Field(default_factory=list)
    readings: list[BundleReading] = Field(default_factory=list)
    ties: list[TieSet] = Field(default_factory=list)
    statistics: dict[str, float] = Field(default_factory=dict)
    usage: dict[str, dict[str, float]] = Field(default_factory=dict)
    """By broker: the usage numbers of the cycle, fractions."""
    ignored_configuration: list[str] = Field(default_factory=list)
    """Names of settings that no rule uses."""
    state: BalancerState
