"""The section `[collect]`: data that a collector reads from a cluster, intervals, and limits.

Stage: part of `schemas.settings.root`. Address, token and TLS of the cluster are those of `[controller]`.
"""

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import Namespace
from schemas.settings.section import Port, Seconds, Section


class CollectSettings(Section):
    """The collector, `anabranch serve collector`, of [controller] url: docs/pulsar.md; of Kafka: docs/clients.md."""

    cluster: str
    """Name of the Pulsar cluster to read; empty: the cluster that [controller] url belongs to."""
    namespaces: list[Namespace]
    """Namespaces to read, each `tenant/namespace`; empty: all, which needs a super-user's token."""
    consumers: Literal["attached", "registered"]
    """`attached` counts consumers by brokers' loads; `registered` asks for each topic's stats: see docs/pulsar.md."""
    segment_stats: bool
    """Ask for the stats of slow segments, to learn their backlog's age; needs Pulsar 5.0.0."""
    calls_per_second: Annotated[float, Field(gt=0, le=10_000)]
    """Most calls per second to a Pulsar broker, or to Kafka; each takes about 1 ms; more read large clusters sooner."""
    load_seconds: Annotated[float, Field(ge=0, le=86_400)]
    """Seconds between updates of rates; 0: ask Pulsar for statsUpdateFrequencyInSecs (super-user), Kafka: 10."""
    snapshot_seconds: Seconds
    """Seconds in which all layouts, policies and counts are sent again; Kafka must keep them 12 times as long."""
    metrics_port: Port
    """Port of the collector's metrics and probes, at [metrics] host; 0: none."""
    folder: str
    """Folder of the collector's status and known topics; one per collector."""
