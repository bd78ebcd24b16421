"""Tables of benchmarks/profiles.txt and docs/profiles.md: profiles on shapes, a fleet's day, weeks.

Run as `python -m benchmarks.profiles FILE.csv… [--seeds 20]`; not part of `make bench`. Series are those of
`anabranch whatif simulate --trace`: `FILE.csv` or `FILE.csv@DAYS@PERCENTILE`, of 14 days and the largest value by
default.
"""

import os
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TypeAlias

import click

from anabranch.simulation.topics.run import simulate
from anabranch.simulation.topics.shapes import SHAPES, ShapedDemand
from anabranch.simulation.topics.table import as_text as shapes_text
from anabranch.simulation.topics.table import table
from anabranch.simulation.topics.traces import Series, read_series
from anabranch.simulation.topics.weeks import as_text as weeks_text
from anabranch.simulation.topics.weeks import weeks
from engine.autoscale.topics import ConfiguredPolicy

PAGE = Path(__file__).with_name("profiles.txt")
GUIDE = PAGE.parent.parent / "docs" / "profiles.md"
"""Has the same figures in fewer columns: a row for both profiles, `pip-483` before `default`."""
PROFILES = {name: ConfiguredPolicy(name, None) for name in ("pip-483", "default")}  # type: ignore[arg-type]
GuideTable: TypeAlias = tuple[str, int, tuple[str, ...]]
GUIDE_COLUMNS: tuple[GuideTable, ...] = (
    ("shapes", 1, ("splits", "merges", "reversals", "min over", "segment-h", "slack %", "clients moved")),
    ("fleet", 1, ("splits", "merges", "reversals", "segment-hours", "minutes over")),
    ("weeks", 2, ("reversals", "segment-h", "least h", "x oracle", "slack %", "min over", "clients moved")),
)
"""Of each table: its name, how many columns name its rows, and the columns with figures that the guide has."""
FLEET_HEADS = {
    "splits": "splits",
    "merges": "merges",
    "reversals": "reversals",
    "segmentHours": "segment-hours",
    "minutesOverThreshold": "minutes over",
    "consumerMinutesWaiting": "consumer-minutes waiting",
}


def fleet_text(topics: int, processes: int) -> str:
    """Return the table of a fleet: so many topics of each shape for 24 hours, and their sums."""
    lines = [f"| shape | profile | {' | '.join(FLEET_HEADS.values())} |", "| --- | --- |" + " ---: |" * 6]
    sums = {name: dict.fromkeys(FLEET_HEADS, 0.0) for name in PROFILES}
    for shape in SHAPES:
        if shape == "flat":
            continue
        for name, outcome in simulate(ShapedDemand(shape, topics, 24.0), PROFILES, processes=processes).items():
            counts = {key: float(outcome.to_json()[key]) for key in FLEET_HEADS}
            sums[name] = {key: sums[name][key] + counts[key] for key in FLEET_HEADS}
            lines.append(_row(shape, name, counts))
    return "\n".join([*lines, *(_row("**all**", name, counts) for name, counts in sums.items())]) + "\n"


def _row(shape: str, profile: str, counts: dict[str, float]) -> str:
    return f"| {shape} | {profile} | {' | '.join(f'{counts[key]:,.0f}' for key in FLEET_HEADS)} |"


def read_trace(text: str) -> Series:
    """Read `FILE.csv`, `FILE.csv@DAYS` or `FILE.csv@DAYS@PERCENTILE`."""
    name, *options = text.split("@")
    days, percentile = (
        float(options[index]) if len(options) > index else default for index, default in enumerate((14, 100))
    )
    series = read_series(Path(name)).first(days).scaled(percentile)
    return series._replace(name=f"{series.name}, {days:g} days")


def _split_at(page: str, part: str) -> tuple[str, str, str]:
    """Return the text before the table of a part, the table, and the text after it."""
    before, begin, after = page.partition(f"<!-- {part}: begin -->\n")
    text, end, rest = after.partition(f"<!-- {part}: end -->\n")
    if not end:
        raise click.ClickException(f"there is no place for the table `{part}`")
    return before + begin, text, end + rest


def _written(page: str, part: str, table_text: str) -> str:
    before, _, after = _split_at(page, part)
    return before + table_text + after


def guide_with(figures: str, guide: str, tables: Sequence[GuideTable] = GUIDE_COLUMNS) -> str:
    """Return docs/profiles.md with the tables of benchmarks/profiles.txt, naming a demand once."""
    for part, keys, columns in tables:
        table_lines = _split_at(figures, part)[1].splitlines()
        head, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table_lines)
        indices = [head.index(column) for column in columns]
        lines = [f"| {' | '.join([*head[:keys], *columns])} |", "|" + " --- |" * keys + " ---: |" * len(columns)]
        demand = ""
        for old, new in zip(rows[::2], rows[1::2], strict=True):
            pairs = (old[index] if old[index] == new[index] else f"{old[index]} → {new[index]}" for index in indices)
            lines.append(f"| {' | '.join(['' if old[0] == demand else old[0], *old[1:keys], *pairs])} |")
            demand = old[0]
        guide = _written(guide, part, "\n".join(lines) + "\n")
    return guide


@click.command()
@click.argument("series", nargs=-1)
@click.option("--seeds", type=click.IntRange(1, 1000), default=20, show_default=True, help="Of the shapes.")
@click.option("--topics", type=click.IntRange(1), default=250, show_default=True, help="Of each shape of the fleet.")
@click.option("--processes", type=click.IntRange(1), default=os.cpu_count() or 1, show_default="the cores")
def main(series: Sequence[str], seeds: int, topics: int, processes: int) -> None:
    """Measure both profiles, and write the tables into benchmarks/profiles.txt and docs/profiles.md."""
    about = (
        f"Seeds 1 to {seeds} of the shapes, {4 * topics:,} topics of the fleet, seed 1 of the series; "
        f"{datetime.now(timezone.utc):%F}. No figure depends on the machine.\n"
    )
    parts = {"about": about, "shapes": shapes_text(list(table(range(1, seeds + 1), processes)))}
    parts["fleet"] = fleet_text(topics, processes)
    if series:
        parts["weeks"] = weeks_text(list(weeks([read_trace(text) for text in series], [1], processes)))
    page = PAGE.read_text()
    for part, text in parts.items():
        page = _written(page, part, text)
    PAGE.write_text(page)
    GUIDE.write_text(guide_with(page, GUIDE.read_text()))
    click.echo(page)


if __name__ == "__main__":
    main()
