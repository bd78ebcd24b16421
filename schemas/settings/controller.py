"""Sections `[controller]` and `[controller.limits]`: our own controller, and access to a controller."""

from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field, SecretStr, model_validator

from schemas.base import Namespace
from schemas.settings.section import Port, Seconds, Section


def _fits_a_header(token: SecretStr) -> SecretStr:
    text = token.get_secret_value()
    if not (text.isascii() and text.isprintable() and " " not in text):
        raise ValueError("it holds characters that no token has: only printable ASCII without spaces is allowed")
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
    """Limits on one controller's clients: connections for anyone, the rest per token or none."""

    connections: Annotated[int, Field(ge=1)]
    """Most open connections; one more closes the oldest that has sent no known token."""
    connections_per_address: Annotated[int, Field(ge=1)]
    """Most connections without a known token from one IPv4 address or IPv6 /64; one more closes the oldest."""
    waiting_calls: Annotated[int, Field(ge=1)]
    """Most queued calls of one token; further ones get 429."""
    sessions: Annotated[int, Field(ge=1)]
    """Most watch sessions and consumer connections of one token; further ones get 429."""
    waiting_bytes: Annotated[int, Field(ge=65_536)]
    """Most bytes queued for one token; further calls get 429, and its slow consumers are disconnected."""
    registrations_per_second: Annotated[float, Field(gt=0)]
    """Most registrations and new sessions per second of one token; 10 seconds' worth may come at once."""
    subscriptions: Annotated[int, Field(ge=1)]
    """Most subscriptions of one topic; further ones get 429."""


class ControllerSettings(Section):
    """Access to a controller, and our own, `anabranch serve controller`."""

    url: str
    """Base URL of the admin interface, ours or Pulsar's, that executor, collectors and commands call."""
    url_ca: str
    """PEM file of the CAs that signed the certificate at `url`; empty: the system's CAs."""
    url_certificate: str
    """PEM file of our certificate for `url` and its chain, if it requires one; empty: none."""
    url_key: str
    """PEM file of the url_certificate's key, without a password."""
    host: str
    """Address that our own controller listens on; one that other machines reach requires tokens."""
    port: Port
    """Port that our own controller listens on; 0: a free one."""
    certificate: str
    """PEM file of the controller's certificate and its chain, read again when replaced; empty: no TLS."""
    key: str
    """PEM file of the certificate's key, without a password."""
    client_ca: str
    """PEM file of the CAs whose certificate every client must show; empty: clients need none."""
    node_url: Annotated[str, Field(pattern=r"^(https?://[^/?#\s]+/?)?$", max_length=512)]
    """Unique URL of this controller for clients and other controllers; empty: made of host and port."""
    nodes: tuple[NodeUrl, ...]
    """URLs of all controllers if there are several, `http://HOST:PORT`; clients may send tokens there."""
    metrics_port: Port
    """Port of the controller's metrics and probes, at [metrics] host; 0: none."""
    names: tuple[HostName, ...]
    """Further host names of the controller, such as a proxy's or service's; other names are refused."""
    metadata: Annotated[str, Field(pattern=r"^(sqlite|zks?://[^/\s]+(/[\w.-]+)*/?)$", max_length=2048)]
    """Store of topics: `sqlite` for one controller, `zk://HOST:PORT,…/PATH` for several (`zks://`: with TLS)."""
    metadata_ca: str
    """PEM file of the CAs that signed ZooKeeper's certificates, with `zks://`; empty: the system's CAs."""
    metadata_certificate: str
    """PEM file of our certificate for ZooKeeper and its chain, if it requires one; empty: none."""
    metadata_key: str
    """PEM file of the metadata_certificate's key, without a password."""
    metadata_auth: Credentials | None = None
    """`user:password` for ZooKeeper (digest); set only by ANABRANCH_CONTROLLER_METADATA_AUTH."""
    session_seconds: Annotated[float, Field(ge=1, le=3600)]
    """Seconds of silence, with ZooKeeper, after which another controller takes over; fewer fail over sooner."""
    database: str
    """SQLite file, with `metadata = "sqlite"`."""
    token: Token | None = None
    """Token that clients send, required by a controller without tokens_file; set only by ANABRANCH_CONTROLLER_TOKEN."""
    oauth2_key: str
    """Key file of OAuth2 client credentials, as for pulsar-admin, for calls to Pulsar; empty: no OAuth2."""
    oauth2_issuer: Annotated[str, Field(pattern=r"^(https?://[^?#\s]+)?$", max_length=2048)]
    """Base URL of the token provider; empty: the key file's `issuer_url`."""
    oauth2_audience: str
    """Audience that the provider wants to be asked for; empty: none."""
    oauth2_scope: str
    """Scope that the provider wants to be asked for; empty: none."""
    oauth2_ca: str
    """PEM file of the CAs that signed the provider's certificate; empty: the system's CAs."""
    tokens_file: str
    """File of tokens and roles, made by `anabranch config token new`; empty: only ANABRANCH_CONTROLLER_TOKEN."""
    snapshot_seconds: Seconds
    """Seconds in which all layouts and consumer counts are sent again; Kafka must keep them 12 times as long."""
    sealed_retention_seconds: float
    """Seconds to keep sealed segments that every subscription has read; negative: for ever."""
    checkpoint_retention_seconds: float
    """Seconds to keep sealed segments of topics with a CHECKPOINT subscription; negative: for ever."""
    consumer_grace_seconds: Seconds
    """Seconds a disconnected consumer keeps its segments; with ZooKeeper well above session_seconds."""
    namespaces: list[Namespace]
    """`tenant/namespace` that exist before they have topics, so that policies can be set there."""
    segments: Literal["none", "kafka"]
    """`kafka`: a topic per segment in the Kafka of [kafka]; `none`: clients manage them."""
    limits: LimitSettings

    @model_validator(mode="after")
    def _grace_covers_the_session(self) -> "ControllerSettings":
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
    def _tls_fits_together(self) -> "ControllerSettings":
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
