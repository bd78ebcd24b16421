"""`anabranch token`: the bearer tokens that our controller knows, in the file that `[controller] tokens_file` names."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from anabranch.context import Context


@click.group("token")
def command() -> None:
    """Make, list and remove the tokens of the controller; a running one knows the change at the next request.

    \b
    read     layouts, stats, policies, watch sessions
    operate  that, and split, merge, subscriptions, consumers (the executor)
    admin    that, and to create and delete topics, and to set policies
    """


def _editing(function: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the `file` of tokens, and says what is wrong with it in one line."""

    @functools.wraps(function)
    def run(context: Context, **arguments: Any) -> None:
        from controller.access.tokens import TokensError

        named = context.settings.controller.tokens_file
        if not named:
            raise click.UsageError('no file of tokens is named: set tokens_file = "FILE" below [controller]')
        try:
            function(file=context.settings.path(named), **arguments)
        except TokensError as error:
            raise click.ClickException(str(error)) from error

    passed: Callable[..., None] = click.pass_obj(run)
    return passed


@command.command("new")
@click.argument("name")
@click.option("--role", type=click.Choice(["read", "operate", "admin"]), required=True)
@_editing
def new(file: Path, name: str, role: Any) -> None:
    """Make a token and print it, once: only its digest is kept, under NAME."""
    from controller.access.tokens import add_token

    token = add_token(file, name, role)
    click.echo(f"{name} ({role}) is in {file}. Its token follows, and is not shown again:", err=True)
    click.echo(token)


@command.command("list")
@_editing
def list_tokens(file: Path) -> None:
    """Show the names and the roles."""
    from controller.access.tokens import read_tokens

    for entry in read_tokens(file):
        click.echo(f"{entry.role:8} {entry.name}")


@command.command("remove")
@click.argument("name")
@_editing
def remove(file: Path, name: str) -> None:
    """Remove a token: it is refused from the next request on, and its open sessions end."""
    from controller.access.tokens import remove_token

    remove_token(file, name)
    click.echo(f"{name} is not in {file} any more")
