"""Switches that are killed, frozen, overtaken and disturbed: on real clusters, each step applied once, nothing lost."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from anabranch.bookkeeper.record import read_steps
from anabranch.bookkeeper.registry import RegistryStore
from decisions.bookkeeper.decide import decide
from lake.rows import WholeTables
from schemas.bookies import BookieSnapshot
from schemas.tables.rows import DECISIONS, OUTCOMES
from tests.bookkeeper.conftest import BookKeepers
from tests.bookkeeper.pulsar_like import CLEANUP, ROLLBACK, SWITCH, PulsarLike, pulsar_like
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(900)
SUBJECT = "standalone/old-new-1"


@pytest.fixture
def pulsar(bookkeepers: BookKeepers, tmp_path: Path) -> Iterator[PulsarLike]:
    """A Pulsar with 150 ledgers, whose killed commands are waited for a third as long."""
    with pulsar_like(bookkeepers, tmp_path) as one:
        one.populate(schemas=30, cursors=60, versions=3)
        one.register()
        yield one


@contextmanager
def running(pulsar: PulsarLike, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command in a process of its own, with what it starts; all of it is ended at the end."""
    with open(pulsar.folder / "command.log", "ab") as log:
        process = subprocess.Popen(pulsar.quick_command(*arguments), env=pulsar.environment(), stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def steps_begun(pulsar: PulsarLike) -> int:
    """Steps on record."""
    return len(read_steps(str(pulsar.folder / "lake"), SUBJECT))


def moved(pulsar: PulsarLike, cluster: str) -> int:
    """Ledgers that are on a cluster, and those that are attributed to it."""
    stamps = pulsar.attributions()
    there = set(pulsar.bookkeepers.sidecar.ledgers(cluster)) & set(stamps)
    return len(there) + sum(stamp is not None and stamp.startswith(cluster) for stamp in stamps.values())


def left(pulsar: PulsarLike, cluster: str) -> int:
    """Ledgers of schemas and subscriptions that a cluster no longer has."""
    stamps = pulsar.attributions()
    return len(stamps) - len(set(pulsar.bookkeepers.sidecar.ledgers(cluster)) & set(stamps))


def killed_at(
    pulsar: PulsarLike, command: list[str], progress: Callable[[], int], instants: list[int], chance: random.Random
) -> int:
    """Run a command for each amount of progress, and kill it there; return how many were killed."""
    killed = 0
    for enough in sorted(instants):
        with running(pulsar, *command) as process:
            wait_until(lambda: process.poll() is not None or progress() >= enough, 240)  # noqa: B023
            killed += process.poll() is None
            if chance.random() < 0.5 and process.poll() is None:
                # Its sidecar first: it starts new ones, and is killed in the middle of that.
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
    return killed


@contextmanager
def one_active(pulsar: PulsarLike) -> Iterator[Counter[int]]:
    """How many clusters were ACTIVE, at every look of somebody who looks thirty times a second."""
    found: Counter[int] = Counter()
    store, ended = RegistryStore(pulsar.metadata, "/admin/bookie-clusters"), threading.Event()

    def look() -> None:
        while not ended.wait(0.03):
            # Entries are read one by one: only a look in which nothing has changed is one instant.
            before, after = store.read(), store.read()
            if before == after:
                found[sum(one.status == "ACTIVE" for one in before.clusters)] += 1

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield found
    finally:
        ended.set()
        looking.join()


@pytest.mark.parametrize(("kills", "least"), [(3, 2), pytest.param(12, 8, marks=pytest.mark.soak)])
def test_random_kills_deliver_everything_once(pulsar: PulsarLike, kills: int, least: int) -> None:
    """The switch and its bookie clients are killed again and again."""
    chance = random.Random(7)
    with one_active(pulsar) as seen:
        instants = chance.sample(range(1, 280), kills)
        assert killed_at(pulsar, SWITCH, lambda: moved(pulsar, "new"), instants, chance) >= least
        assert "150 of 150 on new" in pulsar.ok(*SWITCH)
    assert set(seen) == {1}

    assert "all in order" in pulsar.ok("check", "--contents")
    rows = WholeTables(str(pulsar.folder / "lake"))
    ends = Counter(row["decision_id"] for row in rows.rows(OUTCOMES) if row["status"] != "intent")
    assert set(ends) == {row["decision_id"] for row in rows.rows(DECISIONS)}
    assert set(ends.values()) == {1}
    assert sorted(row["seq"] for row in rows.rows(DECISIONS)) == list(range(1, len(ends) + 1))

    # What is on record with a step leads to the same step.
    for row in rows.rows(DECISIONS):
        inputs = BookieSnapshot.model_validate_json(row["inputs"])
        arguments = json.loads(row["arguments"])
        assert (row["action"], arguments["object"], arguments.get("ledger")) in {
            (one.action, one.object, one.ledger) for one in decide(inputs).steps
        }


@pytest.mark.soak
@pytest.mark.parametrize("kills", [1, 6])
def test_random_kills_of_rollback_and_cleanup_lose_nothing(pulsar: PulsarLike, kills: int) -> None:
    """Every entry is read where its ledger's stamp leads, before and after each of them."""
    chance, before = random.Random(11), pulsar.contents()
    assert (len(before), sum(entries for entries, _ in before.values())) == (150, 450)
    pulsar.ok(*SWITCH)
    assert killed_at(pulsar, ROLLBACK, lambda: moved(pulsar, "old"), chance.sample(range(151, 225), kills), chance)
    assert "150 of 150 on old" in pulsar.ok(*ROLLBACK)
    assert pulsar.contents() == before
    pulsar.ok("precheck", "--name", "new", "--advance")
    assert "150 of 150 on new" in pulsar.ok(*SWITCH)
    assert killed_at(pulsar, CLEANUP, lambda: left(pulsar, "old"), chance.sample(range(1, 75), kills), chance)
    assert "did not leave" in pulsar.run(*CLEANUP).stderr
    assert "all in order" in pulsar.ok("check", "--contents")
    assert not set(pulsar.bookkeepers.sidecar.ledgers("old")) & set(pulsar.attributions())
    assert pulsar.contents() == before


@pytest.mark.soak
def test_kill_at_every_step_is_resumed_as_status_says(bookkeepers: BookKeepers, tmp_path: Path) -> None:
    """Each next run is the command that `status` prints, and is killed at the next step."""
    with pulsar_like(bookkeepers, tmp_path) as one:
        one.populate(schemas=1, cursors=0, versions=1)
        one.register()
        for command, home, steps in ((SWITCH, "new", 2), (ROLLBACK, "old", 2), (CLEANUP, "new", 1)):
            if command[0] == "cleanup":
                one.ok("precheck", "--name", "new", "--advance")
                one.ok(*SWITCH)
            kills, following = 0, command
            while one.killed(*following):
                kills, following = kills + 1, one.next_command() or command
                assert following == command
            assert kills == steps
            stamps = one.attributions()
            assert set(stamps.values()) == {f"{home}:{ledger}" for ledger in stamps}
        assert "all in order" in one.ok("check", "--contents")
        assert not set(bookkeepers.sidecar.ledgers("old")) & set(one.attributions())


def test_frozen_process_is_fenced_after_takeover(pulsar: PulsarLike) -> None:
    with running(pulsar, *SWITCH) as frozen:
        wait_until(lambda: steps_begun(pulsar) > 0, 240)
        os.kill(frozen.pid, signal.SIGSTOP)
        assert "150 of 150 on new" in pulsar.ok(*SWITCH)
        after = pulsar.dump()
        os.kill(frozen.pid, signal.SIGCONT)
        assert frozen.wait(240) == 1
    said = (pulsar.folder / "command.log").read_text()
    assert "taken over" in said
    assert pulsar.dump() == after
    assert "all in order" in pulsar.ok("check", "--contents")
    ends = Counter(one.decision_id for one in read_steps(str(pulsar.folder / "lake"), SUBJECT) if one.end is not None)
    assert set(ends.values()) == {1}
