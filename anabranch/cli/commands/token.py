"""`anabranch config token`: manage the controller's bearer tokens in `[controller] tokens_file`."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from anabranch.cli.connection import namespace_name, tenant_name
from anabranch.cli.context import Context
from anabranch.cli.exits import failing_on
from schemas.printable import printable


@click.group("token")
def token_command() -> None:
    """Make, list and remove the tokens of the controller.

    A running controller applies a change at the next request.

    \b
    read     layouts, stats, policies, watch sessions
    operate  that, and split, merge, subscriptions, consumers (the executor)
    admin    that, and to create and delete topics, and to set policies

    A token can be bound to tenants and namespaces: elsewhere it opens nothing, and lists do not show what is there.
    """


def _with_token_file(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the `file` of tokens, and report its faults in one line."""

    @functools.wraps(function)
    def run(context: Context, **arguments: Any) -> None:
        from anabranch.auth.tokens import TokensError

        if not (named := context.settings.controller.tokens_file):
            raise click.UsageError('no file of tokens is named: set tokens_file = "FILE" below [controller]')
        with failing_on(TokensError):
            function(file=context.settings.path(named), **arguments)

    passed: Callable[..., None] = click.pass_obj(run)
    return passed


@token_command.command("new")
@click.argument("name")
@click.option("--role", type=click.Choice(["read", "operate", "admin"]), required=True)
@click.option(
    "--tenant",
    "tenants",
    multiple=True,
    type=tenant_name,
    metavar="TENANT",
    help="Bind it to a tenant; several times: to all.",
)
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    type=namespace_name,
    metavar="TENANT/NAMESPACE",
    help="Bind it to a namespace; several times: to all.",
)
@_with_token_file
def make_token(file: Path, name: str, role: Any, tenants: tuple[str, ...], namespaces: tuple[str, ...]) -> None:
    """Make a token and print it, once: only its digest is kept, under NAME."""
    from anabranch.auth.tokens import add_token

    bounds = (*tenants, *namespaces)
    token = add_token(file, name, role, bounds)
    bound = f", bound to {', '.join(map(printable, bounds))}" if bounds else ""
    click.echo(f"{name} ({role}{bound}) is in {file}. Its token follows, and is not shown again:", err=True)
    click.echo(token)


@token_command.command("list")
@_with_token_file
def list_tokens(file: Path) -> None:
    """Show the names, the roles, and what each token is bound to."""
    from anabranch.auth.tokens import read_tokens

    for entry in read_tokens(file):
        click.echo(" ".join([f"{entry.role:8} {entry.name}", *sorted(entry.scope)]))


@token_command.command("remove")
@click.argument("name")
@_with_token_file
def remove(file: Path, name: str) -> None:
    """Remove a token, which is refused from the next request on.

    Its open connections are closed within a second or two.

    Its consumers stay registered and keep their segments for the grace period (consumer_grace_seconds): within it they
    can come back with another token. Registrations without a connection, layouts and policies that were made with the
    token stay.
    """
    from anabranch.auth.tokens import remove_token

    remove_token(file, name)
    click.echo(f"{name} is not in {file} any more")
