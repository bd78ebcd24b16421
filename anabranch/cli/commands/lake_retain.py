"""`anabranch lake retain`: delete old rows, by [retention] or of one table; a dry run without --apply."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime, time, timezone

import click

from anabranch.cli.context import Context
from anabranch.cli.reports import reading_lake
from lake.retention_plan import OF_TOPICS, TABLES, Cut, first_kept, plan_cuts
from schemas.tables.rows import BATCHES, DEAD_LETTERS, Table


@click.command("retain")
@click.argument("name", type=click.Choice(list(TABLES)), metavar=f"[{'|'.join(TABLES)}]", required=False)
@click.option("--days", type=click.IntRange(min=1), help="Keep today (UTC) and as many days before it.")
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    metavar="TENANT/NAMESPACE",
    help="Only rows of its topics; may be given several times.",
)
@click.option("--apply", "is_applied", is_flag=True, help="Do it. Without this it only says what would go.")
@click.pass_obj
def retain_rows(
    context: Context, name: str | None, days: int | None, namespaces: Sequence[str], is_applied: bool
) -> None:
    """Forget rows that are older than [retention] says, or those of one table that are older than --days.

    \b
    anabranch lake retain
    anabranch lake retain --apply
    anabranch lake retain segment_load --days 90 --apply
    anabranch lake retain decisions --days 400 --namespace test/load --apply

    Safe while the job and an executor run; deploy/anabranch-lake.timer does it every hour. Without a lake yet, without
    a run of the job on any day that is kept, or while another process compacts, it is left to the next hour. Old rows
    stay that say how things stand since: the newest load of each segment, layout, policy and consumers of each topic,
    hold and decision of each topic, every deletion; decisions that are not over; and the last six hours before the
    days that are kept. With decisions go their outcomes and waits. Before anything goes, what a rebuild of the job's
    state needs of the old rows is kept in the table `horizons`: rebuild, replay and explain go on from there, and say
    so when they are asked for something older. Of batches those go of whose time nothing can be asked any more. Of
    dead letters a day stays that has the newest of a Kafka partition.

    The disk is free once `anabranch lake vacuum` deletes the files.
    """
    today = datetime.now(timezone.utc).date()
    if name is None:
        if days is not None or namespaces:
            raise click.UsageError("--days and --namespace are for one table: without one, [retention] says all of it")
        if not (cuts := plan_cuts(context.settings.retention, today)):
            click.echo("[retention] keeps everything")
    else:
        cuts = [_cut_of(name, days, namespaces, today)]
    failed, changes = list[click.ClickException](), False
    for cut in cuts:
        try:
            if cut.name == "batches":
                if (limit := _limit(context.settings.lake_path, () if is_applied else cuts)) is None:
                    click.echo("batches: all are kept, for rows of every day are kept that are of them")
                    continue
                cut = replace(cut, before=min(cut.before, limit))
            for table in TABLES[cut.name]:
                changes |= _apply_cut(context, cut, table, is_applied, is_daily=name is None)
        except click.ClickException as error:
            failed.append(error)
    if is_applied:
        try:
            _drop_horizons(context.settings.lake_path)
        except click.ClickException as error:
            failed.append(error)
    elif changes:
        click.echo("nothing was changed: add --apply to do it")
    if failed:
        worst = max(failed, key=lambda error: error.exit_code)
        raise type(worst)("; ".join(error.message for error in failed))


def _cut_of(name: str, days: int | None, namespaces: Sequence[str], today: date) -> Cut:
    if days is None:
        raise click.UsageError("give --days, or no table: then [retention] says what goes")
    if namespaces and name not in OF_TOPICS:
        why = "one may be of no topic" if name == "dead_letters" else "one is of all topics"
        raise click.UsageError(f"--namespace is not for {name}: {why}")
    for namespace in namespaces:
        if namespace.count("/") != 1 or not all(namespace.split("/")):
            raise click.UsageError(f"--namespace {namespace!r} is not like tenant/namespace")
    return Cut(name, first_kept(today, days), tuple(namespaces))


def _limit(lake: str, cuts: Sequence[Cut]) -> date | None:
    """The day before which no batch is needed, when other cuts are made; None: all are needed."""
    from lake.retention import batches_limit

    with reading_lake(lake):
        forgotten = batches_limit(lake)
    days = [cut.before for cut in cuts if cut.name in OF_TOPICS and not cut.namespaces]
    return max((day for day in (*days, forgotten) if day is not None), default=None)


def _apply_cut(context: Context, cut: Cut, table: Table, is_applied: bool, is_daily: bool) -> bool:
    """Forget the rows of a table, or say what would go; return whether there are any."""
    from deltalake.exceptions import DeltaError

    from anabranch.history.state_snapshots import TooEarly
    from engine.replay import RebuildError
    from lake.compaction import Compacting
    from lake.forgotten import is_marked
    from lake.retention import forget_rows
    from lake.tables import open_table

    lake = context.settings.lake_path
    with reading_lake(lake):
        delta = open_table(lake, table)
    try:
        if is_daily and (delta is None or is_marked(delta, cut.before, cut.namespaces)):
            return False
        done = forget_rows(lake, table, cut.before, is_dry_run=True, namespaces=cut.namespaces)
        if is_applied and done.files:
            if table not in (DEAD_LETTERS, BATCHES):
                _make_horizon(context, cut)
            done = forget_rows(lake, table, cut.before, is_dry_run=False, namespaces=cut.namespaces)
    except (Compacting, TooEarly) as error:
        if not is_daily:
            raise click.ClickException(f"{table.name} was left as it is: {error}") from error
        # The next run makes up for it.
        click.echo(f"{table.name} is left as it is for now: {error}")
        return False
    except RebuildError as error:
        raise click.ClickException(f"{table.name} was left as it is, for a rebuild would fail: {error}") from error
    except (DeltaError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise click.ClickException(f"{table.name} was left as it is: {reason}") from error
    verb = "forgotten" if is_applied else "would go"
    click.echo(
        f"{table.name}{cut.what}: {done.rows:,} rows of {len(done.days)} days before {cut.before} in {done.files} "
        f"files {verb}"
    )
    if done.kept:
        click.echo(f"kept for a rebuild: {', '.join(map(str, done.kept))}")
    return bool(done.files)


def _make_horizon(context: Context, cut: Cut) -> None:
    from anabranch.history.state_snapshots import make_horizon
    from lake.forgotten import Retained
    from lake.state_snapshots import has_horizon, write_horizon
    from streaming.job.policy import configured_policy, engine_settings, stored_policy
    from streaming.job.scratch import scratch_folder

    settings, midnight = context.settings, datetime.combine(cut.before, time(), timezone.utc)
    retained = Retained(settings.lake_path)
    marks = [retained.of_namespace(namespace) for namespace in cut.namespaces] or [retained.everywhere]
    is_forgotten = all(mark is not None and mark >= midnight for mark in marks)
    if is_forgotten or has_horizon(settings.lake_path, cut.before, is_exact=True):
        return
    click.echo(f"working out what a rebuild needs of the days before {cut.before} …", err=True)
    configured = stored_policy(configured_policy(settings))
    with scratch_folder(settings.path(settings.local.folder) / "scratch") as scratch:
        write_horizon(
            settings.lake_path,
            make_horizon(settings.lake_path, midnight, engine_settings(settings), configured, scratch),
        )


def _drop_horizons(lake: str) -> None:
    """Forget the horizons from which nothing is worked out any more."""
    from anabranch.query.topics import topics_on_record
    from lake.forgotten import Retained, namespace_of
    from lake.state_snapshots import drop_horizons

    with reading_lake(lake, action="cleaned up at horizons"):
        retained = Retained(lake)
        if retained.anywhere is not None:
            namespaces = {namespace for namespace in map(namespace_of, topics_on_record(lake)) if namespace is not None}
            marks = [retained.everywhere, retained.anywhere, *map(retained.of_namespace, namespaces)]
            drop_horizons(lake, {mark.date() for mark in marks if mark is not None})
