"""What a switch does next, row by row of PIP-477's failure table and its holes.

Longer than other files: the table has many rows.
"""

from __future__ import annotations

import pytest

from decisions.bookkeeper.decide import decide, plan_steps
from decisions.bookkeeper.reduced import Reducer
from schemas.bookies import (
    BookieSnapshot,
    BrokerSeen,
    Copy,
    Failure,
    Generators,
    Orchestrator,
    Progress,
    SwitchSettings,
)
from tests.decisions.bookkeeper.world import (
    BEYOND,
    CURSOR,
    MADE,
    NOW,
    SCHEMA,
    asked,
    before_switch,
    carried_out,
    changed,
    cursor,
    in_switch,
    ledger,
    schema,
    to_the_end,
    written,
)

OPEN_CURSOR = {"old": [ledger(1), ledger(2), ledger(3, closed=False)], "new": []}


def test_directive_flip_and_record_are_atomic() -> None:
    answer = asked(before_switch(), "switch", target="new", origin="me@host")
    assert {one.name: one.status for one in answer.registry or ()} == {"old": "DEPRECATED", "new": "ACTIVE"}
    assert answer.directive is not None
    assert (answer.directive.source, answer.directive.target, answer.directive.epoch) == ("old", "new", 1)
    assert answer.directive.target_ids_from == BEYOND
    assert answer.bootstrap is not None
    assert (answer.bootstrap.bootstrap_cluster_name, answer.bootstrap.recorded_at) == ("old", NOW)
    assert [one.action for one in answer.steps] == ["flip_status"]


def test_ledgers_copied_promoted_then_await_cleanup() -> None:
    world = in_switch()
    built = plan_steps(world)
    assert [(one.action, one.object, one.ledger) for one in built.steps] == [
        ("copy", SCHEMA, 1),
        ("copy", SCHEMA, 2),
        ("copy", CURSOR, 3),
    ]
    assert built.phase == "BUILD"
    for step in built.steps:
        world = carried_out(world, step)
    promoted = plan_steps(world)
    assert promoted.phase == "PROMOTE"
    assert [(one.action, one.object, one.stamps) for one in promoted.steps] == [
        ("cas_attribution", SCHEMA, {"1": "new:1", "2": "new:2"}),
        ("cas_attribution", CURSOR, {"3": "new:3"}),
    ]
    assert promoted.steps[1].expectation == {"version": 0, "ledger": 3}
    done = to_the_end(world)
    assert (decide(done).phase, decide(done).gate) == ("CLEANUP", "window")
    assert decide(changed(done, operation="check")).violations == []


@pytest.mark.parametrize(
    ("generators", "ready"),
    [
        ((Generators(short=10), Generators(short=11)), True),
        ((Generators(short=10), Generators(short=10)), False),
        ((Generators(short=10), Generators(short=9)), False),
        ((Generators(short=10), Generators(short=99, long=5)), False),
        ((Generators(short=10, long=BEYOND + 4), Generators(long=BEYOND + 3)), False),
        ((Generators(short=10, long=BEYOND + 4), Generators(long=BEYOND + 5)), True),
        ((Generators(short=10, long=BEYOND + 4), Generators(long=BEYOND + 4)), False),
        ((Generators(short=10, long=BEYOND), Generators(long=BEYOND)), False),
        ((Generators(short=10, long=6 * BEYOND), Generators(long=5 * BEYOND)), False),
        ((Generators(reachable=False, error="down"), Generators(long=BEYOND)), False),
        ((Generators(short=10, largest=2 * BEYOND), Generators(long=BEYOND)), False),
        ((Generators(short=10), Generators(short=99, reachable=False, error="down")), False),
    ],
)
def test_precheck_needs_the_target_beyond_the_source(generators: tuple[Generators, Generators], ready: bool) -> None:
    world = before_switch(generators=dict(zip(("old", "new"), generators, strict=True)))
    answer = asked(world, "precheck", target="new")
    assert answer.precheck is not None
    assert (answer.precheck.ready, answer.code) == (ready, 200 if ready else 409)
    assert asked(world, "switch", target="new").code == (200 if ready else 409)


def test_id_known_only_from_ledgers_counts() -> None:
    world = before_switch(
        ledgers={"old": [ledger(1), ledger(50)], "new": []},
        generators={"old": Generators(short=10), "new": Generators(short=20)},
    )
    answer = asked(world, "precheck", target="new")
    assert answer.precheck is not None
    assert (answer.precheck.source_max_ledger_id, answer.precheck.ready) == (50, False)


def test_lab_setting_accepts_target_not_ahead() -> None:
    world = before_switch(generators={"old": Generators(short=10), "new": Generators(short=1)})
    skipping = changed(world, settings=SwitchSettings(skip_idgen_precheck=True))
    assert asked(skipping, "switch", target="new").action == "switch"


@pytest.mark.parametrize(
    ("target", "over", "gate", "code"),
    [
        ("gone", {}, "registered", 404),
        ("old", {}, "not-active", 409),
        ("new", {"routing": "stock"}, "brokers-route", 409),
        ("new", {"generators": {}}, "ids-beyond-source", 409),
        ("new", {"routing": "stopped", "registered_brokers": ["b:8080"]}, "brokers-route", 409),
        ("new", {"brokers": [BrokerSeen(name="b", target_client=False, error="no route")]}, "target-client", 409),
    ],
)
def test_lossy_switch_refused(target: str, over: dict[str, object], gate: str, code: int) -> None:
    answer = asked(before_switch(**over), "switch", target=target)
    assert (answer.gate, answer.code, answer.directive, answer.registry) == (gate, code, None, None)


def test_second_switch_waits_and_same_is_a_retry() -> None:
    third = [*in_switch().clusters, before_switch().clusters[1].model_copy(update={"name": "third"})]
    world = changed(in_switch(), clusters=third)
    assert asked(world, "switch", target="third").gate == "no-switch-open"
    again = asked(world, "switch", target="new")
    assert again.action == "retry"
    assert again.directive is not None
    assert (again.directive.epoch, again.directive.attempt) == (1, 2)


def test_only_lease_holder_gets_steps() -> None:
    held = Orchestrator(holder="a", token=1, until=NOW + 5)
    mine, others = (in_switch(orchestrator=held, self_name=name) for name in ("a", "b"))
    assert decide(mine).steps
    assert (decide(others).gate, decide(others).steps) == ("orchestrator", [])
    assert NOW + 5 in [one.eligible_at for one in decide(others).readings if one.gate == "orchestrator"]
    assert decide(changed(others, now=NOW + 5)).steps


def test_undone_flip_is_first_step() -> None:
    world = changed(in_switch(), clusters=before_switch().clusters)
    answer = decide(world)
    assert (answer.phase, [one.action for one in answer.steps]) == ("SWITCH_TRIGGERED", ["flip_status"])
    assert decide(carried_out(world, answer.steps[0])).phase == "BUILD"


def test_copying_waits_for_all_brokers() -> None:
    behind = BrokerSeen(name="b", epoch=0, active="old")
    assert (decide(in_switch(brokers=[behind])).phase, decide(in_switch(brokers=[behind])).gate) == (
        "LIVE_DUAL_READ",
        "brokers-follow",
    )
    follows = behind.model_copy(update={"epoch": 1, "active": "new"})
    assert decide(in_switch(brokers=[follows])).phase == "BUILD"


def test_overlapping_ids_stop_the_switch() -> None:
    """The switch stops before new ids of the source reach those of the target."""
    for given, gate in ((BEYOND - 1, None), (BEYOND, "ids-apart"), (BEYOND + 1, "ids-apart")):
        generators = {"old": Generators(short=10, largest=given), "new": Generators(long=2 * BEYOND)}
        answer = decide(changed(in_switch(), generators=generators))
        assert (answer.gate, bool(answer.steps)) == (gate, gate is None)


@pytest.mark.parametrize("old", [None, Generators(reachable=False, error="no ZooKeeper answers")])
def test_switch_holds_while_source_ids_are_unknown(old: Generators | None) -> None:
    generators = {"new": Generators(long=BEYOND), **({"old": old} if old else {})}
    answer = decide(changed(in_switch(), generators=generators))
    assert (answer.gate, answer.steps) == ("ids-apart", [])
    assert "nothing is known of the ids of old" in (answer.reason or "")


def twins(world: BookieSnapshot, recorded: bool = False) -> BookieSnapshot:
    """Return the world in which `old` and `new` are one cluster, by what is on record or by what is seen now."""
    if recorded:
        return changed(world, clusters=[one.model_copy(update={"instance": "same"}) for one in world.clusters])
    same = {name: one.model_copy(update={"instance": "same"}) for name, one in world.generators.items()}
    return changed(world, generators=same)


@pytest.mark.parametrize("recorded", [False, True])
def test_one_cluster_under_two_names_holds_everything(recorded: bool) -> None:
    before, done = twins(before_switch(), recorded), twins(to_the_end(in_switch()), recorded)
    for world, operation in (
        (before, "precheck"),
        (before, "switch"),
        (twins(in_switch(), recorded), "next"),
        (done, "rollback"),
        (done, "cleanup"),
    ):
        answer = asked(world, operation, target="new", dry_run=False, force=True)
        assert (answer.gate, answer.code, answer.action) == ("instance-id", 409, "hold"), operation
        assert not any(one.action in ("copy", "cas_attribution") for one in answer.steps)


def test_reformatted_cluster_is_another_one() -> None:
    clusters = [one.model_copy(update={"instance": f"was {one.name}"}) for one in before_switch().clusters]
    generators = {**before_switch().generators, "old": Generators(short=10, instance="another")}
    answer = asked(before_switch(clusters=clusters, generators=generators), "switch", target="new")
    assert (answer.gate, "was registered with was old" in (answer.reason or "")) == ("instance-id", True)


@pytest.mark.parametrize(
    ("there", "reason"),
    [
        (None, "has no such ledger"),
        (ledger(1, readable=False, error="2 bookies are down"), "2 bookies are down"),
        (ledger(1, closed=False), "read this schema once"),
    ],
)
def test_uncopyable_source_fails_and_keeps_ledger(there: object, reason: str) -> None:
    ledgers = {"old": [one for one in (there, ledger(2), ledger(3)) if one], "new": []}
    stamped = schema(1, 2, stamp="old")
    world = in_switch(before_switch(ledgers=ledgers, schemas=[stamped]))
    [failed] = [one for one in plan_steps(world).steps if one.action == "fail"]
    assert (failed.ledger, reason in failed.reason) == (1, True)
    done = to_the_end(world)
    answer = decide(done)
    assert [one.ledger for one in answer.failed_ledgers] == [1]
    assert answer.retry == "anabranch bookies switch --target new --no-dry-run"
    assert [one.stamp for one in done.schemas[0].positions] == ["old:1", "new:2"]


@pytest.mark.parametrize(
    ("there", "step"),
    [
        (ledger(1), "verify"),
        (ledger(1, length=599), "fail"),
        (ledger(1, last=1), "fail"),
        (ledger(1, custom={"a": "b"}), "verify"),
        (ledger(1, closed=False), "fail"),
        (ledger(1, readable=False), "fail"),
    ],
)
def test_existing_id_compared_never_overwritten(there: object, step: str) -> None:
    world = in_switch()
    world = changed(world, ledgers={**world.ledgers, "new": [there]})
    assert next(one.action for one in plan_steps(world).steps if one.ledger == 1) == step


def test_own_partial_copy_redone_but_foreign_kept() -> None:
    world = in_switch()
    for half in (ledger(1, closed=False, last=0, length=0), ledger(1, last=0, length=200)):
        one = changed(world, ledgers={**world.ledgers, "new": [half]})
        assert next(step.action for step in plan_steps(one).steps if step.ledger == 1) == "fail"
        begun = changed(one, progress=Progress(epoch=1, begun=[1]))
        [step] = [step for step in plan_steps(begun).steps if step.ledger == 1]
        assert step.action == "copy"
        assert step in plan_steps(Reducer(begun).reduced(step)).steps


def test_different_contents_of_equal_length_fail() -> None:
    world = in_switch(before_switch(ledgers={"old": [ledger(1, sha256="a"), ledger(2), ledger(3)], "new": []}))
    world = changed(world, ledgers={**world.ledgers, "new": [ledger(1, sha256="b")]})
    [failed] = [one for one in plan_steps(world).steps if one.action == "fail"]
    assert "contents" in failed.reason


def test_lost_compare_and_set_is_retried_on_request() -> None:
    verified = [Copy(kind="schema", object=SCHEMA, ledger=one, last=2, length=600) for one in (1, 2)]
    world = in_switch(before_switch(cursors=[]))
    world = changed(
        world,
        ledgers={**world.ledgers, "new": [ledger(1), ledger(2)]},
        progress=Progress(epoch=1, verified=verified, tries={SCHEMA: 5}),
    )
    answer = decide(world)
    assert (answer.steps, answer.failed_ledgers, answer.not_promoted) == ([], [], [SCHEMA, SCHEMA])
    cleanup = asked(world, "cleanup", dry_run=False, force=True)
    assert "delete" not in [one.action for one in cleanup.steps]
    again = written(world, asked(world, "switch", target="new"))
    fresh = changed(again, operation="next", progress=again.progress.model_copy(update={"tries": {}}))
    assert [one.action for one in decide(fresh).steps] == ["cas_attribution"]


def test_failed_ledger_retried_in_next_attempt_only() -> None:
    failure = Failure(kind="schema", object=SCHEMA, ledger=1, reason="a bookie was down", attempt=1)
    world = in_switch(progress=Progress(epoch=1, failed=[failure]))
    assert 1 not in [one.ledger for one in plan_steps(world).steps]
    again = changed(written(world, asked(world, "switch", target="new")), operation="next")
    assert ("copy", 1) in [(one.action, one.ledger) for one in plan_steps(again).steps]


def test_open_cursor_unloaded_instead_of_copied() -> None:
    world = in_switch(before_switch(cursors=[cursor(3, owner="broker-1")], ledgers=OPEN_CURSOR))
    [step] = [one for one in plan_steps(world).steps if one.ledger is None]
    assert (step.action, step.kind, step.object) == ("unload", "topic", CURSOR.rpartition("/")[0])
    done = to_the_end(world)
    assert (done.cursors[0].ledger, decide(done).counts["onSource"]) == (-1, 0)


def test_cursor_reopened_after_each_unload_fails() -> None:
    topic = CURSOR.rpartition("/")[0]
    before = before_switch(cursors=[cursor(3, owner="b")], ledgers=OPEN_CURSOR)
    world = in_switch(before, progress=Progress(epoch=1, tries={topic: 5}))
    [failed] = [one for one in plan_steps(world).steps if one.action == "fail"]
    assert "open again after each of 5 unloads" in failed.reason


def test_unloaded_cursor_sealed_and_copied() -> None:
    world = in_switch(before_switch(ledgers=OPEN_CURSOR))
    [step] = [one for one in plan_steps(world).steps if one.ledger == 3]
    assert step.action == "seal"
    assert to_the_end(world).cursors[0].stamp == "new:3"


def test_loaded_cursor_promoted_by_its_owner() -> None:
    world = in_switch(before_switch(cursors=[cursor(3, owner="broker-1")]))
    for step in plan_steps(world).steps:
        world = carried_out(world, step)
    [step] = [one for one in plan_steps(world).steps if one.kind == "cursor"]
    assert (step.action, step.expectation) == (
        "forward_owner",
        {"version": 0, "ledger": 3, "owner": "broker-1", "last": 2},
    )


def test_cursor_rolled_over_to_target_left_alone() -> None:
    copied = [Copy(kind="cursor", object=CURSOR, ledger=3, last=2, length=600)]
    world = in_switch(before_switch(schemas=[]), progress=Progress(epoch=1, verified=copied))
    world = changed(
        world,
        cursors=[cursor(BEYOND, stamp=f"new:{BEYOND}", version=4)],
        ledgers={**world.ledgers, "new": [ledger(3), ledger(BEYOND, created_at=NOW + 1)]},
    )
    assert [one.action for one in plan_steps(world).steps] == ["rollover_fallback"]
    done = to_the_end(world)
    assert decide(done).promoted_via_rollover_fallback == [CURSOR]
    assert done.cursors[0].version == 4


def test_stamp_of_other_ledger_says_nothing() -> None:
    rolled = cursor(4, stamp="new:3")
    world = in_switch(
        before_switch(cursors=[rolled], ledgers={"old": [ledger(1), ledger(2), ledger(3), ledger(4)], "new": []})
    )
    resolved = {one.ledger: (one.cluster, one.how) for one in asked(world, "resolve").attributions}
    assert resolved[4] == ("old", "bootstrap")
    assert ("copy", 4) in [(one.action, one.ledger) for one in plan_steps(world).steps]


@pytest.mark.parametrize(
    ("stamp", "made", "expected"),
    [
        ("new:1", MADE, ("new", "stamp")),
        ("new", MADE, ("new", "stamp")),
        ("gone:1", MADE, (None, "corruption")),
        ("new:2", MADE, (None, "corruption")),
        (None, NOW - 1, ("old", "bootstrap")),
        (None, NOW, (None, "corruption")),
        (None, None, (None, "corruption")),
    ],
)
def test_ledger_attributed_by_stamp_or_record(
    stamp: str | None, made: int | None, expected: tuple[str | None, str]
) -> None:
    """It is never guessed."""
    world = in_switch()
    position = world.schemas[0].positions[0].model_copy(update={"stamp": stamp})
    world = changed(
        world,
        schemas=[world.schemas[0].model_copy(update={"positions": [position]})],
        cursors=[],
        ledgers={"old": [ledger(1, created_at=made)], "new": [ledger(1, created_at=MADE)]},
    )
    [one] = asked(world, "resolve").attributions
    assert (one.cluster, one.how) == expected
    if one.cluster is None:
        assert one.reason
        assert plan_steps(changed(world, operation="next")).steps == []


def test_concurrent_work_limited_and_rest_reported() -> None:
    ledgers = list(range(1, 41))
    world = in_switch(
        before_switch(
            schemas=[schema(*ledgers)],
            cursors=[],
            ledgers={"old": [ledger(one) for one in ledgers], "new": []},
            generators={"old": Generators(short=50), "new": Generators(long=BEYOND)},
        )
    )
    answer = decide(world)
    assert len(answer.steps) == 16
    assert [one.gate for one in answer.readings if one.gate == "concurrency"] == ["concurrency"]
    busy = changed(world, progress=Progress(epoch=1, in_flight=[SCHEMA]))
    assert decide(busy).steps == []
    assert len(decide(changed(world, progress=Progress(epoch=1, in_flight=[CURSOR]))).steps) == 15
    assert len(plan_steps(world).steps) == 40


def test_lost_promoted_copy_remade_from_source() -> None:
    done = to_the_end(in_switch())
    for left in ([], [ledger(1, closed=False, last=0, length=200)]):
        others = [one for one in done.ledgers["new"] if one.id != 1]
        world = changed(
            done,
            ledgers={**done.ledgers, "new": [*others, *left]},
            progress=done.progress.model_copy(update={"begun": [1]}),
        )
        answer = plan_steps(world)
        assert [(one.action, one.ledger) for one in answer.steps] == [("copy", 1)]
        assert answer.phase == "BUILD"
        assert "I2" in {one.invariant for one in asked(world, "check").violations} or left
        assert decide(to_the_end(world)).phase == "CLEANUP"
    # Of what the source has lost as well nothing can be made.
    lost = changed(done, ledgers={"old": [], "new": done.ledgers["new"][1:]})
    assert plan_steps(lost).steps == []
