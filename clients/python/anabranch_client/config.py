"""Settings: those of the controller begin with `anabranch.`, all others go to librdkafka unchanged."""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from confluent_kafka import KafkaException

from anabranch_client.errors import ClientSettingsError

T = TypeVar("T")
_PREFIX = "anabranch."
_NAMES = {
    "anabranch.controller.url": "urls",
    "anabranch.controller.token": "token",
    "anabranch.controller.token.file": "token_file",
    "anabranch.controller.ssl.ca.location": "ca",
    "anabranch.controller.ssl.certificate.location": "certificate",
    "anabranch.controller.ssl.key.location": "key",
}


@dataclass(frozen=True)
class ControllerAccess:
    """Addresses of the controller's nodes, and access to them."""

    urls: tuple[str, ...]
    """`http://HOST:PORT` or `https://HOST:PORT`, tried in this order."""
    token: str = ""
    token_file: str = ""
    """Read at every connection, so that the token can be replaced."""
    ca: str = ""
    """File of certificates that prove the controller's identity; empty: the system's."""
    certificate: str = ""
    key: str = ""

    def __repr__(self) -> str:
        return f"ControllerAccess({', '.join(self.urls)})"

    def headers(self) -> dict[str, str]:
        """Return the headers of a request, with the current token. Raises `ClientSettingsError`."""
        token = self.token
        if self.token_file:
            try:
                token = Path(self.token_file).read_text().strip()
            except (OSError, ValueError) as error:
                raise ClientSettingsError(f"anabranch.controller.token.file cannot be read: {error}") from error
        if not token:
            return {}
        if not token.isascii() or not token.isprintable() or " " in token:
            raise ClientSettingsError("the controller's token holds characters that no token has: give it again")
        return {"Authorization": f"Bearer {token}"}

    def tls(self) -> ssl.SSLContext:
        """Return the context of connections to `https`. Raises `ClientSettingsError`."""
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            if self.certificate:
                context.load_cert_chain(self.certificate, self.key or None)
        except (OSError, ssl.SSLError) as error:
            raise ClientSettingsError(f"anabranch.controller.ssl.…: a file cannot be used: {error}") from error
        return context


def split_settings(config: Mapping[str, Any]) -> tuple[ControllerAccess, dict[str, Any]]:
    """Separate the controller's settings from those of Kafka. Raises `ClientSettingsError`."""
    ours = {name: value for name, value in config.items() if name.startswith(_PREFIX)}
    if unknown := sorted(ours.keys() - _NAMES.keys()):
        raise ClientSettingsError(f"unknown setting {unknown[0]}: there are {', '.join(_NAMES)}")
    values: dict[str, Any] = {_NAMES[name]: str(value) for name, value in ours.items()}
    urls = tuple(url.strip().rstrip("/") for url in values.pop("urls", "").split(",") if url.strip())
    if not urls:
        raise ClientSettingsError("anabranch.controller.url is missing: give http://HOST:PORT of a controller")
    for url in urls:
        _check_url(url)
    if values.get("token") and values.get("token_file"):
        raise ClientSettingsError("anabranch.controller.token and token.file exclude one another: give one of them")
    kafka = {name: value for name, value in config.items() if not name.startswith(_PREFIX)}
    if not kafka.get("bootstrap.servers") and not kafka.get("metadata.broker.list"):
        raise ClientSettingsError("bootstrap.servers is missing: give HOST:PORT of a Kafka broker")
    return ControllerAccess(urls, **values), kafka


def _check_url(url: str) -> None:
    if "@" in url:
        raise ClientSettingsError("anabranch.controller.url holds a user: give anabranch.controller.token instead")
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address or parts.path or parts.query or parts.fragment:
        raise ClientSettingsError(f"anabranch.controller.url: {url!r} is not of the form http://HOST:PORT")


def kafka_client(kind: Callable[[dict[str, Any]], T], settings: dict[str, Any]) -> T:
    """Return a client of librdkafka. Raises `ClientSettingsError`."""
    try:
        return kind(settings)
    except (KafkaException, TypeError, ValueError) as error:
        raise ClientSettingsError(f"Kafka's client refuses a setting: {error}") from error


MAX_MESSAGES, MAX_KBYTES = 100_000, 131_072
"""Default bounds of a producer's unacknowledged messages."""
LINGER_MS = 5.0
"""Default of `linger.ms`."""
SMALL_BYTES = 4_096
"""Largest value of a message that waits for others; less where Kafka takes no such message."""
_NOT_SUPPORTED = {
    "transactional.id": "use TransactionalProducer",
    "on_delivery": "pass it to produce",
    "dr_cb": "pass on_delivery to produce",
}
_PRODUCER_NEEDS = {
    "enable.idempotence": ("true",),
    "acks": ("all", "-1"),
    "request.required.acks": ("-1",),
    "enable.gapless.guarantee": ("false",),
    "delivery.report.only.error": ("false",),
}
"""Values without which order or delivery would be lost, a seal would end the producer, or messages would never end."""
PRODUCER_OPTIONS: dict[str, Any] = {
    "enable.idempotence": True,
    "acks": "all",
    "allow.auto.create.topics": False,
    "queue.buffering.max.messages": 0,
    "queue.buffering.max.kbytes": 2_147_483_647,
}
"""Those of a producer's Kafka client. Without them a late message would create a deleted segment again, and be lost.

`Producer` bounds its memory itself.
"""
_CONSUMER_NEEDS = {
    "enable.auto.commit": ("false",),
    "auto.offset.reset": ("earliest", "smallest", "beginning"),
    "enable.partition.eof": ("true",),
    "partition.assignment.strategy": ("range",),
    "group.protocol": ("classic",),
}
"""Values without which messages would be skipped, or segments never be drained."""


def check_consumer(kafka: Mapping[str, Any]) -> None:
    """Raise `ClientSettingsError` for a setting with which a consumer would lose messages."""
    _check_needs(kafka, _CONSUMER_NEEDS)


def _check_needs(kafka: Mapping[str, Any], needs: Mapping[str, tuple[str, ...]]) -> None:
    for name, values in needs.items():
        if str(kafka.get(name, values[0])).lower() not in values:
            raise ClientSettingsError(f"{name} must be {values[0]}: order and delivery depend on it")


@dataclass(frozen=True)
class ProducerSettings:
    """Settings of a producer."""

    controller: ControllerAccess
    kafka: Mapping[str, Any] = field(repr=False)
    """For librdkafka; may hold passwords."""
    max_messages: int
    max_bytes: int
    timeout_seconds: float
    """Time after which a message is given up."""
    small_bytes: int
    """Largest value of a message that waits for others in the producer."""
    linger_ms: float
    """Longest time that messages wait for others: first in the producer, then in Kafka's client."""

    @property
    def own_linger_ms(self) -> float:
        """The producer's part of it."""
        return min(self.linger_ms, LINGER_MS) / 2

    @property
    def bounds(self) -> dict[str, int]:
        """Bounds of the memory, for a Kafka client that keeps them itself."""
        return {
            "queue.buffering.max.messages": min(self.max_messages, 2**31 - 1),
            "queue.buffering.max.kbytes": self.max_bytes // 1024,
        }

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "ProducerSettings":
        """Read the settings given by an application. Raises `ClientSettingsError`."""
        controller, kafka = split_settings(config)
        for name, reason in _NOT_SUPPORTED.items():
            if name in kafka:
                raise ClientSettingsError(f"{name} is not supported: {reason}")
        _check_needs(kafka, _PRODUCER_NEEDS)
        try:
            messages = int(kafka.pop("queue.buffering.max.messages", MAX_MESSAGES)) or 2**63
            kbytes = int(kafka.pop("queue.buffering.max.kbytes", MAX_KBYTES))
            milliseconds = int(kafka.get("message.timeout.ms", kafka.get("delivery.timeout.ms", 300_000)))
            small_bytes = min(int(kafka.get("message.max.bytes", SMALL_BYTES)) // 2, SMALL_BYTES)
            linger_ms = float(kafka.get("linger.ms", kafka.get("queue.buffering.max.ms", LINGER_MS)))
        except ValueError as error:
            raise ClientSettingsError(f"a bound of the producer is no number: {error}") from error
        timeout = milliseconds / 1000 or float("inf")
        return cls(controller, kafka, messages, kbytes * 1024, timeout, small_bytes, linger_ms)
