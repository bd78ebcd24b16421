"""`anabranch lake retain`: forgets old rows of a table. Says only what would go, until it is told to apply it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, time, timedelta, timezone

import click

from anabranch.context import Context
from schemas.tables import DEAD_LETTERS, DECISIONS, EVENTS, HOLDS, OUTCOMES, SEGMENT_LOAD, WAITS

TABLES = {
    "dead_letters": (DEAD_LETTERS,),
    "segment_load": (SEGMENT_LOAD,),
    "events": (EVENTS,),
    "holds": (HOLDS,),
    "decisions": (DECISIONS, OUTCOMES, WAITS),
}
"""What goes together, in the order in which it goes."""


@click.command("retain")
@click.argument("name", type=click.Choice(list(TABLES)), metavar="|".join(TABLES))
@click.option("--days", type=click.IntRange(min=1), required=True, help="Keep today (UTC) and as many days before it.")
@click.option("--namespace", "namespaces", multiple=True, metavar="TENANT/NAMESPACE",
              help="Only rows of its topics; may be given several times.")  # fmt: skip
@click.option("--apply", "is_applied", is_flag=True, help="Do it. Without this it only says what would go.")
@click.pass_obj
def retain(context: Context, name: str, days: int, namespaces: Sequence[str], is_applied: bool) -> None:
    """Forget rows that are older than --days; safe while the job and an executor run.

    \b
    anabranch lake retain segment_load --days 90
    anabranch lake retain segment_load --days 90 --apply
    anabranch lake retain decisions --days 400 --namespace test/load --apply

    Old rows stay that say how things stand since: the newest load of each segment, layout, policy and consumers of each
    topic, hold and decision of each topic; and decisions that are not over. With decisions go their outcomes and waits.
    Before anything goes, what a rebuild of the job's state needs of the old rows is kept in the table `horizons`:
    rebuild, replay and explain go on from there, and say so when they are asked for something older. Of dead letters a
    day stays that has the newest of a Kafka partition.

    The disk is free once `anabranch lake vacuum` deletes the files.
    """
    from deltalake.exceptions import DeltaError

    from engine.replay import RebuildError
    from lake.compaction import Compacting
    from lake.horizons import drop_horizons, retained_from
    from lake.retention import forget

    if namespaces and name == "dead_letters":
        raise click.UsageError("--namespace is not for dead_letters: one may be of no topic")
    for one in namespaces:
        if one.count("/") != 1 or not all(one.split("/")):
            raise click.UsageError(f"--namespace {one!r} is not like tenant/namespace")
    before = datetime.now(timezone.utc).date() - timedelta(days=days)
    lake, changes = context.settings.lake_path, False
    for table in TABLES[name]:
        try:
            done = forget(lake, table, before, is_dry_run=True, namespaces=namespaces)
            if is_applied and done.files:
                if table is not DEAD_LETTERS:
                    _make_horizon(context, before)
                done = forget(lake, table, before, is_dry_run=False, namespaces=namespaces)
        except RebuildError as error:
            raise click.ClickException(f"{table.name} was left as it is, for a rebuild would fail: {error}") from error
        except (Compacting, DeltaError, OSError) as error:
            said = str(error).partition("\n")[0]
            raise click.ClickException(f"{table.name} was left as it is: {said}") from error
        what = "forgotten" if is_applied else "would go"
        click.echo(
            f"{table.name}: {done.rows:,} rows of {len(done.days)} days before {before} in {done.files} files {what}"
        )
        if done.kept:
            click.echo(f"kept for a rebuild: {', '.join(map(str, done.kept))}")
        changes |= bool(done.files)
    if is_applied and (retained := retained_from(lake)) is not None:
        drop_horizons(lake, retained.date())
    if changes and not is_applied:
        click.echo("nothing was changed: add --apply to do it")


def _make_horizon(context: Context, day: date) -> None:
    from lake.horizons import has_horizon, write_horizon
    from streaming.horizons import make_horizon
    from streaming.job import engine_settings
    from streaming.policy import configured_policy, stored_policy
    from streaming.scratch import scratch_folder

    settings = context.settings
    if has_horizon(settings.lake_path, day):
        return
    click.echo(f"working out what a rebuild needs of the days before {day} …", err=True)
    at = datetime.combine(day, time(), timezone.utc)
    configured = stored_policy(configured_policy(settings))
    with scratch_folder(settings.path(settings.local.folder) / "scratch") as scratch:
        write_horizon(
            settings.lake_path, make_horizon(settings.lake_path, at, engine_settings(settings), configured, scratch)
        )
