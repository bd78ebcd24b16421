"""The kernel carries a family that it does not know: a log is rolled over, with gates, waits, a bound and an action."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum

import pytest

from decisions.kernel.answers import Hold, next_due
from decisions.kernel.precedence import PrecedenceRow, binding_reading
from decisions.kernel.readings import MAX_INSTANT_MS, Reading, due_at, gates_to_json, read_above, read_waited


class Gate(Enum):
    PAUSED = "paused"
    SIZE = "size"
    COOLDOWN = "cooldown"
    QUIET = "quiet"


class Situation(Enum):
    SWITCHED_OFF = "switched off"
    WANTS_TO_ROLL = "wants to roll"


TABLE = (
    PrecedenceRow(Situation.SWITCHED_OFF, "an operator has paused it", (Gate.PAUSED,)),
    PrecedenceRow(
        Situation.WANTS_TO_ROLL, "a log is always to be rolled", (Gate.SIZE,), waits=(Gate.COOLDOWN, Gate.QUIET)
    ),
)


@dataclass(frozen=True)
class Roll:
    log: str
    gates: tuple[Reading[Gate], ...]
    action = "roll"
    reason = "size"

    @property
    def arguments(self):
        return {"log": self.log}


def decide(now, size=101, rolled_at=None, written_at=None, paused=False):
    if paused:
        off = Reading(Gate.PAUSED, False)
        return Hold(binding_reading(TABLE, {Situation.SWITCHED_OFF: [off]}), (off,))
    gates = (
        read_above(Gate.SIZE, size, 100),
        read_waited(Gate.COOLDOWN, now, rolled_at, 50),
        read_waited(Gate.QUIET, now, written_at, 10),
    )
    failing = TABLE[1].failing(gates)
    if not failing:
        return Roll("log-7", gates)
    return Hold(binding_reading(TABLE, {Situation.WANTS_TO_ROLL: gates}), gates, due_at(failing))


def as_row(answer):
    """What the engine writes down, knowing no family."""
    return answer.action, json.dumps(answer.arguments), answer.reason, gates_to_json(answer.gates)


def test_kernel_records_action_of_any_family():
    action, arguments, reason, gates = as_row(decide(now=1_000, rolled_at=950))
    assert (action, arguments, reason) == ("roll", '{"log": "log-7"}', "size")
    assert json.loads(gates) == [
        {"gate": "size", "limit": 100.0, "margin": 1.0, "measured": 101.0, "passed": True},
        {"gate": "cooldown", "limit": 50.0, "margin": 0.0, "measured": 50.0, "passed": True},
        {"gate": "quiet", "limit": 10.0, "passed": True},
    ]


@pytest.mark.parametrize(
    ("state", "gate", "due"),
    [
        ({"paused": True, "size": 1}, Gate.PAUSED, None),
        ({"size": 100, "rolled_at": 999}, Gate.SIZE, None),
        ({"rolled_at": 999, "written_at": 999}, Gate.COOLDOWN, 1_049),
        ({"rolled_at": 951, "written_at": 999}, Gate.QUIET, 1_009),
        ({"rolled_at": 959, "written_at": 999}, Gate.COOLDOWN, 1_009),
        ({"rolled_at": 950, "written_at": 991}, Gate.QUIET, 1_001),
    ],
)
def test_forbidding_gate_binds_before_longest_wait(state, gate, due):
    answer = decide(now=1_000, **state)
    assert (answer.gate, next_due(answer)) == (gate, due)
    if due is not None:
        assert isinstance(decide(now=due - 1, **state), Hold)
        assert isinstance(decide(now=due, **state), Roll)


def test_an_action_has_no_due_instant():
    assert next_due(decide(now=1_000)) is None


def test_the_first_situation_of_the_table_decides():
    off, small = Reading(Gate.PAUSED, False), read_above(Gate.SIZE, 1, 100)
    assert binding_reading(TABLE, {Situation.WANTS_TO_ROLL: [small], Situation.SWITCHED_OFF: [off]}) is off


def test_passing_or_irrelevant_gate_never_binds():
    passing, other = read_above(Gate.SIZE, 101, 100), Reading(Gate.PAUSED, False)
    with pytest.raises(LookupError, match="WANTS_TO_ROLL"):
        binding_reading(TABLE, {Situation.WANTS_TO_ROLL: [passing, other]})


@pytest.mark.parametrize(
    ("wait_ms", "until", "at_least", "due"),
    [
        (50, 1_050, 0, 1_050),
        (50, 1_049, 0, None),
        (50, MAX_INSTANT_MS, 1_060, 1_060),
        (MAX_INSTANT_MS, MAX_INSTANT_MS, 0, None),
    ],
)
def test_due_instant_within_known_period(wait_ms, until, at_least, due):
    assert due_at([read_waited(Gate.COOLDOWN, 1_000, 1_000, wait_ms)], until, at_least) == due


def test_a_gate_that_time_does_not_open_is_never_due():
    assert due_at([read_waited(Gate.COOLDOWN, 1_000, 1_000, 50), read_above(Gate.SIZE, 1, 100)]) is None
