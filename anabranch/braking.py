"""What the commands that brake share: who says it, what is said of each decision, and errors of the lake in a line.

Stage: under `anabranch.commands.approve`, `reject` and `executor`.
"""

from __future__ import annotations

import functools
import getpass
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Literal

import click

from anabranch.context import Context
from schemas.printable import printable

if TYPE_CHECKING:
    from lake.brakes import Act, Acts

MAX_REASON = 500
"""Characters of a reason."""


def said(function: Callable[..., None]) -> Callable[..., None]:
    """Gives a command `--reason` (required) and `--by`, and calls it with both, cleaned."""

    @functools.wraps(function)
    def run(*arguments: object, reason: str, by: str | None, **more: object) -> None:
        words = " ".join(reason.split())
        if not words or len(words) > MAX_REASON:
            raise click.BadParameter(f"1 to {MAX_REASON} characters that say why", param_hint="--reason")
        function(*arguments, reason=words, by=" ".join((by or whoami()).split()), **more)

    name = click.option("--by", metavar="NAME", help="Who says so, for the record; without it, user@host.")
    why = click.option("--reason", required=True, metavar="TEXT", help="Why, for the record and for those who look.")
    return why(name(run))


def whoami() -> str:
    """`user@host`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(timezone.utc)


@contextmanager
def lake_errors(context: Context) -> Iterator[str]:
    """The lake's path; what Delta raises becomes a line for people."""
    from deltalake.exceptions import DeltaError

    from lake.tables import LakeError

    lake = context.settings.lake_path
    try:
        yield lake
    except LakeError:
        raise
    except (DeltaError, OSError) as error:
        raise click.ClickException(f"the lake {lake} cannot be read or written: {error}") from error


def decide_on(context: Context, kind: Literal["approve", "reject"], ids: Sequence[str], reason: str, by: str) -> None:
    """Approves or rejects decisions in one commit; says of each what became of it. Exit code 1 if any was refused."""
    from lake.brakes import Act, BrakeLog
    from ledger.brakes import known_decisions

    wanted = list(dict.fromkeys(ids))
    refused: dict[str, str] = {}

    def make(acts: Acts) -> list[Act]:
        refused.clear()
        known = known_decisions(lake, wanted)
        made = []
        for one in wanted:
            decision, before = known.get(one), acts.verdict_on(one)
            if decision is None:
                refused[one] = f"no such decision in {lake}; those that wait: anabranch executor status"
            elif decision.end is not None:
                refused[one] = f"it has ended already: {decision.end['status']} at {instant(decision.end['at'])}"
            elif before is not None:
                refused[one] = f"it was {_DONE[before.kind]} already, {before}"
            elif kind == "reject" and decision.begun_at is not None:
                refused[one] = f"it has begun, at {instant(decision.begun_at)}: its call may be out"
            else:
                made.append(Act(kind, decision.subject, reason, by, utc_now(), decision_id=one))
        return made

    with lake_errors(context) as lake:
        written = BrakeLog(lake).write(make)
    for act in written:
        click.echo(f"{_DONE[kind]} {act.decision_id} on {printable(act.subject)}")
    for one, why in refused.items():
        click.echo(f"not {_DONE[kind]}: {printable(one)}: {printable(why)}", err=True)
    if refused:
        raise click.exceptions.Exit(1)


_DONE = {"approve": "approved", "reject": "rejected"}


def instant(at: datetime) -> str:
    """For people: in UTC, to the second."""
    return f"{at.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
