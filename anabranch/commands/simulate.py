"""`anabranch simulate`: what policies would do with a demand, in virtual time. No Spark, no JVM, no lake."""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from anabranch.context import Context
from anabranch.instants import INSTANT
from decisions.autoscale.policy import PROFILES, PolicyError, read_policy
from schemas.printable import printable

if TYPE_CHECKING:
    from engine.autoscale.topics import ConfiguredPolicy
    from ledger.simulate.demand import Demand

BEGIN_MS = 1_767_225_600_000
"""2026-01-01: a simulation is the same whenever it runs."""
LAB, LAKE = "lab", "lake"


@click.command("simulate")
@click.option(
    "--demand",
    "demand",
    required=True,
    metavar="FILE|SHAPE",
    help="flat, day, step, burst, drift, lab, lake, or a file.",
)
@click.option(
    "--policy", "policies", multiple=True, required=True, metavar="P",
    help="A profile (default, pip-483) or a TOML policy, laid over --profile. Several are compared.",
)  # fmt: skip
@click.option("--profile", type=click.Choice(sorted(PROFILES)), default="default", show_default=True)
@click.option("--topics", type=click.IntRange(1, 100_000), default=10, show_default=True, help="Of a shape.")
@click.option("--hours", type=click.FloatRange(0, 24 * 366, min_open=True), default=24, show_default=True)
@click.option(
    "--peak", type=click.FloatRange(min=0), default=40_000, show_default=True, help="Messages/s a topic, of a shape."
)
@click.option("--since", type=INSTANT, metavar="TIME", help="Of the lake: as 14:05, 2026-11-22T14:05:00Z or '1d ago'.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of a shape.")
@click.option("--output", type=click.Choice(["text", "json", "html"]), default="text", show_default=True)
@click.option("--file", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write there; for html needed.")
@click.pass_obj
def command(
    context: Context, demand: str, policies: tuple[str, ...], profile: str, topics: int, hours: float, peak: float,
    since: datetime | None, seed: int, output: str, file: Path | None,
) -> None:  # fmt: skip
    """Run the closed loop of decision and layout on a demand, under one policy or several.

    \b
    anabranch simulate --demand day --policy default --policy pip-483
    anabranch simulate --demand recorded.jsonl --policy default --policy mine.toml --output html --file out.html

    The job's own engine decides, and segments split and merge as it says. Shapes, the form of a file, and what the
    columns mean: docs/simulate.md. `lab` is the demand of the local run, `lake` what is on record of loads and
    consumers. The first policy's split thresholds are the measure of "over threshold" for all.
    """
    from ledger.simulate.loop import simulate
    from ledger.simulate.page import HEADS, page, rows_of

    if output == "html" and file is None:
        raise click.UsageError("--output html needs --file")
    wanted = _demand(context, demand, topics, hours, peak, seed, since)
    named = {_name(policy): _policy(policy, profile) for policy in policies}
    began = time.monotonic()
    progress = _progress if sys.stderr.isatty() else lambda *_: None
    scores = simulate(wanted, named, progress=progress)
    took = time.monotonic() - began
    simulated = sum(score.topic_hours for score in scores.values())
    about = (
        f"{demand}: {len(wanted.topics)} topics, {wanted.steps * wanted.step_ms / 3_600_000:.4g} hours, "
        f"{len(scores)} policies: {simulated:,.0f} topic-hours in {took:.1f} s"
    )
    if output == "html":
        text = page(scores, about)
    elif output == "json":
        text = json.dumps({
            "demand": demand,
            "policies": {name: {**score.to_json(), "topics": score.of_topics()} for name, score in scores.items()},
        }) + "\n"  # fmt: skip
    else:
        table = [["policy", *(words for _, words in HEADS)], *rows_of(scores)]
        widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
        lines = [
            "  ".join([printable(row[0]).ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
            for row in table
        ]
        text = "\n".join([printable(about), *lines]) + "\n"
    if file is None:
        click.echo(text, nl=False)
        return
    try:
        file.write_text(text)
    except OSError as error:
        raise click.ClickException(f"cannot write {file}: {error.strerror}") from error
    click.echo(f"{file}: {printable(about)}", err=True)


def _demand(
    context: Context, text: str, topics: int, hours: float, peak: float, seed: int, since: datetime | None
) -> Demand:
    from ledger.simulate.recorded import DemandError, RecordedDemand
    from ledger.simulate.shapes import SHAPES, ShapedDemand

    if text in SHAPES:
        return ShapedDemand(text, topics, hours, began_at=BEGIN_MS, peak=peak, seed=seed)
    if text == LAB:
        from lab.sliced import LabDemand

        return LabDemand(context.settings.traffic, hours, BEGIN_MS)
    if text == LAKE:
        return _lake_demand(context.settings.lake_path, since)
    try:
        with Path(text).open("rb") as lines:
            return RecordedDemand.read(lines)
    except OSError as error:
        shapes = ", ".join((*SHAPES, LAB, LAKE))
        raise click.BadParameter(
            f"{text} is no shape ({shapes}), and no file that can be read: {error.strerror}"
        ) from None
    except DemandError as error:
        raise click.ClickException(printable(f"{text}: {error}")) from error


def _lake_demand(lake: str, since: datetime | None) -> Demand:
    from deltalake.exceptions import DeltaError

    from ledger.simulate.from_lake import lines_of_lake
    from ledger.simulate.recorded import DemandError, RecordedDemand

    try:
        return RecordedDemand(*lines_of_lake(lake, since))
    except DemandError as error:
        raise click.ClickException(printable(str(error))) from error
    except (DeltaError, OSError) as error:
        raise click.ClickException(f"the lake {lake} cannot be read: {error}") from error


def _name(policy: str) -> str:
    return policy if policy in PROFILES else Path(policy).stem


def _policy(text: str, profile: str) -> ConfiguredPolicy:
    from engine.autoscale.topics import ConfiguredPolicy

    if text in PROFILES:
        return ConfiguredPolicy(text, None)  # type: ignore[arg-type]
    try:
        return ConfiguredPolicy(profile, read_policy(Path(text).read_text()).to_json())  # type: ignore[arg-type]
    except OSError as error:
        raise click.BadParameter(
            f"{text} is no profile ({', '.join(PROFILES)}), and no file that can be read: {error.strerror}"
        ) from None
    except (PolicyError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{text}: {error}") from error


def _progress(step: int, steps: int) -> None:
    if step % 360 == 0 or step == steps:
        click.echo(f"\r{step / steps:.0%}", nl=step == steps, err=True)
