"""`anabranch decisions replay`: all decisions and holds on record taken again. No Spark, no JVM."""

import json
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from anabranch.cli.context import Context
from anabranch.cli.exits import FOUND
from anabranch.cli.instants import INSTANT
from anabranch.cli.reports import reading_lake
from schemas.printable import printable


@click.command("replay")
@click.option("--since", type=INSTANT, metavar="TIME", help="Compare from then on: 14:05, 2026-11-22T14:05Z, '7d ago'.")
@click.option("--until", type=INSTANT, metavar="TIME", help="Without it, the end of the record.")
@click.option("--topics", metavar="NAMES", help="Of these alone, separated by commas; each as in `anabranch explain`.")
@click.option("--clusters", metavar="NAMES", help="Of these clusters with bundles alone, separated by commas.")
@click.option("--scratch", type=click.Path(path_type=Path, file_okay=False), help="Folder for temporary files.")
@click.option("--allow-differences", is_flag=True, help="Exit code 0 with differences, not with nothing to compare.")
@click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_context
def replay_command(
    ctx: click.Context,
    since: datetime | None,
    until: datetime | None,
    topics: str | None,
    clusters: str | None,
    scratch: Path | None,
    allow_differences: bool,
    output: str,
) -> None:
    """Decide everything on record again, and compare.

    \b
    anabranch decisions replay --since '7d ago'

    Each decision from its own inputs, byte for byte; and each evaluation, at ticks and events, from the state that is
    rebuilt out of `segment_load` and `events`. Of clusters with bundles each cycle is run again. Run it with a new
    release on a copy of the lake before an upgrade (docs/what-if.md). Exit code 0: the same; 1: different, with the
    differences, or nothing to compare; 3: the lake cannot be read.
    """
    from anabranch.history.recorded import RecordedHistory, newest_before
    from anabranch.history.replay.report import Replayed, replay, replay_clusters
    from anabranch.query.topics import find_topic, topics_on_record
    from engine.replay import RebuildError
    from lake.forgotten import retained_from
    from schemas.snapshot import ENGINE_VERSION
    from streaming.job.policy import configured_policy, stored_policy

    context: Context = ctx.obj
    lake = context.settings.lake_path
    with reading_lake(lake, RebuildError, action="replayed"):
        names = None
        if topics is not None:
            on_record = topics_on_record(lake)
            names = [find_topic(on_record, name.strip()) for name in topics.split(",")]
        chosen = None if clusters is None else [name.strip() for name in clusters.split(",")]
        progress = _progress if sys.stderr.isatty() else lambda *_: None
        begin = None if since is None else int(since.timestamp() * 1000)
        results, has_clusters = Replayed(), chosen is not None
        for of_topics in _groups(lake, names) if chosen is None or names is not None else []:
            begins = newest_before(lake, since or retained_from(lake, of_topics), of_topics)
            with TemporaryDirectory(prefix="anabranch-replay-", dir=scratch) as folder:
                recorded = RecordedHistory(
                    lake, Path(folder), with_ticks=True, until=until, topics=of_topics, horizon=begins
                )
                if recorded.generation is None:
                    raise click.ClickException(f"no batch of the job is on record in {lake}")
                policy = stored_policy(configured_policy(context.settings))
                if recorded.horizon is not None and since is None:
                    which = "" if of_topics is None else f" of {_listed(of_topics)}"
                    click.echo(
                        f"rows before {recorded.horizon.day}{which} are forgotten: compared from there on", err=True
                    )
                results.include(replay(recorded, policy, begin, of_topics, progress))
                has_clusters |= names is None and (recorded.has_clusters or of_topics is not None)
        if has_clusters:
            begins = newest_before(lake, since or retained_from(lake, ()), ())
            with TemporaryDirectory(prefix="anabranch-replay-", dir=scratch) as folder:
                of_clusters = RecordedHistory(
                    lake, Path(folder), until=until, topics=chosen, horizon=begins, of_clusters=True
                )
                if unknown := [name for name in chosen or () if name not in of_clusters.topics]:
                    raise click.ClickException(f"nothing of a cluster {printable(unknown[0])} is on record")
                replay_clusters(results, of_clusters, begin, chosen, progress)
    if output == "json":
        click.echo(json.dumps(results.to_json()))
    else:
        for difference in results.listed:
            click.echo(f"different: {printable(difference)}")
        if results.differences > len(results.listed):
            click.echo(f"and {results.differences - len(results.listed)} more")
        if other_versions := {version: rows for version, rows in results.versions.items() if version != ENGINE_VERSION}:
            counts = ", ".join(f"{rows:,} of {printable(version)}" for version, rows in sorted(other_versions.items()))
            click.echo(
                f"rows of other versions of the engine than this release's ({ENGINE_VERSION}): {counts}", err=True
            )
        untold = f"; of {results.untold:,} evaluations too little is on record to tell" if results.untold else ""
        click.echo(
            f"{results.decisions:,} decisions, {results.holds:,} holds, {results.evaluations:,} evaluations: "
            f"{f'{results.differences:,} differences' if results.differences else 'the same'}{untold}"
        )
    if not results.decisions + results.holds + results.evaluations:
        raise click.ClickException(f"nothing is on record in {lake} to compare: see --since, --until and --topics")
    ctx.exit(FOUND if results.differences and not allow_differences else 0)


def _groups(lake: str, names: Sequence[str] | None) -> list[Sequence[str] | None]:
    """Return the topics grouped by the day from which their rows are kept.

    `names` None means all topics on record; if one day holds for all of them, the only group is None.
    """
    from anabranch.query.topics import topics_on_record
    from lake.forgotten import Retained

    retained = Retained(lake)
    if names is None and retained.anywhere == retained.everywhere:
        return [None]
    groups: dict[datetime | None, list[str]] = {}
    for name in topics_on_record(lake) if names is None else names:
        groups.setdefault(retained.of(name), []).append(name)
    return list(groups.values())


def _listed(topics: Sequence[str]) -> str:
    more = f" and {len(topics) - 3} more topics" if len(topics) > 3 else ""
    return f"{', '.join(map(printable, topics[:3]))}{more}"


def _progress(rows: int, instant_ms: int) -> None:
    from anabranch.query.wording import instant

    click.echo(f"\r{rows:,} rows, up to {instant(instant_ms)}", nl=False, err=True)
