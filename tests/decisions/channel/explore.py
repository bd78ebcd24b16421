"""Breadth first over all orders of steps: a shortest counterexample, and the check that every run comes to rest."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cache, partial

from tests.decisions.channel.steps import steps, unrest
from tests.decisions.channel.world import Rules, World, start


@dataclass(frozen=True)
class Explored:
    """What an exploration has found."""

    states: int
    transitions: int
    depth: int
    rounds: int
    """The most rounds of the monitor until rest, when nothing more fails."""
    broken: str = ""
    trace: tuple[str, ...] = ()

    @property
    def counterexample(self) -> str:
        """A shortest history that breaks a promise; '' if there is none."""
        if not self.broken:
            return ""
        return "\n".join([*(f"{n:>3}. {step}" for n, step in enumerate(self.trace, 1)), f"     -> {self.broken}"])


@cache
def explore(rules: Rules) -> Explored:
    """All worlds within the bounds, or those up to the first counterexample."""
    first = start(rules)
    parents: dict[World, tuple[World, str] | None] = {first: None}
    depths, after = {first: 0}, dict[World, list[tuple[World, int]]]()
    queue, transitions = deque([first]), 0
    ended = partial(_found, parents, depths)
    while queue:
        world = queue.popleft()
        goes_on = after.setdefault(world, [])
        for step, to, broken, fault, rounds in steps(world, rules):
            transitions += 1
            if broken:
                return ended(transitions, 0, broken, (*_history(parents, world), step))
            if not fault:
                goes_on.append((to, rounds))
            if to not in parents:
                parents[to] = (world, step)
                depths[to] = depths[world] + 1
                queue.append(to)
        if not goes_on and (wrong := unrest(world, rules)):
            return ended(transitions, 0, f"nothing happens any more, and {wrong}", _history(parents, world))
    rounds, loop = _rounds_to_rest(after)
    if loop is not None:
        return ended(transitions, 0, "without a fault, it goes on for ever", _history(parents, loop))
    return ended(transitions, rounds, "", ())


def _found(
    parents: dict[World, tuple[World, str] | None],
    depths: dict[World, int],
    transitions: int,
    rounds: int,
    broken: str,
    trace: tuple[str, ...],
) -> Explored:
    return Explored(len(parents), transitions, max(depths.values()), rounds, broken, trace)


def _rounds_to_rest(after: dict[World, list[tuple[World, int]]]) -> tuple[int, World | None]:
    """The most rounds on any way to where nothing happens; or a world on a circle, as such ways have no end."""
    waits_for = {world: len(found) for world, found in after.items()}
    before = dict[World, list[tuple[World, int]]]()
    for world, found in after.items():
        for to, rounds in found:
            before.setdefault(to, []).append((world, rounds))
    most = dict.fromkeys(after, 0)
    queue = deque(world for world, count in waits_for.items() if not count)
    while queue:
        to = queue.popleft()
        for world, rounds in before.get(to, ()):
            most[world] = max(most[world], most[to] + rounds)
            waits_for[world] -= 1
            if not waits_for[world]:
                queue.append(world)
    loop = next((world for world, count in waits_for.items() if count), None)
    passed = set[World]()
    while loop is not None and loop not in passed:
        passed.add(loop)
        loop = next(to for to, _ in after[loop] if waits_for[to])
    return max(most.values()), loop


def _history(parents: dict[World, tuple[World, str] | None], world: World) -> tuple[str, ...]:
    trace: list[str] = []
    while (before := parents[world]) is not None:
        world, step = before
        trace.append(step)
    return tuple(reversed(trace))
