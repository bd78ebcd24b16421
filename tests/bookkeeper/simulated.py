"""Pulsar's metadata and BookKeeper clusters in memory under the real commands, which can be killed at every effect.

Real are the commands, decisions, steps, registry, term, guard and lake. Simulated are ZooKeeper, as far as kazoo's
client is used, and the ledgers that the Java program handles. An effect is a write to any of them, or a commit to the
lake: `World.kill_at` ends the command right after the effect of that number, and nothing has effect any more.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from typing import Any

import pytest
from click.testing import CliRunner, Result
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, RolledBackError

import anabranch.cli.bookies.clusters
from anabranch.bookkeeper.sidecar import NO_SUCH_LEDGER, TOO_LATE, CopyResult, LedgerRefused, SeenLedger, Verified
from anabranch.cli.bookies.clusters import Bookies
from anabranch.cli.main import cli
from lake.tables import OpenTable
from tests.bookkeeper.messages import made

CLUSTERS = {"old": "a:2181", "new": "b:2181", "third": "c:2181"}
SWITCH = ("switch", "--target", "new", "--no-dry-run")
SCHEMA, CURSOR = "/schemas/t/n/s", "/managed-ledgers/t/n/persistent/t/c"


class Killed(BaseException):
    """The command was killed; nothing of it runs any more."""


@dataclass
class Znode:
    content: bytes = b""
    version: int = 0
    children: set[str] = field(default_factory=set)
    cversion: int = 0


@dataclass
class Stat:
    version: int
    cversion: int
    numChildren: int


class World:
    """All of it: ensembles by address, ledgers by cluster."""

    def __init__(self) -> None:
        self.ensembles: dict[str, dict[str, Znode]] = {}
        self.ledgers: dict[str, dict[int, SeenLedger]] = {name: {} for name in CLUSTERS}
        self.effects, self.kill_at, self.is_dead = 0, 0, False
        self.locked = False
        self.put("pulsar:2181", "/admin")
        for name, address in CLUSTERS.items():
            self.put(address, "/ledgers/INSTANCEID", f"i-{name}".encode())

    def put(self, address: str, path: str, content: bytes = b"") -> None:
        """Write a znode and those above it."""
        nodes = self.ensembles.setdefault(address, {"/": Znode()})
        parts = path.strip("/").split("/")
        for depth in range(1, len(parts) + 1):
            here, above = "/" + "/".join(parts[:depth]), "/" + "/".join(parts[: depth - 1])
            if here not in nodes:
                nodes[here] = Znode()
                nodes[above].children.add(parts[depth - 1])
                nodes[above].cversion += 1
        nodes[path].content = content

    def pulsar(self, path: str, content: bytes) -> None:
        """Write a record of Pulsar."""
        self.put("pulsar:2181", path, content)

    def live(self) -> None:
        """Raise `Killed` in what is left of a command that was killed."""
        if self.is_dead:
            raise Killed

    def effect(self) -> None:
        """Note an effect; the command ends here when it is the one."""
        self.effects += 1
        if self.effects == self.kill_at:
            self.is_dead = True
            raise Killed

    def revive(self, kill_at: int = 0) -> None:
        """Begin a command: its predecessor's session has ended."""
        self.effects, self.kill_at, self.is_dead, self.locked = 0, kill_at, False, False


class Reply:
    """An answer that is there already."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def get(self, timeout: float | None = None) -> Any:
        if isinstance(self._value, Exception):
            raise self._value
        return self._value


class Client:
    """As much of kazoo's client as the commands use."""

    def __init__(self, world: World, address: str, lock: RLock) -> None:
        self._world, self._lock = world, lock
        self._nodes = world.ensembles.setdefault(address, {"/": Znode()})

    def stop(self) -> None: ...
    def close(self) -> None: ...

    def get_async(self, path: str) -> Reply:
        node = self._node(path)
        return Reply(NoNodeError(path)) if node is None else Reply((node.content, _stat(node)))

    def exists_async(self, path: str) -> Reply:
        node = self._node(path)
        return Reply(None if node is None else _stat(node))

    def get_children_async(self, path: str) -> Reply:
        node = self._node(path)
        return Reply(NoNodeError(path)) if node is None else Reply(sorted(node.children))

    def create_async(self, path: str, content: bytes = b"") -> Reply:
        with self._lock:
            self._world.live()
            if path in self._nodes:
                return Reply(NodeExistsError(path))
            self._create(path, content)
            self._world.effect()
            return Reply(path)

    def transaction(self) -> Transaction:
        return Transaction(self)

    def commit(self, writes: list[tuple[str, str, bytes, int]]) -> Reply:
        with self._lock:
            self._world.live()
            faults = [self._fault(*one) for one in writes]
            if any(faults):
                return Reply([one or RolledBackError() for one in faults])
            for what, path, content, _ in writes:
                if what == "create":
                    self._create(path, content)
                elif what == "set":
                    self._nodes[path].content = content
                    self._nodes[path].version += 1
                elif what == "delete":
                    del self._nodes[path]
                    self._nodes[path.rpartition("/")[0] or "/"].children.remove(path.rpartition("/")[2])
            if any(what != "check" for what, *_ in writes):
                self._world.effect()
            return Reply([True] * len(writes))

    def Lock(self, path: str, name: str) -> Lock:
        return Lock(self._world, name)

    def _node(self, path: str) -> Znode | None:
        self._world.live()
        return self._nodes.get(path)

    def _create(self, path: str, content: bytes) -> None:
        self._nodes[path] = Znode(content)
        above = self._nodes[path.rpartition("/")[0] or "/"]
        above.children.add(path.rpartition("/")[2])
        above.cversion += 1

    def _fault(self, what: str, path: str, content: bytes, version: int) -> Exception | None:
        node = self._nodes.get(path)
        if what == "create":
            return NodeExistsError(path) if node else None
        if node is None:
            return NoNodeError(path)
        return None if node.version == version else BadVersionError(path)


class Transaction:
    def __init__(self, client: Client) -> None:
        self._client, self._writes = client, list[tuple[str, str, bytes, int]]()

    def create(self, path: str, content: bytes) -> None:
        self._writes.append(("create", path, content, 0))

    def check(self, path: str, version: int) -> None:
        self._writes.append(("check", path, b"", version))

    def set_data(self, path: str, content: bytes, version: int) -> None:
        self._writes.append(("set", path, content, version))

    def delete(self, path: str, version: int) -> None:
        self._writes.append(("delete", path, b"", version))

    def commit_async(self) -> Reply:
        return self._client.commit(self._writes)


class Lock:
    def __init__(self, world: World, name: str) -> None:
        self._world, self._name = world, name

    def acquire(self, timeout: float | None = None) -> bool:
        self._world.live()
        self._world.locked = True
        return True

    def release(self) -> None:
        self._world.live()
        self._world.locked = False

    def contenders(self) -> list[str]:
        return [self._name] if self._world.locked else []


class Sidecar:
    """Ledgers in memory; a copy is made in two effects, as half of one can be there."""

    def __init__(self, world: World, lock: RLock) -> None:
        self._world, self._lock = world, lock

    def ledgers(self, cluster: str) -> Iterator[int]:
        self._world.live()
        return iter(sorted(self._world.ledgers[cluster]))

    def open(self, cluster: str, ledger: int) -> SeenLedger:
        self._world.live()
        found = self._world.ledgers[cluster].get(ledger)
        if found is None:
            raise LedgerRefused(NO_SUCH_LEDGER, f"{ledger}")
        return found

    def seal(self, cluster: str, ledger: int) -> SeenLedger:
        with self._lock:
            found = self.open(cluster, ledger)
            sealed = SeenLedger(True, found.last, found.length, found.custom, found.quorums, found.made)
            self._world.ledgers[cluster][ledger] = sealed
            self._world.effect()
            return sealed

    def copy(self, source: str, target: str, ledger: int, until: float) -> CopyResult:
        with self._lock:
            found = self.open(source, ledger)
            there = self._world.ledgers[target].get(ledger)
            if there is not None and there.closed:
                return CopyResult("same", found.last, found.length)
            self._world.ledgers[target][ledger] = SeenLedger(False, -1, 0, found.custom, found.quorums, found.made)
            self._world.effect()
            self._world.ledgers[target][ledger] = found
            self._world.effect()
            return CopyResult("copied" if there is None else "again", found.last, found.length)

    def verify(self, source: str, target: str, ledger: int) -> Verified:
        here, there = self.open(source, ledger), self.open(target, ledger)
        differences = () if here == there else ("contents",)
        return Verified(not differences, differences, there.last, there.length, f"sha of {ledger}")

    def delete(self, cluster: str, ledger: int, until: float) -> None:
        with self._lock:
            self._world.live()
            if until <= 0:
                raise LedgerRefused(TOO_LATE, "the deadline has passed")
            self._world.ledgers[cluster].pop(ledger, None)
            self._world.effect()

    def close(self) -> None: ...


class Simulated:
    """One world, a lake, and the commands on them."""

    def __init__(self, folder: Path, world: World) -> None:
        self.folder, self.world, self._lock = folder, world, RLock()
        self._settings = folder / "bookies.toml"
        folder.mkdir(parents=True, exist_ok=True)
        self._settings.write_text(
            f'[lake]\npath = "{folder}/lake"\n[bookies]\nbrokers = "stopped"\nmetadata = "zk://pulsar:2181"\n'
            "migration_concurrency = 2\n"
        )

    def run(self, *arguments: str, kill_at: int = 0) -> Result | None:
        """Run a command; None: it was killed."""
        self.world.revive(kill_at)
        try:
            return CliRunner().invoke(
                cli, ["--config", str(self._settings), "bookies", *arguments], catch_exceptions=False
            )
        except Killed:
            return None

    def ok(self, *arguments: str) -> str:
        """Return what a command prints that has to succeed."""
        result = self.run(*arguments)
        assert result is not None
        assert result.exit_code == 0, result.output
        return result.output

    def next_command(self) -> list[str] | None:
        """Return the command with which `status` says how to go on; None: there is none to be given as it is."""
        found = re.search(r"next: anabranch bookies (.* --no-dry-run)(?: goes on where it was)?$", self.ok("status"))
        return None if found is None else found[1].split()

    def copied(self, folder: Path) -> Simulated:
        """Return another one in the same state."""
        shutil.copytree(self.folder, folder)
        return Simulated(folder, deepcopy(self.world))

    def connected(self, address: str) -> Client:
        return Client(self.world, address, self._lock)

    def sidecar(self) -> Sidecar:
        return Sidecar(self.world, self._lock)

    @contextmanager
    def under_the_commands(self) -> Iterator[None]:
        """Put the world under `anabranch bookies`, and its commits to the lake among the effects."""
        simulated, append = self, OpenTable.append

        class OfWorld(Bookies):
            def _connected(self, address: str, context: Any, chroot: str, logs_in: bool) -> Any:
                return simulated.connected(address)

            def _new_sidecar(self, clusters: Mapping[str, str]) -> Any:
                return simulated.sidecar()

        def committed(table: OpenTable, *arguments: Any) -> Any:
            simulated.world.live()
            result = append(table, *arguments)
            simulated.world.effect()
            return result

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(anabranch.cli.bookies.clusters, "Bookies", OfWorld)
            patch.setattr(OpenTable, "append", committed)
            patch.setattr("anabranch.cli.bookies.switch.DELETES_WITHIN_S", -1.0)
            yield


def _stat(node: Znode) -> Stat:
    return Stat(node.version, node.cversion, len(node.children))


def ledger(number: int, component: str = "schema") -> SeenLedger:
    """Return a closed ledger, made long ago."""
    return SeenLedger(True, 2, 600, {"component": component, "id": str(number)}, (1, 1, 1), 1_600_000_000_000)


def locator(*ledgers: int) -> bytes:
    """Return a schema's record with a version in each of these ledgers."""
    entries = [
        {"version": at, "position": {"ledgerId": one, "entryId": 0}, "hash": bytes([at])}
        for at, one in enumerate(ledgers)
    ]
    return bytes(made("SchemaLocator", info=entries[-1], index=entries).SerializeToString())


def cursor_record(number: int, **over: Any) -> bytes:
    """Return a subscription's record."""
    return bytes(made("ManagedCursorInfo", cursorsLedgerId=number, **over).SerializeToString())


def world() -> World:
    """Return a Pulsar with a schema and a subscription on `old`."""
    one = World()
    one.ledgers["old"] = {1: ledger(1), 2: ledger(2, "managed-ledger")}
    one.pulsar(SCHEMA, locator(1))
    one.pulsar(CURSOR, cursor_record(2))
    for number in range(3):
        one.put("a:2181", f"/ledgers/idgen/ID-{number}")
    return one


def registered(simulated: Simulated, *names: str) -> None:
    """Register clusters, and raise the ids of all but the first."""
    for name in names:
        simulated.ok("register", "--name", name, "--metadata-service-uri", f"zk://{CLUSTERS[name]}/ledgers")
    for name in names[1:2]:
        simulated.ok("precheck", "--name", name, "--advance")
