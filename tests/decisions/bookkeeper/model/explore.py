"""Every order of moves, breadth first; what must hold in each state, and what who takes over comes to from it."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from functools import cache

from decisions.bookkeeper.seen import BookieView
from tests.decisions.bookkeeper.model.moves import moves
from tests.decisions.bookkeeper.model.state import (
    NAMES,
    OPEN,
    WHOLE,
    Actor,
    Rules,
    World,
    beginning,
    next_steps,
    snapshot,
)

ORIGINAL = (WHOLE, OPEN)
MOST = 400
"""Moves after which a switch that nobody disturbs has to have ended."""


@dataclass
class Explored:
    """What was found."""

    states: int
    moves: int
    depth: int
    seconds: float
    broken: str | None = None
    history: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{at:3}. {words}" for at, words in enumerate(self.history, 1)]
        return "\n".join([*lines, f"     -> {self.broken}"])


def explore(rules: Rules) -> Explored:
    """All that can happen; ends at the first rule that is broken, with the shortest history of it."""
    start, first = time.monotonic(), beginning(rules)
    came: dict[World, tuple[World, str] | None] = {first: None}
    waiting, taken, depth = deque([(first, 0)]), 0, 0
    while waiting:
        world, far = waiting.popleft()
        depth = max(depth, far)
        broken = fault(world, rules)
        if broken is not None:
            return Explored(len(came), taken, depth, time.monotonic() - start, broken, _history(came, world))
        for words, after in moves(world, rules):
            taken += 1
            if after not in came:
                came[after] = world, words
                waiting.append((after, far + 1))
    return Explored(len(came), taken, depth, time.monotonic() - start)


def fault(world: World, rules: Rules) -> str | None:
    """What does not hold; None: all does."""
    active = [name for name, status, _ in world.clusters if status == "ACTIVE"]
    if len(active) != 1:
        return f"{len(active)} clusters are ACTIVE"
    lost = _lost(world.seen)
    if lost is not None:
        return lost
    return _in_the_end(world.seen, rules)


@cache
def _lost(world: World) -> str | None:
    for item in BookieView(snapshot(world)).items:
        if item.ledger >= 0 and not any(world.on(name).get(item.ledger) in ORIGINAL for name in NAMES):
            return f"no cluster has a whole copy of {item.ledger}, which {item.object} names"
    return None


@cache
def _in_the_end(world: World, rules: Rules) -> str | None:
    """Somebody takes over whom nobody disturbs: it comes to rest, and every ledger is where it is attributed to."""
    if world.directive is None:
        return None
    now = world._replace(term=1).with_actor(0, Actor(1))
    quiet = Rules(commands=(), takeovers=0, stamps=rules.stamps, repair=rules.repair)
    for _ in range(MOST):
        following = next(moves(now, quiet), None)
        if following is None:
            break
        now = following[1]
    else:
        return "a switch that nobody disturbs does not end"
    if rules.repair and next_steps(now.seen):
        return "steps are left that nobody takes"
    for item in BookieView(snapshot(now.seen)).items:
        if item.cluster is not None and item.ledger >= 0 and now.on(item.cluster).get(item.ledger) not in ORIGINAL:
            return f"{item.object} is attributed to {item.cluster}, which has no whole copy of {item.ledger}"
    return None


def _history(came: dict[World, tuple[World, str] | None], world: World) -> tuple[str, ...]:
    words = []
    step = came[world]
    while step is not None:
        words.append(step[1])
        step = came[step[0]]
    return tuple(reversed(words))
