"""Ledgers of topics' messages: counted by cluster, and only those looked at that something is the matter with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.bookkeeper.data_ledgers import count_data_ledgers
from anabranch.bookkeeper.metadata import ZnodeRecord
from anabranch.bookkeeper.records import STAMP_PROPERTY
from anabranch.bookkeeper.registry import Registry
from decisions.bookkeeper.seen import BookieView
from schemas.bookies import BookieSnapshot, Bootstrap, ClusterEntry, DataLedger, Directive, LedgerSeen, TopicRecord
from tests.bookkeeper.messages import made
from tests.bookkeeper.simulated import Sidecar, Simulated, ledger, registered, world

RECORDED = 1_700_000_000_000
CLUSTERS = tuple(ClusterEntry(name=name, metadata_service_uri=f"zk://{name}/ledgers") for name in ("old", "new"))
REGISTRY = Registry(
    CLUSTERS,
    Bootstrap(bootstrap_cluster_name="old", recorded_at=RECORDED),
    Directive(source="old", target="new", epoch=1),
    1,
)


def topic(*ledgers: dict[str, Any], path: str = "/managed-ledgers/t/n/persistent/t") -> ZnodeRecord:
    """Return a topic's record; each ledger has an `id`, and may have a `stamp` and when it was `closed`."""
    listed = [
        {
            "ledgerId": one["id"],
            "timestamp": one.get("closed"),
            "properties": [{"name": STAMP_PROPERTY, "value": one["stamp"]}] if one.get("stamp") else [],
        }
        for one in ledgers
    ]
    listed = [{name: value for name, value in one.items() if value is not None} for one in listed]
    return ZnodeRecord(path, 3, bytes(made("ManagedLedgerInfo", ledgerInfo=listed).SerializeToString()))


LEDGERS = st.fixed_dictionaries(
    {
        "id": st.integers(1, 9),
        "closed": st.sampled_from([None, RECORDED - 1, RECORDED, RECORDED + 1]),
        "stamp": st.sampled_from([None, None, "old", "new", "new:1", "gone", "old:2"]),
    }
)
IDS = st.frozensets(st.integers(1, 9))


@given(st.lists(LEDGERS, max_size=6, unique_by=lambda one: one["id"]), IDS, IDS, IDS)
def test_counted_ledgers_match_resolver(
    ledgers: list[dict[str, Any]], old: frozenset[int], new: frozenset[int], named: frozenset[int]
) -> None:
    listings = {"old": old, "new": new}
    found = count_data_ledgers([topic(*ledgers)], REGISTRY, listings, named)
    odd = found.ids()
    assert sum(found.where.values()) + len(odd) == len(ledgers)
    assert {one["id"] for one in ledgers} & named <= odd
    # The resolver over all of them, which has looked at each: when it was made lies before it was closed.
    seen = BookieView(
        BookieSnapshot(
            now=RECORDED + 9,
            clusters=list(CLUSTERS),
            bootstrap=REGISTRY.bootstrap,
            directive=REGISTRY.directive,
            topics=[TopicRecord(path="/t", ledgers=[DataLedger(id=one["id"], stamp=one["stamp"]) for one in ledgers])],
            ledgers={
                name: [LedgerSeen(id=one, created_at=RECORDED - 5) for one in ids] for name, ids in listings.items()
            },
        )
    )
    for item in seen.items:
        if item.ledger not in odd:
            assert item.cluster in ("old", "new")
            assert item.ledger in listings[str(item.cluster)]
    resolved = [item.cluster for item in seen.items if item.ledger not in odd]
    assert found.where == {name: resolved.count(name) for name in set(resolved)}


def test_unreadable_topic_is_named() -> None:
    found = count_data_ledgers([ZnodeRecord("/managed-ledgers/t/n/persistent/t", 0, b"\x47\x78")], REGISTRY, {}, ())
    assert [(one.path, "compressed" in (one.error or "")) for one in found.topics] == [
        ("/managed-ledgers/t/n/persistent/t", True)
    ]


@pytest.fixture
def many(tmp_path: Path) -> Iterator[Simulated]:
    """A switch that was made, with a hundred topics of a hundred ledgers, the last one of each open."""
    one = world()
    for at in range(100):
        ids = [1000 + at * 100 + number for number in range(100)]
        one.ledgers["old"] |= {number: ledger(number, "managed-ledger") for number in ids}
        closed = [{"id": number, "closed": 1_600_000_000_001} for number in ids[:-1]]
        record = topic(*closed, {"id": ids[-1]}, path=f"/managed-ledgers/t/n/persistent/many-{at}")
        one.pulsar(record.path, record.content)
    simulated = Simulated(tmp_path / "many", one)
    with simulated.under_the_commands():
        registered(simulated, "old", "new")
        yield simulated


def test_commands_look_at_few_of_many_data_ledgers(many: Simulated, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    listed: list[str] = []
    real_open, real_list = Sidecar.open, Sidecar.ledgers

    def counted_open(sidecar: Sidecar, cluster: str, number: int) -> Any:
        opened.append(number)
        return real_open(sidecar, cluster, number)

    def counted_list(sidecar: Sidecar, cluster: str) -> Iterator[int]:
        listed.append(cluster)
        return real_list(sidecar, cluster)

    monkeypatch.setattr(Sidecar, "open", counted_open)
    monkeypatch.setattr(Sidecar, "ledgers", counted_list)
    many.ok("switch", "--target", "new")
    assert max(opened) <= 2, "before the bootstrap record all is where it is: none of them is opened"
    many.ok("switch", "--target", "new", "--no-dry-run")
    opened.clear()
    listed.clear()
    shown = many.ok("status")
    assert "10,000 ledgers are on old" in shown
    # Open ledgers do not say when they were closed, so that is where it is looked up; and each cluster is listed once.
    assert len([one for one in opened if one >= 1000]) == 100
    assert sorted(listed) == ["new", "old"]
    assert "all in order" in many.ok("check")
    result = many.run("unregister", "--name", "old")
    assert result is not None
    assert "10000 ledgers on record are attributed to old" in result.output


def test_data_ledger_that_is_gone_is_found_by_check(many: Simulated) -> None:
    many.ok("switch", "--target", "new", "--no-dry-run")
    del many.world.ledgers["old"][1050]
    result = many.run("check")
    assert result is not None
    assert "old, where it would be, has no such ledger" in result.output


def test_rollback_needs_ids_beyond_new_data_ledgers(many: Simulated) -> None:
    many.ok("switch", "--target", "new", "--no-dry-run")
    number = (1 << 32) + 7
    many.world.ledgers["new"][number] = ledger(number, "managed-ledger")
    record = topic({"id": number, "stamp": "new"}, path="/managed-ledgers/t/n/persistent/fresh")
    many.world.pulsar(record.path, record.content)
    result = many.run("rollback", "--no-dry-run")
    assert result is not None
    assert f"new has made ledgers up to {number}" in result.output
