"""`anabranch explain TOPIC`: reasons for acting or holding at an instant, and what would change it.

No Spark, no JVM.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from anabranch.cli.connection import encodable_text
from anabranch.cli.context import Context
from anabranch.cli.instants import INSTANT
from anabranch.cli.reports import reading_lake
from schemas.printable import printable

if TYPE_CHECKING:
    from anabranch.history.explain.changes import Change
    from anabranch.history.explain.record import Explanation


@click.command("explain")
@click.argument("topic")
@click.option(
    "--at",
    "at",
    type=INSTANT,
    metavar="TIME",
    help="As 14:05, 2026-11-22T14:05:00Z or '10m ago', UTC; without it, the last batch on record.",
)
@click.option("--segment", type=click.IntRange(min=0), metavar="N", help="Why this segment is, or is not, acted on.")
@click.option(
    "--snapshot",
    "as_snapshot",
    is_flag=True,
    help="The snapshot as JSON instead, for `anabranch decisions decide`: what would another policy do?",
)
@click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_obj
def explain_command(
    context: Context, topic: str, at: datetime | None, segment: int | None, as_snapshot: bool, output: str
) -> None:
    """Say why TOPIC was split or merged, or why not, and what would have changed that.

    \b
    Why did orders not split at 14:05?    anabranch explain orders --at 14:05
    Why does it not split now?            anabranch explain orders
    Why was segment 3 left alone?         anabranch explain orders --at 14:05 --segment 3

    TOPIC is a full name, or as much of its end as only one topic has. All gates are shown in the order in which they
    are looked at (docs/gates.md), the one that binds marked with >>. Everything is worked out from what the lake has on
    record; where that is too short to tell, it says so. What would change the answer was tried: each line changes one
    thing as little as is enough, and decides again. Last comes why the topic is slow, if it is: short of segments,
    short of working consumers, or one hot key.
    """
    from anabranch.cli.explain_text import explanation_text
    from anabranch.history.explain.changes import changes
    from anabranch.history.explain.checkpoints import NotOnRecord
    from anabranch.history.explain.record import check_segment, explain
    from anabranch.query.topics import topic_on_record
    from decisions.autoscale.snapshot import snapshot_to_wire
    from streaming.job.policy import configured_policy, stored_policy
    from streaming.job.watchdog import OUTAGE_TICKS

    settings = context.settings
    with reading_lake(settings.lake_path, NotOnRecord):
        name = topic_on_record(settings.lake_path, encodable_text(topic))
        outage = timedelta(seconds=settings.stream.tick_seconds * OUTAGE_TICKS)
        explanation = explain(settings.lake_path, name, at, stored_policy(configured_policy(settings)), outage)
        if segment is not None:
            check_segment(explanation.snapshot.layout, segment)
    if as_snapshot:
        click.echo(snapshot_to_wire(explanation.snapshot).to_json())
        return
    changed = changes(explanation.snapshot, segment)
    notes = _notes(explanation)
    if output == "json":
        click.echo(json.dumps({**_json(explanation, changed), "notes": notes}))
        return
    click.echo(explanation_text(explanation, changed, segment))
    for note in notes:
        click.echo(f"note: {printable(note)}", err=True)


def _json(explanation: Explanation, changed: list[Change]) -> dict[str, Any]:
    from anabranch.history.explain.slowness import slowness_json
    from decisions.autoscale.answers import answer_to_json
    from decisions.autoscale.snapshot import snapshot_to_wire

    last, following = explanation.evaluations
    row = explanation.hold
    return {
        "topic": explanation.snapshot.topic,
        "at": explanation.asked_at,
        "decision": None if explanation.decision is None else explanation.decision._asdict(),
        "lastDecision": None if explanation.last_decision is None else explanation.last_decision._asdict(),
        "became": None
        if explanation.became is None
        else {**explanation.became._asdict(), "at": round(explanation.became.at.timestamp() * 1000)},
        "notAtWork": explanation.silence,
        "hold": None if row is None else {"seq": row["seq"], "gate": row["gate"], "since": explanation.held_since},
        "evaluatedAt": last,
        "nextEvaluationAt": following,
        "answer": json.loads(answer_to_json(explanation.answer)),
        "changes": [change.to_json() for change in changed],
        "slowness": slowness_json(explanation.slowness),
        "snapshot": json.loads(snapshot_to_wire(explanation.snapshot).to_json()),
    }


def _notes(explanation: Explanation) -> list[str]:
    from anabranch.query.wording import instant

    notes = [f"the history on record is too short to be sure: {doubt}" for doubt in explanation.doubts[:3]]
    if explanation.assumed_fresh:
        ids = ", ".join(map(str, explanation.assumed_fresh[:10]))
        notes.append(
            f"samples that change little are not on record, so the loads of these segments are taken to be fresh: {ids}"
        )
    if explanation.asked_at > explanation.record_ends_at:
        notes.append(
            f"the record ends at {instant(explanation.record_ends_at)}: this is what would be found "
            f"if nothing came after it"
        )
    return notes
