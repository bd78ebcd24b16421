"""A Pulsar without brokers: real records in a real ZooKeeper, real ledgers of schemas and subscriptions in `old`, and
the commands of `anabranch bookies` on it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kazoo.client import KazooClient

from anabranch.bookkeeper import steps
from anabranch.bookkeeper.metadata import PulsarMetadata
from anabranch.bookkeeper.records import STAMP_PROPERTY, read_cursor, read_locator
from anabranch.bookkeeper.sidecar import BookKeeperSidecar
from anabranch.cli.bookies import switch
from anabranch.cli.bookies.clusters import Bookies
from anabranch.cli.main import cli
from tests.bookkeeper.conftest import BookKeepers, KeptSidecar
from tests.bookkeeper.messages import made

SCHEMA = {"application": "pulsar", "component": "schema"}
SWITCH = ["switch", "--target", "new", "--no-dry-run"]
ROLLBACK = ["rollback", "--no-dry-run"]
CLEANUP = ["cleanup", "--force", "--no-dry-run"]
CURSOR = {"component": "managed-ledger", "pulsar/cursor": "c3Vi"}
_NUMBERS = count(1)
DELETES_WITHIN_S = 5.0
"""Whoever takes over from one that was killed waits for it; the clusters here are quick."""
_QUICK = f"""
import sys
import anabranch.cli.bookies.switch, anabranch.bookkeeper.steps as steps
from anabranch.cli.main import cli
anabranch.cli.bookies.switch.DELETES_WITHIN_S = steps.DELETES_WITHIN_S = {DELETES_WITHIN_S}
"""
_KILLED = """
import os, signal, threading
known, carry_out, lock = sys.argv.pop(1), steps.Steps.carry_out, threading.Lock()

def killed(self, step, registry):
    this = f"{step.epoch} {step.action} {step.ledger}\\n"
    with lock, open(known, "a+") as before:
        before.seek(0)
        lines = before.readlines()
        if this in lines:
            return carry_out(self, step, registry)
        if len(lines) % 2 == 0:
            carry_out(self, step, registry)
        before.write(this)
        before.flush()
        os.kill(os.getpid(), signal.SIGKILL)

steps.Steps.carry_out = killed
cli(sys.argv[1:])
"""


class Commands:
    """The commands of `anabranch bookies` on one Pulsar, with a lake in a folder."""

    def __init__(self, address: str, folder: Path, brokers: str = "stopped", url: str = "http://127.0.0.1:1") -> None:
        """`address` of its ZooKeeper, with a root; `url`: of a broker."""
        self.address, self.folder = address, folder
        self._brokers, self._url = brokers, url

    def environment(self) -> dict[str, str]:
        """Of the commands."""
        return {**os.environ, "ANABRANCH_BOOKIES_METADATA": f"zk://{self.address}"}

    def command(self, *arguments: str) -> list[str]:
        """A command."""
        settings = self.folder / "bookies.toml"
        settings.write_text(
            f'[lake]\npath = "{self.folder}/lake"\n[controller]\nurl = "{self._url}"\n'
            f'[bookies]\nbrokers = "{self._brokers}"\nmigration_concurrency = 4\nsession_seconds = 2\n'
        )
        return [sys.executable, "-m", "anabranch", "--config", str(settings), "bookies", *arguments]

    def quick_command(self, *arguments: str) -> list[str]:
        """A command that may take over after `DELETES_WITHIN_S`."""
        return [sys.executable, "-c", f"{_QUICK}cli(sys.argv[1:])", *self.command(*arguments)[3:]]

    def killed(self, *arguments: str) -> bool:
        """Run a command that ends by SIGKILL at the first step that none was killed at yet; return whether it did.

        Every second one before the step, the others after it and before its outcome is on record.
        """
        known, rest = str(self.folder / "killed"), self.command(*arguments)[3:]
        done = subprocess.run(
            [sys.executable, "-c", _QUICK + _KILLED, known, *rest],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode in (0, -signal.SIGKILL), done.stdout + done.stderr
        return done.returncode != 0

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """It, run to its end."""
        return subprocess.run(
            self.command(*arguments), env=self.environment(), capture_output=True, text=True, timeout=240
        )

    def ok(self, *arguments: str) -> str:
        """What it prints; it has to succeed."""
        done = self.run(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def next_command(self) -> list[str] | None:
        """Return the command with which `status` says how to go on; None: there is none to be given as it is."""
        found = re.search(r"next: anabranch bookies (.* --no-dry-run)(?: goes on where it was)?$", self.ok("status"))
        return None if found is None else found[1].split()

    def answer(self, *arguments: str) -> Any:
        """The JSON that it prints, whatever its exit code."""
        done = self.run(*arguments, "--output", "json")
        assert done.stdout, done.stderr
        return json.loads(done.stdout)


class CommandsHere(Commands):
    """Those that run in this process: on known clusters with a sidecar that is there, else with new ones."""

    def __init__(self, address: str, folder: Path, sidecar: KeptSidecar, uris: dict[str, str], *brokers: str) -> None:
        """`uris`: of the sidecar's clusters by name; `brokers`: as `Commands` takes them."""
        super().__init__(address, folder, *brokers)
        self._sidecar, self._uris = sidecar, uris

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        words, new_sidecar = self.command(*arguments)[3:], Bookies._new_sidecar

        def sidecar(bookies: Bookies, clusters: dict[str, str]) -> BookKeeperSidecar:
            return self._sidecar if clusters.items() <= self._uris.items() else new_sidecar(bookies, clusters)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Bookies, "_new_sidecar", sidecar)
            for module in (steps, switch):
                patch.setattr(module, "DELETES_WITHIN_S", DELETES_WITHIN_S)
            done = CliRunner().invoke(cli, words, env=self.environment(), catch_exceptions=False)
        return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)


class PulsarLike(CommandsHere):
    """The metadata of one Pulsar under a root of its own, and the lake of its switches."""

    def __init__(self, bookkeepers: BookKeepers, client: KazooClient, root: str, folder: Path) -> None:
        uris = {name: cluster.uri for name, cluster in bookkeepers.clusters.items()}
        super().__init__(f"{bookkeepers.clusters['old'].zookeeper.address}{root}", folder, bookkeepers.sidecar, uris)
        self.bookkeepers, self.client = bookkeepers, client
        self.metadata = PulsarMetadata(client)

    def locator(self, ledgers: list[int], stamps: dict[int, str] | None = None) -> bytes:
        """A schema's record with a version in each of these ledgers."""
        entries = []
        for at, ledger in enumerate(ledgers):
            stamp = (stamps or {}).get(ledger)
            properties = [{"name": STAMP_PROPERTY, "value": stamp}] if stamp else []
            position = {"ledgerId": ledger, "entryId": 0, "properties": properties}
            entries.append({"version": at, "position": position, "hash": bytes([at])})
        return bytes(made("SchemaLocator", info=entries[-1], index=entries).SerializeToString())

    def cursor_record(self, ledger: int, stamp: str | None = None) -> bytes:
        """A subscription's record; its position is in a ledger, or with -1 in the record."""
        properties = [{"name": "owner", "value": "me"}]
        properties += [{"name": STAMP_PROPERTY, "value": stamp}] if stamp else []
        return bytes(made("ManagedCursorInfo", cursorsLedgerId=ledger, cursorProperties=properties).SerializeToString())

    def schema(self, topic: str, ledgers: list[int]) -> str:
        """A schema; its path."""
        return self._made(f"/schemas/t/n/{topic}", self.locator(ledgers))

    def cursor(self, topic: str, subscription: str, ledger: int) -> str:
        """A subscription; its path."""
        return self._made(f"/managed-ledgers/t/n/persistent/{topic}/{subscription}", self.cursor_record(ledger))

    def topic(self, topic: str, ledgers: list[int]) -> str:
        """A topic with its messages in these ledgers; its path. Before its subscriptions."""
        record = made("ManagedLedgerInfo", ledgerInfo=[{"ledgerId": one} for one in ledgers])
        return self._made(f"/managed-ledgers/t/n/persistent/{topic}", bytes(record.SerializeToString()))

    def ledgers(self, number: int = 1, custom: dict[str, str] | None = None, **what: Any) -> list[int]:
        """New ledgers of `old`."""
        writer, uri = self.bookkeepers.writer, self.bookkeepers.clusters["old"].uri
        return writer.write(uri, count=number, seed=next(_NUMBERS), custom=custom or SCHEMA, **what)

    def populate(self, schemas: int, cursors: int, versions: int = 2) -> None:
        """So many schemas, and subscriptions, each with ledgers of its own."""
        ids = self.ledgers(schemas * versions)
        for at in range(schemas):
            self.schema(f"s{at}", ids[at * versions : (at + 1) * versions])
        for at, ledger in enumerate(self.ledgers(cursors, CURSOR) if cursors else []):
            self.cursor(f"s{at % max(schemas, 1)}", f"c{at}", ledger)

    def attributions(self) -> dict[int, str | None]:
        """By ledger of a schema or subscription, its stamp."""
        found: dict[int, str | None] = {}
        for record in self.metadata.schemas():
            found |= {one.ledger: one.stamp for one in read_locator(record.content)}
        for record in self.metadata.cursors():
            cursor = read_cursor(record.content)
            found |= {cursor.ledger: cursor.stamp} if cursor.ledger >= 0 else {}
        return found

    def contents(self) -> dict[int, tuple[int, int]]:
        """Number of entries and checksum of every such ledger, read where its stamp leads."""
        clusters, read = self.bookkeepers.clusters, self.bookkeepers.writer.read
        places = {ledger: (stamp or "old").partition(":")[0] for ledger, stamp in self.attributions().items()}
        return {ledger: read(clusters[place].uri, ledger) for ledger, place in places.items()}

    def dump(self) -> dict[str, bytes]:
        """All of Pulsar's records, and the registry."""
        records = [*self.metadata.schemas(), *self.metadata.cursors()]
        path = "/admin/bookie-clusters"
        registry = [self.metadata.read(f"{path}/{name}") for name in self.metadata.children(path)]
        return {one.path: one.content for one in (*records, *(one for one in registry if one is not None))}

    def register(self, target: str = "new") -> None:
        """`old` and the target; the ids of the target are beyond those of `old`."""
        for name in ("old", target):
            self.ok("register", "--name", name, "--metadata-service-uri", self.bookkeepers.clusters[name].uri)
        self.ok("precheck", "--name", target, "--advance")

    def _made(self, path: str, content: bytes) -> str:
        self.client.create(path, content, makepath=True)
        return path


@contextmanager
def pulsar_like(bookkeepers: BookKeepers, folder: Path) -> Iterator[PulsarLike]:
    """A Pulsar with nothing in it."""
    address, root = bookkeepers.clusters["old"].zookeeper.address, f"/pulsar-{next(_NUMBERS)}"
    outside = KazooClient(address)
    outside.start()
    outside.create(root)
    outside.stop()
    outside.close()
    client = KazooClient(address + root)
    client.start()
    try:
        yield PulsarLike(bookkeepers, client, root, folder)
    finally:
        client.stop()
        client.close()
