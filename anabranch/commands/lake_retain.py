"""`anabranch lake retain`: forgets old days of a table. Says only what would go, until it is told to apply it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import click

from anabranch.context import Context
from schemas.tables import TABLES


@click.command("retain")
@click.argument("name", type=click.Choice(["dead_letters"]), metavar="dead_letters")
@click.option("--days", type=click.IntRange(min=1), required=True, help="Keep today (UTC) and as many days before it.")
@click.option("--apply", "is_applied", is_flag=True, help="Do it. Without this it only says what would go.")
@click.pass_obj
def retain(context: Context, name: str, days: int, is_applied: bool) -> None:
    """Forget days of dead letters that are older than --days; safe while the job and an executor run.

    \b
    anabranch lake retain dead_letters --days 30
    anabranch lake retain dead_letters --days 30 --apply

    The disk is free once `anabranch lake vacuum` deletes the files. A day stays that has the newest dead letter of a
    Kafka partition: a rebuild reads on from there.
    """
    from deltalake.exceptions import DeltaError

    from lake.compaction import Compacting
    from lake.retention import forget

    before = datetime.now(timezone.utc).date() - timedelta(days=days)
    try:
        done = forget(context.settings.lake_path, TABLES[name], before, is_dry_run=not is_applied)
    except (Compacting, DeltaError, OSError) as error:
        raise click.ClickException(f"{name} was left as it is: {str(error).partition(chr(10))[0]}") from error
    what = "forgotten" if is_applied else "would go"
    click.echo(f"{name}: {done.rows:,} rows of {len(done.days)} days before {before} in {done.files} files {what}")
    if done.kept:
        click.echo(f"kept for a rebuild: {', '.join(map(str, done.kept))}")
    if done.files and not is_applied:
        click.echo("nothing was changed: add --apply to do it")
