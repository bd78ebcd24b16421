"""Shared parts of the safeguard commands: the actor, results by decision, and errors of the lake."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import click

from anabranch.cli.context import Context
from anabranch.cli.reports import reading_lake
from anabranch.safeguards.commands import DONE, judge, read_reason, whoami
from schemas.printable import printable


def with_reason_and_actor(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command `--reason` (required) and `--by`, and call it with both, cleaned."""

    @functools.wraps(function)
    def run(*arguments: object, reason: str, by: str | None, **more: object) -> None:
        try:
            words = read_reason(reason)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--reason") from None
        function(*arguments, reason=words, by=" ".join((by or whoami()).split()), **more)

    name = click.option("--by", metavar="NAME", help="Who says so, for the record; without it, user@host.")
    why = click.option("--reason", required=True, metavar="TEXT", help="Why, for the record and for those who look.")
    return why(name(run))


@contextmanager
def lake_errors(context: Context) -> Iterator[str]:
    """The lake's path; what Delta raises becomes a line for people."""
    lake = context.settings.lake_path
    with reading_lake(lake, action="read or written"):
        yield lake


def decide_on(context: Context, kind: Literal["approve", "reject"], ids: Sequence[str], reason: str, by: str) -> None:
    """Approve or reject decisions in one commit, and print each result. Exit code 1: one was refused."""
    with lake_errors(context) as lake:
        judged = judge(lake, kind, ids, reason, by, context.settings.executor.waiting_max_age_seconds)
    for act in judged.written:
        click.echo(f"{DONE[kind]} {act.decision_id} on {printable(act.subject)}")
    for decision_id, why in judged.refused.items():
        click.echo(f"not {DONE[kind]}: {printable(decision_id)}: {printable(why)}", err=True)
    if judged.refused:
        raise click.exceptions.Exit(1)
