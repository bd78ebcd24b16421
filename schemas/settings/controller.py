"""Sections `[controller]` and `[controller.limits]`: our own controller, and access to a controller.

Stage: a part of `settings`.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field, SecretStr, model_validator

from schemas.base import Namespace
from schemas.settings.section import Port, Seconds, Section


def _fits_a_header(token: SecretStr) -> SecretStr:
    text = token.get_secret_value()
    if not (text.isascii() and text.isprintable() and " " not in text):
        raise ValueError("it holds characters that no token has")
    return token


def _names_a_user(credentials: SecretStr) -> SecretStr:
    user, _, password = credentials.get_secret_value().partition(":")
    if not user or not password:
        raise ValueError("it must have the form user:password")
    return credentials


Credentials = Annotated[SecretStr, AfterValidator(_names_a_user)]
Token = Annotated[SecretStr, AfterValidator(_fits_a_header)]
NodeUrl = Annotated[str, Field(pattern=r"^https?://[^/?#@\s]+/?$", max_length=512)]
HostName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=253)]


class ZooKeeperAddress(NamedTuple):
    """Address of the metadata shared by several controllers."""

    address: str
    """`host:port[,host:port…]`; empty: not on ZooKeeper."""
    chroot: str
    is_encrypted: bool


class LimitSettings(Section):
    """Limits on one controller's clients: connections for anyone, the rest per token.

    All clients without tokens count as one token.
    """

    connections: Annotated[int, Field(ge=1)]
    """Concurrent connections; a further one closes the oldest without a known token."""
    connections_per_address: Annotated[int, Field(ge=1)]
    """Connections without a known token per address (IPv6: per /64); a further one closes the oldest."""
    waiting_calls: Annotated[int, Field(ge=1)]
    """Queued calls of one token; a further one gets 429."""
    sessions: Annotated[int, Field(ge=1)]
    """Watch sessions and consumer connections of one token; a further one gets 429."""
    waiting_bytes: Annotated[int, Field(ge=65_536)]
    """Bytes queued for one token: bodies of its calls, and messages to its consumers.

    Bodies count while they arrive. More bodies get 429; a consumer with more messages is disconnected.
    """
    registrations_per_second: Annotated[float, Field(gt=0)]
    """Subscriptions and consumers registered, and sessions begun, by one token; bursts of 10 s worth."""
    subscriptions: Annotated[int, Field(ge=1)]
    """Subscriptions of one topic."""


class ControllerSettings(Section):
    url: str
    """Base URL of the admin REST interface through which decisions are applied."""
    url_ca: str
    """PEM file of the CAs for certificates at `url`; empty: those of the system."""
    url_certificate: str
    """PEM file of the client certificate with its chain (see `client_ca`); empty: none."""
    url_key: str
    """PEM file of that certificate's key, without a password."""
    host: str
    """Address that our own controller binds."""
    port: Port
    """Port that our own controller binds; 0 = a free one."""
    certificate: str
    """PEM file of the listener's certificate with its chain, for TLS only. Empty: no TLS."""
    key: str
    """PEM file of that certificate's key, without a password."""
    client_ca: str
    """PEM file of the CAs for client certificates, which are then required; empty: not required."""
    node_url: Annotated[str, Field(pattern=r"^(https?://[^/?#\s]+/?)?$", max_length=512)]
    """URL of this controller for clients and other controllers; empty: the bound address."""
    nodes: tuple[NodeUrl, ...]
    """URLs of all controllers of the cluster, to which tokens are sent and clients are redirected."""
    metrics_port: Port
    """Port of the controller's metrics and probes, at [metrics] host; 0 = none."""
    names: tuple[HostName, ...]
    """Further host names of this controller, of a proxy or a service; other names are refused."""
    metadata: Annotated[str, Field(pattern=r"^(sqlite|zks?://[^/\s]+(/[\w.-]+)*/?)$", max_length=2048)]
    """Store of layouts and sessions: `sqlite` (one controller) or `zk://host:port[,…][/chroot]` (several).

    `zks://` uses TLS to ZooKeeper.
    """
    metadata_ca: str
    """PEM file of the CAs for ZooKeeper's certificates; empty: those of the system."""
    metadata_certificate: str
    """PEM file of the client certificate for ZooKeeper; empty: none."""
    metadata_key: str
    """PEM file of that certificate's key, without a password."""
    metadata_auth: Credentials | None = None
    """`user:password` for ZooKeeper's digest authentication; only from the environment."""
    session_seconds: Annotated[float, Field(ge=1, le=3600)]
    """Silence after which ZooKeeper considers a controller dead and another one takes over, seconds."""
    database: str
    """SQLite file of the metadata, for `sqlite`."""
    token: Token | None = None
    """Bearer token that clients send; only from the environment.

    Required by the controller without `tokens_file`.
    """
    oauth2_key: str
    """Key file of OAuth2 client credentials, as for Pulsar's clients; empty: no OAuth2.

    Format: anabranch/admin/credentials.py.
    """
    oauth2_issuer: Annotated[str, Field(pattern=r"^(https?://[^?#\s]+)?$", max_length=2048)]
    """Base URL of the token provider; empty: the key file's `issuer_url`."""
    oauth2_audience: str
    """Audience of the tokens, in the provider's terms; empty: none."""
    oauth2_scope: str
    """Requested scope; empty: none."""
    oauth2_ca: str
    """PEM file of the CAs for the provider's certificate; empty: those of the system."""
    tokens_file: str
    """File of the controller's tokens with their roles (anabranch/auth/tokens.py); empty: only `token`."""
    snapshot_seconds: Seconds
    """Interval in which every layout and consumer count is repeated on Kafka, seconds."""
    sealed_retention_seconds: float
    """Time after which fully read sealed segments are pruned, seconds; negative = never."""
    checkpoint_retention_seconds: float
    """Pruning delay for topics with a CHECKPOINT subscription, whose progress is unknown, seconds."""
    consumer_grace_seconds: Seconds
    """Time for which a disconnected consumer keeps its segments, seconds (PIP-468).

    With ZooKeeper at least `session_seconds`.
    """
    namespaces: list[Namespace]
    """`tenant/namespace` of namespaces that exist without being created and without topics."""
    segments: Literal["none", "kafka"]
    """Location of segments' topics: none (clients manage them), or the Kafka of [kafka]."""
    limits: LimitSettings

    @model_validator(mode="after")
    def _grace_covers_the_session(self) -> ControllerSettings:
        # A leader that is cut off believes in its term for up to a session. Meanwhile it would still serve consumers
        # that the next leader has evicted, and two consumers would own one segment.
        if self.zookeeper.address and self.consumer_grace_seconds < self.session_seconds:
            raise ValueError(
                f"consumer_grace_seconds ({self.consumer_grace_seconds:g}) is less than session_seconds "
                f"({self.session_seconds:g}): after a failover two consumers could own one segment; raise the former, "
                "well above the latter, or lower the latter"
            )
        return self

    @property
    def zookeeper(self) -> ZooKeeperAddress:
        """The address in `metadata`."""
        scheme, _, location = self.metadata.partition("://")
        address, _, chroot = location.partition("/")
        if not address:
            return ZooKeeperAddress("", "", False)
        return ZooKeeperAddress(address, f"/{chroot.strip('/') or 'anabranch'}", scheme == "zks")

    @model_validator(mode="after")
    def _tls_fits_together(self) -> ControllerSettings:
        for certificate, key in (
            ("certificate", "key"),
            ("url_certificate", "url_key"),
            ("metadata_certificate", "metadata_key"),
        ):
            if bool(getattr(self, certificate)) != bool(getattr(self, key)):
                raise ValueError(f"{certificate} and {key} belong together: give both or none")
        if self.client_ca and not self.certificate:
            raise ValueError("client_ca needs TLS: give certificate and key")
        if self.certificate and self.node_url.startswith("http:"):
            raise ValueError("node_url begins with http:, and with a certificate the controller speaks https only")
        if self.oauth2_key and self.token is not None:
            raise ValueError("oauth2_key and a token exclude one another: unset ANABRANCH_CONTROLLER_TOKEN, or the key")
        if not self.oauth2_key and (self.oauth2_issuer or self.oauth2_audience or self.oauth2_scope or self.oauth2_ca):
            raise ValueError("oauth2_issuer, oauth2_audience, oauth2_scope and oauth2_ca need oauth2_key")
        if (self.metadata_ca or self.metadata_certificate) and not self.metadata.startswith("zks:"):
            raise ValueError('metadata_ca and metadata_certificate need metadata = "zks://…"')
        return self
