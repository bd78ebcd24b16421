"""Bounds of the goals for weeks of demand: what foresight reaches, and what merges across halves would add.

Run as `python -m benchmarks.halving FILE.csv@DAYS@PERCENTILE…`; not part of `make bench`. Keys as in
`anabranch.simulation.topics.weeks`, seed 1. Figures are cited in docs/profiles.md.
"""

from collections.abc import Sequence

import click
import numpy as np

from anabranch.simulation.topics.outcome import REVERSAL_MS
from anabranch.simulation.topics.timeline import STEP_MS, Floats
from anabranch.simulation.topics.traces import zipf_profile
from anabranch.simulation.topics.weeks import EXPONENTS, fewest_halves, levels
from benchmarks.profiles import read_trace

STEP_HOURS = STEP_MS / 3_600_000
ALLOWED_STEPS = 3_600_000 // STEP_MS
"""Of an hour over the threshold."""
GRAINS = (8, 16, 32, 64)
HEADS = ("oracle", "halves", "an hour over", "no reversal", "least slack %", "least min over")
REVERSAL_STEPS = REVERSAL_MS // STEP_MS


def grain_hours(load: Floats, grain: int) -> tuple[float, int]:
    """Return the segment-hours of the fewest ranges of whole `grain`ths, and how often they change."""
    pieces = np.maximum(np.floor(grain / np.maximum(load, 1e-9) + 1e-9), 1.0)
    segments = np.ceil(grain / np.minimum(pieces, grain))
    return float(segments.sum()) * STEP_HOURS, int(np.count_nonzero(np.diff(segments)))


def steady_hours(load: Floats, shares: Floats) -> float:
    """Return the least segment-hours of halves without reversals; one segment while a slice is over."""
    reachable = np.where(shares.max() * load > 1 + 1e-9, 0.0, load)
    total, halves = len(load), shares
    while len(halves) > 1:
        halves = halves.reshape(-1, 2).sum(axis=1)
        for share in halves[halves * reachable.max() > 1 + 1e-9]:
            hot = np.flatnonzero(share * reachable > 1 + 1e-9)
            breaks = np.flatnonzero(np.diff(hot) > REVERSAL_STEPS)
            first, last = hot[np.r_[0, breaks + 1]], hot[np.r_[breaks, -1]] + 1
            total += int((np.minimum(np.maximum(last, first + REVERSAL_STEPS), len(load)) - first).sum())
    return total * STEP_HOURS


@click.command()
@click.argument("series", nargs=-1, required=True)
def main(series: Sequence[str]) -> None:
    """Print the bounds of each series."""
    click.echo(f"| demand | keys | {' | '.join(HEADS)} |\n|---|---|{'---:|' * len(HEADS)}")
    loads = {recorded.name: levels(recorded) for recorded in map(read_trace, series)}
    for name, load in loads.items():
        oracle = np.maximum(np.ceil(load - 1e-9), 1.0).sum() * STEP_HOURS
        for exponent in EXPONENTS:
            shares = zipf_profile(exponent, 1)
            segments, is_over = fewest_halves(load, shares)
            hours = segments.sum() * STEP_HOURS
            saved = np.sort(segments - 1)[-ALLOWED_STEPS:].sum() * STEP_HOURS
            slack, minutes = 1 - load.sum() * STEP_HOURS / hours, is_over.sum() * STEP_HOURS * 60
            bounds = f"{oracle:,.0f} | {hours:,.0f} | {hours - saved:,.0f} | {steady_hours(load, shares):,.0f}"
            keys = f"Zipf {exponent:g}" if exponent else "uniform"
            click.echo(f"| {name} | {keys} | {bounds} | {100 * slack:.0f} | {minutes:,.1f} |")
    for name, load in loads.items():
        click.echo(f"\n{name}, uniform keys")
        for grain in (grain for grain in GRAINS if grain >= load.max()):
            hours, changes = grain_hours(load, grain)
            click.echo(f"  ranges of whole {grain}ths: {hours:,.0f} segment-hours, {changes:,} changes")


if __name__ == "__main__":
    main()
