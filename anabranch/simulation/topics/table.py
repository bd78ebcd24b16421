"""Table of profiles on shapes of demand: medians and the worst over seeds.

Stage: above `demands` and `run`; printed by `anabranch whatif simulate --shapes` and shown in benchmarks/profiles.txt.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from anabranch.simulation.topics.demands import SHAPES, THRESHOLD, ShapeDemand
from anabranch.simulation.topics.outcome import Outcome
from anabranch.simulation.topics.run import simulate
from anabranch.simulation.topics.timeline import STEP_MS
from anabranch.simulation.topics.weeks import CLIENTS, PROFILES
from engine.autoscale.topics import ConfiguredPolicy

BEGAN_AT = 1_767_225_600_000
"""1 January 2026."""
HOUR_MS = 3_600_000
HEADS = (
    "splits",
    "merges",
    "reversals",
    "min over",
    "segment-h",
    "static",
    "oracle",
    "slack %",
    "clients moved",
    "min waiting",
    "most",
)


@dataclass(frozen=True)
class ReportRow:
    """Profile on a shape; columns as `HEADS`."""

    shape: str
    profile: str
    median: tuple[float, ...]
    worst: tuple[float, ...]

    def to_json(self) -> dict[str, object]:
        """Return the row for scripts."""
        return asdict(self) | {"columns": list(HEADS)}


def table(
    seeds: Sequence[int], processes: int, progress: Callable[[int, int], None] = lambda *_: None
) -> Iterator[ReportRow]:
    """Yield a row per profile and shape; `progress` gets the number of finished shapes, and of all."""
    for done, shape in enumerate(SHAPES):
        progress(done, len(SHAPES))
        demand = ShapeDemand(shape, seeds, BEGAN_AT)
        outcomes = simulate(demand, {name: ConfiguredPolicy(name, None) for name in PROFILES}, processes=processes)
        needs = [_needs(demand, index) for index in range(len(seeds))]
        for name in PROFILES:
            columns = [_columns(outcomes[name], index, *needs[index]) for index in range(len(seeds))]
            yield ReportRow(shape, name, tuple(np.median(columns, 0).tolist()), tuple(np.max(columns, 0).tolist()))
    progress(len(SHAPES), len(SHAPES))


def _needs(demand: ShapeDemand, index: int) -> tuple[float, float, float]:
    """Return static, oracle and the load itself in segment-hours, as `weeks.static_and_oracle`."""
    load = demand.drawn(index).rates.sum(axis=1) / THRESHOLD
    needed = np.maximum(np.ceil(load - 1e-9), 1.0)
    hours = STEP_MS / HOUR_MS
    return float(needed.max() * len(load)) * hours, float(needed.sum()) * hours, float(load.sum()) * hours


def _columns(outcome: Outcome, index: int, static: float, oracle: float, load: float) -> tuple[float, ...]:
    hours = float(outcome.segment_ms[index]) / HOUR_MS
    return (
        int(outcome.splits[index]),
        int(outcome.merges[index]),
        int(outcome.reversals[index]),
        float(outcome.over_ms[index]) / 60_000,
        hours,
        static,
        oracle,
        100 * (1 - load / hours),
        int(outcome.sealed[index]) * CLIENTS,
        float(outcome.waiting_ms[index]) / 60_000,
        int(outcome.most_segments[index]),
    )


def as_text(rows: Sequence[ReportRow]) -> str:
    """Return the table in Markdown, legible in a terminal: the median, and the worst where it differs."""
    lines = [["demand", "profile", *HEADS], *([row.shape, row.profile, *_cells(row)] for row in rows)]
    before = ""
    for line in lines[1:]:
        line[0], before = ("" if line[0] == before else line[0]), line[0]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    drawn = [
        "| "
        + " | ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        + " |"
        for line in lines
    ]
    rule = "|" + "|".join("-" * (width + 1) + ("-" if column < 2 else ":") for column, width in enumerate(widths)) + "|"
    return "\n".join([drawn[0], rule, *drawn[1:]]) + "\n"


def _cells(row: ReportRow) -> list[str]:
    return [
        f"{median:.4g}" if f"{median:.4g}" == f"{worst:.4g}" else f"{median:.4g} ({worst:.4g})"
        for median, worst in zip(row.median, row.worst, strict=True)
    ]
