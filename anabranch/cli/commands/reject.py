"""`anabranch decisions reject`: reject waiting decisions, as rows of the table `brakes`."""

from __future__ import annotations

import click

from anabranch.cli.braking import decide_on, with_reason_and_actor
from anabranch.cli.context import Context


@click.command("reject")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@with_reason_and_actor
@click.pass_obj
def command(context: Context, ids: tuple[str, ...], reason: str, by: str) -> None:
    """End decisions that nobody should apply: each gets the outcome `rejected`, with who and why.

    \b
    The ids: anabranch decisions waiting. The topic decides again after its back-off. A decision that has begun
    cannot be rejected; in mode act one may begin at the same moment: its outcome tells.
    """
    decide_on(context, "reject", ids, reason, by)
