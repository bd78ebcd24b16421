"""`anabranch why TOPIC`: all gates of a topic at an instant, worked out from the lake. No Spark, no JVM."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

import click

from anabranch.context import Context
from anabranch.explanation import duration, explained, instant
from decisions.autoscale.gates import DESCRIPTIONS, Gate
from schemas.printable import printable

if TYPE_CHECKING:
    from ledger.why import Why


@click.command("why")
@click.argument("topic")
@click.option(
    "--at", "at", metavar="INSTANT", help="As 2026-11-22T12:00:00Z; without it, the last batch on record is meant."
)
@click.option(
    "--snapshot", "as_snapshot", is_flag=True,
    help="The snapshot as JSON instead, for `anabranch decide`: what would another policy do?",
)  # fmt: skip
@click.pass_obj
def command(context: Context, topic: str, at: str | None, as_snapshot: bool) -> None:
    """Say why a topic acts or does not: every gate, as a tick at that instant would have found it.

    \b
    Everything is worked out again from what the lake has on record of the topic. Where that is too short to tell, it
    says so.
    """
    from deltalake.exceptions import DeltaError

    from decisions.autoscale.snapshot import snapshot_to_wire
    from ledger.why import NotOnRecord, why
    from streaming.policy import configured_policy, stored_policy

    settings = context.settings
    try:
        found = why(settings.lake_path, topic, _instant(at), stored_policy(configured_policy(settings)))
    except NotOnRecord as error:
        raise click.ClickException(printable(str(error))) from error
    except (DeltaError, OSError) as error:
        raise click.ClickException(f"the lake {settings.lake_path} cannot be read: {error}") from error
    if as_snapshot:
        click.echo(snapshot_to_wire(found.snapshot).to_json())
    else:
        click.echo("\n".join([explained(found.snapshot, found.answer).rstrip(), *_on_record(found)]))
    for said in _notes(found):
        click.echo(f"note: {printable(said)}", err=True)


def _instant(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is no instant like 2026-11-22T12:00:00Z", param_hint="--at") from error
    return at if at.tzinfo else at.replace(tzinfo=timezone.utc)


def _on_record(found: Why) -> list[str]:
    row = found.hold
    if row is None or found.held_since is None:
        return ["  on record: no hold that still stands"]
    unit = DESCRIPTIONS[Gate(row["gate"])].unit
    told = [
        f"{name} {duration(row[name]) if unit == 'ms' else f'{row[name]:.4g}'}"
        for name in ("measured", "limit")
        if row[name] is not None
    ]
    numbers = f" ({', '.join(told)} then)" if told else ""
    return [f"  on record: hold {row['seq']}, {row['gate']}{numbers}, since {instant(found.held_since)}"]


def _notes(found: Why) -> list[str]:
    notes = [f"the history on record is too short to be sure: {doubt}" for doubt in found.doubts[:3]]
    if found.assumed_fresh:
        ids = ", ".join(map(str, found.assumed_fresh[:10]))
        notes.append(
            f"when the loads of these segments were last seen is not on record, they are taken to be fresh: {ids}"
        )
    return notes
