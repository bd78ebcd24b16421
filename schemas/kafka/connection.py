"""The connection to Kafka, one value for librdkafka and for the JVM's client.

Stage: built from `[kafka]` by `kafka_connection`, given to whatever opens a client. No other code names an option of
transport or authentication, so no client can be missed.

Secrets stay out of Spark: the JVM gets references, `${env:…}` and `${directory:…}`, that Kafka's own configuration
providers (KIP-297, KIP-421) resolve inside the client. So no plan, log, user interface, event log or checkpoint
holds one; the environment or the file must be the same on every node that reads Kafka.
"""

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
"""Characters allowed unescaped between the quotes of a JAAS line."""


def check_credential(text: str) -> str:
    """Return `text`; raises `ValueError` if the JVM's client cannot take it."""
    if not _PLAIN_TEXT.fullmatch(text):
        raise ValueError("it is empty, or holds a quotation mark, a backslash, a line break or a control character")
    return text


@dataclass(frozen=True)
class KafkaConnection:
    """Brokers and access to them. Files are absolute paths; by default nothing is encrypted."""

    bootstrap: str
    """host:port[,host:port…] of the brokers."""
    protocol: SecurityProtocol = "PLAINTEXT"
    mechanism: SaslMechanism | None = None
    username: str = ""
    password: SecretStr | None = None
    password_file: Path | None = None
    """Source of `password`; None: the environment."""
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def librdkafka(self, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the configuration for a client of confluent-kafka; `options` are the client's own."""
        return {**(options or {}), **self._librdkafka()}

    def _librdkafka(self) -> dict[str, Any]:
        options: dict[str, Any] = {"bootstrap.servers": self.bootstrap}
        if self.protocol == "PLAINTEXT":
            return options
        options["security.protocol"] = self.protocol
        if self.mechanism is not None:
            options |= {"sasl.mechanism": self.mechanism, "sasl.username": self.username}
            options["sasl.password"] = self.password.get_secret_value() if self.password else ""
        if self.ca is not None:
            options["ssl.ca.location"] = str(self.ca)
        if self.certificate is not None and self.key is not None:
            options |= {"ssl.certificate.location": str(self.certificate), "ssl.key.location": str(self.key)}
        return options

    def jvm(self) -> dict[str, str]:
        """Return the configuration for the JVM's client; secrets are references."""
        options = {"bootstrap.servers": self.bootstrap}
        if self.protocol == "PLAINTEXT":
            return options
        options |= {"security.protocol": self.protocol, **_PROVIDERS}
        if self.mechanism is not None:
            password = f"${{env:{PASSWORD_VARIABLE}}}" if self.password_file is None else _content(self.password_file)
            options["sasl.mechanism"] = self.mechanism
            options["sasl.jaas.config"] = (
                f'{_LOGIN_MODULES[self.mechanism]} required username="{self.username}" password="{password}";'
            )
        if self.ca is not None:
            options |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.ca)}
        if self.certificate is not None and self.key is not None:
            options |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.certificate.chain": _content(self.certificate),
                "ssl.keystore.key": _content(self.key),
            }
        return options

    def spark(self) -> dict[str, str]:
        """Return `jvm` as options of Spark's Kafka source."""
        return {f"kafka.{name}": value for name, value in self.jvm().items()}

    @property
    def is_encrypted(self) -> bool:
        """True if traffic is protected against reading and modification."""
        return self.protocol in ("SSL", "SASL_SSL")


def _content(file: Path) -> str:
    return f"${{directory:{file.parent}:{file.name}}}"
