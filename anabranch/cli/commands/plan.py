"""`anabranch plan`: what would be done now, topic by topic, with reasons. No Spark, no JVM."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from anabranch.cli.context import Context
from anabranch.cli.exits import FOUND, Unreachable
from anabranch.cli.reports import reading_lake
from schemas.printable import printable

if TYPE_CHECKING:
    from anabranch.history.plan import Plan

OLD_SECONDS = 60
"""A record that ended longer ago is said to be old."""
_NAMED = 3
"""Topics under one gate that are named; of more, the number alone is printed."""


@click.command("plan")
@click.option("--topics", metavar="NAMES", help="Of these alone, separated by commas; each as in `anabranch explain`.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Actions printed; JSON has all."
)
@click.option("--scratch", type=click.Path(path_type=Path, file_okay=False), help="Folder for temporary files.")
@click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_context
def plan_command(ctx: click.Context, topics: str | None, limit: int, scratch: Path | None, output: str) -> None:
    """Show what would be split, merged or rebucketed now, and what holds the other topics.

    \b
    anabranch plan
    anabranch plan --topics orders,payments
    anabranch plan --output json | jq '.actions[].topic'

    The state of every topic is rebuilt from the lake up to the last batch on record, and decided once more. Nothing is
    changed and nobody is called. A topic with an open decision is held by `in-flight`. The exit code is 0 when nothing
    would be done, 1 when something would, and 3 when no topic can be read from the lake.
    """
    from anabranch.history.plan import make_plan
    from anabranch.history.recorded import RecordedHistory, newest_before
    from anabranch.query.topics import find_topic, topics_on_record
    from engine.replay import RebuildError
    from streaming.job.policy import configured_policy, stored_policy

    context: Context = ctx.obj
    lake = context.settings.lake_path
    try:
        with reading_lake(lake), TemporaryDirectory(prefix="anabranch-plan-", dir=scratch) as folder:
            on_record = topics_on_record(lake)
            names = on_record if topics is None else [find_topic(on_record, name.strip()) for name in topics.split(",")]
            recorded = RecordedHistory(lake, Path(folder), topics=names, horizon=newest_before(lake, None, names))
            plan = make_plan(recorded, stored_policy(configured_policy(context.settings)), names)
    except RebuildError as error:
        raise Unreachable(f"the lake {lake} cannot be read: {printable(str(error))}") from error
    if plan is None or not plan.topics:
        raise Unreachable(f"no topic is on record in {lake}: is [lake] path right, and did the job ever run?")
    if output == "json":
        click.echo(json.dumps({"at": _instant(plan).isoformat(), **plan.to_json()}))
    else:
        _print_plan(plan, limit)
    ctx.exit(FOUND if plan.actions else 0)


def _print_plan(plan: Plan, limit: int) -> None:
    acting = len({action.topic for action in plan.actions})
    click.echo(f"{acting} of {plan.topics} topics would act, {len(plan.actions)} actions in all")
    named = [(action, printable(action.topic)) for action in plan.actions[:limit]]
    width = max((len(name) for _, name in named), default=0)
    for action, name in named:
        action_words = f"{action.action} {'+'.join(map(str, action.segments))}"
        times = "" if action.overload is None else f", {action.overload:.2f} times the threshold"
        click.echo(f"  {name:{width}}  {action_words:<14} {printable(action.reason)}{times}")
    if len(plan.actions) > limit:
        click.echo(f"  and {len(plan.actions) - limit} more (--limit)")
    for gate, topics in plan.holds():
        names = f": {', '.join(map(printable, topics))}" if len(topics) <= _NAMED else ""
        click.echo(f"  {len(topics):>5} held by {gate}{names}")
    if (datetime.now(timezone.utc) - _instant(plan)).total_seconds() > OLD_SECONDS:
        click.echo(f"the record ends at {_instant(plan):%F %T} UTC: this is the state of then", err=True)


def _instant(plan: Plan) -> datetime:
    return datetime.fromtimestamp(plan.at / 1000, timezone.utc)
