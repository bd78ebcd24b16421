"""Ledgers of real BookKeeper clusters, copied while bookies and the program that copies are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from anabranch.bookkeeper import sidecar as sidecar_module
from anabranch.bookkeeper.process import SidecarLost
from anabranch.bookkeeper.sidecar import (
    CONFLICT,
    FENCED,
    NO_SUCH_LEDGER,
    NOT_ENOUGH_BOOKIES,
    SOURCE_OPEN,
    TOO_LATE,
    BookKeeperSidecar,
    LedgerRefused,
)
from tests.bookkeeper.conftest import SECRET, BookKeepers, soon
from tests.waiting import wait_until

SCHEMA = {"application": "pulsar", "component": "schema", "pulsar/schemaId": "acme/app/größe"}
"""Custom metadata as Pulsar gives them to a schema's ledger."""


def refused(sidecar: BookKeeperSidecar, ledger: int, target: str = "new") -> str:
    """The name that a copy is refused with."""
    with pytest.raises(LedgerRefused) as caught:
        sidecar.copy("old", target, ledger, soon())
    return caught.value.name


@pytest.mark.parametrize(
    ("target", "entries", "size"),
    [("new", 0, 1), ("new", 1, 1), ("new", 150, 300), ("new", 3, 700_000), ("colo", 150, 300)],
)
def test_copy_keeps_ids_metadata_and_contents(bookkeepers: BookKeepers, target: str, entries: int, size: int) -> None:
    sidecar = bookkeepers.sidecar
    ledger = bookkeepers.write("old", entries=entries, size=size, custom=SCHEMA)
    copied = sidecar.copy("old", target, ledger, soon())
    verified = sidecar.verify("old", target, ledger)
    assert (copied.how, copied.last, copied.length) == ("copied", entries - 1, entries * size)
    assert (verified.same, verified.differences, len(verified.sha256)) == (True, (), 64)
    assert sidecar.open("old", ledger) == sidecar.open(target, ledger)
    assert sidecar.open(target, ledger).custom == SCHEMA
    assert sidecar.copy("old", target, ledger, soon()).how == "same"


@pytest.mark.parametrize(
    "other", [{"seed": 2}, {"entries": 4}, {"custom": {"component": "schema"}}, {"seed": 2, "leave_open": True}]
)
def test_id_of_other_ledger_refused_untouched(bookkeepers: BookKeepers, other: dict[str, object]) -> None:
    ledger = bookkeepers.write("old", custom=SCHEMA)
    bookkeepers.write("new", ledger=ledger, **{"custom": SCHEMA, **other})
    before = bookkeepers.sidecar.open("new", ledger)
    assert refused(bookkeepers.sidecar, ledger) == CONFLICT
    assert not bookkeepers.sidecar.verify("old", "new", ledger).same
    assert bookkeepers.sidecar.open("new", ledger) == before


@pytest.mark.parametrize(("entries", "is_open"), [(0, True), (2, True), (3, True), (0, False), (2, False)])
def test_partial_copy_redone_from_any_point(bookkeepers: BookKeepers, entries: int, is_open: bool) -> None:
    """Open: its program was killed; closed: a write failed."""
    ledger = bookkeepers.write("old", custom=SCHEMA)
    bookkeepers.write("new", ledger=ledger, custom=SCHEMA, entries=entries, leave_open=is_open)
    assert bookkeepers.sidecar.copy("old", "new", ledger, soon()).how == "again"
    assert bookkeepers.sidecar.verify("old", "new", ledger).same


def test_killed_copies_are_repaired(bookkeepers: BookKeepers) -> None:
    """Many copies at a time, so that the kill meets some at each step."""
    ledgers = bookkeepers.writer.write(bookkeepers.clusters["old"].uri, 16, entries=40, size=4000)
    done: list[int] = []
    ended = threading.Event()

    def copy(ledger: int) -> None:
        while ledger not in done:
            try:
                sidecar.copy("old", "new", ledger, soon())
                done.append(ledger)
            except SidecarLost:
                continue

    def kill(sidecar: BookKeeperSidecar) -> None:
        wait_until(lambda: len(done) >= 1 or ended.is_set(), 60)
        if sidecar.pid is not None and psutil.pid_exists(sidecar.pid):
            os.kill(sidecar.pid, signal.SIGKILL)

    with bookkeepers.new_sidecar(8) as sidecar, ThreadPoolExecutor(9) as pool:
        killing = pool.submit(kill, sidecar)
        list(pool.map(copy, ledgers))
        ended.set()
        killing.result()
        assert sidecar.starts > 1
    with ThreadPoolExecutor(8) as pool:
        assert all(one.same for one in pool.map(lambda one: bookkeepers.sidecar.verify("old", "new", one), ledgers))


def test_an_open_source_is_refused_until_it_is_sealed(bookkeepers: BookKeepers) -> None:
    ledger = bookkeepers.write("old", entries=20, leave_open=True)
    assert refused(bookkeepers.sidecar, ledger) == SOURCE_OPEN
    with pytest.raises(LedgerRefused, match=NO_SUCH_LEDGER):
        bookkeepers.sidecar.open("new", ledger)
    assert bookkeepers.sidecar.seal("old", ledger).last == 19
    assert bookkeepers.sidecar.copy("old", "new", ledger, soon()).last == 19


def test_ids_fenced_by_bookies_refused_by_name(bookkeepers: BookKeepers) -> None:
    """On all bookies: a copy that happens on others goes through."""
    sidecar, ledger = bookkeepers.sidecar, bookkeepers.write("old", quorum=2)
    bookkeepers.write("new", ledger=ledger, quorum=2, entries=2, leave_open=True)
    sidecar.seal("new", ledger)
    for _ in range(2):
        assert refused(sidecar, ledger) == FENCED
    assert not sidecar.verify("old", "new", ledger).same


def test_lost_source_bookie_costs_only_sole_copies(bookkeepers: BookKeepers) -> None:
    sidecar, bookies = bookkeepers.sidecar, bookkeepers.clusters["old"].bookies
    twice = bookkeepers.writer.write(bookkeepers.clusters["old"].uri, 4, quorum=2)
    # BookKeeper chooses the bookie of each at random: of twelve, all are on the same one once in two thousand runs.
    once = bookkeepers.writer.write(bookkeepers.clusters["old"].uri, 12)
    left_open = bookkeepers.writer.write(bookkeepers.clusters["old"].uri, 12, leave_open=True)
    bookies[0].kill()
    try:
        # What their metadata say is known all the same: when they were made tells where they belong.
        away = [found for ledger in left_open if (found := sidecar.open("old", ledger)).unreadable]
        assert 0 < len(away) < len(left_open)
        assert all(found.made and not found.closed for found in away)
        assert all(copied(sidecar, ledger) for ledger in twice)
        lost = [ledger for ledger in once if not copied(sidecar, ledger)]
        assert lost
        assert len(lost) < len(once)
        assert all(sidecar.open("old", ledger).last == 2 for ledger in lost)
    finally:
        bookies[0].start()
    for ledger in lost:
        wait_until(lambda ledger=ledger: copied(sidecar, ledger), 30)  # type: ignore[misc]
    assert all(sidecar.verify("old", "new", ledger).same for ledger in twice + once)


@pytest.mark.soak
def test_a_full_target_refuses_and_keeps_nothing(bookkeepers: BookKeepers) -> None:
    sidecar, [bookie] = bookkeepers.sidecar, bookkeepers.clusters["colo"].bookies
    ledger = bookkeepers.write("old")
    bookie.stop()
    bookie.settings = {"diskUsageThreshold": 0.0001, "diskUsageWarnThreshold": 0.0001, "diskUsageLwmThreshold": 0.0001}
    bookie.start()
    try:
        assert refused(sidecar, ledger, "colo") == NOT_ENOUGH_BOOKIES
        with pytest.raises(LedgerRefused, match=NO_SUCH_LEDGER):
            sidecar.open("colo", ledger)
    finally:
        bookie.stop()
        bookie.settings = {}
        bookie.start()
    wait_until(lambda: copied(sidecar, ledger, "colo"), 30)


def copied(sidecar: BookKeeperSidecar, ledger: int, target: str = "new") -> str:
    """How a ledger was copied; empty: it was not."""
    try:
        return sidecar.copy("old", target, ledger, soon()).how
    except LedgerRefused:
        return ""


def test_ledgers_are_listed_in_order_over_pages(bookkeepers: BookKeepers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sidecar_module, "_PAGE", 3)
    made = bookkeepers.writer.write(bookkeepers.clusters["old"].uri, 8, entries=0)
    made += [bookkeepers.write("old", entries=0, ledger=one) for one in (5_000_000_000, 2**33)]
    try:
        found = list(bookkeepers.sidecar.ledgers("old"))
        assert found == sorted(set(found))
        assert set(made) <= set(found)
    finally:
        for ledger in made[-2:]:
            bookkeepers.sidecar.delete("old", ledger, soon())


def test_deleting_twice_is_no_fault(bookkeepers: BookKeepers) -> None:
    ledger = bookkeepers.write("old")
    for _ in range(2):
        bookkeepers.sidecar.delete("old", ledger, soon())
    with pytest.raises(LedgerRefused, match=NO_SUCH_LEDGER):
        bookkeepers.sidecar.open("old", ledger)


def test_the_program_ends_when_who_asked_is_gone(bookkeepers: BookKeepers, tmp_path: Path) -> None:
    """Killed, so that another may be at the same ledgers already."""
    ledger = bookkeepers.write("old", entries=60, size=20_000)
    uri = {name: cluster.uri for name, cluster in bookkeepers.clusters.items()}
    requests = [
        {"id": at, "op": "connect", "cluster": name, "uri": uri[name]} for at, name in enumerate(("old", "new"))
    ]
    with open(tmp_path / "hands.log", "wb") as log:
        program = subprocess.Popen(
            bookkeepers.programs.sidecar(tmp_path, 1),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    copy = {"id": 2, "op": "copy", "from": "old", "to": "new", "ledger": ledger}
    said, _ = program.communicate("".join(f"{json.dumps(one)}\n" for one in [*requests, copy, copy]), timeout=60)
    assert program.returncode == 0
    assert len(said.splitlines()) < 4
    assert copied(bookkeepers.sidecar, ledger)


def test_secrets_stay_out_of_arguments_and_logs(bookkeepers: BookKeepers) -> None:
    assert bookkeepers.sidecar.open("new", bookkeepers.write("new")).closed
    process = psutil.Process(bookkeepers.sidecar.pid)
    assert SECRET not in f"{process.cmdline()} {process.environ()} {bookkeepers.address('new')}"
    assert SECRET not in (bookkeepers.folder / "hands.log").read_text()


def test_nothing_is_deleted_after_the_deadline(bookkeepers: BookKeepers) -> None:
    """By the program, which looks at the deadline when it deletes, however late it was asked."""
    sidecar, ledger = bookkeepers.sidecar, bookkeepers.write("old")
    half = bookkeepers.write("old", entries=3, seed=4)
    bookkeepers.write("new", ledger=half, entries=2, seed=4, leave_open=True)
    passed = int(time.time() * 1000) - 1
    for request in (
        {"op": "delete", "cluster": "old", "ledger": ledger, "until": passed},
        {"op": "delete", "cluster": "old", "ledger": ledger},
        {"op": "copy", "from": "old", "to": "new", "ledger": half, "until": passed},
    ):
        process = sidecar._running(["old", "new"])
        assert process.ask(request, 60)["error"] == TOO_LATE
    assert sidecar.open("old", ledger).closed
    assert not sidecar.open("new", half).closed
    assert sidecar.copy("old", "new", half, soon()).how == "again"
