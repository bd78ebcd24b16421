"""What every answer has: each gate once, in order, agreeing with the table; and one that binds."""

from __future__ import annotations

import operator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from decisions.autoscale.answers import answer_to_json
from decisions.autoscale.decide import Hold, Merge, Split, decide, next_due
from decisions.autoscale.gates import BINDING_GATES, DESCRIPTIONS, PRECEDENCE, Gate, Situation, gates_page
from decisions.autoscale.policy import policy_override, resolve_policy
from decisions.autoscale.snapshot import OpenAction, snapshot_from_wire, snapshot_to_wire
from schemas.snapshot import ANSWER, Snapshot
from tests.decisions.snapshots import (
    COLD,
    DEFAULT,
    MINUTE,
    NOW,
    PIP,
    SECOND,
    at,
    bucket_snapshot,
    load,
    msg_rate,
    random_snapshot,
    snapshot,
    stream,
)

RELATIONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
ORDER = list(Gate)


def random_snapshots(count, seed=7):
    rng = Random(seed)
    return [random_snapshot(rng, guards=number % 4 != 0) for number in range(count)]


@pytest.fixture(scope="module")
def snapshots():
    """Drawn once, and not while tests are collected."""
    return random_snapshots(2_500)


def test_the_page_is_what_the_table_says():
    assert (Path(__file__).parents[2] / "docs" / "gates.md").read_text() == gates_page()


def test_every_gate_has_a_sentence():
    assert set(DESCRIPTIONS) == set(Gate)
    assert all(words.sentence.endswith(".") and words.source for words in DESCRIPTIONS.values())


def test_every_situation_has_its_gates():
    assert [row.situation for row in PRECEDENCE] == list(Situation)
    assert set(Gate) - set(BINDING_GATES) == {Gate.NOT_THIS_TRIGGER}
    for row in PRECEDENCE:
        gates = row.forbidding + row.waits
        assert gates
        assert len(set(gates)) == len(gates)


def test_random_snapshots_meet_every_gate(snapshots):
    rng = Random(7)
    with_buckets = [bucket_snapshot(rng) for _ in range(2_000)]
    met = {answer.gate for answer in map(decide, [*snapshots, *with_buckets]) if isinstance(answer, Hold)}
    assert met >= set(BINDING_GATES) - {Gate.UNSPLITTABLE}


def test_gates_pass_exactly_when_relation_holds(snapshots):
    for one in snapshots:
        for reading in decide(one).gates:
            words = DESCRIPTIONS[reading.gate]
            if words.relation and reading.measured is not None:
                assert reading.passed == RELATIONS[words.relation](reading.measured, reading.limit), reading
                assert (reading.margin >= 0) if reading.passed else (reading.margin <= 0), reading


def test_gates_are_read_once_each_and_in_order(snapshots):
    for one in snapshots:
        gates = [reading.gate for reading in decide(one).gates]
        assert gates.count(Gate.RETRY_BACKOFF) <= 1
        gates = [gate for gate in gates if gate is not Gate.RETRY_BACKOFF]
        assert gates == sorted(set(gates), key=ORDER.index)


def test_hold_bound_by_own_failed_reading(snapshots):
    for one in snapshots:
        answer = decide(one)
        if isinstance(answer, Hold):
            assert answer.binding in answer.gates
            assert not answer.binding.passed


def test_chosen_action_has_no_forbidding_gate(snapshots):
    forbids = {
        Split: {Gate.MAX_SEGMENTS, Gate.SPLIT_COOLDOWN, Gate.UNSPLITTABLE},
        Merge: {
            Gate.MIN_SEGMENTS,
            Gate.MERGE_COOLDOWN,
            Gate.MERGE_CONSUMERS,
            Gate.MERGE_THRESHOLDS,
            Gate.MAX_DAG_DEPTH,
            Gate.MERGE_WINDOW,
        },
    }
    for one in snapshots:
        answer = decide(one)
        if not isinstance(answer, Hold):
            assert not [
                reading for reading in answer.gates if not reading.passed and reading.gate in forbids[type(answer)]
            ]


def test_action_names_its_segments(snapshots):
    for one in snapshots:
        answer = decide(one)
        if not isinstance(answer, Hold):
            wire = ANSWER.validate_json(answer_to_json(answer))
            segments = [answer.segment] if isinstance(answer, Split) else list(answer.segments)
            assert (answer.action, answer.arguments) == (wire.action, {"segments": segments})


def test_every_answer_becomes_json_and_back(snapshots):
    for one in snapshots:
        line = answer_to_json(decide(one))
        assert ANSWER.validate_json(line).to_json() == line.decode()


def test_round_tripped_snapshot_gives_equal_answer(snapshots):
    expressible = [one for one in snapshots if _is_expressible(one.policy)][:400]
    assert len(expressible) == 400
    for number, one in enumerate(expressible):
        text = snapshot_to_wire(one).to_json()
        again = snapshot_from_wire(Snapshot.model_validate_json(text), ("default", "pip-483")[number % 2])
        assert decide(again) == decide(one)


def _is_expressible(policy):
    """Whether a wire override can say it: byte thresholds are whole there, durations whole seconds."""
    return resolve_policy("pip-483", policy_override(policy)).policy == replace(
        policy, enabled=policy.enabled and policy.broken is None
    )


def test_next_due_is_first_acting_instant(snapshots):
    met = set()
    for one in snapshots:
        answer = decide(one)
        due = next_due(answer)
        if due is None:
            continue
        met.add(answer.gate)
        assert due > one.now
        assert not isinstance(decide(at(one, due)), Hold)
        for earlier in (due - 1, (one.now + due) // 2):
            assert isinstance(decide(at(one, earlier)), Hold)
    assert met >= {Gate.SPLIT_COOLDOWN, Gate.MERGE_COOLDOWN, Gate.MERGE_WINDOW, Gate.RETRY_BACKOFF}


def test_without_a_next_due_no_passing_of_time_acts(snapshots):
    for one in snapshots[:1000]:
        answer = decide(one)
        # A hot key may be tried again some time, and found again.
        has_key = any(reading.gate is Gate.ONE_HOT_KEY for reading in answer.gates) or one.hot_keys
        if isinstance(answer, Hold) and answer.due is None and one.in_flight is None and not has_key:
            for later in (1, 999, 60_000, 300_001, 4_000_000, 2**41 + 700_000):
                assert isinstance(decide(at(one, one.now + later)), Hold)


def test_eligible_instant_is_when_gate_first_passes(snapshots):
    waits = {Gate.SPLIT_COOLDOWN, Gate.MERGE_COOLDOWN, Gate.RETRY_BACKOFF}
    for one in snapshots[:1000]:
        for reading in decide(one).gates:
            if reading.gate in waits and reading.eligible_at is not None:
                for moment, passes in ((reading.eligible_at, True), (reading.eligible_at - 1, False)):
                    later = [
                        r for r in decide(at(one, moment)).gates if r.gate is reading.gate and r.limit == reading.limit
                    ]
                    assert all(r.passed is passes for r in later)


def binding(one):
    answer = decide(one)
    assert isinstance(answer, Hold)
    return answer.binding


TWO_COLD = {0: load(COLD), 1: load(COLD)}

CASES = {
    "broken before all": (Gate.INVALID_POLICY, lambda: snapshot(policy=replace(PIP, min_segments=0, enabled=False))),
    "switched off": (Gate.DISABLED, lambda: snapshot(loads={0: msg_rate(1e9)}, policy=replace(PIP, enabled=False))),
    "open decision": (Gate.IN_FLIGHT, lambda: snapshot(loads={0: msg_rate(1e9)}, in_flight=OpenAction("d", NOW - 1))),
    "hot, at the cap and in the cooldown": (
        Gate.MAX_SEGMENTS,
        lambda: snapshot(loads={0: msg_rate(1e9)}, policy=replace(PIP, max_segments=1), last_split_at=NOW),
    ),
    "hot, in the cooldown": (Gate.SPLIT_COOLDOWN, lambda: snapshot(loads={0: msg_rate(1e9)}, last_split_at=NOW)),
    "consumers wait, in the cooldown": (
        Gate.SPLIT_COOLDOWN,
        lambda: snapshot(consumers=stream(2), last_split_at=NOW, trigger="consumer"),
    ),
    "a consumer came and has a segment": (
        Gate.CONSUMER_DEMAND,
        lambda: snapshot(2, consumers=stream(2), trigger="consumer", last_split_at=NOW),
    ),
    "one segment at rest in the cooldown": (Gate.SPLIT_THRESHOLDS, lambda: snapshot(last_split_at=NOW)),
    "one idle segment": (Gate.SPLIT_THRESHOLDS, lambda: snapshot(loads={0: load(COLD)})),
    "one segment without a record": (Gate.LOAD_MISSING, lambda: snapshot(loads={0: None})),
    "one segment long unseen": (
        Gate.LOAD_STALE,
        lambda: snapshot(loads={0: load(seen_at=NOW - 4 * MINUTE)}, policy=DEFAULT),
    ),
    "two warm segments": (Gate.MERGE_THRESHOLDS, lambda: snapshot(2, last_merge_at=NOW)),
    "cold next to unknown": (Gate.LOAD_MISSING, lambda: snapshot(2, loads={0: load(COLD), 1: None})),
    "cold, at the floor": (Gate.MIN_SEGMENTS, lambda: snapshot(2, TWO_COLD, policy=replace(PIP, min_segments=2))),
    "cold, as many consumers": (
        Gate.MERGE_CONSUMERS,
        lambda: snapshot(2, TWO_COLD, policy=DEFAULT, consumers=stream(2)),
    ),
    "cold, too deep": (Gate.MAX_DAG_DEPTH, lambda: snapshot(2, TWO_COLD, policy=replace(PIP, max_dag_depth=0))),
    "cold, in the cooldown": (Gate.MERGE_COOLDOWN, lambda: snapshot(2, TWO_COLD, last_merge_at=NOW - SECOND)),
    "cold, not for long": (Gate.MERGE_WINDOW, lambda: snapshot(2, {0: load(COLD, NOW - MINUTE), 1: load(COLD)})),
    "cold, the window ends after the cooldown": (
        Gate.MERGE_WINDOW,
        lambda: snapshot(2, {0: load(COLD, NOW - MINUTE), 1: load(COLD)}, last_merge_at=NOW - 2 * MINUTE),
    ),
    "cold, the cooldown ends after the window": (
        Gate.MERGE_COOLDOWN,
        lambda: snapshot(2, {0: load(COLD, NOW - 2 * MINUTE), 1: load(COLD)}, last_merge_at=NOW - MINUTE),
    ),
    "cold, backing off from a merge": (
        Gate.RETRY_BACKOFF,
        lambda: snapshot(2, TWO_COLD, policy=DEFAULT, failures=1, failed_at=NOW, failed_action="merge"),
    ),
    "hot, backing off": (
        Gate.RETRY_BACKOFF,
        lambda: snapshot(loads={0: msg_rate(1e9)}, policy=DEFAULT, failures=1, failed_at=NOW),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_gate_that_binds(name):
    gate, build = CASES[name]
    assert binding(build()).gate is gate


def test_a_broken_rule_is_named():
    reading = binding(snapshot(policy=replace(PIP, min_segments=9, max_segments=3)))
    assert reading.detail == "maxSegments (3) must not be less than minSegments (9)"


def test_a_reading_shows_what_was_measured():
    reading = binding(snapshot(2, {0: load(COLD, NOW - MINUTE), 1: load(COLD)}))
    assert (reading.measured, reading.limit, reading.margin) == (60_000.0, 300_000.0, -240_000.0)
    assert (reading.eligible_at, reading.segment) == (NOW + 4 * MINUTE, 0)


def test_stale_cold_pair_has_no_due_instant():
    """Its window ends too late."""
    records = {number: load(COLD, NOW - MINUTE, NOW - MINUTE) for number in (0, 1)}
    answer = decide(snapshot(2, records, policy=DEFAULT))
    assert answer.gate is Gate.MERGE_WINDOW
    assert next_due(answer) is None


def test_merge_before_1970_due_at_window_end():
    records = {number: load(COLD, -10 * MINUTE) for number in (0, 1)}
    answer = decide(snapshot(2, records, now=-8 * MINUTE))
    assert (answer.gate, next_due(answer)) == (Gate.MERGE_WINDOW, -5 * MINUTE)
