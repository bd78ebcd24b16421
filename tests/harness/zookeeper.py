"""The embedded ZooKeeper: one server on loopback, from the checked jars, in a folder of its own.

Stage: what `anabranch.controller.metadata.zookeeper` talks to in tests and in a local run with several controllers.
Data survives kill -9; the port is chosen once per object, so that clients find a restarted server again.
"""

from __future__ import annotations

import socket
from pathlib import Path

from anabranch.local.broker import check_port_is_free, free_ports
from anabranch.local.embedded import EmbeddedServer
from runtime.java_home import find_java

_FLAGS = [
    "-Xms32m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dzookeeper.4lw.commands.whitelist=ruok,srvr,wchs,wchc",
    "-Dzookeeper.admin.enableServer=false",
]
_TICK_MS = 200
"""Sessions end at a multiple of this; the shortest session that a client may ask for is two of them."""


class EmbeddedZooKeeper(EmbeddedServer):
    """ZooKeeper server process with a fixed address.

    `address` is known from the start and stays the same across restarts of the process.
    """

    NAME, LOG = "ZooKeeper", "zookeeper.log"

    def __init__(self, folder: Path, jars: Path, heap: str = "128m", port: int = 0) -> None:
        """`folder` holds data, configuration and log; `port` 0 means a free one."""
        super().__init__(folder, jars, heap)
        if port:
            check_port_is_free(port, "the embedded ZooKeeper")
        self.port = port or free_ports(1)[0]

    @property
    def address(self) -> str:
        """`host:port` of the server."""
        return f"127.0.0.1:{self.port}"

    def prepare(self) -> list[str]:
        """Write the configuration and return the command that runs the server."""
        self.folder.mkdir(parents=True, exist_ok=True)
        configuration = self.folder / "zoo.cfg"
        configuration.write_text(
            _CONFIGURATION.format(port=self.port, data=self.folder / "data", tick=_TICK_MS), encoding="utf-8"
        )
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        return [find_java(), f"-Xmx{self._heap}", *_FLAGS, "-cp", f"{self._jars}/*", main, str(configuration)]

    def serves(self) -> bool:
        """Return True if the server answers clients now."""
        return is_serving(self.address)


def is_serving(address: str) -> bool:
    """Return True if the ZooKeeper at `address` answers within a second."""
    return four_letters(address, b"ruok") == b"imok"


def four_letters(address: str, word: bytes) -> bytes:
    """The answer to one of ZooKeeper's four-letter words; empty when there is none within a second."""
    host, _, port = address.rpartition(":")
    found = b""
    try:
        with socket.create_connection((host, int(port)), 1) as connection:
            connection.sendall(word)
            while part := connection.recv(4096):
                found += part
    except OSError:
        return b""
    return found


_CONFIGURATION = """\
dataDir={data}
clientPortAddress=127.0.0.1
clientPort={port}
tickTime={tick}
maxSessionTimeout=60000
# Every start and every test connects from 127.0.0.1.
maxClientCnxns=0
autopurge.snapRetainCount=3
autopurge.purgeInterval=1
"""
