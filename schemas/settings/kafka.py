"""Section `[kafka]`: the brokers, and every client's access to them (`schemas.kafka.connection`)."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, SecretStr, model_validator

from schemas.kafka.connection import (
    PASSWORD_VARIABLE,
    KafkaConnection,
    SaslMechanism,
    SecurityProtocol,
    check_credential,
)
from schemas.settings.section import Section, SettingsError
from schemas.tls import TlsError, TlsFiles, client_context


def _fits_a_line(text: SecretStr) -> SecretStr:
    check_credential(text.get_secret_value())
    return text


Credential = Annotated[SecretStr, AfterValidator(_fits_a_line)]


class KafkaSettings(Section):
    """The brokers, and every client's access to them; all clients share the keys' meaning."""

    bootstrap: str
    """Kafka brokers to connect to, `host:port`, separated by commas."""
    security_protocol: SecurityProtocol
    """How clients connect: `SSL` and `SASL_SSL` encrypt, `SASL_SSL` and `SASL_PLAINTEXT` log in with a password."""
    sasl_mechanism: SaslMechanism
    """Log-in method for `SASL_…`: `SCRAM-SHA-512`, `SCRAM-SHA-256` or `PLAIN`, as the brokers are set up."""
    username: str
    """User name for `SASL_…`; needs ANABRANCH_KAFKA_PASSWORD or password_file."""
    password: Credential | None = None
    """Password of `username`; set only by the environment variable ANABRANCH_KAFKA_PASSWORD."""
    password_file: str
    """File with only the password, no line break; takes precedence over ANABRANCH_KAFKA_PASSWORD. Empty: none."""
    ca: str
    """PEM file of the CAs that signed the brokers' certificates; empty: the system's CAs."""
    certificate: str
    """PEM file of our certificate and its chain, if the brokers require one; empty: none."""
    key: str
    """PEM file of the certificate's key, PKCS#8 without a password."""

    @model_validator(mode="after")
    def _fit_together(self) -> "KafkaSettings":
        files = [name for name in ("ca", "certificate", "key") if getattr(self, name)]
        if files and not self.security_protocol.endswith("SSL"):
            raise ValueError(f"{', '.join(files)} need security_protocol SSL or SASL_SSL")
        if bool(self.certificate) != bool(self.key):
            raise ValueError("certificate and key belong together: give both or none")
        if not self.security_protocol.startswith("SASL"):
            if self.username or self.password_file:
                raise ValueError("username and password_file need security_protocol SASL_SSL or SASL_PLAINTEXT")
            return self
        if not self.username:
            raise ValueError(f"security_protocol {self.security_protocol} needs a username")
        check_credential(self.username)
        if not self.password_file and self.password is None:
            raise ValueError(
                f"the password of {self.username} is missing: set {PASSWORD_VARIABLE}, or name a file of it in "
                "password_file"
            )
        return self

    def connection(self, path: Callable[[str], Path]) -> KafkaConnection:
        """Return every client's connection; `path` makes files absolute. Raises `SettingsError`."""
        logs_in = self.security_protocol.startswith("SASL")
        password_file = path(self.password_file) if self.password_file and logs_in else None
        ca, certificate, key = (path(value) if value else None for value in (self.ca, self.certificate, self.key))
        if ca or certificate:
            try:
                client_context(TlsFiles(certificate, key, ca))
            except TlsError as error:
                raise SettingsError(f"[kafka] TLS: {error}") from error
        if key is not None and b"-----BEGIN PRIVATE KEY-----" not in key.read_bytes():
            raise SettingsError(
                f"[kafka] key: {key} is no PKCS#8 key without a password in PEM, the form that Spark's client takes: "
                "`openssl pkcs8 -topk8 -nocrypt -in OLD -out NEW` makes one"
            )
        return KafkaConnection(
            self.bootstrap,
            self.security_protocol,
            self.sasl_mechanism if logs_in else None,
            self.username,
            self.password if password_file is None else _password_in(password_file),
            password_file,
            ca,
            certificate,
            key,
        )


def _password_in(file: Path) -> SecretStr:
    try:
        return SecretStr(check_credential(file.read_text()))
    except OSError as error:
        raise SettingsError(f"[kafka] password_file: cannot read {file}: {error.strerror}") from error
    except ValueError as error:
        raise SettingsError(
            f"[kafka] password_file: {file} is to hold the password and nothing else, but {error}; `printf %s` writes "
            "no line break"
        ) from error
