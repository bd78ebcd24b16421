"""Sections `[controller]` and `[controller.limits]`: our own controller, and how clients reach it.

Stage: a part of `settings`.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field, SecretStr, model_validator

from schemas.base import Namespace
from schemas.listener_settings import ListenerLimits
from schemas.section import Port, Seconds, Section


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
    """Where the metadata of several controllers is."""

    address: str
    """`host:port[,host:port…]`; empty: it is not on ZooKeeper."""
    chroot: str
    is_encrypted: bool


class LimitSettings(ListenerLimits):
    """What clients can take of one controller: anybody by connections, and one token, or all without tokens."""

    waiting_calls: Annotated[int, Field(ge=1)]
    """Calls of one token that wait for their turn; one more is answered with 429."""
    sessions: Annotated[int, Field(ge=1)]
    """Watch sessions and consumer connections of one token; one more is answered with 429."""
    waiting_bytes: Annotated[int, Field(ge=65_536)]
    """Bytes that wait for one token: bodies of its calls, also while they arrive (more: 429), and messages to its
    consumers (more: cut off)."""
    registrations_per_second: Annotated[float, Field(gt=0)]
    """Subscriptions and consumers that one token registers, and sessions that it begins; 10 s worth at once."""
    subscriptions: Annotated[int, Field(ge=1)]
    """Subscriptions of one topic."""


class ControllerSettings(Section):
    url: str
    """Base URL of the admin REST interface that decisions are applied through."""
    url_ca: str
    """PEM file of the authorities that certificates at `url` are believed by; empty: those of the system."""
    url_certificate: str
    """PEM file of the certificate, with its chain, that clients show there (see `client_ca`); empty: none."""
    url_key: str
    """PEM file of that certificate's key, without a password."""
    host: str
    """Address that our own controller binds."""
    port: Port
    """Port that our own controller binds; 0 = a free one."""
    certificate: str
    """PEM file of the listener's certificate with its chain: it speaks TLS only. Empty: no TLS."""
    key: str
    """PEM file of that certificate's key, without a password."""
    client_ca: str
    """PEM file of the authorities of clients' certificates, which all have to show one then; empty: none is wanted."""
    node_url: Annotated[str, Field(pattern=r"^(https?://[^/?#\s]+/?)?$", max_length=512)]
    """URL of this controller for clients and other controllers; empty: the address that it is bound to."""
    nodes: tuple[NodeUrl, ...]
    """URLs of all controllers of the cluster: tokens are sent to them, and clients are redirected to them."""
    metrics_port: Port
    """Port of the controller's metrics and probes, at [metrics] host; 0 = none."""
    names: tuple[HostName, ...]
    """Further names by which clients reach this controller, of a proxy or a service; others are refused."""
    metadata: Annotated[str, Field(pattern=r"^(sqlite|zks?://[^/\s]+(/[\w.-]+)*/?)$", max_length=2048)]
    """Where layouts and sessions are: `sqlite` (one controller) or `zk://host:port[,host:port…][/chroot]` (several).

    With `zks://` ZooKeeper is spoken to by TLS.
    """
    metadata_ca: str
    """PEM file of the authorities that ZooKeeper's certificates are believed by; empty: those of the system."""
    metadata_certificate: str
    """PEM file of the certificate that ZooKeeper is shown; empty: none."""
    metadata_key: str
    """PEM file of that certificate's key, without a password."""
    metadata_auth: Credentials | None = None
    """`user:password` of ZooKeeper's digest authentication; by the environment only."""
    session_seconds: Annotated[float, Field(ge=1, le=3600)]
    """Silence after which ZooKeeper takes a controller for dead, and another one takes over, seconds."""
    database: str
    """SQLite file of the metadata, for `sqlite`."""
    token: Token | None = None
    """Bearer token that clients send; by the environment only. Without `tokens_file` the controller asks for it."""
    oauth2_key: str
    """Key file of OAuth2's client credentials, as Pulsar's clients take it (admin/credentials.py); empty: no OAuth2."""
    oauth2_issuer: Annotated[str, Field(pattern=r"^(https?://[^?#\s]+)?$", max_length=2048)]
    """Base URL of who gives tokens; empty: the key file's `issuer_url`."""
    oauth2_audience: str
    """What tokens are for, as the provider calls it; empty: not said."""
    oauth2_scope: str
    """Scope that is asked for; empty: none."""
    oauth2_ca: str
    """PEM file of the authorities that the provider's certificate is believed by; empty: those of the system."""
    tokens_file: str
    """File of the controller's tokens with their roles (controller/access/tokens.py); empty: `token` alone."""
    snapshot_seconds: Seconds
    """Time between two repetitions of every layout and consumer count on Kafka, seconds."""
    sealed_retention_seconds: float
    """Sealed segments that are read to the end are pruned after this long, seconds; negative = never."""
    checkpoint_retention_seconds: float
    """The same of topics with a CHECKPOINT subscription, of which nobody knows what it has read."""
    consumer_grace_seconds: Seconds
    """Time for which a consumer that lost its connection keeps its segments, seconds (PIP-468); with ZooKeeper not
    less than `session_seconds`."""
    namespaces: list[Namespace]
    """`tenant/namespace` of namespaces that exist without being created and without topics."""
    segments: Literal["none", "kafka"]
    """Where the topics behind segments are: nowhere (clients look after them), or in the Kafka of [kafka]."""
    max_body_bytes: Annotated[int, Field(ge=1024)]
    """Largest request body that is read."""
    limits: LimitSettings

    @model_validator(mode="after")
    def _grace_covers_the_session(self) -> ControllerSettings:
        # A leader that is cut off believes in its term for up to a session; whom the next leader evicts meanwhile it
        # would still serve, and two consumers would own one segment.
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
        scheme, _, place = self.metadata.partition("://")
        address, _, chroot = place.partition("/")
        if not address:
            return ZooKeeperAddress("", "", False)
        return ZooKeeperAddress(address, f"/{chroot.strip('/') or 'anabranch'}", scheme == "zks")

    @model_validator(mode="after")
    def _tls_fits_together(self) -> ControllerSettings:
        for certificate, key in (
            ("certificate", "key"), ("url_certificate", "url_key"), ("metadata_certificate", "metadata_key"),
        ):  # fmt: skip
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
