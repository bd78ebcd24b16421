"""A real broker that lets nobody in without certificate and password, and nobody do what no ACL allows."""

from __future__ import annotations

from pathlib import Path

from pydantic import SecretStr

from anabranch.local.broker import EmbeddedBroker
from anabranch.local.setup import Jars
from schemas.kafka.connection import KafkaConnection, SaslMechanism
from tests import tls

ADMIN = "admin"
USERS = (ADMIN, "reporter", "controller", "job", "executor", "report", "client", "stranger")
MECHANISM: SaslMechanism = "SCRAM-SHA-512"


def password_of(user: str) -> str:
    """With what JAAS, TOML or a shell might take for its own."""
    return f"{user}'s $ecret; #1"


class SecuredBroker(EmbeddedBroker):
    """One broker process with the certificate `server`, and the users of `USERS`."""

    protocol = "SASL_SSL"
    format_options = tuple(
        argument
        for user in USERS
        for argument in ("--add-scram", f"{MECHANISM}=[name={user},password={password_of(user)}]")
    )

    def __init__(self, folder: Path, jars: Jars) -> None:
        super().__init__(folder, jars.kafka)

    def extra_properties(self) -> str:
        """The listener's certificate and mechanism, and who may do what without an ACL."""
        stores = self.folder / "server.pem"
        stores.write_text(tls.key("server").read_text() + tls.certificate("server").read_text())
        login = "org.apache.kafka.common.security.scram.ScramLoginModule required"
        return (
            f"ssl.keystore.type=PEM\nssl.keystore.location={stores}\n"
            f"ssl.truststore.type=PEM\nssl.truststore.location={tls.CA}\n"
            "listener.name.sasl_ssl.ssl.client.auth=required\n"
            f"sasl.enabled.mechanisms={MECHANISM}\nsasl.mechanism.inter.broker.protocol={MECHANISM}\n"
            f"listener.name.sasl_ssl.{MECHANISM.lower()}.sasl.jaas.config={login} "
            f'username="{ADMIN}" password="{password_of(ADMIN)}";\n'
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
            # Without a name are the controller's own connections alone.
            f"super.users=User:{ADMIN};User:ANONYMOUS\n"
        )

    @property
    def connection(self) -> KafkaConnection:
        """How the administrator reaches it."""
        return self.connection_of(ADMIN)

    def connection_of(self, user: str) -> KafkaConnection:
        """How a user reaches it."""
        return KafkaConnection(
            self.bootstrap,
            "SASL_SSL",
            MECHANISM,
            user,
            SecretStr(password_of(user)),
            ca=tls.CA,
            certificate=tls.certificate("client"),
            key=tls.key("client"),
        )
