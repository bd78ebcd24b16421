"""Ledgers that a switch leaves behind or does not know, on simulated clusters: shown, moved, kept, cleaned up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from anabranch.admin.answers import Answered
from anabranch.bookkeeper.guard import SwitchGuard
from anabranch.bookkeeper.metadata import LedgerIds, PulsarMetadata, ZnodeWrite
from anabranch.bookkeeper.records import STAMP_PROPERTY, read_cursor, read_locator
from anabranch.bookkeeper.registry import RegistryStore
from anabranch.bookkeeper.steps import Steps
from schemas.bookie_answers import Step
from tests.bookkeeper.messages import made
from tests.bookkeeper.simulated import (
    CLUSTERS,
    CURSOR,
    SCHEMA,
    SWITCH,
    Simulated,
    cursor_record,
    ledger,
    locator,
    registered,
    world,
)

V1_CURSOR, V1_SCHEMA = "/managed-ledgers/p/west/n/persistent/t/c", "/schemas/p/west/n/s"


@pytest.fixture(scope="module")
def beginning(tmp_path_factory: pytest.TempPathFactory) -> Simulated:
    """A Pulsar whose clusters are registered."""
    one = Simulated(tmp_path_factory.mktemp("leftovers") / "pulsar", world())
    with one.under_the_commands():
        registered(one, "old", "new", "third")
    return one


@pytest.fixture
def sim(beginning: Simulated, tmp_path: Path) -> Iterator[Simulated]:
    """A copy of it."""
    one = beginning.copied(tmp_path / "pulsar")
    with one.under_the_commands():
        yield one


def failing(one: Simulated, *arguments: str) -> str:
    """Return what a command prints that moves some and fails at others."""
    result = one.run(*arguments)
    assert result is not None
    assert result.exit_code == 1, result.output
    return result.output


def stamps(one: Simulated) -> dict[int, str | None]:
    metadata = PulsarMetadata(one.connected("pulsar:2181"))  # type: ignore[arg-type]
    found = {at.ledger: at.stamp for record in metadata.schemas() for at in read_locator(record.content)}
    return found | {at.ledger: at.stamp for at in (read_cursor(one.content) for one in metadata.cursors())}


def test_second_switch_shows_what_the_first_one_left(sim: Simulated) -> None:
    there = sim.world.ledgers["old"]
    there[1] = replace(there[1], unreadable="bookies are down")
    assert "bookies are down" in failing(sim, *SWITCH)
    target = f"zk://{CLUSTERS['third']}/ledgers"
    assert target in sim.ok("list")
    sim.world.put(CLUSTERS["third"], f"/ledgers/idgen-long/HOB-{9:010d}")
    shown = failing(sim, "switch", "--target", "third", "--no-dry-run")
    assert "1 of 2 on third" in shown
    assert f"failed: ledger 1 of {SCHEMA}: an earlier switch left it on old" in shown
    assert "everything" not in shown.splitlines()[-1]
    assert sim.next_command() == ["switch", "--target", "third", "--no-dry-run"]

    # Still unreadable: it is tried from where it is, and fails by its own reason.
    assert "bookies are down" in failing(sim, "switch", "--target", "third", "--no-dry-run")
    there[1] = replace(there[1], unreadable=None)
    assert "2 of 2 on third" in sim.ok("switch", "--target", "third", "--no-dry-run")
    assert stamps(sim) == {1: "third:1", 2: "third:2"}
    assert "all in order" in sim.ok("check")


def test_remaining_ledger_not_moved_over_target_ids(sim: Simulated) -> None:
    there = sim.world.ledgers["old"]
    there[1] = replace(there[1], unreadable="bookies are down")
    failing(sim, *SWITCH)
    sim.world.put(CLUSTERS["third"], f"/ledgers/idgen-long/HOB-{9:010d}")
    failing(sim, "switch", "--target", "third", "--no-dry-run")
    there[1] = replace(there[1], unreadable=None)
    there[10 << 32] = ledger(10 << 32)
    shown = failing(sim, "switch", "--target", "third", "--no-dry-run")
    assert "old has used the id 42949672960, and third gives ids from 38654705664 on" in shown
    assert 1 not in sim.world.ledgers["third"]


def test_open_ledger_without_bookies_fails_by_name(sim: Simulated) -> None:
    there = sim.world.ledgers["old"]
    there[1] = replace(there[1], closed=False, unreadable="bookies are down")
    shown = failing(sim, *SWITCH)
    assert f"failed: ledger 1 of {SCHEMA}: old: bookies are down" in shown
    assert "bring back what cannot be read" in shown
    assert sim.next_command() == list(SWITCH)


def test_repeated_switch_reports_unknowns(sim: Simulated) -> None:
    sim.ok(*SWITCH)
    sim.world.pulsar("/schemas/t/n/unstamped", locator(5))
    assert "nobody knows where 1 ledgers are, such as 5 of /schemas/t/n/unstamped" in failing(sim, *SWITCH)


def test_orphan_whose_copy_is_gone_too_is_cleaned_up(sim: Simulated) -> None:
    sim.ok(*SWITCH)
    # Its subscription is deleted by its broker, with the ledger that it is attributed to.
    del sim.world.ensembles["pulsar:2181"][CURSOR]
    sim.world.ensembles["pulsar:2181"][CURSOR.rpartition("/")[0]].children.clear()
    del sim.world.ledgers["new"][2]
    assert "2 old copies can go" in sim.ok("cleanup", "--force", "--no-dry-run")
    assert sim.world.ledgers["old"] == {}
    assert ": DONE\n" in sim.ok("status")


def test_orphan_with_another_copy_stays(sim: Simulated) -> None:
    sim.ok(*SWITCH)
    del sim.world.ensembles["pulsar:2181"][CURSOR]
    sim.world.ensembles["pulsar:2181"][CURSOR.rpartition("/")[0]].children.clear()
    sim.world.ledgers["new"][2] = replace(ledger(2), length=1)
    failing(sim, "cleanup", "--force", "--no-dry-run")
    assert set(sim.world.ledgers["old"]) == {2}


def compaction(number: int) -> bytes:
    return cursor_record(-1, properties=[{"name": "CompactedTopicLedger", "value": number}])


def delayed(number: int) -> bytes:
    name = "#pulsar.internal.delayed.bucket_7_9"
    return cursor_record(-1, cursorProperties=[{"name": name, "value": str(number)}])


@pytest.mark.parametrize("record", [compaction(5), delayed(5), None], ids=["compacted", "delayed", "by-component"])
def test_compaction_and_delay_ledgers_keep_cluster(sim: Simulated, record: bytes | None) -> None:
    """Those that a znode names, and those that only their own metadata tell."""
    sim.world.ledgers["old"][5] = ledger(5, "schema" if record else "compacted-ledger")
    if record:
        sim.world.pulsar("/managed-ledgers/t/n/persistent/t/special", record)
    sim.ok(*SWITCH)
    sim.ok("cleanup", "--force", "--no-dry-run")
    assert set(sim.world.ledgers["old"]) == {5}
    assert "compacted topics, delayed messages or another use, such as 5" in failing(sim, "unregister", "--name", "old")
    del sim.world.ledgers["old"][5]
    sim.ok("unregister", "--name", "old")


def test_v1_namespaces_are_moved_and_cleaned_up(sim: Simulated) -> None:
    sim.world.ledgers["old"] |= {3: ledger(3), 4: ledger(4, "managed-ledger")}
    sim.world.pulsar(V1_SCHEMA, locator(3))
    sim.world.pulsar(V1_CURSOR, cursor_record(4))
    data = made("ManagedLedgerInfo", ledgerInfo=[{"ledgerId": 1}])
    sim.world.pulsar(V1_CURSOR.rpartition("/")[0], bytes(data.SerializeToString()))
    assert "4 of 4 on new" in sim.ok(*SWITCH)
    assert stamps(sim) == {number: f"new:{number}" for number in (1, 2, 3, 4)}


def test_v1_namespace_called_persistent_is_moved(sim: Simulated) -> None:
    """Its folder of topics is where a topic called `persistent` of a V2 namespace has its record."""
    sim.world.ledgers["old"] |= {number: ledger(number, "managed-ledger") for number in (3, 4, 5)}
    data = bytes(made("ManagedLedgerInfo", ledgerInfo=[{"ledgerId": 5}]).SerializeToString())
    for topic, number in (("p/west/persistent/persistent/t", 3), ("tenant/n/persistent/persistent", 4)):
        sim.world.pulsar(f"/managed-ledgers/{topic}", data)
        sim.world.pulsar(f"/managed-ledgers/{topic}/c", cursor_record(number))
    shown = sim.ok(*SWITCH)
    assert "4 of 4 on new" in shown
    assert "not known" not in shown
    assert stamps(sim) == {number: f"new:{number}" for number in (1, 2, 3, 4)}
    assert "all in order" in sim.ok("check")


def test_rollover_before_promotion_recorded(sim: Simulated) -> None:
    """A broker makes the subscription's next ledger, on the new cluster, while the copy of the last one waits."""
    assert sim.run(*SWITCH, kill_at=11) is None
    assert set(sim.world.ledgers["new"]) == {1, 2}
    number = (1 << 32) + 3
    sim.world.ledgers["new"][number] = ledger(number, "managed-ledger")
    stamp = [{"name": STAMP_PROPERTY, "value": f"new:{number}"}]
    sim.world.pulsar(CURSOR, cursor_record(number, cursorProperties=stamp))
    sim.world.ensembles["pulsar:2181"][CURSOR].version += 1
    shown = sim.ok(*SWITCH)
    assert f"rolled over: {CURSOR}" in shown
    assert stamps(sim) == {1: "new:1", number: f"new:{number}"}
    sim.ok("cleanup", "--force", "--no-dry-run")
    assert set(sim.world.ledgers["old"]) == {2}, "never promoted: its owner deletes it"
    assert "all in order" in sim.ok("check")


class Owner:
    """The broker that has a topic loaded: it replaces all properties, and may do something else before."""

    def __init__(self, simulated: Simulated, before: bytes | None = None) -> None:
        self._simulated, self._before, self.asked = simulated, before, list[dict[str, str]]()

    def unload(self, topic: str) -> object:
        raise AssertionError

    def set_subscription_properties(self, topic: str, subscription: str, properties: dict[str, str]) -> object:
        node = self._simulated.world.ensembles["pulsar:2181"][CURSOR]
        self.asked.append(properties)
        if self._before is not None:
            node.content, self._before = self._before, None
            node.version += 1
        found = read_cursor(node.content)
        kept = {name: value for name, value in found.properties.items() if name.startswith("#pulsar.internal.")}
        listed = [{"name": name, "value": value} for name, value in {**kept, **properties}.items()]
        node.content = cursor_record(found.ledger, cursorProperties=listed)
        node.version += 1
        return Answered(None)


def forwarded(simulated: Simulated, owner: Owner, ledger_id: int = 2) -> tuple[str, dict[str, object]]:
    """Have the owner promote the subscription; return how it ended."""
    metadata = PulsarMetadata(simulated.connected("pulsar:2181"))  # type: ignore[arg-type]
    store = RegistryStore(metadata, "/admin/bookie-clusters")
    registry = store.read()
    guard = SwitchGuard(metadata, "attribution", lambda uri: LedgerIds(simulated.connected(uri[5:11]), "/ledgers"))  # type: ignore[arg-type]
    term = ZnodeWrite("/admin", None, 0)
    step = Step(
        epoch=1,
        phase="PROMOTE",
        kind="cursor",
        object=CURSOR,
        action="forward_owner",
        ledger=2,
        source="old",
        target="new",
        expectation={"version": 0, "ledger": 2, "last": 2},
        stamps={"2": "new:2"},
        reason="test",
    )
    done = Steps(store, metadata, simulated.sidecar(), term, guard, owner).carry_out(step, registry)  # type: ignore[arg-type]
    return done.status, dict(done.seen)


@pytest.fixture
def built(sim: Simulated) -> Simulated:
    """A switch whose copies are made, and nothing promoted."""
    assert sim.run(*SWITCH, kill_at=7) is None
    sim.world.revive()
    sim.world.ledgers["new"] = dict(sim.world.ledgers["old"])
    properties = [{"name": "#pulsar.internal.delayed.bucket_1_2", "value": "7"}, {"name": "mine", "value": "x"}]
    sim.world.pulsar(CURSOR, cursor_record(2, cursorProperties=properties))
    return sim


def test_owner_gets_no_broker_only_property(built: Simulated) -> None:
    owner = Owner(built)
    assert forwarded(built, owner)[0] == "applied"
    assert owner.asked == [{"mine": "x", STAMP_PROPERTY: "new:2"}]
    after = read_cursor(built.world.ensembles["pulsar:2181"][CURSOR].content)
    assert set(after.properties) == {"mine", STAMP_PROPERTY, "#pulsar.internal.delayed.bucket_1_2"}


def test_other_write_between_is_on_record(built: Simulated) -> None:
    content = cursor_record(2, cursorProperties=[{"name": "mine", "value": "y"}])
    assert forwarded(built, Owner(built, content))[1].get("others") == 1


def test_rollover_between_gets_its_own_stamp_back(built: Simulated) -> None:
    built.world.ledgers["new"][1 << 32] = ledger(1 << 32, "managed-ledger")
    properties = [{"name": STAMP_PROPERTY, "value": f"new:{1 << 32}"}]
    owner = Owner(built, cursor_record(1 << 32, cursorProperties=properties))
    assert forwarded(built, owner)[0] == "superseded"
    after = read_cursor(built.world.ensembles["pulsar:2181"][CURSOR].content)
    assert (after.ledger, after.stamp) == (1 << 32, f"new:{1 << 32}")
