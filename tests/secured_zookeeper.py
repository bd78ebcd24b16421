"""A real ZooKeeper with a second port behind TLS, where every client has to show a certificate."""

from __future__ import annotations

from pathlib import Path

import pyspark

from anabranch.local.broker import free_ports
from anabranch.local.setup import Jars
from tests import tls
from tests.harness.zookeeper import EmbeddedZooKeeper


class SecuredZooKeeper(EmbeddedZooKeeper):
    """One server process with the certificate `server`; `address` is the port without TLS."""

    def __init__(self, folder: Path, jars: Jars) -> None:
        super().__init__(folder, jars.zookeeper)
        self.secure_port = free_ports(1)[0]

    def prepare(self) -> list[str]:
        """As of a server without TLS, and what that needs more. Netty is in Spark's package already."""
        command = super().prepare()
        both = self.folder / "server.pem"
        both.write_text(tls.key("server").read_text() + tls.certificate("server").read_text())
        with (self.folder / "zoo.cfg").open("a", encoding="utf-8") as configuration:
            configuration.write(
                f"secureClientPort={self.secure_port}\nsecureClientPortAddress=127.0.0.1\n"
                "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n"
                f"ssl.keyStore.type=PEM\nssl.keyStore.location={both}\n"
                f"ssl.trustStore.type=PEM\nssl.trustStore.location={tls.CA}\nssl.clientAuth=need\n"
            )
        path = command.index("-cp") + 1
        netty = (Path(pyspark.__file__).parent / "jars").glob("netty-*.jar")
        command[path] = ":".join([command[path], *map(str, netty)])
        return command
