"""`anabranch whatif simulate`: test policies on a demand in virtual time. No Spark, no JVM, no lake."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from anabranch.cli.context import Context
from anabranch.cli.instants import INSTANT
from anabranch.cli.reports import check_report, counting, reading_lake, refuse_options, report_options, write_report
from anabranch.query.wording import quantity
from decisions.autoscale.policy import PROFILES, PolicyError, read_policy, resolve_policy
from schemas.printable import printable

if TYPE_CHECKING:
    from anabranch.simulation.topics.timeline import Source
    from engine.autoscale.topics import ConfiguredPolicy

BEGIN_MS = 1_767_225_600_000
"""2026-01-01: a simulation is the same whenever it runs."""
LAB, LAKE = "lab", "lake"
_OF_AUTOSCALE = {
    name: f"--{name}" for name in ("demand", "profile", "topics", "hours", "peak", "since", "delay", "processes")
}
_OF_BUNDLES = {"shapes": "--shape", "settings": "--set", "seeds": "--seeds"}
_EXAMPLES = {
    "autoscale": "As in: anabranch whatif simulate --demand day --policy default --policy pip-483",
    "bundles": "As in: anabranch whatif simulate --family bundles --policy 4.x --policy AvgShedder+AvgShedder",
}
_INTERRUPTED = 130
_MUCH = 50_000
"""Topic-hours from which on more processes are worth their start."""


@contextmanager
def _needing_workers() -> Iterator[None]:
    from anabranch.simulation.workers import WorkerLost

    try:
        yield
    except WorkerLost as error:
        raise click.ClickException(f"{error} Fewer topics need less: --topics, --processes") from error


@click.command("simulate")
@click.option(
    "--family",
    type=click.Choice(["autoscale", "bundles"]),
    default="autoscale",
    show_default=True,
    help="Of decisions. bundles: --shape, --policy, --set, --seed and --seeds.",
)
@click.option(
    "--demand", "demand", metavar="FILE|SHAPE", help="flat, day, step, burst, drift, lab, lake, or a file. Needed."
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="P",
    help="A profile (default, pip-483, pulsar-5.0) or a TOML policy, laid over --profile. Several are compared. Of "
    "bundles: a version (4.x), or Shedder+Placement, each with ,NAME=VALUE behind it.",
)
@click.option("--profile", type=click.Choice(sorted(PROFILES)), default="default", show_default=True)
@click.option("--topics", type=click.IntRange(1, 100_000), default=10, show_default=True, help="Of a shape.")
@click.option("--hours", type=click.FloatRange(0, 24 * 366, min_open=True), default=24, show_default=True)
@click.option(
    "--peak", type=click.FloatRange(min=0), default=40_000, show_default=True, help="Messages/s a topic, of a shape."
)
@click.option("--since", type=INSTANT, metavar="TIME", help="Of the lake: as 14:05, 2026-11-22T14:05:00Z or '1d ago'.")
@click.option(
    "--delay",
    type=click.FloatRange(0, 3600),
    metavar="SECONDS",
    help="From a decision to its layout, in whole steps. Default: one step; with --demand lake the median on record.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Of a shape.")
@click.option(
    "--processes", type=click.IntRange(1, 256), help="Default: one, or for a lot of work as many as there are cores."
)
@click.option(
    "--shapes",
    "all_shapes",
    is_flag=True,
    help="Both profiles on 19 shapes of demand, six hours of one topic each, over --seeds: medians, and the worst.",
)
@click.option(
    "--trace",
    "traces",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Both profiles on a series of `timestamp,value` lines, with uniform and Zipf keys, over --seeds.",
)
@click.option(
    "--days", type=click.FloatRange(min=0, min_open=True), default=14.0, show_default=True, help="Of a --trace."
)
@click.option(
    "--percentile",
    type=click.FloatRange(50, 100),
    default=100.0,
    show_default=True,
    help="Of the values of a --trace: it stands for eight split thresholds.",
)
@click.option("--shape", "shapes", multiple=True, help="Of a fleet of brokers (bundles). Default: all.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="For all balancers, as in broker.conf.")
@click.option("--seeds", type=click.IntRange(1, 1000), default=1, show_default=True, help="How many, from --seed on.")
@report_options
@click.pass_obj
@_needing_workers()
def simulate_command(
    context: Context,
    family: str,
    demand: str | None,
    policies: tuple[str, ...],
    profile: str,
    topics: int,
    hours: float,
    peak: float,
    since: datetime | None,
    delay: float | None,
    seed: int,
    processes: int | None,
    all_shapes: bool,
    traces: tuple[Path, ...],
    days: float,
    percentile: float,
    shapes: tuple[str, ...],
    settings: tuple[str, ...],
    seeds: int,
    output: str,
    file: Path | None,
) -> None:
    """Run the closed loop of decision and layout on a demand, under one policy or several.

    \b
    anabranch whatif simulate --demand day --policy default --policy pip-483
    anabranch whatif simulate --demand recorded.jsonl --policy default --policy mine.toml --output html --file out.html
    anabranch whatif simulate --shapes --seeds 20
    anabranch whatif simulate --trace nyc_taxi.csv --days 60
    anabranch whatif simulate --family bundles --shape join --policy 4.x --policy AvgShedder+AvgShedder --seeds 10

    The job's own engine decides, and segments split and merge as it says. Shapes, the form of a file, and what the
    columns mean: docs/what-if.md. `lab` is the demand of the local run, `lake` what is on record of loads and
    consumers. Ticks and the filter's band are those of [stream]. The first policy's split thresholds are the measure of
    "over threshold" for all. Ctrl-C ends it with the topics that are done, and exit code 130.
    """
    from anabranch.simulation.topics.page import HEADS, page, rows_of
    from anabranch.simulation.topics.run import simulate

    check_report(output, file)
    if delay is not None and (all_shapes or traces or family == "bundles"):
        raise click.UsageError("--delay is for --demand: shapes, traces and bundles are simulated without it")
    if all_shapes:
        text = _all_shapes(range(seed, seed + seeds), processes or 1, output)
        write_report(text, file, "profiles on shapes of demand")
        return
    if traces:
        text = _weeks(traces, days, percentile, range(seed, seed + seeds), processes or 1, output)
        write_report(text, file, "profiles on weeks of demand")
        return
    if not policies:
        question = "which policies, on which demand?" if family == "autoscale" else "which balancers?"
        raise click.UsageError(f"{question} {_EXAMPLES[family]}")
    refuse_options(_OF_AUTOSCALE if family == "bundles" else _OF_BUNDLES, f"--family {family}")
    if family == "bundles":
        from anabranch.cli.bundles.simulation import simulation_report

        text, about = simulation_report(shapes, policies, settings, range(seed, seed + seeds), output)
        write_report(text, file, printable(about))
        return
    if demand is None:
        raise click.UsageError(f"on which demand? {_EXAMPLES[family]}")
    wanted = _demand(context, demand, topics, hours, peak, seed, since)
    delay_ms = _delay_ms(context, delay, demand, since, wanted.step_ms)
    named = _named_policies(policies, profile)
    hours = wanted.steps * wanted.step_ms / 3_600_000
    if processes is None:
        is_much = len(wanted.topics) * hours * len(named) > _MUCH
        processes = len(os.sched_getaffinity(0)) if is_much else 1
    began = time.monotonic()
    try:
        outcomes = simulate(
            wanted,
            named,
            tick_ms=_tick_ms(context),
            change_threshold=context.settings.stream.change_threshold,
            delay_ms=delay_ms,
            processes=processes,
            progress=counting("topic-hours"),
        )
    except KeyboardInterrupt:
        click.echo("interrupted before any topic was done", err=True)
        sys.exit(_INTERRUPTED)
    took = time.monotonic() - began
    simulated = sum(outcome.topic_hours for outcome in outcomes.values())
    done, count = len(next(iter(outcomes.values())).topics), len(wanted.topics)
    part = "" if done == count else f"interrupted, {done} of "
    about = (
        f"{demand}: {part}{quantity(count, 'topic')}, {quantity(hours, 'hour')}, "
        f"{quantity(len(outcomes), 'policy')}: {quantity(simulated, 'topic-hour')} in {took:.1f} s"
    )
    if delay is not None or delay_ms > wanted.step_ms:
        about += f"; actions take effect after {delay_ms / 1000:g} s"
    if output == "html":
        text = page(outcomes, about)
    elif output == "json":
        text = (
            json.dumps(
                {
                    "demand": demand,
                    "complete": done == count,
                    "delaySeconds": delay_ms / 1000,
                    "policies": {
                        name: {**result.to_json(), "topics": result.of_topics()} for name, result in outcomes.items()
                    },
                }
            )
            + "\n"
        )
    else:
        table = [["policy", *(words for _, words in HEADS)], *rows_of(outcomes)]
        widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
        lines = [
            "  ".join([printable(row[0]).ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
            for row in table
        ]
        text = "\n".join([printable(about), *lines]) + "\n"
    write_report(text, file, printable(about))
    if done < count:
        sys.exit(_INTERRUPTED)


def _all_shapes(seeds: range, processes: int, output: str) -> str:
    """Both profiles on every shape."""
    from anabranch.simulation.topics.table import as_text, table

    if output == "html":
        raise click.UsageError("--shapes answers text or json")
    rows = list(table(seeds, processes, counting("shapes")))
    return json.dumps([row.to_json() for row in rows]) + "\n" if output == "json" else as_text(rows)


def _weeks(traces: tuple[Path, ...], days: float, percentile: float, seeds: range, processes: int, output: str) -> str:
    """Both profiles on the first days of each series."""
    from anabranch.simulation.topics.traces import SeriesError, read_series
    from anabranch.simulation.topics.weeks import as_text, weeks

    if output == "html":
        raise click.UsageError("--trace answers text or json")
    try:
        series = [read_series(path).first(days).scaled(percentile) for path in traces]
    except (OSError, SeriesError) as error:
        raise click.UsageError(str(error)) from None
    rows = list(weeks(series, seeds, processes, counting("series")))
    return json.dumps([row.to_json() for row in rows]) + "\n" if output == "json" else as_text(rows)


def _demand(
    context: Context, text: str, topics: int, hours: float, peak: float, seed: int, since: datetime | None
) -> Source:
    from anabranch.simulation.topics.recorded import DemandError, RecordedDemand
    from anabranch.simulation.topics.shapes import SHAPES, ShapedDemand

    if text in SHAPES:
        return ShapedDemand(text, topics, hours, began_at=BEGIN_MS, peak=peak, seed=seed)
    if text == LAB:
        from anabranch.local.sliced import LabDemand

        traffic = context.settings.traffic
        return LabDemand(traffic, hours, BEGIN_MS, max(1_000, round(traffic.report_seconds * 1_000)))
    if text == LAKE:
        return _lake_demand(context.settings.lake_path, since, _tick_ms(context))
    try:
        with Path(text).open("rb") as lines:
            return RecordedDemand.read(lines)
    except OSError as error:
        shapes = ", ".join((*SHAPES, LAB, LAKE))
        raise click.BadParameter(
            f"{text} is no shape ({shapes}), and no file that can be read: {error.strerror}", param_hint="--demand"
        ) from None
    except DemandError as error:
        raise click.ClickException(printable(f"{text}: {error}")) from error


def _tick_ms(context: Context) -> int:
    return round(context.settings.stream.tick_seconds * 1_000)


def _delay_ms(context: Context, seconds: float | None, demand: str, since: datetime | None, step_ms: int) -> int:
    """Return the time from decision to layout in whole steps: as asked for, as in the lake, or one step."""
    from anabranch.simulation.backtest.record import recorded_delay
    from anabranch.simulation.topics.run import delay_in_steps

    if seconds is not None and not math.isfinite(seconds):
        raise click.BadParameter(f"{seconds} is not a number of seconds", param_hint="--delay")
    delay_ms = None if seconds is None else round(seconds * 1000)
    if delay_ms is None and demand == LAKE:
        lake, begin = context.settings.lake_path, 0 if since is None else round(since.timestamp() * 1000)
        with reading_lake(lake):
            delay_ms = recorded_delay(lake, begin)
    return delay_in_steps(delay_ms or 0, step_ms) * step_ms


def _lake_demand(lake: str, since: datetime | None, tick_ms: int) -> Source:
    from anabranch.simulation.topics.from_lake import lines_of_lake
    from anabranch.simulation.topics.recorded import DemandError, RecordedDemand
    from anabranch.simulation.topics.timeline import step_for

    with reading_lake(lake, DemandError):
        return RecordedDemand(*lines_of_lake(lake, since), step_ms=step_for(tick_ms))


def _named_policies(policies: tuple[str, ...], profile: str) -> dict[str, ConfiguredPolicy]:
    """Return the policies by the names of their rows: a profile's, or a file's without its suffix."""
    named: dict[str, ConfiguredPolicy] = {}
    for text in policies:
        name = text if text in PROFILES else Path(text).stem
        if name in named:
            raise click.BadParameter(
                f"two policies are named {printable(name)}: rename a file, so that each has a row of its own",
                param_hint="--policy",
            )
        named[name] = _policy(text, profile)
    return named


def _policy(text: str, profile: str) -> ConfiguredPolicy:
    """Return the profile that `--policy` names, or the TOML policy of that file, laid over `profile`.

    A file that cannot be opened is wrong usage, one that is no policy a failure.
    """
    from engine.autoscale.topics import ConfiguredPolicy

    if text in PROFILES:
        return ConfiguredPolicy(text, None)  # type: ignore[arg-type]
    try:
        override = read_policy(Path(text).read_text(encoding="utf-8"))
        if (broken := resolve_policy(profile, override).broken) is not None:
            raise PolicyError(broken)
        return ConfiguredPolicy(profile, override.to_json())  # type: ignore[arg-type]
    except OSError as error:
        raise click.BadParameter(
            f"{text} is no profile ({', '.join(PROFILES)}), and no file that can be read: {error.strerror}",
            param_hint="--policy",
        ) from None
    except UnicodeDecodeError:
        raise click.ClickException(printable(f"{text} is no TOML file: it is not text in UTF-8")) from None
    except PolicyError as error:
        raise click.ClickException(printable(f"{text}: {error}")) from error
