"""Predictions against reality: one seeded demand through the whole system, under each of two policies.

Run as `python -m benchmarks.reality [--minutes 30]`; not part of `make bench`. Each run is a local run of its own:
Kafka, job, executor, controller and traffic under the supervisor, in a fresh folder, both at the same time. Then the
second policy is backtested on the record of the first (and the other way round), simulated on what is on record of the
first, and simulated on the demand itself; actions are as late as on the record of the first. What really happened is
added up from the raw rows of each lake, and what was over its threshold from the demand under the layouts on record
(`tests.harness.raw_rows`); thresholds are those of the policy on record.
`--compare FOLDER` compares runs that are there already, `--write` puts the table into benchmarks/backtest.txt;
benchmarks/reality.json has it in any case.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from benchmarks.record import machine_now, write_report
from tests.harness.real_runs import COUNTS, HOME, judged, run_both

PAGE, BEGINS, ENDS = HOME / "benchmarks" / "backtest.txt", "<!-- reality: begin -->\n", "<!-- reality: end -->\n"
HEADS = ("splits", "merges", "segment-hours", "minutes over threshold")


def error(predicted: float, real: float) -> float:
    """Return the error in parts of what is real; of nothing real, what was predicted."""
    return (predicted - real) / (real or 1.0)


def table(comparisons: list[dict[str, Any]]) -> list[str]:
    """Return the rows of the table in benchmarks/backtest.txt."""
    lines = [f"| record of | policy | by | {' | '.join(HEADS)} |", "| --- | --- | --- |" + " ---: |" * len(HEADS)]
    for comparison in comparisons:
        sides = {
            f"what ran on record ({comparison['record']})": comparison["before"],
            f"really ran ({comparison['policy']})": comparison["real"],
        }
        for name, counts in sides.items():
            cells = " | ".join(f"{counts[key]:.4g}" for key in COUNTS)
            lines.append(f"| {comparison['record']} | {comparison['policy']} | {name} | {cells} |")
        for name, counts in comparison["predicted"].items():
            cells = " | ".join(
                f"{counts[key]:.4g} ({error(counts[key], comparison['real'][key]):+.1%})" for key in COUNTS
            )
            lines.append(f"| {comparison['record']} | {comparison['policy']} | {name} | {cells} |")
    return lines


def said(report: Mapping[str, Any]) -> str:
    """Return what stands in benchmarks/backtest.txt: machine, date, table, and what the first check says."""
    machine = report["machine"]
    checks = [
        f"{pair['record']}: {pair['itself']['share']:.1%} of the actions on record come again within a tick; "
        f"confidence in {pair['policy']} {pair['confidence']:.0%}"
        for pair in report["comparisons"]
        if pair["itself"]["share"] is not None
    ]
    ended = [
        f"{name}: " + ", ".join(f"{status} {count}" for status, count in by.items())
        for name, by in report["outcomes"].items()
    ]
    lags = ", ".join(f"{name} {seconds:g} s" for name, seconds in report["lagSeconds"].items())
    return (
        "\n".join(
            [
                f"{report['date']}, {machine['cores']} cores, {machine['processor']}, Python {machine['python']}: "
                f"{report['minutes']:g} minutes, {report['topics']} topics, seed {report['seed']}.",
                "",
                *table(report["comparisons"]),
                "",
                f"{'. '.join(checks)}. Decisions that ended: {'; '.join(ended)}. "
                f"From a decision to its layout: {lags}.",
            ]
        )
        + "\n"
    )


@click.command()
@click.option("--minutes", type=click.FloatRange(0.5, 600), default=30.0, show_default=True)
@click.option("--topics", type=click.IntRange(1, 200), default=24, show_default=True)
@click.option("--seed", type=int, default=7, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), help="Keep both runs here, in A and B.")
@click.option(
    "--compare",
    "known",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="FOLDER",
    help="Compare the runs in this folder, and run nothing.",
)
@click.option("--write", is_flag=True, help="Put the table into benchmarks/backtest.txt.")
def main(minutes: float, topics: int, seed: int, folder: Path | None, known: Path | None, write: bool) -> None:
    """Run the system under two policies on one demand, and compare what was predicted with what happened."""
    with tempfile.TemporaryDirectory(prefix="anabranch-reality-") as scratch:
        where = (known or folder or Path(scratch)).resolve()
        if not known:
            click.echo(f"running under both policies for {minutes:g} minutes …", err=True)
            run_both(where, minutes, topics, seed)
        report = {"machine": machine_now(), **judged(where)}
    click.echo(said(report))
    write_report("reality", report)
    if write:
        before, _, after = PAGE.read_text().partition(BEGINS)
        PAGE.write_text(before + BEGINS + said(report) + ENDS + after.partition(ENDS)[2])


if __name__ == "__main__":
    main()
