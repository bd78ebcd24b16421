"""The smallest number of steps that leads somewhere else, for a question that is asked again at each try.

Stage: under `ledger.explain.changes`. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable


def smallest_step(leads_away: Callable[[int], bool], most: int, marks: Iterable[int] = ()) -> int | None:
    """The number of steps, 1 to `most`, that leads away while one step fewer does not; None: none that was tried does.

    `marks` are where the answer may turn: each is tried with its two neighbours, and powers of two between them. Of the
    first try that leads away and the last that did not, the turn between is found by halving. It is the smallest of all
    where the answer turns once, or at marks only.
    """
    tries = {one + more for one in marks for more in (-1, 0, 1)} | {most}
    step = 1
    while step < most:
        tries.add(step)
        step *= 2
    stays = 0
    for away in sorted(one for one in tries if 0 < one <= most):
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
