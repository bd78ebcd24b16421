"""Table of profiles on shapes of demand: medians and the worst over seeds.

`benchmarks.profiles` writes it to benchmarks/profiles.txt.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from decisions.autoscale.decide import decide
from decisions.autoscale.policy import PROFILES
from tests.harness.demand_shapes import SHAPES
from tests.harness.reference_loop import Decide, alone

HEADS = ("splits", "merges", "reversals", "failed", "min over", "segment-h", "min waiting", "left")


class TableCase(NamedTuple):
    """One run."""

    shape: str
    profile: str
    seed: int


@dataclass(frozen=True)
class ReportRow:
    """Profile on a shape; columns as `HEADS`."""

    shape: str
    profile: str
    median: tuple[float, ...]
    worst: tuple[float, ...]


def table(
    seeds: Sequence[int],
    processes: int,
    deciders: Mapping[str, Decide] = MappingProxyType({}),
) -> list[ReportRow]:
    """Return a row for every profile, and every other decider under policy `pip-483`, on every shape."""
    profiles = ["pip-483", "default"]
    cases = [TableCase(shape, profile, seed) for shape in SHAPES for profile in profiles for seed in seeds]
    by_others = [TableCase(shape, name, seed) for shape in SHAPES for name in deciders for seed in seeds]
    runs = chain(_run_all(cases, processes), (_run(case, deciders[case.profile]) for case in by_others))
    by_profile: dict[tuple[str, str], list[tuple[float, ...]]] = {}
    for case, columns in runs:
        by_profile.setdefault((case.shape, case.profile), []).append(columns)
    return [
        ReportRow(shape, name, tuple(np.median(columns, axis=0).tolist()), tuple(np.max(columns, axis=0).tolist()))
        for shape in SHAPES
        for name in (*deciders, *profiles)
        for columns in [by_profile[shape, name]]
    ]


def _run_all(cases: Sequence[TableCase], processes: int) -> Iterator[tuple[TableCase, tuple[float, ...]]]:
    if processes == 1:
        yield from map(_run, cases)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(_run, cases, chunksize=4)


def _run(case: TableCase, decided_by: Decide = decide) -> tuple[TableCase, tuple[float, ...]]:
    policy = PROFILES.get(case.profile, PROFILES["pip-483"])
    came = alone(SHAPES[case.shape](np.random.default_rng(case.seed)), policy, decided_by=decided_by)
    return case, (
        came.splits,
        came.merges,
        came.reversals,
        came.failed,
        came.over_ms / 60_000,
        came.segment_ms / 3_600_000,
        came.waiting_ms / 60_000,
        came.left,
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
