"""Breadth first over all interleavings: counterexamples as traces, and the check that everything comes to its end."""

from __future__ import annotations

import time
from collections import deque
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
    parents: dict[State, tuple[State, Step] | None] = {first: None}
    reverse: dict[State, list[State]] = {}
    depths = {first: 0}
    queue, transitions = deque([first]), 0
    while queue:
        state = queue.popleft()
        for step, after, broken, fault in steps(state, rules):
            transitions += 1
            if broken and seek in broken:
                trace = (*_history(parents, state), step)
                seconds = time.process_time() - begun
                found = Counterexample(broken, trace)
                return Explored(len(parents), transitions, depths[state] + 1, seconds, found, None)
            if liveness and not fault:
                reverse.setdefault(after, []).append(state)
            if after not in parents:
                parents[after] = (state, step)
                depths[after] = depths[state] + 1
                queue.append(after)
    stuck = _stuck(parents, reverse) if liveness else None
    return Explored(len(parents), transitions, max(depths.values()), time.process_time() - begun, None, stuck)


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


def _stuck(parents: dict[State, tuple[State, Step] | None], reverse: dict[State, list[State]]) -> Counterexample | None:
    """A reachable state from which no steps without faults lead to where every decision has ended.

    With none of those, and steps that are taken at last if they stay possible, every decision ends.
    """
    ends = {state for state in parents if is_done(state)}
    queue = deque(ends)
    while queue:
        for before in reverse.get(queue.popleft(), ()):
            if before not in ends:
                ends.add(before)
                queue.append(before)
    for state in parents:
        if state not in ends:
            return Counterexample(
                "a decision cannot end any more, or the job never hears of it", _history(parents, state)
            )
    return None


def _history(parents: dict[State, tuple[State, Step] | None], state: State) -> tuple[Step, ...]:
    trace: list[Step] = []
    while (before := parents[state]) is not None:
        state, step = before
        trace.append(step)
    return tuple(reversed(trace))
