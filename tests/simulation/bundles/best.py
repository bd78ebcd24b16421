"""Markdown table: our profile `default` against Pulsar's best balancer on each load shape.

Run as `python -m tests.simulation.bundles.best [SEEDS]`. The best pair is the one with the lowest median deviation on
that shape, whatever its cost in the other columns.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.simulation.bundles.compare import COLUMNS, Compared, compare, number
from anabranch.simulation.bundles.shapes import SHAPES

OURS = "default"
_UNEVEN = ",loadBalancerDistributeBundlesEvenlyEnabled=false"
_LOWER = ",lowerBoundarySheddingEnabled=true,loadBalancerBundleUnloadMinThroughputThreshold=1" + _UNEVEN
PAIRS = {
    "4.x": "4.x",
    "5.0 (AvgShedder)": "5.0",
    "OverloadShedder, message rate": "OverloadShedder+LeastLongTermMessageRate" + _UNEVEN,
    "OverloadShedder, usage": "OverloadShedder+LeastResourceUsageWithWeight" + _UNEVEN,
    "ThresholdShedder, message rate": "ThresholdShedder+LeastLongTermMessageRate" + _LOWER,
    "ThresholdShedder, usage": "ThresholdShedder+LeastResourceUsageWithWeight" + _LOWER,
    "UniformLoadShedder, message rate": "UniformLoadShedder+LeastLongTermMessageRate" + _UNEVEN,
    "UniformLoadShedder, usage": "UniformLoadShedder+LeastResourceUsageWithWeight" + _UNEVEN,
    "TransferShedder": "TransferShedder",
}
"""Upstream's, each with the settings that let it do most: no even numbers of bundles, the lower boundary and a low
minimum for ThresholdShedder. By what they are called in the table."""


@dataclass(frozen=True)
class Match:
    """Our profile and upstream's best pair on one shape."""

    shape: str
    pair: str
    ours: Compared
    best: Compared

    def worse(self) -> dict[str, tuple[float, float]]:
        """Return the columns in which our median is higher, with both medians."""
        ours, best = self.ours.typical(), self.best.typical()
        return {column: (ours[column], best[column]) for column, _ in COLUMNS if ours[column] > best[column] + 1e-9}


def matches(shapes: Sequence[str], pairs: Sequence[str], seeds: Sequence[int]) -> list[Match]:
    """Return one match for each shape; `pairs` by their names in `PAIRS`."""
    compared = compare(shapes, [OURS, *(PAIRS[name] for name in pairs)], {}, seeds)
    by = {(outcome.shape, outcome.balancer): outcome for outcome in compared}
    result = []
    for shape in shapes:
        best = min(pairs, key=lambda name: by[shape, PAIRS[name]].typical()["deviation"])
        result.append(Match(shape, best, by[shape, OURS], by[shape, PAIRS[best]]))
    return result


def table(matches_of_shapes: Sequence[Match]) -> str:
    """Return two rows a shape, ours and the best: median (worst seed); bold: ours is higher."""
    heads = ["shape", "balancer", *(words for _, words in COLUMNS)]
    lines = [f"| {' | '.join(heads)} |", f"| {' | '.join(['---'] * len(heads))} |"]
    for match in matches_of_shapes:
        worse = match.worse()
        for name, side in ((OURS, match.ours), (match.pair, match.best)):
            typical, worst = side.typical(), side.worst()
            cells = [f"{number(typical[column])} ({number(worst[column])})" for column, _ in COLUMNS]
            if name == OURS:
                cells = [
                    f"**{cell}**" if column in worse else cell for cell, (column, _) in zip(cells, COLUMNS, strict=True)
                ]
            lines.append(f"| `{match.shape}` | {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    seeds = range(101, 101 + int(sys.argv[1] if len(sys.argv) > 1 else 20))
    print(table(matches(list(SHAPES), list(PAIRS), seeds)), end="")
