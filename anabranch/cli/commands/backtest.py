"""`anabranch whatif backtest`: test policies on the recorded history.

No JVM, unless Spark is asked for.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from anabranch.cli.context import Context
from anabranch.cli.instants import INSTANT, check_period
from anabranch.cli.reports import check_report, reading_lake, refuse_options, report_options, write_report
from anabranch.query.wording import instant, quantity
from schemas.printable import printable

if TYPE_CHECKING:
    from anabranch.simulation.backtest.reading import History
    from anabranch.simulation.backtest.running import Part
    from engine.autoscale.topics import ConfiguredPolicy

_SHOWN = 10
_OF_AUTOSCALE = {"topics": "--topics", "processes": "--processes", "by_spark": "--spark", "scratch": "--scratch"}
_OF_BUNDLES = {"cluster": "--cluster", "settings": "--set"}
MUCH = 5_000_000
"""Loads from which on more processes are worth their start."""


@click.command("backtest")
@click.option(
    "--family",
    type=click.Choice(["autoscale", "bundles"]),
    default="autoscale",
    show_default=True,
    help="Of decisions. bundles: --cluster, --policy, --set, --since and --until.",
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="P",
    help="A profile, a TOML policy over the profile that ran, or NAME:KEY=VALUE,… over the policy that ran. Several. "
    "Of bundles: a version (4.x), or Shedder+Placement,NAME=VALUE,… over what ran.",
)
@click.option("--cluster", metavar="NAME", help="Of brokers and bundles. Default: the only one on record.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="For all balancers, as in broker.conf.")
@click.option(
    "--since", type=INSTANT, metavar="TIME", help="Beginning: 14:05, 2026-11-22T14:05Z, '30d ago'. Else: all."
)
@click.option("--until", type=INSTANT, metavar="TIME", help="End; without it, that of the record.")
@click.option("--topics", metavar="GLOB", help="Topics by name, as 'topic://acme/shop/*' or 'orders-*'; else all.")
@click.option(
    "--processes", type=click.IntRange(1, 256), help="Default: one, or for a long history as many as there are cores."
)
@click.option("--spark", "by_spark", is_flag=True, help="On Spark, as conf/spark.conf has it, instead of processes.")
@click.option("--scratch", type=click.Path(path_type=Path, file_okay=False), help="Folder for temporary files.")
@report_options
@click.pass_obj
def backtest_command(
    context: Context,
    family: str,
    policies: tuple[str, ...],
    cluster: str | None,
    settings: tuple[str, ...],
    since: datetime | None,
    until: datetime | None,
    topics: str | None,
    processes: int | None,
    by_spark: bool,
    scratch: Path | None,
    output: str,
    file: Path | None,
) -> None:
    """Test policies on the recorded history, with their own splits and merges feeding back.

    \b
    anabranch whatif backtest --since '30d ago' --policy pip-483 --policy patient:mergeWindowSeconds=1800
    anabranch whatif backtest --policy mine.toml --topics 'acme/shop/*' --output html --file backtest.html
    anabranch whatif backtest --family bundles --cluster west --policy default --policy 5.0

    Demand is what segments carried, laid over the key space. Rows: what is on record, the policy that ran (its backtest
    against the record says how far to believe the others), and each policy. "Over threshold" is by the split thresholds
    of the policy that ran. What had to be guessed, and the columns: docs/what-if.md.
    """
    from anabranch.simulation.backtest.report import (
        ASSUMPTION_MEANINGS,
        agreement_text,
        assumption_rows,
        backtest_page,
        differing_rows,
        policy_names,
        to_json,
        total_rows,
    )
    from anabranch.simulation.backtest.running import backtest
    from anabranch.simulation.pages import table_text

    check_report(output, file)
    refuse_options(_OF_AUTOSCALE if family == "bundles" else _OF_BUNDLES, f"--family {family}")
    check_period(since, until)
    if family == "bundles":
        from anabranch.cli.bundles.backtest import backtest_report

        lake = context.settings.lake_path
        with reading_lake(lake):
            text, about_it = backtest_report(lake, cluster, policies, settings, since, until, output)
        write_report(text, file, printable(about_it))
        return
    with opened_history(context, scratch, since, until, topics) as history:
        named = candidate_policies(policies, history)
        if processes is None:
            processes = len(os.sched_getaffinity(0)) if history.loads > MUCH else 1
        with _parts_by_spark(context, history, named) if by_spark else nullcontext() as parts:
            results = backtest(history, named, processes, progress_line(), parts)
    about = [
        f"{quantity(history.topics, 'topic')}, {instant(history.began_at)} to {instant(history.ends_at)}, "
        f"{quantity(history.loads, 'load')}, {quantity(results.topic_hours, 'topic-hour')}, "
        f"{quantity(len(policy_names(results)), 'policy')}",
        *notes_on_history(history),
    ]
    if output == "html":
        text = backtest_page(results, about)
    elif output == "json":
        text = json.dumps({"about": about, "delaySeconds": history.delay_ms / 1000, **to_json(results)}) + "\n"
    else:
        lines = [
            *about,
            "",
            *table_text(total_rows(results)),
            "",
            *agreement_text(results),
            "",
            *table_text(assumption_rows(results)),
        ]
        lines += [f"  {kind}: {words}" for kind, words in ASSUMPTION_MEANINGS.items()]
        if named and len(results.topics) > 1:
            lines += ["", "topics that differ most:", *table_text(differing_rows(results, _SHOWN))]
        text = "".join(f"{line}\n" for line in lines)
    write_report(text, file, printable(about[0]))


@contextmanager
def opened_history(
    context: Context,
    scratch: Path | None,
    since: datetime | None,
    until: datetime | None,
    topics: str | None,
    draw: Callable[[Sequence[str]], Sequence[str]] = lambda names: names,
) -> Iterator[History]:
    """Open the history of the configured lake, with its loads in a temporary folder."""
    from anabranch.simulation.backtest.reading import NoHistory, open_history
    from anabranch.simulation.workers import WorkerLost
    from streaming.job.policy import configured_policy, stored_policy

    check_period(since, until)
    if scratch is not None and not scratch.is_dir():
        raise click.BadParameter(f"there is no folder {printable(str(scratch))}", param_hint="--scratch")
    settings = context.settings
    configured = stored_policy(configured_policy(settings))
    with (
        reading_lake(settings.lake_path, NoHistory, WorkerLost),
        TemporaryDirectory(prefix="anabranch-backtest-", dir=scratch) as folder,
    ):
        yield open_history(
            settings.lake_path,
            Path(folder),
            since,
            until,
            topics,
            configured,
            int(settings.stream.tick_seconds * 1000),
            progress_line(),
            settings.stream.change_threshold,
            draw,
        )


@contextmanager
def _parts_by_spark(
    context: Context, history: History, policies: dict[str, ConfiguredPolicy]
) -> Iterator[Iterator[Part]]:
    """Yield the parts, computed by the workers of a Spark session."""
    from anabranch.simulation.backtest.by_spark import parts_by_spark
    from streaming.job.session import start_session

    spark = start_session(context.settings, {"spark.app.name": "anabranch-backtest", "spark.ui.enabled": "false"})
    try:
        yield parts_by_spark(spark, history, policies)
    finally:
        spark.stop()


def candidate_policies(policies: tuple[str, ...], history: History) -> dict[str, ConfiguredPolicy]:
    """Return the policies named on the command line. Raises `click.BadParameter`."""
    from anabranch.simulation.backtest.policies import read_candidate
    from anabranch.simulation.backtest.running import RAN, RECORD
    from decisions.autoscale.policy import PolicyError

    named: dict[str, ConfiguredPolicy] = {}
    for text in policies:
        try:
            name, policy = read_candidate(text, history.ran)
        except PolicyError as error:
            raise click.BadParameter(printable(str(error)), param_hint="--policy") from error
        if name in (RAN, RECORD):
            raise click.BadParameter(
                f"{name!r} is a row of every backtest: give the policy another name", param_hint="--policy"
            )
        if name in named:
            raise click.BadParameter(f"two policies are named {printable(name)}", param_hint="--policy")
        named[name] = policy
    return named


def notes_on_history(history: History) -> list[str]:
    """Return notes on a history's limits: its late beginning, delayed actions, and other policies in it."""
    lines = []
    if history.asked_from is not None:
        lines.append(
            f"note: the record begins {instant(history.began_at)}, later than --since {instant(history.asked_from)}"
        )
    if history.delay_ms > history.step_ms:
        lines.append(f"note: actions take effect {history.delay_ms / 1000:g} s after their decision, as on record")
    if history.other_policy:
        minutes = sum(end - begin for begin, end in history.other_policy) / 60_000
        lines.append(
            f"note: for {minutes:,.0f} minutes another policy ran; 'policy that ran' is the one that ran longest"
        )
    return lines


def progress_line() -> Callable[[str, float], None]:
    """Return a function that shows progress on one line of a terminal."""
    if not sys.stderr.isatty():
        return lambda *_: None

    def show(stage: str, part: float) -> None:
        click.echo(f"\r{stage}\x1b[K", nl=part >= 1.0, err=True)

    return show
