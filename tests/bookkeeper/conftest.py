"""Real BookKeeper clusters: `old` of two bookies, `new` of two under a ZooKeeper of its own, `colo` of one beside
`old` under another root of the same ZooKeeper."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from anabranch.bookkeeper.sidecar import BookKeeperAddress, BookKeeperSidecar
from anabranch.local.bookies.programs import BookKeeperPrograms, ensure_programs
from anabranch.local.setup import Jars
from schemas.settings.root import load_settings
from tests.harness.bookkeeper import BookKeeperCluster, start_clusters
from tests.harness.ledger_writer import LedgerWriter
from tests.harness.zookeeper import EmbeddedZooKeeper

SECRET = "hush-hush"


def soon() -> float:
    """Return a deadline that no deletion of a test misses."""
    return time.time() + 120


class KeptSidecar(BookKeeperSidecar):
    """Sidecar that one command after the other uses in this process: each would wait seconds for a JVM of its own."""

    def close(self) -> None:
        """A command has ended."""

    def end(self) -> None:
        """No more commands come."""
        super().close()


@dataclass
class BookKeepers:
    """The clusters, the sidecar over all of them, and what writes ledgers."""

    clusters: dict[str, BookKeeperCluster]
    programs: BookKeeperPrograms
    folder: Path
    sidecar: KeptSidecar
    writer: LedgerWriter

    def write(self, cluster: str, **what: object) -> int:
        """One ledger of `cluster`, as `LedgerWriter.write` takes it; its id."""
        [ledger] = self.writer.write(self.clusters[cluster].uri, **what)  # type: ignore[arg-type]
        return ledger

    def address(self, cluster: str) -> BookKeeperAddress:
        """Where a cluster is, and a secret that its bookies do not ask for."""
        return BookKeeperAddress(self.clusters[cluster].uri, {"clientAuthProviderSecret": SECRET})

    def new_sidecar(self, concurrency: int = 16) -> BookKeeperSidecar:
        """Sidecar with a program of its own."""
        return BookKeeperSidecar(*self._of_sidecar(concurrency), concurrency)

    def kept_sidecar(self) -> KeptSidecar:
        """Those that stay."""
        return KeptSidecar(*self._of_sidecar(16))

    def _of_sidecar(self, concurrency: int) -> tuple[list[str], dict[str, BookKeeperAddress], Path]:
        addresses = {name: self.address(name) for name in self.clusters}
        return self.programs.sidecar(self.folder, concurrency), addresses, self.folder / "hands.log"


@pytest.fixture(scope="session")
def bookkeepers(jars: Jars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BookKeepers]:
    """All of it for the whole session; every test takes ledgers of its own."""
    folder = tmp_path_factory.mktemp("bookies")
    programs = ensure_programs(load_settings(environment={}), print)
    servers = [EmbeddedZooKeeper(folder / f"zookeeper-{name}", jars.zookeeper) for name in ("a", "b")]
    clusters = {
        "old": BookKeeperCluster(folder / "old", programs.jars, servers[0], bookies=2),
        "new": BookKeeperCluster(folder / "new", programs.jars, servers[1], bookies=2),
        "colo": BookKeeperCluster(folder / "colo", programs.jars, servers[0], root="/second/ledgers"),
    }
    made = BookKeepers(clusters, programs, folder, None, None)  # type: ignore[arg-type]
    try:
        for server in servers:
            server.launch()
        for server in servers:
            server.wait_until_serving()
        start_clusters(*clusters.values())
        made.sidecar, made.writer = made.kept_sidecar(), LedgerWriter(programs, folder)
        # Ids of `old` begin above those that a test may have `new` and `colo` choose: a copy keeps its id.
        made.writer.write(clusters["old"].uri, 100, entries=0)
        yield made
    finally:
        if made.sidecar is not None:
            made.sidecar.end()
        if made.writer is not None:
            made.writer.close()
        for cluster in clusters.values():
            cluster.stop()
        for server in servers:
            server.kill()


@pytest.fixture
def client(bookkeepers: BookKeepers) -> Iterator[KazooClient]:
    """A client of the ZooKeeper of `old` and `colo`."""
    one = KazooClient(bookkeepers.clusters["old"].zookeeper.address)
    one.start()
    try:
        yield one
    finally:
        one.stop()
        one.close()
