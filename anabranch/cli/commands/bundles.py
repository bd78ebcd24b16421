"""`anabranch bundles`: explain moves of bundles and idle brokers; check an ownership channel."""

import json
import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import IO

import click

from anabranch.cli.bundles.channel_lines import numbered_lines, read_line
from anabranch.cli.bundles.explanation import UnknownBroker, cycle_text, decision_text
from anabranch.cli.context import Context
from anabranch.cli.exits import FOUND
from anabranch.cli.instants import INSTANT, Instant, check_period
from anabranch.cli.reports import reading_lake, write_report
from decisions.bundles.channel.checking import ChannelFinding, Checker, FindingKind
from decisions.bundles.channel.records import Store
from schemas.printable import printable


@click.group("bundles")
def bundles_command() -> None:
    """Pulsar's bundles: why they are moved, and who owns them by the ownership channel of PIP-192."""


@bundles_command.command("explain")
@click.argument("cluster")
@click.option("--bundle", metavar="NAME", help="Why this bundle was unloaded or split: the last decision about it.")
@click.option("--broker", metavar="NAME", help="Why this broker gives and gets nothing: what the cycle saw of it.")
@click.option(
    "--at",
    "at",
    type=Instant(),
    metavar="TIME",
    help="As 14:05, 2026-11-22T14:05:00Z or '10m ago', UTC; without it, the last on record.",
)
@click.option("--exact", "is_exact", is_flag=True, help="Run every cycle on record, however many there are.")
@click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_obj
def explain_bundle(
    context: Context,
    cluster: str,
    bundle: str | None,
    broker: str | None,
    at: datetime | None,
    is_exact: bool,
    output: str,
) -> None:
    """Say why a bundle of CLUSTER was moved, why a broker is left alone, or what the last cycle saw.

    \b
    Why was bundle X moved at 14:05?      anabranch bundles explain west --bundle X --at 14:05
    Why is broker 3 idle?                 anabranch bundles explain west --broker broker-3:8080

    Up to the end of the minute that --at names. What concerns a bundle stands in its decision. A cycle is run once
    more, with all on record before it; of a long record with those of the two hours before it, as long as that leads to
    what is on record, and a note says so. About 50 microseconds for each bundle and cycle.
    """
    from anabranch.history.bundles.record import ClusterNotOnRecord, decisions_about, last_cycle
    from anabranch.history.explain.application import became

    if bundle and broker:
        raise click.UsageError("--bundle and --broker are two questions: ask one at a time")
    until = None if at is None else at.replace(second=59, microsecond=999_999) if at.second == 0 else at
    lake = context.settings.lake_path
    with reading_lake(lake, ClusterNotOnRecord, UnknownBroker):
        if bundle is not None:
            decision = decisions_about(lake, cluster, bundle, until)[-1]
            end = became(lake, decision["decision_id"])
            text = decision_text(cluster, decision, end)
            document = json.dumps({**decision, "became": None if end is None else end._asdict()}, default=str)
        else:
            last = last_cycle(lake, cluster, until, is_exact)
            text, document = (
                cycle_text(last.state, last.cycle, broker),
                last.cycle.shedding.model_dump_json(by_alias=True, exclude_none=True),
            )
            if last.since is not None:
                click.echo(f"note: run from {last.since:%F %T} UTC on; --exact runs all that is on record", err=True)
            if last.doubt is not None:
                click.echo(f"note: this is otherwise on record: {printable(last.doubt)}", err=True)
    click.echo(text if output == "text" else document, nl=output == "json")


@bundles_command.command("history")
@click.argument("cluster")
@click.option("--since", type=INSTANT, metavar="TIME", help="As 14:05, 2026-11-22T14:05:00Z or '2d ago', UTC.")
@click.option("--until", type=INSTANT, metavar="TIME", help="Without it, the end of the record.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Newest moves in the terminal."
)
@click.option(
    "--svg", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="A picture, written there."
)
@click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_obj
def draw_history(
    context: Context,
    cluster: str,
    since: datetime | None,
    until: datetime | None,
    limit: int,
    svg: Path | None,
    output: str,
) -> None:
    """Draw how full the brokers of CLUSTER were, and which bundles were moved from one to another.

    \b
    anabranch bundles history west --since '6h ago'
    anabranch bundles history west --svg west.svg

    Out of the brokers' own reports: so it shows every move, whoever made it. Brokers with the extensible load manager
    name their busiest bundles only.
    """
    from anabranch.cli.bundles.history import as_json, as_text
    from anabranch.history.bundles.history import history as history_of
    from anabranch.history.bundles.picture import picture
    from anabranch.simulation.bundles.recorded import NoRecord

    check_period(since, until)
    lake = context.settings.lake_path
    try:
        with reading_lake(lake):
            recorded = history_of(lake, cluster, since, until)
    except NoRecord as error:
        raise click.ClickException(printable(f"{cluster}: {error}")) from error
    if svg is not None:
        write_report(picture(recorded), svg, f"{len(recorded.brokers)} brokers, {len(recorded.moves)} moves")
    if output == "json":
        click.echo(json.dumps(as_json(recorded)))
    elif svg is None:
        click.echo(as_text(recorded, shutil.get_terminal_size().columns, limit))


@bundles_command.command("check")
@click.option(
    "--brokers", metavar="A,B,…", help="The brokers that live: a record that depends on another is an orphan."
)
@click.option("--at", "at", type=Instant(), help="When the dump was made; without: the newest timestamp in it.")
@click.option(
    "--in-flight-seconds",
    type=click.FloatRange(0, 86_400),
    default=30.0,
    show_default=True,
    help="How long a change of a bundle may be under way.",
)
@click.option("--store", type=click.Choice([store.value for store in Store]), default="topic", show_default=True)
@click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.argument("file", type=click.File("rb"), default="-")
@click.pass_context
def check_channel(
    ctx: click.Context,
    brokers: str | None,
    at: datetime | None,
    in_flight_seconds: float,
    store: str,
    output: str,
    file: IO[bytes],
) -> None:
    """Find illegal transitions, two owners, stuck changes, orphans, overlaps and gaps in a channel.

    \b
    FILE or standard input has its messages in order, one a line (docs/bundles.md says how to
    get them). JSON is one object a finding, and one with the counts. Exit code
    0: all is in order; 1: something was found, bad lines included, or there was no message.
    """
    checker = Checker(Store(store), round(in_flight_seconds * 1000))
    living = None if brokers is None else {broker.strip() for broker in brokers.split(",") if broker.strip()}
    count = 0
    for finding in _find_faults(checker, file, at, living):
        count += 1
        click.echo(_row(finding) if output == "text" else _as_json(finding))
    counts = {
        "messages": checker.messages,
        "bundles": checker.bundles,
        "stale": checker.stale,
        "forced": checker.forced,
        "hidden": checker.hidden,
        "findings": count,
    }
    if output == "json":
        click.echo(json.dumps({"counts": counts}))
    else:
        click.echo(
            f"{checker.messages:,} messages, {checker.bundles:,} bundles with a record; "
            f"refused as not newer: {checker.stale:,}, overrides: {checker.forced:,}, "
            f"after missing versions: {checker.hidden:,}; found: {count:,}"
        )
    if not checker.messages and not count:
        raise click.ClickException("there was no message to check")
    ctx.exit(FOUND if count else 0)


def _find_faults(
    checker: Checker, file: IO[bytes], instant: datetime | None, brokers: set[str] | None
) -> Iterator[ChannelFinding]:
    for number, line in numbered_lines(file):
        try:
            message = read_line(line)
            findings = checker.read(*message, number) if message else ()
        except ValueError as error:
            yield ChannelFinding(FindingKind.BAD_LINE, number, "", str(error))
            continue
        yield from findings
    yield from checker.end(round(instant.timestamp() * 1000) if instant else checker.newest, brokers)


def _row(finding: ChannelFinding) -> str:
    where = f"line {finding.line}" if finding.line else "at the end"
    return (
        f"{where:<12}  {finding.kind.value:<18}  {printable(finding.bundle):<40}  {printable(finding.detail)}".rstrip()
    )


def _as_json(finding: ChannelFinding) -> str:
    fields = {
        "kind": finding.kind.value,
        "line": finding.line or None,
        "bundle": finding.bundle or None,
        "detail": finding.detail,
    }
    return json.dumps(fields)
