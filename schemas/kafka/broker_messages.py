"""Messages about a Pulsar cluster with bundles, on the Kafka topics `broker-load` and `broker-events`.

Stage: contracts of the family `bundles` (design "Kafka messages"); `schemas.bundles` has the objects inside. Every
message is keyed by its cluster and complete, so only the newest counts: a report for its broker, an ownership for
its namespace, brokers and policies for their cluster. A lost message is repaired by the next.
"""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, ModelWrapValidatorHandler, ValidationError, model_validator

from schemas.base import MAX_NAME_BYTES, Count, Millis, Name, Wire
from schemas.bundles import (
    BrokerLoadData,
    BrokerLookupData,
    BundleData,
    FailureDomain,
    IsolationPolicy,
    LocalBrokerData,
    Profile,
    TopBundlesLoadData,
)
from schemas.kafka.messages import register_messages
from schemas.kafka.topics import BROKER_EVENTS, BROKER_LOAD

Broker = Annotated[str, Field(max_length=MAX_NAME_BYTES)]
MAX_CHILDREN = 4096
"""Limit on the children of one split."""
ClusterName = Annotated[str, Field(pattern=r"^[^/\s*+]+$", max_length=256)]
"""Name of a Pulsar cluster. No slash, because `holds` refers to a broker as `cluster/broker`."""
BundleRange = Annotated[str, Field(pattern=r"^0x[0-9a-f]{8}_0x[0-9a-f]{8}$")]
Setting: TypeAlias = bool | int | float | str | list[str] | None


class _OfCluster(Wire):
    """A message about a cluster."""

    v: Literal[1]
    type: str
    cluster: ClusterName

    @property
    def subject(self) -> str:
        """Required key of the record."""
        return self.cluster


class LocalBrokerReport(_OfCluster):
    """Kafka topic `broker-load`: a broker's report with the modular load manager."""

    type: Literal["local-broker-data"]
    broker: Name
    """Broker name of the admin interface: `host:port`."""
    data: LocalBrokerData
    forced: bool = False
    """True if the report counts however small its change, because the broker published it by its own rule."""
    averages: dict[Name, BundleData] | None = None
    """The leader's averages of bundles: the job starts with them where it has none of its own."""
    at: Millis
    """Time at which it was read."""

    @property
    def last_update(self) -> int:
        """Time of the broker's report, milliseconds. Identifies a report together with the broker's name."""
        return self.data.last_update

    @model_validator(mode="after")
    def _is_dated(self) -> "LocalBrokerReport":
        if not self.data.last_update:
            raise ValueError("data.lastUpdate is missing: a report that comes twice could not be told by it")
        return self


class BrokerLoadReport(_OfCluster):
    """Kafka topic `broker-load`: a broker's report with the extensible load manager, from its two topics."""

    type: Literal["broker-load-data"]
    broker: Name
    data: BrokerLoadData
    top_bundles: TopBundlesLoadData = TopBundlesLoadData()
    forced: bool = False
    """True if the report counts however small its change, as in `LocalBrokerReport`."""
    at: Millis
    """Time at which it was read."""

    @property
    def last_update(self) -> int:
        """Time of the broker's report, as in `LocalBrokerReport`."""
        return self.data.updated_at

    @model_validator(mode="after")
    def _is_dated(self) -> "BrokerLoadReport":
        if not self.data.updated_at:
            raise ValueError("data.updatedAt is missing: a report that comes twice could not be told by it")
        return self


class BundleOwnership(_OfCluster):
    """Kafka topic `broker-events`: all bundles of a namespace with their owners."""

    type: Literal["ownership"]
    namespace: Name
    owners: dict[BundleRange, Name | None]
    """By range; null: no owner. Empty: the namespace was removed."""
    at: Millis


class LiveBrokers(_OfCluster):
    """Kafka topic `broker-events`: all live brokers."""

    type: Literal["brokers"]
    brokers: dict[Name, BrokerLookupData]
    at: Millis


class BalancerPolicies(_OfCluster):
    """Kafka topic `broker-events`: the balancer's configuration; names as in `BundleSnapshot`."""

    type: Literal["policies"]
    profile: Profile = "4.x"
    """Pulsar version whose defaults and fixes apply."""
    load_manager: Literal["modular", "extensible"] | None = None
    configuration: dict[Name, Setting] = Field(default_factory=dict)
    """Settings by their names in `broker.conf`, which override the profile's defaults."""
    isolation_policies: dict[Name, IsolationPolicy] = Field(default_factory=dict)
    anti_affinity_groups: dict[Name, str] = Field(default_factory=dict)
    failure_domains: dict[Name, FailureDomain] = Field(default_factory=dict)
    namespace_bundles: dict[Name, Count] = Field(default_factory=dict)
    """Number of bundles of a namespace. Absent: as in its `ownership`."""
    at: Millis
    unreadable: Annotated[str, Field(max_length=2000)] | None = None
    """Reason for which the message could not be read: nothing is decided about the cluster."""

    @model_validator(mode="wrap")
    @classmethod
    def _read_or_say_why(cls, value: Any, handler: "ModelWrapValidatorHandler[BalancerPolicies]") -> "BalancerPolicies":
        """Accept unreadable policies as the newest about their cluster, because earlier ones no longer apply."""
        try:
            return handler(value)
        except ValidationError as error:
            if not isinstance(value, dict):
                raise
            first = error.errors(include_url=False, include_input=False)[0]
            why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:500]
            head = {name: value[name] for name in ("v", "type", "cluster", "at") if name in value}
            return handler(head | {"unreadable": why})


Report: TypeAlias = LocalBrokerReport | BrokerLoadReport
BrokerLoadMessage: TypeAlias = Annotated[Report, Field(discriminator="type")]
Circumstance: TypeAlias = BundleOwnership | LiveBrokers | BalancerPolicies
BrokerEvent: TypeAlias = Annotated[Circumstance, Field(discriminator="type")]

register_messages(BROKER_LOAD.name, LocalBrokerReport, BrokerLoadReport)
register_messages(BROKER_EVENTS.name, BundleOwnership, LiveBrokers, BalancerPolicies)


class ServiceUnitStateData(Wire):
    """State of a bundle in PIP-192's ownership channel; an unnamed broker is null, empty or missing."""

    state: Literal["Init", "Free", "Owned", "Assigning", "Releasing", "Splitting", "Deleted"]
    dst_broker: Broker | None = None
    source_broker: Broker | None = None
    force: bool = False
    timestamp: Millis = 0
    version_id: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
    split_service_unit_to_dest_broker: Annotated[dict[Name, Broker | None], Field(max_length=MAX_CHILDREN)] | None = (
        None
    )


class ChannelMessage(Wire):
    """A bundle and its state, a message of PIP-192's ownership channel; a null value is a tombstone.

    `decisions.bundles.channel` checks them; `anabranch bundles check` reads them from a file.
    """

    key: Name
    value: ServiceUnitStateData | None
