"""Markdown table: our profile `default` against Pulsar's best balancer on each load shape.

Run as `python -m tests.simulation.bundles.best [SEEDS]`. The best pair is the one with the lowest median deviation on
that shape, whatever its cost in the other columns. With `record` instead of SEEDS it writes what upstream's pairs came
to on the seeds of the test, which then runs ours alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

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


RECORD, RECORDED_SEEDS = Path(__file__).with_name("upstream.json"), range(201, 207)


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


def record_upstream() -> dict[str, Any]:
    """Return by shape the deviations of every pair, and all columns of the best one, by seed."""
    record = {}
    for shape in SHAPES:
        found = dict(zip(PAIRS, compare([shape], list(PAIRS.values()), {}, RECORDED_SEEDS), strict=True))
        deviations = {name: _rounded(compared, "deviation") for name, compared in found.items()}
        best = min(deviations, key=lambda name: median(deviations[name]))
        columns = {column: _rounded(found[best], column) for column, _ in COLUMNS}
        record[shape] = {"best": best, "columns": columns, "deviations": deviations}
    return record


def _rounded(compared: Compared, column: str) -> list[float]:
    return [round(value, 6) for value in compared.values(column)]


if __name__ == "__main__":
    if sys.argv[1:] == ["record"]:
        shapes = [f"{json.dumps(shape)}: {json.dumps(record)}" for shape, record in record_upstream().items()]
        RECORD.write_text("{\n" + ",\n".join(shapes) + "\n}\n")
        sys.exit()
    seeds = range(101, 101 + int(sys.argv[1] if len(sys.argv) > 1 else 20))
    print(table(matches(list(SHAPES), list(PAIRS), seeds)), end="")
