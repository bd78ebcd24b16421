"""The section `[collect]`: what a collector reads of a cluster, how often, and at which price for it.

Stage: part of `schemas.settings`. Address, token and TLS of the cluster are those of `[controller]`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import Namespace
from schemas.section import Port, Seconds, Section


class CollectSettings(Section):
    """`anabranch collect`: from a cluster's REST interface into Kafka."""

    cluster: str
    """Name of the cluster whose brokers are asked; empty: the one that the server at [controller] url belongs to."""
    namespaces: list[Namespace]
    """The namespaces that are read, each `tenant/namespace`; empty: all of all tenants."""
    consumers: Literal["attached", "registered"]
    """Which consumers are counted: those that brokers' loads show, attached to segments; or those that are registered,
    which asks every topic's `…/stats` (docs/pulsar.md says what that may break in Pulsar 5.0.0-M1)."""
    calls_per_second: Annotated[float, Field(gt=0, le=10_000)]
    """Calls that one broker gets at most, per second; those for its load are among them."""
    calls_in_flight: Annotated[int, Field(ge=2, le=256)]
    """Calls that wait for an answer at the same time; of one broker a quarter of them, at least two."""
    request_timeout_seconds: Seconds
    """Longest wait for one answer, seconds."""
    max_answer_mb: Annotated[int, Field(ge=1, le=1024)]
    """A broker's answer above this is not read to its end, MB."""
    load_seconds: Annotated[float, Field(ge=0, le=86_400)]
    """How often brokers compute their rates, seconds (their `statsUpdateFrequencyInSecs`); 0: they are asked, which
    needs a super-user."""
    brokers_seconds: Seconds
    """Time between two looks at the list of brokers, seconds."""
    namespaces_seconds: Seconds
    """Time between two looks at the namespaces and their policies, seconds."""
    topics_seconds: Seconds
    """Shortest time between two looks at the topics of a namespace, seconds."""
    consumers_seconds: Seconds
    """Shortest time between two looks at the consumers of a topic, seconds."""
    layouts_seconds: Seconds
    """Shortest time between two looks at a topic's layout and policy while nothing says that they changed, seconds."""
    snapshot_seconds: Seconds
    """Every layout, policy and count of consumers is said again once in this time, seconds."""
    metrics_port: Port
    """Port of the collector's metrics and probes, at [metrics] host; 0 = none."""
    folder: str
    """Where the collector writes how it goes (`status.json`, for `anabranch doctor`) and which topics it knows
    (`topics.json`, for the next one that starts). One for each collector."""
