"""`anabranch topics policy`: read and change the auto-scale override of a topic or namespace.

An override is checked here before anything is sent: unknown fields, wrong types, and rules that its own fields break.
Rules that need the wider scopes are the server's to check (PIP-483 "Policy resolution").
"""

import json
import re
import sys
from collections.abc import Callable
from typing import Any

import click
from pydantic import ValidationError
from pydantic_core import from_json

from anabranch.cli.admin_client import AdminInterface, RefusedByServer
from anabranch.cli.connection import policy_subject, print_result, with_connection
from decisions.autoscale.policy import POLICY_FIELDS, PolicyError, policy_violations, read_policy, resolve_policy
from schemas.metadata import AutoScalePolicyOverride
from schemas.printable import printable

_FIELD = re.compile(rf"\b(?:{'|'.join(POLICY_FIELDS)})\b")


@click.group("policy")
def topic_policy() -> None:
    """Show, set and remove the auto-scale override of a topic or of a namespace (tenant/namespace).

    An override holds some fields; the others fall through to the namespace, the cluster and the profile.
    """


@topic_policy.command("get")
@click.argument("subject", type=policy_subject, metavar="TOPIC|NAMESPACE")
@with_connection
def show_override(admin: AdminInterface, output: str, subject: str) -> None:
    """Show the override as it was set; `anabranch policy show --explain` says what it leads to."""
    _say_policy(output, subject, admin.expect(admin.topics.policy(subject)))


@topic_policy.command("remove")
@click.argument("subject", type=policy_subject, metavar="TOPIC|NAMESPACE")
@with_connection
def remove_override(admin: AdminInterface, output: str, subject: str) -> None:
    """Remove the override: every field falls through again."""
    admin.expect(admin.topics.remove_policy(subject))
    print_result(output, f"removed the policy of {printable(subject)}", {"removed": subject})


def _field_options(function: Callable[..., None]) -> Callable[..., None]:
    for wire, field in reversed(list(POLICY_FIELDS.items())):
        function = click.option(f"--{field.attribute.replace('_', '-')}", wire, metavar="VALUE")(function)
    return function


@topic_policy.command("set")
@click.argument("subject", type=policy_subject, metavar="TOPIC|NAMESPACE")
@click.argument("override", required=False, metavar="[JSON]")
@click.option("--replace", is_flag=True, help="Drop the fields that are set now and not given here.")
@_field_options
@with_connection
def set_policy(
    admin: AdminInterface, output: str, subject: str, override: str | None, replace: bool, **options: str | None
) -> None:
    """Set fields of the override; fields that are not given stay as they are, null in JSON unsets one.

    \b
    anabranch topics policy set acme/shop --max-segments 128 --split-cooldown-seconds 2m
    anabranch topics policy set topic://acme/shop/orders '{"enabled": false}'
    anabranch topics policy set acme/shop --replace - < policy.json

    Options take units: 60s, 5m, 50MB (decimal), 10k.
    """
    changes = _read_argument(override) | _from_options(
        {wire: text for wire, text in options.items() if text is not None}
    )
    if not changes:
        raise click.UsageError("nothing to set: give JSON or an option of a field, or use policy remove")
    _check_fields({wire: value for wire, value in changes.items() if value is not None})
    stored: dict[str, Any] | None = None if replace else admin.expect(admin.topics.policy(subject))
    before = stored or {}
    unset = {wire for wire, value in changes.items() if value is None}
    remaining = {wire: value for wire, value in before.items() if value is not None or wire not in POLICY_FIELDS}
    if not (wanted := {wire: value for wire, value in {**remaining, **changes}.items() if wire not in unset}):
        admin.expect(admin.topics.remove_policy(subject))
        _say_policy(output, subject, None)
        return
    admin.expect(admin.topics.set_policy(subject, _override(wanted)))
    # A Pulsar 5 answers 204 to a field that it does not know, and keeps an empty policy.
    result = admin.expect(admin.topics.policy(subject))
    if any((result or {}).get(wire) != value for wire, value in wanted.items()):
        raise RefusedByServer(f"the server has kept another policy of {printable(subject)}: {_format_override(result)}")
    _say_policy(output, subject, result)


def _read_argument(text: str | None) -> dict[str, Any]:
    """The JSON argument; `-` reads standard input."""
    if text is None:
        return {}
    try:
        value = from_json(sys.stdin.read() if text == "-" else text, allow_inf_nan=False)
    except ValueError as error:
        raise click.UsageError(f"the policy is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise click.UsageError("the policy must be a JSON object")
    return value


def _from_options(options: dict[str, str]) -> dict[str, Any]:
    """Options as a policy file has them: numbers and booleans bare, what has a unit in quotes."""
    bare = re.compile(r"true|false|-?[0-9]{1,30}(\.[0-9]{1,30})?", re.ASCII)
    lines = [f"{wire} = {text if bare.fullmatch(text) else json.dumps(text)}" for wire, text in options.items()]
    try:
        return read_policy("\n".join(lines)).model_dump(by_alias=True, exclude_none=True)
    except PolicyError as error:
        raise click.UsageError(printable(str(error))) from None


def _check_fields(values: dict[str, Any]) -> None:
    """`click.UsageError` for unknown fields, wrong types and rules that these fields break by themselves."""
    if unknown := sorted(values.keys() - POLICY_FIELDS.keys()):
        raise click.UsageError(f"unknown policy field: {printable(unknown[0])}; known: {', '.join(POLICY_FIELDS)}")
    for rule in policy_violations(resolve_policy("pip-483", None, None, _override(values)).policy):
        if values.keys() >= set(_FIELD.findall(rule)):
            raise click.UsageError(rule)


def _override(values: dict[str, Any]) -> AutoScalePolicyOverride:
    try:
        return AutoScalePolicyOverride.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise click.UsageError(f"{printable(str(first['loc'][0]))}: {first['msg']}") from None


def _say_policy(output: str, subject: str, override: dict[str, Any] | None) -> None:
    if output == "json":
        click.echo(json.dumps(override))
    elif override is None:
        click.echo(f"# {printable(subject)}: no policy of its own")
    else:
        lines = [
            f"{printable(wire)} = {printable(json.dumps(value))}"
            for wire, value in override.items()
            if value is not None
        ]
        click.echo("\n".join([f"# {printable(subject)}", *lines]))


def _format_override(override: dict[str, Any] | None) -> str:
    return "none" if override is None else json.dumps(override)
