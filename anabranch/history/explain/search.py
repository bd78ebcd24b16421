"""Search for the smallest number of steps that changes an answer, by asking again at each try.

Stage: under `anabranch.history.explain.changes`. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable


def smallest_step(leads_away: Callable[[int], bool], most: int, marks: Iterable[int] = ()) -> int | None:
    """Return a number of steps, 1 to `most`, that leads away while one fewer does not; None: no try does.

    `marks`: steps at which the answer may change. Each mark is tried with its two neighbours, and powers of two between
    them; the change between the last try that stays and the first that leads away is found by bisection. The result is
    the overall minimum if the answer changes only once, or only at marks.
    """
    tries = {mark + more for mark in marks for more in (-1, 0, 1)} | {most}
    step = 1
    while step < most:
        tries.add(step)
        step *= 2
    stays = 0
    for away in sorted(attempt for attempt in tries if 0 < attempt <= most):
        if leads_away(away):
            break
        stays = away
    else:
        return None
    while away - stays > 1:
        middle = (stays + away) // 2
        if leads_away(middle):
            away = middle
        else:
            stays = middle
    return away
