"""What is said of a Pulsar cluster with bundles, on two Kafka topics: how its brokers are loaded, and how things stand.

Stage: contracts of the family `bundles` (design "Kafka messages"); `schemas.bundles` has the objects inside. Every
message is keyed by its cluster. Each says all of what it is about, so the newest alone is the truth: a report of its
broker, an ownership of its namespace, brokers and policies of their cluster. One that is lost repairs itself.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, ModelWrapValidatorHandler, ValidationError, model_validator

from schemas.base import Count, Millis, Name, Wire
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
from schemas.kafka import BROKER_EVENTS, BROKER_LOAD
from schemas.messages import register_messages

ClusterName = Annotated[str, Field(pattern=r"^[^/\s*+]+$", max_length=256)]
"""Of a Pulsar cluster. No slash: `cluster/broker` is how a broker is called in `holds`."""
BundleRange = Annotated[str, Field(pattern=r"^0x[0-9a-f]{8}_0x[0-9a-f]{8}$")]
Setting: TypeAlias = bool | int | float | str | list[str] | None


class LocalBrokerReport(Wire):
    """Kafka topic `broker-load`: what a broker with the modular load manager says of itself and of its bundles."""

    v: Literal[1]
    type: Literal["local-broker-data"]
    cluster: ClusterName
    broker: Name
    """As the admin interface calls it: `host:port`."""
    data: LocalBrokerData
    forced: bool = False
    """It counts however little has changed, for the broker wrote it by its own rule."""
    averages: dict[Name, BundleData] | None = None
    """The leader's averages of bundles: the job starts with them where it has none of its own."""
    at: Millis
    """When it was read."""

    @property
    def subject(self) -> str:
        """What the record's key has to be."""
        return self.cluster

    @property
    def last_update(self) -> int:
        """When the broker made it, milliseconds. With the broker's name it tells a report from all others."""
        return self.data.last_update

    @model_validator(mode="after")
    def _is_dated(self) -> LocalBrokerReport:
        if not self.data.last_update:
            raise ValueError("data.lastUpdate is missing: a report that comes twice could not be told by it")
        return self


class BrokerLoadReport(Wire):
    """Kafka topic `broker-load`: the same of a broker with the extensible load manager, out of its two topics."""

    v: Literal[1]
    type: Literal["broker-load-data"]
    cluster: ClusterName
    broker: Name
    data: BrokerLoadData
    top_bundles: TopBundlesLoadData = TopBundlesLoadData()
    forced: bool = False
    """As of `LocalBrokerReport`."""
    at: Millis
    """When it was read."""

    @property
    def subject(self) -> str:
        """What the record's key has to be."""
        return self.cluster

    @property
    def last_update(self) -> int:
        """As of `LocalBrokerReport`."""
        return self.data.updated_at

    @model_validator(mode="after")
    def _is_dated(self) -> BrokerLoadReport:
        if not self.data.updated_at:
            raise ValueError("data.updatedAt is missing: a report that comes twice could not be told by it")
        return self


class BundleOwnership(Wire):
    """Kafka topic `broker-events`: all bundles of a namespace, and who owns each."""

    v: Literal[1]
    type: Literal["ownership"]
    cluster: ClusterName
    namespace: Name
    owners: dict[BundleRange, Name | None]
    """By range; null: nobody owns it. Empty: the namespace is gone."""
    at: Millis

    @property
    def subject(self) -> str:
        """What the record's key has to be."""
        return self.cluster


class LiveBrokers(Wire):
    """Kafka topic `broker-events`: all brokers that live."""

    v: Literal[1]
    type: Literal["brokers"]
    cluster: ClusterName
    brokers: dict[Name, BrokerLookupData]
    at: Millis

    @property
    def subject(self) -> str:
        """What the record's key has to be."""
        return self.cluster


class BalancerPolicies(Wire):
    """Kafka topic `broker-events`: all that the cluster's balancer is told; names as in `BundleSnapshot`."""

    v: Literal[1]
    type: Literal["policies"]
    cluster: ClusterName
    profile: Profile = "4.x"
    """The Pulsar version whose defaults and fixes hold."""
    load_manager: Literal["modular", "extensible"] | None = None
    configuration: dict[Name, Setting] = Field(default_factory=dict)
    """By the names of `broker.conf`, laid over the profile's defaults."""
    isolation_policies: dict[Name, IsolationPolicy] = Field(default_factory=dict)
    anti_affinity_groups: dict[Name, str] = Field(default_factory=dict)
    failure_domains: dict[Name, FailureDomain] = Field(default_factory=dict)
    namespace_bundles: dict[Name, Count] = Field(default_factory=dict)
    """How many bundles a namespace has. Absent: as its `ownership` says."""
    at: Millis
    unreadable: Annotated[str, Field(max_length=2000)] | None = None
    """Why the rest of the message could not be read: nothing is decided about the cluster."""

    @property
    def subject(self) -> str:
        """What the record's key has to be."""
        return self.cluster

    @model_validator(mode="wrap")
    @classmethod
    def _read_or_say_why(cls, value: Any, handler: ModelWrapValidatorHandler[BalancerPolicies]) -> BalancerPolicies:
        """Take policies that cannot be read as the newest word about their cluster: those of before hold no more."""
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
