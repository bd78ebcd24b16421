"""Distinct orders of steps, out of the model, for the real executor to follow.

Of all histories those are taken that a scheduler makes which lets everybody go on as far as possible, and leaves
its way a bounded number of times, for a step that somebody else could take instead; faults come everywhere. Everything
that differs in what the executor is told, and in what order, is among them. Of the decisions that are due the model
tries any one first; the real executor the one that has waited longest, so only those histories are taken.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.executor.model.rules import Rules
from tests.executor.model.state import NAMES, State, Step
from tests.executor.model.steps import Next, is_done, steps

MAX_STEPS = 60
UNSEEN = {"freeze", "wake up", "renew the lease", "start again", "take up the decisions"}
"""Steps that tell a real executor nothing: two histories that differ in those only are one scenario."""
Scenario = tuple[tuple[Step, ...], State]


def scenarios(rules: Rules, detours: int = 0) -> list[Scenario]:
    """Histories from the beginning until every decision has ended, and the last state of each."""
    found: dict[tuple[Step, ...], Scenario] = {}
    for trace, state in _histories(State(rules.faults), rules, detours, (), frozenset()):
        is_braked = any(step.what == "is braked" for step in trace)
        if not is_braked or rules.faults - state.faults == 1:
            # In the model a brake is forgotten by a crash; the real one is not, and has tests of its own.
            found.setdefault(tuple(step for step in trace if step.what not in UNSEEN), (trace, state))
    return list(found.values())


def _histories(
    state: State, rules: Rules, detours: int, trace: tuple[Step, ...], seen: frozenset[State]
) -> Iterator[Scenario]:
    if is_done(state) and len(state.decisions) == rules.evaluations * rules.siblings:
        yield trace, state
        return
    if len(trace) > MAX_STEPS or state in seen:
        return
    possible = [one for one in steps(state, rules) if _is_in_turn(one, state, trace)]
    by_default = sorted((one for one in possible if not one.fault), key=lambda one: _rank(one, state, trace))
    chosen = [(one, detours) for one in by_default[:1]]
    chosen += [(one, detours) for one in by_default[1:] if one.step.who == by_default[0].step.who]
    if detours:
        chosen += [(one, detours - 1) for one in by_default[1:] if one.step.who != by_default[0].step.who]
    chosen += [(one, detours) for one in possible if one.fault]
    for one, left in chosen:
        yield from _histories(one.state, rules, left, (*trace, one.step), seen | {state})


def _is_in_turn(one: Next, state: State, trace: tuple[Step, ...]) -> bool:
    """Whether a step begins no try, or that of the decision that has waited longest."""
    who, what, _, decision = one.step
    if what != "look" or decision is None:
        return True
    executor = state.executors[NAMES.index(who)]
    due = [number for number, work in enumerate(executor.works) if work.at == "begun"]
    return executor.at != "idle" or decision == min(due, key=lambda number: (_waits_since(trace, who, number), number))


def _waits_since(trace: tuple[Step, ...], who: str, decision: int) -> int:
    """The place in a history since which a process could try a decision."""
    return max(
        (
            place
            for place, step in enumerate(trace)
            if step.who == who
            and (
                step.what == "read the record"
                or (step.what == "record the intent" and step.decision in (None, decision))
                or (step.what == "record the retry" and step.decision == decision)
            )
        ),
        default=-1,
    )


def _rank(one: Next, state: State, trace: tuple[Step, ...]) -> tuple[bool, ...]:
    """The world first, then who acted last, then A; a lease runs out when nothing else can be done by who works."""
    who, what = one.step.who, one.step.what
    last = next((step.who for step in reversed(trace) if step.who in NAMES), "A")
    idles = what in ("the lease runs out", "start again", "wake up", "take the lease")
    return (idles, who != "world", who != last, who != "A")
