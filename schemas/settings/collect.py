"""The section `[collect]`: data that a collector reads from a cluster, intervals, and limits.

Stage: part of `schemas.settings.root`. Address, token and TLS of the cluster are those of `[controller]`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import Namespace
from schemas.settings.section import Port, Seconds, Section


class CollectSettings(Section):
    """`anabranch serve collector`: from a cluster's REST interface into Kafka."""

    cluster: str
    """Name of the cluster whose brokers are queried; empty: that of the server at [controller] url."""
    namespaces: list[Namespace]
    """Namespaces to read, each `tenant/namespace`; empty: all of all tenants."""
    consumers: Literal["attached", "registered"]
    """Consumers to count: `attached` to segments, as in brokers' loads, or `registered`.

    `registered` queries every topic's `…/stats` (docs/pulsar.md says what that may break in Pulsar 5.0.0-M1).
    """
    segment_stats: bool
    """Ask Pulsar 5.0.0 or later for the `…/segments/ID/stats` of segments that loads show to be slow: they tell the age
    of the backlog and the publishers that wait."""
    calls_per_second: Annotated[float, Field(gt=0, le=10_000)]
    """Maximum of calls to one broker per second, including those for its load."""
    load_seconds: Annotated[float, Field(ge=0, le=86_400)]
    """Interval at which brokers compute their rates, seconds (`statsUpdateFrequencyInSecs`).

    0: query the brokers for it, which needs a super-user.
    """
    snapshot_seconds: Seconds
    """Interval in which every layout, policy and consumer count is repeated, seconds."""
    metrics_port: Port
    """Port of the collector's metrics and probes, at [metrics] host; 0 = none."""
    folder: str
    """Folder for the collector's status (`status.json`) and known topics (`topics.json`).

    `anabranch doctor` reads the status, the next collector to start the topics. One folder per collector.
    """
