"""Detection of segments with two owners at once, by the consumers' own beliefs. Pure.

Stage: under `tests.harness.chaos.checker`. A rebalance is a push to each consumer, and a push is on its way for a
moment; so two beliefs may overlap for `IN_FLIGHT_S`. Longer is a broken promise: both would have read and committed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from tests.harness.chaos.history import Held

IN_FLIGHT_S = 1.0
"""Longest time that a push may be on its way on a machine that is busy with all of a run."""


def two_owners(held: Sequence[Held]) -> Iterator[str]:
    """Yield a violation for each segment with two holders in one subscription beyond `IN_FLIGHT_S`."""
    for first, second in overlaps(held):
        shared = min(first.until, second.until) - second.since
        if shared > IN_FLIGHT_S:
            life = f" of life {first.life}" if first.life else ""
            yield (
                f"{first.topic}: in {first.subscription} segment {first.segment}{life} belonged to {first.consumer} "
                f"and {second.consumer} for {shared:.2f} s, from {second.since:.2f} on: {_told(first)}; {_told(second)}"
            )


def _told(held: Held) -> str:
    return f"{held.consumer} from {held.since:.2f} to {held.until:.2f}, {held.ended_by or 'still'}"


def longest_overlap(held: Sequence[Held]) -> float:
    """The longest time that two consumers held one segment, seconds."""
    return max((min(one.until, two.until) - two.since for one, two in overlaps(held)), default=0.0)


def overlaps(held: Sequence[Held]) -> Iterator[tuple[Held, Held]]:
    """Yield pairs of different consumers that held one segment at the same time, first holder first."""
    by_segment: dict[tuple[str, int, str, int], list[Held]] = defaultdict(list)
    for one in held:
        by_segment[one.topic, one.life, one.subscription, one.segment].append(one)
    for group in by_segment.values():
        still: list[Held] = []
        for one in sorted(group, key=lambda one: (one.since, one.until)):
            still = [other for other in still if other.until > one.since]
            yield from ((other, one) for other in still if other.consumer != one.consumer)
            still.append(one)
