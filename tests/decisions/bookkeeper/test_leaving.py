"""Cleanup and rollback: what may be deleted and when, and that nothing is lost on the way back."""

from __future__ import annotations

from typing import Any

import pytest

from decisions.bookkeeper.decide import decide, plan_steps
from schemas.bookies import BookieSnapshot, DataLedger, Generators, Position, TopicRecord
from tests.decisions.bookkeeper.world import (
    BEYOND,
    CURSOR,
    HOUR,
    NOW,
    SCHEMA,
    asked,
    before_switch,
    carried_out,
    changed,
    cursor,
    in_switch,
    ledger,
    to_the_end,
    written,
)

WINDOW_MS = 15 * 24 * HOUR
"""The longer of the two: dual read for 15 days."""


def done(**over: Any) -> BookieSnapshot:
    """A switch that waits for its cleanup."""
    return changed(to_the_end(in_switch()), **over)


def deleted(world: BookieSnapshot, **request: Any) -> list[int | None]:
    answer = asked(world, "cleanup", **{"dry_run": False, **request})
    return [one.ledger for one in answer.steps if one.action == "delete"] if answer.action == "cleanup" else []


def test_old_copies_deleted_after_longer_window() -> None:
    early = asked(done(now=NOW + WINDOW_MS - 1), "cleanup", dry_run=False)
    assert (early.gate, early.code) == ("window", 409)
    assert [one.eligible_at for one in early.readings if one.gate == "window"] == [NOW + WINDOW_MS]
    assert deleted(done(now=NOW + WINDOW_MS)) == [1, 2, 3]
    assert deleted(done(), force=True) == [1, 2, 3]


def test_cleanup_only_lists_by_default() -> None:
    answer = asked(done(now=NOW + WINDOW_MS), "cleanup")
    assert (answer.action, answer.gate, answer.code) == ("hold", "dry-run", 200)
    assert [one.ledger for one in answer.steps if one.action == "delete"] == [1, 2, 3]


def test_as_many_as_were_asked_for_are_deleted() -> None:
    assert deleted(done(), force=True, max_deletions=2) == [1, 2]


def test_cleanup_ends_switch_with_invariants_intact() -> None:
    world = done()
    for step in asked(world, "cleanup", dry_run=False, force=True).steps:
        world = carried_out(world, step)
    assert decide(changed(world, operation="next")).phase == "DONE"
    assert asked(world, "check").violations == []
    assert deleted(world, force=True) == []


def attributed_back(world: BookieSnapshot) -> BookieSnapshot:
    positions = [one.model_copy(update={"stamp": f"old:{one.ledger}"}) for one in world.schemas[0].positions]
    return changed(world, schemas=[world.schemas[0].model_copy(update={"positions": positions})])


def without_a_stamp(world: BookieSnapshot) -> BookieSnapshot:
    positions = [one.model_copy(update={"stamp": None}) for one in world.schemas[0].positions]
    return changed(world, schemas=[world.schemas[0].model_copy(update={"positions": positions})])


def copy_is(world: BookieSnapshot, **over: Any) -> BookieSnapshot:
    others = [one for one in world.ledgers["new"] if one.id not in (1, 2)]
    return changed(world, ledgers={**world.ledgers, "new": [*others, ledger(1, **over), ledger(2, **over)]})


def copy_gone(world: BookieSnapshot) -> BookieSnapshot:
    return changed(world, ledgers={**world.ledgers, "new": [one for one in world.ledgers["new"] if one.id == 3]})


def unreadable_record(world: BookieSnapshot) -> BookieSnapshot:
    broken = world.schemas[0].model_copy(update={"path": "/schemas/t/n/broken", "error": "no bytes"})
    return changed(world, schemas=[*world.schemas, broken])


@pytest.mark.parametrize(
    ("happened", "gone"),
    [
        (attributed_back, [3]),
        (without_a_stamp, [3]),
        (copy_gone, [3]),
        (lambda world: copy_is(world, closed=False), [3]),
        (lambda world: copy_is(world, readable=False), [3]),
        (lambda world: copy_is(world, length=1), [3]),
        (unreadable_record, []),
        (lambda world: changed(world, cursors=[cursor(-1, stamp="new:3")]), [1, 2, 3]),
        (lambda world: changed(world, cursors=[]), [1, 2, 3]),
    ],
)
def test_needed_copies_kept_even_with_force(happened: Any, gone: list[int]) -> None:
    assert deleted(happened(done()), force=True) == gone


@pytest.mark.parametrize(
    ("over", "request_", "gate", "code"),
    [
        ({"routing": "stock"}, {}, "brokers-route", 409),
        ({"routing": "stopped", "registered_brokers": ["b:8080"]}, {}, "brokers-route", 409),
        ({}, {"src_cluster_filter": "new"}, "not-active", 409),
        ({}, {"src_cluster_filter": "gone"}, "registered", 404),
        ({"ledgers": {}}, {}, "ledgers-listed", 409),
    ],
)
def test_lossy_cleanup_refused(over: dict[str, Any], request_: dict[str, Any], gate: str, code: int) -> None:
    answer = asked(done(**over), "cleanup", dry_run=False, force=True, **request_)
    assert (answer.gate, answer.code, answer.action) == (gate, code, "hold")


def test_cleanup_without_switch_needs_a_cluster() -> None:
    assert asked(before_switch(), "cleanup").code == 400


def back(world: BookieSnapshot, **request: Any) -> BookieSnapshot:
    answer = asked(world, "rollback", dry_run=False, **request)
    assert answer.action == "rollback", answer.reason
    return changed(written(world, answer), operation="next")


def test_rollback_reuses_remaining_copies() -> None:
    world = back(done())
    steps = plan_steps(world).steps
    assert {one.action for one in steps} == {"verify"}
    world = to_the_end(world)
    assert [one.stamp for one in world.schemas[0].positions] == ["old:1", "old:2"]
    assert world.cursors[0].stamp == "old:3"
    assert (decide(world).phase, {one.name: one.status for one in world.clusters}) == (
        "ROLLED_BACK",
        {"old": "ACTIVE", "new": "STANDBY"},
    )
    assert asked(world, "check").violations == []


def test_rollback_copies_later_writes_back() -> None:
    world = done()
    positions = [*world.schemas[0].positions, Position(version=2, ledger=BEYOND, stamp=f"new:{BEYOND}")]
    world = changed(
        world,
        schemas=[world.schemas[0].model_copy(update={"positions": positions})],
        cursors=[cursor(BEYOND + 1, stamp=f"new:{BEYOND + 1}")],
        ledgers={**world.ledgers, "new": [*world.ledgers["new"], ledger(BEYOND), ledger(BEYOND + 1)]},
        generators={"old": Generators(long=2 * BEYOND), "new": Generators(long=BEYOND + 2)},
    )
    world = to_the_end(back(world))
    assert [one.stamp for one in world.schemas[0].positions] == ["old:1", "old:2", f"old:{BEYOND}"]
    assert world.cursors[0].stamp == f"old:{BEYOND + 1}"
    assert {BEYOND, BEYOND + 1} <= {one.id for one in world.ledgers["old"]}


def test_rollback_to_reused_ids_refused() -> None:
    """The cluster would give the new ids again."""
    world = done()
    world = changed(world, ledgers={**world.ledgers, "new": [*world.ledgers["new"], ledger(BEYOND)]})
    answer = asked(world, "rollback", dry_run=False)
    assert (answer.gate, answer.code) == ("ids-beyond-source", 409)
    assert "precheck --name old --advance" in (answer.reason or "")


def test_rollback_closes_a_day_after_promotion() -> None:
    late = done(now=NOW + 24 * HOUR + 1)
    assert asked(late, "rollback", dry_run=False).gate == "rollback-window"
    assert asked(late, "rollback", dry_run=False, force=True).action == "rollback"
    assert asked(done(now=NOW + 24 * HOUR), "rollback", dry_run=False).action == "rollback"


def test_irrecoverable_data_left_only_when_accepted() -> None:
    world = done()
    lost = [one for one in world.ledgers["new"] if one.id != 3]
    world = changed(world, ledgers={"old": [one for one in world.ledgers["old"] if one.id != 3], "new": lost})
    answer = asked(world, "rollback", dry_run=False)
    assert (answer.gate, [(one.object, one.ledger) for one in answer.losses]) == ("nothing-lost", [(CURSOR, 3)])
    assert asked(world, "rollback", dry_run=False, accept_loss=True).action == "rollback"


def test_rollback_under_stock_brokers_is_refused() -> None:
    topics = [TopicRecord(path="/managed-ledgers/t/n/persistent/t", ledgers=[DataLedger(id=9, stamp="new:9")])]
    answer = asked(done(topics=topics, routing="stock"), "rollback", dry_run=False)
    assert (answer.action, answer.gate, answer.directive) == ("hold", "brokers-route", None)
    assert [one.kind for one in answer.losses] == ["data"]


@pytest.mark.parametrize(
    "brokers", [{"routing": "stock"}, {"routing": "stopped", "registered_brokers": ["b:8080"]}], ids=["stock", "run"]
)
def test_brokers_in_the_way_hold_every_acting_command(brokers: dict[str, Any]) -> None:
    flipped_back = in_switch(clusters=before_switch().clusters)
    for world, operation in (
        (done(), "rollback"),
        (before_switch(), "switch"),
        (in_switch(), "switch"),
        (in_switch(), "next"),
        (flipped_back, "next"),
        (back(done()), "next"),
        (done(), "cleanup"),
    ):
        request = {"target": "new", "dry_run": False, "force": True}
        answer = asked(changed(world, **brokers), operation, **request)
        assert (answer.action, answer.gate) == ("hold", "brokers-route"), operation
        assert asked(world, operation, **request).gate is None, operation


def test_rollback_only_lists_by_default() -> None:
    answer = asked(done(), "rollback")
    assert (answer.action, answer.gate, answer.code) == ("hold", "dry-run", 200)
    assert {one.object for one in answer.steps} == {SCHEMA, CURSOR}


def test_a_rollback_without_a_switch_is_refused() -> None:
    answer = asked(before_switch(), "rollback")
    assert (answer.action, answer.code) == ("hold", 404)


def test_switch_repeatable_after_rollback() -> None:
    world = to_the_end(back(done()))
    answer = asked(world, "switch", target="new")
    assert answer.directive is not None
    assert (answer.action, answer.directive.epoch) == ("switch", 3)
    assert decide(to_the_end(changed(written(world, answer), operation="next"))).phase == "CLEANUP"
