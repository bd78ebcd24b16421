"""An ensemble of ZooKeepers on loopback, whose members can be killed and frozen one by one.

Stage: beside `tests.harness.zookeeper`, one server of which each member is. What the ensemble has confirmed is on a
majority, and a member that lags answers reads from what it has.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

from anabranch.local.broker import free_ports
from tests.harness.zookeeper import EmbeddedZooKeeper, four_letters

LEADER = "leader"


class EnsembleMember(EmbeddedZooKeeper):
    """One server of an ensemble; `launch` all of them before any is waited for."""

    def __init__(self, folder: Path, jars: Path, number: int, voters: Sequence[str], port: int) -> None:
        """`number` counts from 1; `voters` are the `server.N` lines of all members, the same for each."""
        super().__init__(folder, jars)
        self.port = port
        self._number, self._voters = number, voters

    def prepare(self) -> list[str]:
        """See `EmbeddedZooKeeper`."""
        command = super().prepare()
        (self.folder / "data").mkdir(exist_ok=True)
        (self.folder / "data" / "myid").write_text(str(self._number))
        configuration = self.folder / "zoo.cfg"
        configuration.write_text(configuration.read_text() + _QUORUM + "\n".join(self._voters) + "\n")
        return [_MAIN if part == _ALONE else part for part in command]

    def mode(self) -> str:
        """`leader`, `follower`, or empty while it belongs to no majority, or does not answer."""
        lines = four_letters(self.address, b"srvr").decode(errors="replace").splitlines()
        return next((line.removeprefix("Mode: ") for line in lines if line.startswith("Mode: ")), "")

    def serves(self) -> bool:
        """See `EmbeddedZooKeeper`."""
        return bool(self.mode())

    def forget(self) -> None:
        """Delete the member's data, as an operator does when it is unreadable; the leader has all of it.

        Killed at a certain moment of an election, a ZooKeeper refuses to start again ("The current epoch, …, is older
        than the last zxid": ZOOKEEPER-1653).
        """
        shutil.rmtree(self.folder / "data")

    def freeze(self) -> None:
        """SIGSTOP."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)


class ZooKeeperEnsemble:
    """The members; a majority of them serves."""

    def __init__(self, folder: Path, jars: Path, size: int = 3) -> None:
        ports = free_ports(3 * size)
        clients, quorum, election = ports[:size], ports[size : 2 * size], ports[2 * size :]
        voters = [f"server.{at + 1}=127.0.0.1:{quorum[at]}:{election[at]}" for at in range(size)]
        self.members = [
            EnsembleMember(folder / f"zookeeper{at + 1}", jars, at + 1, voters, clients[at]) for at in range(size)
        ]

    @property
    def address(self) -> str:
        """`host:port,host:port,…` of all members."""
        return ",".join(member.address for member in self.members)

    def start(self) -> None:
        """Start all members and wait until each serves.

        They end with the calling thread. Raises `SetupError`.
        """
        for member in self.members:
            member.launch()
        for member in self.members:
            member.wait_until_serving()

    def leader(self) -> EnsembleMember | None:
        """The member that leads, or None while there is none."""
        return next((member for member in self.members if member.mode() == LEADER), None)

    def stop(self) -> None:
        """End all members."""
        for member in self.members:
            member.kill()


_ALONE = "org.apache.zookeeper.server.ZooKeeperServerMain"
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_QUORUM = """\
# In ticks: for a member to catch up with its leader, and for which it may lag before it is left behind.
initLimit=50
syncLimit=10
"""
