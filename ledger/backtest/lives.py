"""What layouts on record say: which segment carried which hashes from when to when, and what was split and merged.

Stage: under `demand` and `comparison`. Pure. Instants are milliseconds since 1970, of the job's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from decisions.topic.layout import SegmentLayout
from ledger.shadow.sides import actions_in


class Announced(NamedTuple):
    """A layout as the job took it in."""

    at: int
    layout: SegmentLayout
    decision: str | None = None
    """The decision that led to it, if one did."""


class Life(NamedTuple):
    """An active segment: hashes `start` to `end`, inclusive, from `begins` until before `ends`."""

    segment: int
    start: int
    end: int
    begins: int
    ends: int


class Action(NamedTuple):
    """A split, or a merge, of the hashes `start` to `end`, inclusive."""

    at: int
    kind: str
    start: int
    end: int
    decision: str | None = None
    """Of one on record: the decision that led to it, if its layout says one."""
    parents: tuple[int, ...] = ()
    children: tuple[int, ...] = ()
    """Of one on record: segments that were sealed, and that were made."""


def lives_of(announced: Sequence[Announced], ends: int) -> list[Life]:
    """The lives of all segments that were active before `ends`, by their beginning; `announced` ascending."""
    known: dict[int, Life] = {}
    found: list[Life] = []
    for at, layout, _ in announced:
        active = {one.segment_id: one for one in layout.active}
        for gone in [one for one in known if one not in active]:
            found.append(known.pop(gone)._replace(ends=at))
        for segment, one in active.items():
            if segment not in known:
                known[segment] = Life(segment, one.start, one.end, at, ends)
    found += known.values()
    found.sort(key=lambda one: (one.begins, one.start))
    return [one for one in found if one.begins < one.ends]


def actions_of(announced: Sequence[Announced]) -> list[Action]:
    """Every split and merge between the first layout and the last, in their order."""
    found: list[Action] = []
    for (_, before, _), (at, after, decision) in pairwise(announced):
        shown = sorted(actions_in(after, before), key=lambda one: one[2])
        for kind, parents, children, _ in shown:
            if children[0] < before.next_segment_id:
                continue
            made = [after.segments[one] for one in children]
            start, end = min(one.start for one in made), max(one.end for one in made)
            found.append(Action(at, kind, start, end, decision, parents, children))
    return found


def spans_of(announced: Sequence[Announced]) -> list[list[Announced]]:
    """The layouts of each topic that had this name, one after the other: one that is made again counts from 0 again."""
    found: list[list[Announced]] = []
    for one in announced:
        if not found or one.layout.next_segment_id < found[-1][-1].layout.next_segment_id:
            found.append([])
        elif one.layout.epoch < found[-1][-1].layout.epoch:
            # It came late; the job does not believe it either.
            continue
        found[-1].append(one)
    return found
