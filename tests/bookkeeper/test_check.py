"""Invariants found broken by `check`, from nothing but what the commands recorded and what the stores show."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from anabranch.bookkeeper.guard import BROKERS
from anabranch.bookkeeper.records import STAMP_PROPERTY, stamp_cursor, stamp_locator
from decisions.bookkeeper.invariants import INVARIANTS
from tests.bookkeeper.messages import made
from tests.bookkeeper.simulated import (
    CURSOR,
    SCHEMA,
    SWITCH,
    Client,
    Simulated,
    Znode,
    cursor_record,
    ledger,
    locator,
    registered,
    world,
)

CLEANUP = ("cleanup", "--force", "--no-dry-run")
REGISTRY = "/admin/bookie-clusters"
OF_BROKERS = {"I4", "I5", "I6"}
"""Of handles and clients, and of what brokers have taken up, which none reports."""


@pytest.fixture(scope="module")
def switched(tmp_path_factory: pytest.TempPathFactory) -> Simulated:
    """A switch, killed once, that is done; none of its invariants is broken."""
    one = Simulated(tmp_path_factory.mktemp("check") / "switched", world())
    with one.under_the_commands():
        registered(one, "old", "new")
        assert one.run(*SWITCH, kill_at=12) is None
        one.ok(*SWITCH)
        assert found(one) == set()
    return one


@pytest.fixture
def sim(switched: Simulated, tmp_path: Path) -> Iterator[Simulated]:
    """A copy of it."""
    one = switched.copied(tmp_path / "checked")
    with one.under_the_commands():
        yield one


def node(one: Simulated, path: str) -> Znode:
    return one.world.ensembles["pulsar:2181"][path]


def made_after_the_record(one: Simulated) -> None:
    one.world.ledgers["new"][5] = replace(ledger(5), made=4_000_000_000_000)
    one.world.pulsar("/schemas/t/n/late", locator(5))


def copy_lost(one: Simulated) -> None:
    del one.world.ledgers["new"][1]


def restored_from_a_backup(one: Simulated) -> None:
    one.world.ensembles["pulsar:2181"][SCHEMA] = Znode(locator(1), 0)


def flipped_back(one: Simulated) -> None:
    for name, status in (("old", "ACTIVE"), ("new", "DEPRECATED")):
        _registry(one, name, status=status)


def garbled(one: Simulated) -> None:
    node(one, SCHEMA).content = b"\xff"


def copy_altered(one: Simulated) -> None:
    one.world.ledgers["new"][1] = replace(ledger(1), length=1)


def position_altered(one: Simulated) -> None:
    record = cursor_record(2, markDeleteLedgerId=7, markDeleteEntryId=8)
    node(one, CURSOR).content = stamp_cursor(record, "new:2")


def version_altered(one: Simulated) -> None:
    entry = {"version": 0, "position": {"ledgerId": 1, "entryId": 4}, "hash": b"other"}
    record = made("SchemaLocator", info=entry, index=[entry])
    node(one, SCHEMA).content = stamp_locator(bytes(record.SerializeToString()), {1: "new:1"})


def ids_met(one: Simulated) -> None:
    one.world.ledgers["old"][9 << 32] = ledger(9 << 32)


def two_active(one: Simulated) -> None:
    _registry(one, "old", status="ACTIVE")


def overtaken_and_wrote(one: Simulated) -> None:
    """A step of the orchestrator that was killed comes after those of the one that took over."""
    for table, key, least, over in (
        ("decisions", "seq", 1, {"seq": 99}),
        ("outcomes", "executor", None, {"at": datetime.now(timezone.utc)}),
    ):
        path = f"{one.folder}/lake/{table}"
        rows = [row for row in DeltaTable(path).to_pyarrow_table().to_pylist() if row.get("status") != "intent"]
        first = min(row[key] for row in rows) if least is None else least
        row = next(row for row in rows if row[key] == first)
        schema = DeltaTable(path).to_pyarrow_table().schema
        write_deltalake(path, pa.Table.from_pylist([{**row, "decision_id": "late", **over}], schema), mode="append")


def deleted_where_it_leads(one: Simulated) -> None:
    one.ok(*CLEANUP)
    node(one, SCHEMA).content = stamp_locator(locator(1), {1: "old:1"})


def reserved_property(one: Simulated) -> None:
    properties = [{"name": "_pulsar.mine", "value": "x"}, {"name": STAMP_PROPERTY, "value": "new:2"}]
    node(one, CURSOR).content = cursor_record(2, cursorProperties=properties)


def bootstrap_rewritten(one: Simulated) -> None:
    _registry(one, "bootstrap", recordedAt=1)


def _registry(one: Simulated, name: str, **over: object) -> None:
    found = node(one, f"{REGISTRY}/{name}")
    found.content = json.dumps({**json.loads(found.content), **over}).encode()


BROKEN: list[tuple[str, Callable[[Simulated], None]]] = [
    ("I1", made_after_the_record),
    ("I2", copy_lost),
    ("I3", restored_from_a_backup),
    ("I6", flipped_back),
    ("I7", garbled),
    ("I8", copy_altered),
    ("I9", position_altered),
    ("I10", version_altered),
    ("I11", ids_met),
    ("I12", two_active),
    ("I14", overtaken_and_wrote),
    ("I15", deleted_where_it_leads),
    ("I16", reserved_property),
    ("I17", bootstrap_rewritten),
]


def found(one: Simulated) -> set[str]:
    """Return the invariants that `check` says are broken."""
    result = one.run("check", "--contents")
    assert result is not None
    return {line.split()[0] for line in result.output.splitlines() if " does not hold: " in line}


@pytest.mark.parametrize(("invariant", "break_it"), BROKEN, ids=[one for one, _ in BROKEN])
def test_broken_invariant_found_in_records(
    sim: Simulated, invariant: str, break_it: Callable[[Simulated], None]
) -> None:
    break_it(sim)
    assert invariant in found(sim)


def test_broker_started_during_promotion_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Simulated(tmp_path / "raced", world())
    commit = Client.commit

    def raced(client: Client, writes: list[tuple[str, str, bytes, int]]) -> object:
        if any(what == "set" and path == CURSOR for what, path, *_ in writes):
            one.world.put("pulsar:2181", f"{BROKERS}/broker-1:8080")
        return commit(client, writes)

    with one.under_the_commands():
        registered(one, "old", "new")
        monkeypatch.setattr(Client, "commit", raced)
        one.run(*SWITCH)
        assert "I13" in found(one)


def test_what_cannot_be_seen_is_said(sim: Simulated) -> None:
    shown = sim.ok("check")
    assert f"all in order; not checked: {', '.join(sorted(OF_BROKERS))}" in shown
    assert all(f"{name} is not checked: " in shown for name in OF_BROKERS)
    assert {name for name, _ in BROKEN} | {"I13"} | OF_BROKERS == set(INVARIANTS)


def test_without_a_switch_most_is_unseen(tmp_path: Path) -> None:
    one = Simulated(tmp_path / "new", world())
    with one.under_the_commands():
        registered(one, "old", "new")
        shown = one.ok("check")
    assert "not checked: I3, I4, I5, I6, I8, I9, I10, I11, I13, I14, I15, I17" in shown
