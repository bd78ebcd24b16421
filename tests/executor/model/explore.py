"""Breadth first over all interleavings: counterexamples as traces, and the check that everything comes to its end."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tests.executor.model.rules import Rules
from tests.executor.model.state import State, Step
from tests.executor.model.steps import is_done, steps


@dataclass(frozen=True)
class Counterexample:
    """A shortest history that breaks a rule."""

    broken: str
    trace: tuple[Step, ...]

    def __str__(self) -> str:
        return "\n".join([*(f"{n:>3}. {step}" for n, step in enumerate(self.trace, 1)), f"     -> {self.broken}"])


@dataclass(frozen=True)
class Explored:
    """What an exploration has found."""

    states: int
    transitions: int
    depth: int
    """Steps of the longest shortest history."""
    seconds: float
    counterexample: Counterexample | None
    stuck: Counterexample | None
    """A history after which some decision cannot end, though nothing more fails."""


def explore(rules: Rules, liveness: bool = True, seek: str = "") -> Explored:
    """All states within the rules' bounds, or those up to the first counterexample.

    `seek`: only to a rule with these words; other broken ones are passed over.
    """
    begun = time.process_time()
    first = State(rules.faults)
    # States are hashed once per transition: everything else goes by their numbers, in the order of discovery.
    numbers, states = {first: 0}, [first]
    parents: list[tuple[int, Step] | None] = [None]
    depths, reverse, transitions = [0], [list[int]()], 0
    for number, state in enumerate(states):
        for step, after, broken, fault in steps(state, rules):
            transitions += 1
            if broken and seek in broken:
                trace = (*_history(parents, number), step)
                seconds = time.process_time() - begun
                counterexample = Counterexample(broken, trace)
                return Explored(len(states), transitions, depths[number] + 1, seconds, counterexample, None)
            reached = numbers.setdefault(after, len(states))
            if reached == len(states):
                states.append(after)
                parents.append((number, step))
                depths.append(depths[number] + 1)
                reverse.append([])
            if liveness and not fault:
                reverse[reached].append(number)
    stuck = _stuck(states, parents, reverse) if liveness else None
    return Explored(len(states), transitions, depths[-1], time.process_time() - begun, None, stuck)


def broken_rules(rules: Rules) -> set[str]:
    """Every rule that some history within the bounds breaks: one exploration, however many rules are asked about."""
    first = State(rules.faults)
    seen, stack, found = {first}, [first], set[str]()
    while stack:
        for _, after, broken, _ in steps(stack.pop(), rules):
            if broken:
                found.add(broken)
            if after not in seen:
                seen.add(after)
                stack.append(after)
    return found


def _stuck(
    states: list[State], parents: list[tuple[int, Step] | None], reverse: list[list[int]]
) -> Counterexample | None:
    """A reachable state from which no steps without faults lead to where every decision has ended.

    With none of those, and steps that are taken at last if they stay possible, every decision ends.
    """
    queue = [number for number, state in enumerate(states) if is_done(state)]
    can_end = bytearray(len(states))
    for number in queue:
        can_end[number] = True
    for number in queue:
        for before in reverse[number]:
            if not can_end[before]:
                can_end[before] = True
                queue.append(before)
    stuck = can_end.find(False)
    if stuck < 0:
        return None
    return Counterexample("a decision cannot end any more, or the job never hears of it", _history(parents, stuck))


def _history(parents: list[tuple[int, Step] | None], number: int) -> tuple[Step, ...]:
    trace: list[Step] = []
    while (parent := parents[number]) is not None:
        number, step = parent
        trace.append(step)
    return tuple(reversed(trace))
