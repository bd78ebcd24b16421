"""`anabranch decisions list`, `show`, `approve` and `reject`: decisions on record and those that wait.

No Spark, no JVM. An approval or rejection is a row of the table `brakes`.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone

import click

from anabranch.cli.braking import decide_on, with_reason_and_actor
from anabranch.cli.connection import encodable_text
from anabranch.cli.context import Context
from anabranch.cli.exits import Unreachable
from anabranch.cli.instants import INSTANT
from anabranch.cli.reports import reading_lake
from schemas.printable import printable

STATES = ("open", "intent", "applied", "superseded", "rejected", "failed", "observed")
_COLUMNS = "decision_id, subject, action, segments, reason, decided_at, ended_at, status, calls, error"


@click.command("list")
@click.option("--topic", metavar="TOPIC", help="Only those of one topic, as in `anabranch explain`.")
@click.option("--state", "state", type=click.Choice(STATES), help="Only those that are open, or ended so.")
@click.option("--since", type=INSTANT, metavar="TIME", help="As 14:05, 2026-11-22T14:05:00Z or '2d ago', UTC.")
@click.option("--until", type=INSTANT, metavar="TIME", help="Without it, now.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_obj
def list_decisions(
    context: Context,
    topic: str | None,
    state: str | None,
    since: datetime | None,
    until: datetime | None,
    limit: int,
    output: str,
) -> None:
    """List the newest decisions, with how each ended."""
    from anabranch.query.sql import LakeSql, literal
    from anabranch.query.topics import topic_on_record

    with _opened_lake(context) as lake:
        conditions = []
        if topic is not None:
            conditions.append(f"subject = {literal(topic_on_record(lake, encodable_text(topic)))}")
        if state is not None:
            conditions.append(f"status = {literal(state)}")
        for instant, comparison in ((since, ">="), (until, "<")):
            if instant is not None:
                conditions.append(
                    f"decided_at {comparison} TIMESTAMP '{instant.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S.%f}'"
                )
        where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
        rows = LakeSql(lake).rows(
            f"SELECT {_COLUMNS} FROM decision_outcomes {where}ORDER BY decided_at DESC, decision_id LIMIT {limit}"
        )
    if output == "json":
        click.echo(json.dumps(rows, default=str))
        return
    for row in rows:
        click.echo(
            f"{row['decided_at']:%Y-%m-%d %H:%M:%S}  {row['decision_id'][:12]}  {row['status']:<10}  "
            f"{row['action']} {row['segments'] or ''} of {printable(row['subject'])} ({printable(row['reason'])})"
        )
    if not rows:
        click.echo("no such decision is on record", err=True)


@click.command("show")
@click.argument("id", metavar="ID")
@click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_obj
def show_decision(context: Context, id: str, output: str) -> None:
    """Show one decision: what it was decided on, its calls and its end.

    ID is that of `anabranch decisions list`, or the beginning of one.
    """
    from anabranch.query.sql import LakeSql, literal

    if not id.isalnum():
        raise click.BadParameter("an id has letters and digits only", param_hint="ID")
    with _opened_lake(context) as lake:
        sql = LakeSql(lake)
        matches = sql.rows(f"SELECT decision_id FROM decisions WHERE starts_with(decision_id, {literal(id)}) LIMIT 2")
        if len(matches) != 1:
            raise click.ClickException(
                f"{'several decisions begin' if matches else 'no decision on record begins'} with {id}"
            )
        where = f"WHERE decision_id = {literal(matches[0]['decision_id'])}"
        (decision,) = sql.rows(f"SELECT * FROM decisions {where} LIMIT 1")
        (ended,) = sql.rows(f"SELECT * FROM decision_outcomes {where} LIMIT 1")
        steps = sql.rows(f"SELECT at, status, attempt, mode, error FROM outcomes {where} ORDER BY at, attempt")
    for column in ("inputs", "gates", "arguments"):
        decision[column] = json.loads(decision[column])
    if output == "json":
        click.echo(json.dumps(decision | {"status": ended["status"], "steps": steps}, default=str))
        return
    click.echo(f"{decision['action']} {ended['segments'] or ''} of {printable(decision['subject'])}: {ended['status']}")
    click.echo(f"  decision  {decision['decision_id']}")
    click.echo(f"  why       {printable(decision['reason'])}, at a {decision['trigger']}")
    click.echo(f"  decided   {decision['decided_at']:%Y-%m-%d %H:%M:%S} UTC on layout epoch {decision['layout_epoch']}")
    for step in steps:
        detail = f": {printable(step['error'])}" if step["error"] else ""
        click.echo(f"  {step['at']:%Y-%m-%d %H:%M:%S}  {step['status']} (attempt {step['attempt']}){detail}")
    click.echo(f"  next      anabranch explain {printable(decision['subject'])}", err=True)


@contextmanager
def _opened_lake(context: Context) -> Iterator[str]:
    """Yield the lake's path; errors become one line and an exit code."""
    from anabranch.query.sql import SqlError
    from lake.tables import open_table
    from schemas.tables.rows import DECISIONS

    lake = context.settings.lake_path
    try:
        with reading_lake(lake):
            if open_table(lake, DECISIONS) is None:
                raise Unreachable(f"there is no table {DECISIONS.name} in {lake}: is [lake] path right?")
            yield lake
    except SqlError as error:
        raise Unreachable(f"the lake {lake} cannot be read: {error}") from error


@click.command("approve")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@with_reason_and_actor
@click.pass_obj
def approve(context: Context, ids: tuple[str, ...], reason: str, by: str) -> None:
    """Let decisions be applied that wait for approval ([executor] mode = "approve").

    \b
    The ids: anabranch decisions waiting. Each is judged by its topic again before its call: what has changed meanwhile
    supersedes it. What was approved or rejected stays so.
    """
    decide_on(context, "approve", ids, reason, by)


@click.command("reject")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@with_reason_and_actor
@click.pass_obj
def reject(context: Context, ids: tuple[str, ...], reason: str, by: str) -> None:
    """End decisions that nobody should apply: each gets the outcome `rejected`, with who and why.

    \b
    The ids: anabranch decisions waiting. The topic decides again after its back-off. A decision that has begun
    cannot be rejected; in mode act one may begin at the same moment: its outcome tells.
    """
    decide_on(context, "reject", ids, reason, by)
