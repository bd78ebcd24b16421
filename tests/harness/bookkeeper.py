"""BookKeeper clusters on loopback, from the checked jars; bookies start, stop and die one by one.

Each cluster has a ZooKeeper chroot and bookies of its own.

Stage: the real clusters of `anabranch.bookkeeper`. Two clusters are co-located when they are given one ZooKeeper and
two chroots, and split when each has its own. Data survives kill -9; a bookie keeps its port.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from kazoo.client import KazooClient

from anabranch.local.broker import free_ports
from anabranch.local.embedded import EmbeddedServer
from anabranch.local.pulsar.jvm import command, loopback, write_properties
from runtime.java_home import SetupError
from tests.harness.pulsar.cluster import BOOKIE
from tests.harness.zookeeper import EmbeddedZooKeeper

_FLAGS = ("-Djava.net.preferIPv4Stack=true",)
_SESSION_MS = 4000
"""A bookie that was killed is known to be gone after so long, and starts again only then."""
_FORMAT_SECONDS = 60
_REGISTER_SECONDS = 60


class Bookie(EmbeddedServer):
    """One bookie in a JVM of its own."""

    NAME, LOG = "bookie", "bookie.log"

    def __init__(self, folder: Path, jars: Path, uri: str) -> None:
        """`uri` is the metadata service URI of its cluster."""
        super().__init__(folder, jars, "128m")
        [self.port] = free_ports(1)
        self._uri = uri
        self.settings: dict[str, object] = {}
        """Laid over its configuration at the next start."""

    @property
    def id(self) -> str:
        """Bookie id in its cluster's list."""
        return f"127.0.0.1:{self.port}"

    def configure(self) -> Path:
        """Write the configuration and return its file."""
        file = self.folder / "bookie.conf"
        write_properties(
            file,
            {
                **BOOKIE,
                "zkTimeout": _SESSION_MS,
                "metadataServiceUri": self._uri,
                "bookiePort": self.port,
                "listeningInterface": loopback(),
                "journalDirectory": self.folder / "journal",
                "ledgerDirectories": self.folder / "ledgers",
                **self.settings,
            },
        )
        return file

    def prepare(self) -> list[str]:
        """See `EmbeddedServer`."""
        main = "org.apache.bookkeeper.server.Main"
        return self.run(main, "--conf", str(self.configure()))

    def run(self, main: str, *arguments: str) -> list[str]:
        """The command that runs a class of BookKeeper."""
        return command(self.folder, self._jars, self._heap, main, *arguments, flags=_FLAGS)

    def serves(self) -> bool:
        """Return True if the bookie accepts connections."""
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True


class BookKeeperCluster:
    """A chroot of a ZooKeeper that runs, and bookies."""

    def __init__(
        self, folder: Path, jars: Path, zookeeper: EmbeddedZooKeeper, root: str = "/ledgers", bookies: int = 1
    ) -> None:
        """Prepare a cluster with its ledger metadata under `root`.

        Another `root` makes another cluster on the same ZooKeeper.
        """
        self.root, self.zookeeper = root, zookeeper
        self.uri = f"zk+hierarchical://{zookeeper.address}{root}"
        self.bookies = [Bookie(Path(folder) / f"bookie{at + 1}", jars, self.uri) for at in range(bookies)]

    def start(self) -> None:
        """Start all bookies, also killed ones, and wait until clients find them.

        They end with the calling thread. Raises `SetupError`.
        """
        self.format()
        self.launch()
        self.wait_until_serving()

    def format(self) -> None:
        """Write the metadata of a new cluster unless they exist."""
        with self._client() as client:
            # BookKeeper makes the last part of the path only.
            client.ensure_path(self.root.rpartition("/")[0] or "/")
            if client.exists(f"{self.root}/INSTANCEID"):
                return
        first = self.bookies[0]
        main, file = "org.apache.bookkeeper.bookie.BookieShell", str(first.configure())
        done = subprocess.run(
            first.run(main, "-conf", file, "initnewcluster"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_FORMAT_SECONDS,
            cwd=first.folder,
        )
        if done.returncode:
            raise SetupError(f"BookKeeper's metadata at {self.uri} were not written: {done.stdout[-800:]}")

    def launch(self) -> None:
        """Start all bookies without waiting."""
        for bookie in self.bookies:
            bookie.launch()

    def wait_until_serving(self) -> None:
        """Wait until clients find all bookies, a little after these listen."""
        for bookie in self.bookies:
            bookie.wait_until_serving()
        end = time.monotonic() + _REGISTER_SECONDS
        with self._client() as client:
            while not {bookie.id for bookie in self.bookies} <= set(client.get_children(f"{self.root}/available")):
                if time.monotonic() > end:
                    raise SetupError(f"the bookies of {self.uri} did not register: see {self.bookies[0].log}")
                time.sleep(0.02)

    def available(self) -> set[str]:
        """Return the `Bookie.id` of every bookie that clients find.

        A killed bookie stays among them until its session ends.
        """
        with self._client() as client:
            return set(client.get_children(f"{self.root}/available"))

    def stop(self) -> None:
        """End all bookies."""
        for bookie in self.bookies:
            bookie.kill()

    @contextmanager
    def _client(self) -> Iterator[KazooClient]:
        client = KazooClient(self.zookeeper.address)
        client.start()
        try:
            yield client
        finally:
            client.stop()
            client.close()


def start_clusters(*clusters: BookKeeperCluster) -> None:
    """Start several at once."""
    with ThreadPoolExecutor(len(clusters)) as pool:
        list(pool.map(BookKeeperCluster.format, clusters))
    for cluster in clusters:
        cluster.launch()
    for cluster in clusters:
        cluster.wait_until_serving()
