"""Sections of the processes beside the job and the controller: executor, collector, alerts, page; and their metrics.

Stage: part of `schemas.settings.root`. Each process has the port of its metrics and probes in its own section.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from schemas.base import Namespace
from schemas.settings.brakes import BrakeSettings
from schemas.settings.controller import HostName
from schemas.settings.section import Port, Seconds, Section

STUCK_MARGIN_SECONDS = 600.0
"""Allowance for an executor that starts, and for clocks that differ."""


class ExecutorSettings(Section):
    """The executor, `anabranch serve executor`, which applies decisions."""

    mode: Literal["act", "approve", "observe"]
    """`observe` only records what it would do; `approve` applies approved decisions; `act` applies all."""
    poll_ms: Annotated[int, Field(ge=10, le=60_000)]
    """Milliseconds between reads of the decisions table; more saves requests and delays actions."""
    workers: Annotated[int, Field(ge=1, le=256)]
    """Topics that each shard handles at a time; raise it if decisions queue while the controller is idle."""
    request_timeout_seconds: Seconds
    """Seconds to wait for an answer of the controller; at most half of lease_seconds."""
    give_up_seconds: Seconds
    """Seconds of retries after which a decision ends as `failed`; time held by a safeguard does not count."""
    decision_max_age_seconds: Seconds
    """Seconds after which a decision not yet begun ends as `superseded`, and the job decides again."""
    waiting_max_age_seconds: Seconds
    """Seconds after which a decision held by a safeguard, or any in mode `approve`, ends as `superseded`."""
    metrics_port: Port
    """Port of the executor's metrics and probes, at [metrics] host; 0: none."""
    brakes: BrakeSettings
    shards: Annotated[int, Field(ge=1, le=64)]
    """Parts of the topics, one executor at work on each; more use several executors. Stop all of them to change it."""
    lease_seconds: Seconds
    """Seconds of silence after which other executors take over; fewer fail over sooner."""

    @model_validator(mode="after")
    def _a_call_fits_into_the_lease(self) -> "ExecutorSettings":
        # A call is begun only if its timeout ends within the lease, and a heartbeat is sent every sixth of the
        # lease.
        if self.lease_seconds < 2 * self.request_timeout_seconds:
            raise ValueError(
                f"lease_seconds ({self.lease_seconds:g}) is less than twice request_timeout_seconds "
                f"({self.request_timeout_seconds:g}): an executor would hardly ever be allowed to call; raise the "
                "former or lower the latter"
            )
        return self

    @model_validator(mode="after")
    def _a_decision_may_wait(self) -> "ExecutorSettings":
        if self.waiting_max_age_seconds < self.decision_max_age_seconds:
            raise ValueError(
                f"waiting_max_age_seconds ({self.waiting_max_age_seconds:g}) is less than decision_max_age_seconds "
                f"({self.decision_max_age_seconds:g}): a decision that waits would expire before one that does not; "
                "raise the former or lower the latter"
            )
        return self

    @property
    def begin_max_age_seconds(self) -> float:
        """Age up to which a decision is begun."""
        return self.waiting_max_age_seconds if self.mode == "approve" else self.decision_max_age_seconds

    @property
    def stuck_seconds(self) -> float:
        """Age from which an open decision is stuck: no executor would apply it any more."""
        return self.waiting_max_age_seconds + self.give_up_seconds + STUCK_MARGIN_SECONDS

    @model_validator(mode="after")
    def _each_shard_has_a_part_of_the_limits(self) -> "ExecutorSettings":
        for name in ("actions_per_minute", "actions_per_minute_per_namespace"):
            if 0 < getattr(self.brakes, name) < self.shards:
                raise ValueError(
                    f"brakes.{name} ({getattr(self.brakes, name)}) is less than shards ({self.shards}): each shard has "
                    "a part of it; raise the former or lower the latter"
                )
        return self


class AlertSettings(Section):
    """Alerts by rules on the lake, `anabranch serve alerts`."""

    rules: str
    """YAML file of alert rules and destinations (docs/alerts.md)."""
    ca: str
    """PEM file of the CAs that signed the destinations' certificates; empty: the system's CAs."""
    metrics_port: Port
    """Port of the metrics and probes of `anabranch serve alerts`, at [metrics] host; 0: none."""


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


class WebSettings(Section):
    """The operators' page, `anabranch serve web` (docs/web.md)."""

    host: str
    """Address that the page listens on; one that other machines reach requires tokens."""
    port: Port
    """Port of the page; 0: a free one. A local run takes a free one if this one is in use."""
    certificate: str
    """PEM file of the page's certificate and its chain, for https; empty: no TLS."""
    key: str
    """PEM file of the certificate's key, without a password."""
    names: tuple[HostName, ...]
    """Further host names of the page, such as a proxy's or service's; other names are refused."""
    metrics_port: Port
    """Port of the page's metrics and probes, at [metrics] host; 0: none."""
    reports: str
    """Folder of reports that the page lists: write them there with `anabranch whatif … --output html --file`."""
    tokens_file: str
    """File of tokens for the page (role `read` sees, `operate` acts); empty: the controller's tokens."""
    open: bool
    """true: the page needs no token on loopback, so every account of the machine may act."""


class MetricsSettings(Section):
    """Where every process with a metrics_port serves metrics and probes (docs/metrics.md)."""

    host: str
    """Address of all metrics ports (/metrics, /livez, /readyz); 0.0.0.0 shows topic names to other machines."""
    names: tuple[HostName, ...]
    """Further host names that scrapers use, such as a service's; IP addresses need no entry."""
