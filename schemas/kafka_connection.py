"""How every client of ours reaches Kafka: one value, in librdkafka's names and in those of the JVM's client.

Stage: made from `[kafka]` by `kafka_connection`, handed to whatever opens a client. Nothing else names an option of
transport or authentication, so a client that was forgotten cannot exist.

Secrets stay out of Spark: what the JVM is given are references, `${env:…}` and `${directory:…}`, that Kafka's own
configuration providers (KIP-297, KIP-421) resolve inside the client. So no plan, log, user interface, event log or
checkpoint ever holds one; the environment or the file has to be the same on every node that reads Kafka.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import SecretStr

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]

PASSWORD_VARIABLE = "ANABRANCH_KAFKA_PASSWORD"

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_PROVIDERS = {
    "config.providers": "env,directory",
    "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
    "config.providers.env.param.allowlist.pattern": PASSWORD_VARIABLE,
    "config.providers.directory.class": "org.apache.kafka.common.config.provider.DirectoryConfigProvider",
}
_PLAIN_TEXT = re.compile(r'[^"\\\x00-\x1f\x7f]+')
"""What can stand between the quotes of a JAAS line as it is."""


def check_credential(text: str) -> str:
    """`text`; raises `ValueError` for what the JVM's client could not be given."""
    if not _PLAIN_TEXT.fullmatch(text):
        raise ValueError("it is empty, or holds a quotation mark, a backslash, a line break or a control character")
    return text


@dataclass(frozen=True)
class KafkaConnection:
    """Brokers, and how to speak to them. Files are absolute paths; without any of them nothing is encrypted."""

    bootstrap: str
    """host:port[,host:port…] of the brokers."""
    protocol: SecurityProtocol = "PLAINTEXT"
    mechanism: SaslMechanism | None = None
    username: str = ""
    password: SecretStr | None = None
    password_file: Path | None = None
    """Where `password` is from; None: from the environment."""
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def librdkafka(self, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The configuration of a client of confluent-kafka; `options` are the client's own."""
        return {**(options or {}), **self._librdkafka()}

    def _librdkafka(self) -> dict[str, Any]:
        found: dict[str, Any] = {"bootstrap.servers": self.bootstrap}
        if self.protocol == "PLAINTEXT":
            return found
        found["security.protocol"] = self.protocol
        if self.mechanism is not None:
            found |= {"sasl.mechanism": self.mechanism, "sasl.username": self.username}
            found["sasl.password"] = self.password.get_secret_value() if self.password else ""
        if self.ca is not None:
            found["ssl.ca.location"] = str(self.ca)
        if self.certificate is not None and self.key is not None:
            found |= {"ssl.certificate.location": str(self.certificate), "ssl.key.location": str(self.key)}
        return found

    def jvm(self) -> dict[str, str]:
        """The same for the JVM's client; secrets are references."""
        found = {"bootstrap.servers": self.bootstrap}
        if self.protocol == "PLAINTEXT":
            return found
        found |= {"security.protocol": self.protocol, **_PROVIDERS}
        if self.mechanism is not None:
            password = f"${{env:{PASSWORD_VARIABLE}}}" if self.password_file is None else _content(self.password_file)
            found["sasl.mechanism"] = self.mechanism
            found["sasl.jaas.config"] = (
                f'{_LOGIN_MODULES[self.mechanism]} required username="{self.username}" password="{password}";'
            )
        if self.ca is not None:
            found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.ca)}
        if self.certificate is not None and self.key is not None:
            found |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.certificate.chain": _content(self.certificate),
                "ssl.keystore.key": _content(self.key),
            }
        return found

    def spark(self) -> dict[str, str]:
        """`jvm` as options of Spark's Kafka source."""
        return {f"kafka.{name}": value for name, value in self.jvm().items()}

    @property
    def is_encrypted(self) -> bool:
        """Whether strangers on the way can read nothing, and change nothing."""
        return self.protocol in ("SSL", "SASL_SSL")


def _content(file: Path) -> str:
    return f"${{directory:{file.parent}:{file.name}}}"
