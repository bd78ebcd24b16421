"""`anabranch decisions approve`: approve waiting decisions, as rows of the table `brakes`."""

from __future__ import annotations

import click

from anabranch.cli.braking import decide_on, with_reason_and_actor
from anabranch.cli.context import Context


@click.command("approve")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@with_reason_and_actor
@click.pass_obj
def command(context: Context, ids: tuple[str, ...], reason: str, by: str) -> None:
    """Let decisions be applied that wait for approval ([executor] mode = "approve").

    \b
    The ids: anabranch decisions waiting. Each is judged by its topic again before its call: what has changed meanwhile
    supersedes it. What was approved or rejected stays so.
    """
    decide_on(context, "approve", ids, reason, by)
