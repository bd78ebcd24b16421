"""`anabranch whatif shadow report`: the cluster's own scaler and our decisions. No Spark, no JVM."""

import json
import sys
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from anabranch.cli.context import Context
from anabranch.cli.instants import INSTANT
from anabranch.cli.reports import check_report, reading_lake, report_options, write_report
from anabranch.query.wording import instant
from schemas.printable import printable

_SHOWN = 20
_MOST_MILLIS = 253_402_300_799_000


@click.group("shadow")
def shadow_command() -> None:
    """Run beside another scaler without acting, and compare."""


@shadow_command.command("report")
@click.option("--since", type=INSTANT, metavar="TIME", help="Beginning; without it, of what is on record.")
@click.option("--until", type=INSTANT, metavar="TIME", help="End; without it, the last batch on record.")
@click.option("--namespace", metavar="TENANT/NAMESPACE", help="Of this namespace's topics alone.")
@click.option(
    "--reversal-minutes",
    type=click.FloatRange(min=0),
    default=30,
    show_default=True,
    help="What is taken back within this time counts as a reversal.",
)
@click.option("--scratch", type=click.Path(path_type=Path, file_okay=False), help="Folder for temporary files.")
@report_options
@click.pass_obj
def compare_sides(
    context: Context,
    since: datetime | None,
    until: datetime | None,
    namespace: str | None,
    reversal_minutes: float,
    scratch: Path | None,
    output: str,
    file: Path | None,
) -> None:
    """Compare what the cluster's own scaler did with what Anabranch decided meanwhile.

    \b
    anabranch whatif shadow report --since 2026-11-22T08:00:00
    anabranch whatif shadow report --output html --file shadow.html

    Both have to watch the same topics: `anabranch serve collector pulsar` and the job run, and the executor in mode
    observe.
    """
    from anabranch.history.recorded import RecordedHistory, newest_before
    from anabranch.simulation.shadow.record import NothingToCompare, read_sides
    from anabranch.simulation.shadow.report import compare
    from engine.replay import RebuildError
    from lake.forgotten import retained_from
    from streaming.job.policy import configured_policy, stored_policy

    check_report(output, file)
    lake = context.settings.lake_path
    prefix = None if namespace is None else f"topic://{namespace}/"
    with reading_lake(lake, NothingToCompare, RebuildError):
        retained = retained_from(lake)
        start = max(retained, since) if retained and since else retained
        with TemporaryDirectory(prefix="anabranch-shadow-", dir=scratch) as folder:
            recorded = read_sides(
                lake,
                RecordedHistory(lake, Path(folder), with_ticks=True, until=until, horizon=newest_before(lake, start)),
                stored_policy(configured_policy(context.settings)),
                lambda topic: prefix is None or topic.startswith(prefix),
                _progress if sys.stderr.isatty() else lambda *_: None,
            )
    end = recorded.ended_at if until is None else min(int(until.timestamp() * 1000), _MOST_MILLIS)
    comparison = compare(recorded, None if since is None else int(since.timestamp() * 1000), end, reversal_minutes)
    if output == "html":
        from anabranch.simulation.shadow.picture import page

        text = page(comparison, _numbers(comparison))
    else:
        text = json.dumps(comparison) + "\n" if output == "json" else _text(comparison)
    write_report(text, file, f"{len(comparison['actions'])} actions compared")


def _progress(done: int, instant_ms: int) -> None:
    if done % 1_000 == 0:
        click.echo(f"\r{done:,} batches, up to {instant(instant_ms)}", nl=False, err=True)


def _numbers(comparison: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return rows of the comparison: subject, theirs, ours."""
    theirs, ours = comparison["theirs"], comparison["ours"]
    hot, ours_hot = theirs["minutesOverThreshold"], ours["minutesOverThreshold"]
    agreement, lead = comparison["agreement"], comparison["leadSeconds"]
    share = "-" if agreement["share"] is None else f"{agreement['share']:.0%}"
    return [
        ("splits", str(theirs["splits"]), str(ours["splits"])),
        ("merges", str(theirs["merges"]), str(ours["merges"])),
        (f"taken back within {comparison['reversalMinutes']:g} min", str(theirs["reversals"]), str(ours["reversals"])),
        ("over a threshold before a split by load, median", _minutes(hot, "median"), _minutes(ours_hot, "median")),
        ("  all such splits together", _minutes(hot, "total"), _minutes(ours_hot, "total")),
        ("only this side wanted it", str(comparison["onlyTheirs"]), str(sum(comparison["onlyOurs"].values()))),
        ("their actions that we agree with", share, ""),
        ("  first, and by how much at the median", _first(lead["behind"]), _first(lead["ahead"])),
    ]


def _minutes(spread: dict[str, Any], key: str) -> str:
    return f"{spread[key]:.1f} min" if spread["count"] else "-"


def _first(spread: dict[str, Any]) -> str:
    return f"{spread['count']} times, {spread['median']:.0f} s" if spread["count"] else "never"


def _text(comparison: dict[str, Any]) -> str:
    period = comparison["period"]
    rows = [("", "the cluster's scaler", "Anabranch"), *_numbers(comparison)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [f"{instant(period['from'])} to {instant(period['to'])}, {comparison['topics']} topics", ""]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    for title, counted in (
        ("only theirs, and what we said then", comparison["agreement"]["otherwise"]),
        ("only ours, and what became of it", comparison["onlyOurs"]),
    ):
        if counted:
            lines += ["", f"{title}: " + ", ".join(f"{name} {number}" for name, number in sorted(counted.items()))]
    if comparison["actions"]:
        lines += ["", f"newest {min(_SHOWN, len(comparison['actions']))} of {len(comparison['actions'])} actions:"]
        lines += [_line(row) for row in comparison["actions"][-_SHOWN:]]
    lines += [f"note: {printable(note)}" for note in (*comparison["notes"], *comparison["doubts"][:3])]
    return "\n".join(lines) + "\n"


def _line(row: dict[str, Any]) -> str:
    acted_at = min(instant_ms for instant_ms in (row["theirsAt"], row["oursAt"]) if instant_ms is not None)
    lead = "" if row["leadSeconds"] is None else f", we {row['leadSeconds']:.0f} s earlier"
    ids = "+".join(map(str, row["segments"]))
    return f"  {instant(acted_at)}  {row['action']} {ids} of {printable(row['topic'])}: {row['verdict']}{lead}"
