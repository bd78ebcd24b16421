"""Over worlds at random: answers for all, steps only for what the source still has, nothing deleted that is needed, and
rest at the end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from decisions.bookkeeper.decide import decide, plan_steps
from decisions.bookkeeper.reduced import Reducer
from decisions.bookkeeper.seen import BookieView, difference_of_copies
from schemas.bookies import BookieSnapshot, LedgerSeen, Progress
from tests.decisions.bookkeeper.world import (
    MADE,
    NOW,
    asked,
    before_switch,
    carried_out,
    changed,
    cursor,
    in_switch,
    ledger,
    schema,
    to_the_end,
)
from tests.examples import examples

IDS = st.integers(1, 8)
LEDGERS = st.builds(
    ledger,
    IDS,
    closed=st.sampled_from([True, True, True, False]),
    readable=st.sampled_from([True, True, True, False]),
    length=st.sampled_from([600, 600, 600, 400]),
    created_at=st.sampled_from([MADE, MADE, NOW + 1, None]),
)


def distinct(found: list[LedgerSeen]) -> list[LedgerSeen]:
    return list({one.id: one for one in found}.values())


LISTED = st.lists(LEDGERS, max_size=8).map(distinct)
STAMPS = st.sampled_from([None, None, "old", "new", "gone"])


@st.composite
def worlds(draw: st.DrawFn) -> BookieSnapshot:
    """A switch under way in a world where anything may be amiss."""
    schemas = [
        schema(
            *draw(st.lists(IDS, min_size=1, max_size=3, unique=True)), path=f"/schemas/t/n/s{at}", stamp=draw(STAMPS)
        )
        for at in range(draw(st.integers(0, 2)))
    ]
    cursors = [
        cursor(
            draw(IDS | st.just(-1)),
            path=f"/managed-ledgers/t/n/persistent/t/c{at}",
            owner=draw(st.sampled_from([None, "b"])),
            stamp=draw(STAMPS),
        )
        for at in range(draw(st.integers(0, 2)))
    ]
    world = in_switch(before_switch(schemas=schemas, cursors=cursors))
    return changed(
        world,
        ledgers={"old": draw(LISTED), "new": draw(LISTED)},
        progress=Progress(epoch=1, begun=draw(st.lists(IDS, max_size=3)), promoted_at=NOW),
    )


@examples(60)
@given(worlds(), st.sampled_from(["next", "status", "switch", "rollback", "cleanup", "check", "resolve", "precheck"]))
def test_every_state_and_request_is_answered(world: BookieSnapshot, operation: str) -> None:
    answer = asked(world, operation, target="new", name="new", dry_run=False, force=True, accept_loss=True)
    assert BookieSnapshot.model_validate_json(world.to_json()) == world
    assert answer == asked(world, operation, target="new", name="new", dry_run=False, force=True, accept_loss=True)
    assert (answer.gate is None) or answer.reason


@examples(60)
@given(worlds())
def test_steps_concern_source_and_state_expectation(world: BookieSnapshot) -> None:
    seen = BookieView(world)
    for step in plan_steps(world).steps:
        if step.ledger is not None and step.action != "rollover_fallback":
            names = [item.cluster for item in seen.naming[step.ledger]]
            copy = seen.ledger("new", step.ledger)
            is_gone = step.action == "copy" and "new" in names and (copy is None or not copy.closed)
            assert "old" in names or is_gone
        for ledger_id, stamp in (step.stamps or {}).items():
            assert stamp == f"new:{ledger_id}"
            source, copy = (seen.ledger(name, int(ledger_id)) for name in ("old", "new"))
            assert source is not None
            assert copy is not None
            assert difference_of_copies(source, copy) is None
        if step.action in ("cas_attribution", "forward_owner"):
            assert "version" in step.expectation


@examples(60)
@given(worlds())
def test_needed_or_unmatched_copies_not_deleted(world: BookieSnapshot) -> None:
    """A copy stays if a record needs it or no equal copy exists."""
    seen = BookieView(world)
    for step in asked(world, "cleanup", dry_run=False, force=True).steps:
        if step.action != "delete":
            continue
        assert step.ledger is not None
        for item in seen.naming.get(step.ledger, ()):
            assert item.cluster not in (None, "old")
            old, there = seen.ledger("old", step.ledger), seen.ledger(str(item.cluster), step.ledger)
            assert old is not None
            assert there is not None
            assert there.closed
            assert there.readable
            assert difference_of_copies(old, there) is None


@examples(50)
@given(worlds())
def test_every_state_settles_on_existing_copies(world: BookieSnapshot) -> None:
    """No attribution leads to a copy that does not exist."""
    before = BookieView(world)
    end = to_the_end(world)
    after = BookieView(end)
    assert plan_steps(end).steps == []
    for item in after.items:
        if item.how == "stamp" and item.cluster == "new" and item.kind != "data":
            copied = after.ledger("new", item.ledger)
            was_so = any(one.cluster == "new" for one in before.naming.get(item.ledger, ()))
            assert was_so or (copied is not None and copied.closed)
    # Of what the source still has, each stays for a reason.
    answer = decide(end)
    stays = [one for one in after.items if one.cluster == "old" and one.kind != "data" and one.ledger >= 0]
    assert len(stays) == len(answer.failed_ledgers) + len(answer.not_promoted)


@examples(40)
@given(worlds())
def test_the_order_of_what_is_seen_changes_nothing(world: BookieSnapshot) -> None:
    other = changed(
        world,
        schemas=world.schemas[::-1],
        cursors=world.cursors[::-1],
        clusters=world.clusters[::-1],
        ledgers={name: found[::-1] for name, found in world.ledgers.items()},
    )
    assert plan_steps(other).steps == plan_steps(world).steps


@examples(50)
@given(worlds())
def test_recorded_inputs_lead_to_the_same_step(world: BookieSnapshot) -> None:
    for now in (
        world,
        changed(world, operation="cleanup", request=world.request.model_copy(update={"dry_run": False, "force": True})),
    ):
        answer = plan_steps(now) if now.operation == "next" else decide(now)
        reducer = Reducer(now)
        for step in answer.steps:
            assert step in decide(reducer.reduced(step)).steps


@examples(25)
@given(worlds())
def test_completed_step_not_requested_again(world: BookieSnapshot) -> None:
    steps = plan_steps(world).steps
    for step in steps[:3]:
        assert step not in plan_steps(carried_out(world, step)).steps
