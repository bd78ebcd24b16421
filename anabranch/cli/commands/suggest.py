"""`anabranch whatif suggest`: search for a better policy by backtests of many; never apply one."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from anabranch.cli.commands.backtest import MUCH, notes_on_history, opened_history
from anabranch.cli.context import Context
from anabranch.cli.instants import INSTANT
from anabranch.cli.reports import check_report, counting, report_options, write_report
from anabranch.query.wording import instant
from schemas.printable import printable

if TYPE_CHECKING:
    from anabranch.simulation.backtest.reading import History
    from anabranch.simulation.backtest.suggesting import Suggestion


@click.command("suggest")
@click.option(
    "--since", type=INSTANT, metavar="TIME", help="Beginning: 14:05, 2026-11-22T14:05Z, '30d ago'. Else: all."
)
@click.option("--until", type=INSTANT, metavar="TIME", help="End; without it, that of the record.")
@click.option("--topics", metavar="GLOB", help="Topics by name, as 'topic://acme/shop/*' or 'orders-*'; else all.")
@click.option("--budget", type=click.IntRange(1, 10_000), default=48, show_default=True, help="Policies to try.")
@click.option("--max-reversals", type=click.IntRange(min=0), help="At most so many; without it, as many as today's.")
@click.option(
    "--most-topics",
    type=click.IntRange(1, 10_000),
    default=128,
    show_default=True,
    help="Of more topics so many are drawn, by --seed.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Of the draw of topics and of policies.")
@click.option("--scratch", type=click.Path(path_type=Path, file_okay=False), help="Folder for temporary files.")
@report_options
@click.pass_obj
def suggest_command(
    context: Context,
    since: datetime | None,
    until: datetime | None,
    topics: str | None,
    budget: int,
    max_reversals: int | None,
    most_topics: int,
    seed: int,
    scratch: Path | None,
    output: str,
    file: Path | None,
) -> None:
    """Search for policies with fewer segment-hours and less time over threshold, under a cap on reversals.

    \b
    anabranch whatif suggest --since '30d ago'
    anabranch whatif suggest --budget 200 --max-reversals 20 --output html --file suggest.html

    Prints every policy that no other one beats in both, today's beside them, and a diff of the policy's file to review.
    The first two thirds of the record are searched; the last third, if long enough, judges what was found. Nothing is
    applied. The same seed and history give the same answer. How it searches, and how far to believe it:
    docs/what-if.md.
    """
    from anabranch.simulation.backtest.policies import diff, differences, settings_of
    from anabranch.simulation.backtest.report import VALIDATION_TITLE, suggestion_page, suggestion_rows, validation_rows
    from anabranch.simulation.backtest.suggesting import split_in_time, suggest
    from anabranch.simulation.backtest.trying import open_trials
    from anabranch.simulation.pages import table_text
    from anabranch.simulation.workers import WorkerLost

    check_report(output, file)
    matching = 0

    def draw(names: Sequence[str]) -> Sequence[str]:
        nonlocal matching
        matching = len(names)
        drawn = set(random.Random(seed).sample(names, min(most_topics, matching)))
        return [name for name in names if name in drawn]

    with opened_history(context, scratch, since, until, topics, draw) as history:
        split = split_in_time(history)
        searched, unseen = split if split is not None else (history, None)
        processes = len(os.sched_getaffinity(0)) if history.loads > MUCH else 1
        try:
            with open_trials(searched, unseen, processes, seed) as trials:
                suggestion = suggest(trials, budget, max_reversals, seed, counting("policies"), unseen is not None)
        except WorkerLost as error:
            raise click.ClickException(f"{error} Fewer topics need less: --most-topics, --topics") from error
    best = suggestion.best if suggestion.is_confirmed is not False else None
    settings = context.settings
    changed = {} if best is None else differences(history.ran, best.policy)
    patch = diff(settings.cluster_policy_text(), changed, settings.policy.cluster) if changed else ""
    about = [
        f"{history.topics:,} of {matching:,} topics, {instant(searched.began_at)} to {instant(searched.ends_at)}, "
        f"{suggestion.policies} policies; at most {suggestion.max_reversals} reversals",
        *_sample_note(suggestion),
        _validation_note(history, unseen),
        *notes_on_history(history),
    ]
    advice = _advice(suggestion, patch)
    if output == "html":
        text = suggestion_page(suggestion, about, advice)
    elif output == "json":
        text = (
            json.dumps(
                {
                    "about": about,
                    "today": suggestion.today.to_json(),
                    "frontier": [
                        policy.to_json() | {"settings": settings_of(policy.policy)} for policy in suggestion.frontier
                    ],
                    "judged": [policy.to_json() for policy in suggestion.validation.values()],
                    "confirmed": suggestion.is_confirmed,
                    "tried": suggestion.policies,
                    "maxReversals": suggestion.max_reversals,
                    "suggested": None if best is None else best.to_json() | {"set": changed},
                    "diff": patch,
                }
            )
            + "\n"
        )
    else:
        validation = (
            ["", f"{VALIDATION_TITLE}:", *table_text(validation_rows(suggestion))] if suggestion.validation else []
        )
        text = "\n".join([*about, "", *table_text(suggestion_rows(suggestion)), *validation, "", advice])
    write_report(text, file, printable(about[0]))


def _sample_note(suggestion: Suggestion) -> list[str]:
    if not suggestion.sampled:
        return []
    return [f"compared on {suggestion.sampled} of the topics; the best {len(suggestion.tried) - 1} were tried on all"]


def _validation_note(history: History, unseen: History | None) -> str:
    from anabranch.simulation.backtest.suggesting import LEAST_TICKS

    if unseen is not None:
        return f"judged on what follows, until {instant(unseen.ends_at)}"
    needed, there = (3 * LEAST_TICKS * history.tick_ms, history.ends_at - history.began_at)
    return (
        f"note: the record has {there / 60_000:,.0f} minutes, too few to judge what was found on a part that was not "
        f"searched ({needed / 60_000:,.0f} are needed): the best of many policies on one record is partly luck"
    )


def _advice(suggestion: Suggestion, patch: str) -> str:
    best = suggestion.best
    if not suggestion.allowed:
        return (
            f"No policy that was tried has at most {suggestion.max_reversals} reversals, nor has today's: raise it.\n"
        )
    if best is None:
        return "Keep today's policy: none that was tried is better in one and no worse in the other.\n"
    if suggestion.is_confirmed is False:
        return (
            f"Keep today's policy: {best.name} is better on the part that was searched, and is not on the last third. "
            "Try again on a longer record.\n"
        )
    return f"Review, and set if it is what you want ({best.name}); nothing was applied:\n{patch}"
