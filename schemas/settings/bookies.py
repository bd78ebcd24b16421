"""Section `[bookies]`: switching brokers to another BookKeeper cluster.

Stage: a part of `settings`. Source: PIP-477, `bookieClusterSwitch.*`.
"""

from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from schemas.base import Name
from schemas.bookies import SwitchSettings
from schemas.settings.controller import Credentials, ZooKeeperAddress
from schemas.settings.section import Port, Section

ClusterAddress = Annotated[str, Field(pattern=r"^zks?://[^/\s]+/?$", max_length=2048)]


class Ensemble(NamedTuple):
    """A ZooKeeper ensemble named in the settings, which may therefore receive credentials."""

    members: frozenset[str]
    """`host:port` of each server."""
    is_encrypted: bool


def _ensemble(address: str) -> Ensemble:
    scheme, _, authority = address.partition("://")
    hosts = [host.strip().lower() for host in authority.partition("/")[0].split(",")]
    members = frozenset(host if host.rpartition(":")[2].isdigit() else f"{host}:2181" for host in hosts)
    return Ensemble(members, scheme == "zks")


class BookieSettings(Section):
    """Switching to another BookKeeper cluster, `anabranch bookies` (docs/bookies.md)."""

    metadata: Annotated[str, Field(pattern=r"^(zks?://[^/\s]+(/[\w.-]+)*/?)?$", max_length=2048)]
    """ZooKeeper of the Pulsar cluster, `zk://HOST:PORT,…` (`zks://`: with TLS); empty: commands need --metadata."""
    metadata_ca: str
    """PEM file of the CAs that signed ZooKeeper's certificates, with `zks://`; empty: the system's CAs."""
    metadata_certificate: str
    """PEM file of our certificate for ZooKeeper and its chain, if it requires one; empty: none."""
    metadata_key: str
    """PEM file of the metadata_certificate's key, without a password."""
    metadata_auth: Credentials | None = None
    """`user:password` for ZooKeeper (digest); set only by ANABRANCH_BOOKIES_METADATA_AUTH."""
    clusters: tuple[ClusterAddress, ...]
    """ZooKeepers of BookKeeper clusters, besides `metadata`, that credentials may be sent to: `zk://HOST:PORT,…`."""
    cluster: Name
    """Name of the Pulsar cluster in records; keep it during a switch."""
    brokers: Literal["stock", "attribution", "stopped"]
    """Kind of brokers: `stock` know one BookKeeper cluster, `attribution` several (PIP-477), `stopped`: none run."""
    client_properties: str
    """Properties file of BookKeeper's client, such as credentials, for `metadata` and `clusters` only; empty: none."""
    dual_read_timeout_days: Annotated[float, Field(ge=0, le=36_500)]
    """Days to keep old copies after the last promotion; at least rollback_window_hours."""
    rollback_window_hours: Annotated[float, Field(ge=0, le=876_000)]
    """Hours after the last promotion in which a switch can be rolled back without --force."""
    migration_concurrency: Annotated[int, Field(ge=1, le=256)]
    """Ledgers copied, compared or deleted at a time; lower it to spare the bookies."""
    session_seconds: Annotated[float, Field(ge=1, le=300)]
    """Seconds of silence after which another orchestrator can take over."""
    metrics_port: Port
    """Port of the metrics and probes of a switch, rollback or cleanup, at [metrics] host; 0: none."""

    @property
    def zookeeper(self) -> ZooKeeperAddress:
        """The address in `metadata`; empty without one."""
        scheme, _, location = self.metadata.partition("://")
        address, _, chroot = location.partition("/")
        return ZooKeeperAddress(address, f"/{chroot.strip('/')}" if chroot.strip("/") else "", scheme == "zks")

    @model_validator(mode="after")
    def _tls_fits_together(self) -> "BookieSettings":
        if bool(self.metadata_certificate) != bool(self.metadata_key):
            raise ValueError("metadata_certificate and metadata_key belong together: give both or none")
        if (self.metadata_ca or self.metadata_certificate) and not self.metadata.startswith("zks:"):
            raise ValueError('metadata_ca and metadata_certificate need metadata = "zks://…"')
        return self

    def ensemble_of(self, members: frozenset[str]) -> Ensemble | None:
        """Return the configured ensemble that includes these members (`host:port`), or None."""
        ensembles = (_ensemble(address) for address in (self.metadata, *self.clusters) if address)
        return next((ensemble for ensemble in ensembles if members <= ensemble.members), None)

    @property
    def switch(self) -> SwitchSettings:
        """The settings on which decisions depend."""
        return SwitchSettings(
            dual_read_timeout_days=self.dual_read_timeout_days,
            rollback_window_hours=self.rollback_window_hours,
            migration_concurrency=self.migration_concurrency,
        )
