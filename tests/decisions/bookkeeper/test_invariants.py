"""Each of I1 to I17: it holds over a switch from end to end, and a world in which it is broken is found out."""

from __future__ import annotations

from typing import Any

import pytest

from decisions.bookkeeper.decide import plan_steps
from decisions.bookkeeper.invariants import INVARIANTS
from schemas.bookies import (
    BookieMetadata,
    BookieSnapshot,
    Bootstrap,
    BrokerSeen,
    Generators,
    Handle,
    Progress,
    Promotion,
    StepTaken,
)
from tests.decisions.bookkeeper.world import (
    BEYOND,
    CURSOR,
    NOW,
    OLD,
    SCHEMA,
    asked,
    before_switch,
    carried_out,
    changed,
    cursor,
    in_switch,
    ledger,
    to_the_end,
)


def broken(world: BookieSnapshot) -> set[str]:
    return {one.invariant for one in asked(world, "check").violations}


def was(world: BookieSnapshot) -> BookieMetadata:
    return BookieMetadata(
        clusters=world.clusters, bootstrap=world.bootstrap, schemas=world.schemas, cursors=world.cursors
    )


DONE = to_the_end(in_switch())
STEP = StepTaken(epoch=1, token=1, kind="schema", object=SCHEMA, action="copy", ledger=1, cluster="old")
HANDLE = Handle(broker="b", ledger=1, opened_on="old", reads_from="old")
FIRST = DONE.schemas[0].positions[0]


def with_schema(world: BookieSnapshot = DONE, position: dict[str, Any] | None = None, **over: Any) -> BookieSnapshot:
    record = world.schemas[0]
    positions = [record.positions[0].model_copy(update=position or {}), *record.positions[1:]]
    return changed(world, schemas=[record.model_copy(update={"positions": positions, **over})])


def with_cursor(world: BookieSnapshot = DONE, **over: Any) -> BookieSnapshot:
    return changed(world, cursors=[world.cursors[0].model_copy(update=over)])


UNSTAMPED = with_schema(position={"stamp": None})
BROKEN: list[tuple[str, BookieSnapshot]] = [
    ("I1", with_schema(position={"stamp": None, "created_at": NOW + 1})),
    ("I2", changed(DONE, ledgers={**DONE.ledgers, "new": DONE.ledgers["new"][:-1]})),
    ("I2", with_schema(position={"stamp": "gone:1"})),
    ("I3", changed(with_cursor(mark_delete=[1, 2]), before=was(DONE))),
    ("I3", changed(with_cursor(version=0), before=was(DONE))),
    ("I4", changed(DONE, handles=[HANDLE.model_copy(update={"reads_from": "new"})])),
    ("I5", changed(DONE, handles=[HANDLE.model_copy(update={"client_closed": True})])),
    ("I6", changed(DONE, clusters=before_switch().clusters)),
    ("I6", changed(DONE, brokers=[BrokerSeen(name="b", epoch=1, active="old")])),
    ("I6", changed(DONE, clusters=[one for one in DONE.clusters if one.name == "old"])),
    ("I6", changed(UNSTAMPED, clusters=[one for one in DONE.clusters if one.name == "new"])),
    ("I7", with_schema(error="no field 1")),
    ("I8", changed(DONE, ledgers={**DONE.ledgers, "new": [ledger(1, length=1), *DONE.ledgers["new"][1:]]})),
    (
        "I8",
        changed(
            DONE,
            ledgers={
                "old": [ledger(1, custom={"a": "1"}), *DONE.ledgers["old"][1:]],
                "new": [ledger(1, custom={"a": "2"}), *DONE.ledgers["new"][1:]],
            },
        ),
    ),
    ("I9", changed(with_cursor(mark_delete=[9, 9]), before=was(in_switch()))),
    ("I9", changed(with_cursor(properties={"x": "y"}), before=was(in_switch()))),
    ("I10", changed(with_schema(position={"entry": 7}), before=was(in_switch()))),
    ("I10", changed(with_schema(position={"hash": "other"}), before=was(in_switch()))),
    ("I11", changed(DONE, generators={"old": Generators(long=BEYOND + 9), "new": Generators(long=2 * BEYOND)})),
    ("I12", changed(DONE, clusters=[one.model_copy(update={"status": "ACTIVE"}) for one in DONE.clusters])),
    ("I12", changed(DONE, clusters=[one.model_copy(update={"status": "STANDBY"}) for one in DONE.clusters])),
    (
        "I13",
        changed(
            DONE,
            progress=Progress(
                epoch=1, promoted=[Promotion(kind="cursor", object=CURSOR, ledger=3, by="compare-and-set", loaded=True)]
            ),
        ),
    ),
    ("I14", changed(DONE, steps=[STEP.model_copy(update={"token": 2}), STEP])),
    ("I15", changed(DONE, steps=[STEP.model_copy(update={"action": "delete", "cluster": "new"})])),
    ("I16", with_cursor(properties={"_pulsar.mine": "x"})),
    ("I17", changed(DONE, before=was(DONE), bootstrap=Bootstrap(bootstrap_cluster_name="old", recorded_at=1))),
    ("I17", changed(UNSTAMPED, bootstrap=None)),
    ("I17", changed(UNSTAMPED, bootstrap=Bootstrap(bootstrap_cluster_name="gone", recorded_at=NOW))),
]


@pytest.mark.parametrize(("invariant", "world"), BROKEN, ids=[f"{at}-{one[0]}" for at, one in enumerate(BROKEN)])
def test_violated_invariant_is_found(invariant: str, world: BookieSnapshot) -> None:
    assert invariant in broken(world)


def test_every_invariant_has_a_world_that_breaks_it() -> None:
    assert {one for one, _ in BROKEN} == set(INVARIANTS) == {f"I{number}" for number in range(1, 18)}


def test_invariants_hold_after_every_step() -> None:
    """Checked at every step of a switch, its rollback and its cleanup."""
    world, seen = in_switch(), 0
    for _ in range(10):
        for step in plan_steps(world).steps:
            after = carried_out(world, step)
            assert broken(changed(after, before=was(world))) == set(), step
            world, seen = after, seen + 1
    for step in asked(world, "cleanup", dry_run=False, force=True).steps:
        after = carried_out(world, step)
        assert broken(changed(after, before=was(world))) == set(), step
        world = after
    assert seen == 5


def test_rollover_and_growth_break_no_invariant() -> None:
    """A rollover is no promotion; a ledger that grew on the target is no bad copy."""
    rolled = cursor(BEYOND, stamp=f"new:{BEYOND}", version=2)
    ledgers = {**DONE.ledgers, "new": [*DONE.ledgers["new"], ledger(BEYOND, created_at=NOW + 1)]}
    world = changed(DONE, cursors=[rolled], ledgers=ledgers, before=was(DONE))
    assert broken(world) == set()
    growing = changed(DONE, ledgers={**DONE.ledgers, "new": [*DONE.ledgers["new"][:2], ledger(3, closed=False)]})
    assert broken(growing) == set()


def test_what_a_snapshot_does_not_show_is_not_claimed() -> None:
    assert (
        broken(
            changed(
                DONE,
                ledgers={},
                generators={},
                clusters=[*DONE.clusters, OLD.model_copy(update={"name": "third", "status": "STANDBY"})],
            )
        )
        == set()
    )
