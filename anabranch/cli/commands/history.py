"""`anabranch history TOPIC`: splits and merges over the key space against time. No Spark, no JVM."""

import json
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import click

from anabranch.cli.connection import encodable_text
from anabranch.cli.context import Context
from anabranch.cli.instants import INSTANT, check_period
from anabranch.cli.reports import reading_lake, write_report


@click.command("history")
@click.argument("topic")
@click.option("--since", type=INSTANT, metavar="TIME", help="As 14:05, 2026-11-22T14:05:00Z or '2d ago', UTC.")
@click.option("--until", type=INSTANT, metavar="TIME", help="Without it, the last batch on record.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=40, show_default=True, help="Newest turns in the terminal."
)
@click.option(
    "--svg", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="A picture, written there."
)
@click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_obj
def history_command(
    context: Context,
    topic: str,
    since: datetime | None,
    until: datetime | None,
    limit: int,
    svg: Path | None,
    output: str,
) -> None:
    """Draw how TOPIC's segments split and merged, with what led to each.

    \b
    anabranch history orders --since '6h ago'
    anabranch history orders --svg orders.svg

    In the terminal time runs downwards, a row for each change. In the picture it runs from left to right: a river whose
    arms part where a segment is split, and join where two are merged. TOPIC as in `anabranch explain`.
    """
    from rich.console import Console

    from anabranch.cli.river_text import river_text
    from anabranch.history.lineage.record import NothingOnRecord, read_river
    from anabranch.history.lineage.svg import picture
    from anabranch.query.topics import topic_on_record

    check_period(since, until)
    lake = context.settings.lake_path
    with reading_lake(lake, NothingOnRecord):
        river = read_river(lake, topic_on_record(lake, encodable_text(topic)), since, until)
    if svg is not None:
        write_report(picture(river), svg, f"{len(river.reaches)} segments, {len(river.turns)} turns")
    if output == "json":
        click.echo(json.dumps(asdict(river)))
    elif svg is None:
        console = Console(highlight=False)
        console.print(river_text(river, console.width, limit))
