"""`anabranch policy`: show a topic's policy with the source of each value; check policy files."""

import json
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from anabranch.admin.answers import Answered, Refused
from anabranch.cli.admin_client import AdminInterface, RefusedByServer
from anabranch.cli.connection import KNOWN_TOPIC, with_connection
from anabranch.cli.context import Context
from decisions.autoscale.policy import (
    POLICY_FIELDS,
    PROFILES,
    PolicyError,
    ResolvedPolicy,
    policy_digest,
    policy_override,
    policy_violations,
    policy_warnings,
    read_policy,
    resolve_policy,
)
from schemas.ids import topic_parts
from schemas.metadata import AutoScalePolicyOverride, ScalableTopicMetadata
from schemas.printable import printable

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_PROFILE = click.Choice(sorted(PROFILES))


@click.group("policy")
def policy_command() -> None:
    """Show, explain and check auto-scale policies (PIP-483 "Policy resolution")."""


@policy_command.command("show")
@click.argument("topic", type=KNOWN_TOPIC, metavar="TOPIC")
@click.option("--profile", type=_PROFILE, help="Instead of the settings' [policy] profile.")
@click.option(
    "--cluster", type=_FILE, metavar="FILE", help="Cluster policy, instead of the settings' [policy] cluster."
)
@click.option("--namespace", type=_FILE, metavar="FILE", help="Policy of the topic's namespace.")
@click.option("--metadata", type=_FILE, metavar="FILE", help="The topic's layout record (JSON), with its own policy.")
@click.option("--explain", is_flag=True, help="Add who set each value.")
@click.option("--offline", is_flag=True, help="Ask no controller: the files of the settings and of the options alone.")
@with_connection
@click.pass_obj
def show_policy(
    context: Context,
    admin: AdminInterface,
    output: str,
    topic: str,
    profile: str | None,
    cluster: Path | None,
    namespace: Path | None,
    metadata: Path | None,
    explain: bool,
    offline: bool,
) -> None:
    """Show the effective policy of TOPIC, field by field; the most specific source wins.

    \b
    The controller is asked, unless --offline, a profile or a file is given. Then the sources are, from the widest:
    the profile's defaults, the cluster's file, the namespace's file, the topic's own autoScalePolicy in --metadata.
    Policy files are TOML, or JSON as the admin REST interface has them.
    TOPIC may be the end of a name, as orders, if a single topic in the lake has it.
    """
    if not (offline or profile or cluster or namespace or metadata):
        _show_of_server(context, admin, output, topic, explain)
        return
    configured = context.settings.policy
    chosen = profile or configured.profile
    of_cluster = cluster or context.settings.path(configured.cluster)
    files = {"cluster": of_cluster, "namespace": namespace, "topic": metadata}
    resolved = resolve_policy(
        chosen,
        _read_override(of_cluster),
        None if namespace is None else _read_override(namespace),
        None if metadata is None else _read_own(metadata),
    )
    _print_policy(output, topic, chosen, resolved, {scope: str(file) for scope, file in files.items() if file}, explain)


def _show_of_server(context: Context, admin: AdminInterface, output: str, topic: str, explain: bool) -> None:
    """Show the controller's policy; a Pulsar's overrides are laid over that of our settings here."""
    reply = admin.topics.effective_policy(topic)
    try:
        if isinstance(reply, Answered):
            resolved, profile = _read_effective(reply.value), str(reply.value["profile"])
            _print_policy(output, topic, profile, resolved, {}, explain)
            return
    except (ValidationError, KeyError, TypeError) as error:
        raise RefusedByServer(f"the policy of {printable(topic)} cannot be read: {printable(str(error))}") from error
    if not isinstance(reply, Refused) or reply.status not in (404, 405):
        admin.expect(reply)
    own = admin.expect(admin.topics.policy(topic))
    wider = admin.expect(admin.topics.policy(topic_parts(topic).full_namespace))
    configured = context.settings.policy
    file = context.settings.path(configured.cluster)
    read = [
        None if override is None else AutoScalePolicyOverride.model_validate_json(json.dumps(override))
        for override in (wider, own)
    ]
    click.echo(f"{admin.url} does not resolve policies: its overrides are laid over {file} here", err=True)
    resolved = resolve_policy(configured.profile, _read_override(file), *read)
    _print_policy(output, topic, configured.profile, resolved, {"cluster": str(file)}, explain)


def _read_effective(answer: Any) -> ResolvedPolicy:
    stated = AutoScalePolicyOverride.model_validate_json(json.dumps(answer["policy"]))
    policy = resolve_policy(answer["profile"], None, None, stated).policy
    return ResolvedPolicy(policy, {wire: answer["origins"][wire] for wire in POLICY_FIELDS}, answer.get("broken"))


def _print_policy(
    output: str, topic: str, profile: str, resolved: ResolvedPolicy, files: dict[str, str], explain: bool
) -> None:
    """Print a policy: for people, or as the controller's REST interface has it."""
    digest = policy_digest(resolved.policy)
    if output == "json":
        policy = json.loads(policy_override(resolved.policy).to_json())
        document = {"profile": profile, "digest": digest, "policy": policy, "origins": dict(resolved.origins)}
        click.echo(json.dumps({**document, "broken": resolved.broken}))
        return
    click.echo(f"# {printable(topic)}: profile {profile}, digest {digest}")
    for line in _lines(resolved, files, explain):
        click.echo(printable(line))
    if resolved.broken is not None:
        click.echo(f"# scaling is off for this topic: {printable(resolved.broken)}")


@policy_command.command("check")
@click.argument("files", nargs=-1, required=True, type=_FILE)
@click.option("--profile", default="default", show_default=True, type=_PROFILE)
@click.pass_context
def check_policies(ctx: click.Context, files: tuple[Path, ...], profile: str) -> None:
    """Check that each of FILES can be read and, laid over the profile, breaks no rule.

    Exit code 1 when one does.
    """
    failed = False
    for file in files:
        try:
            override = _read_override(file)
        except click.ClickException as error:
            click.echo(error.message)
            failed = True
            continue
        policy = resolve_policy(profile, override).policy
        broken = policy_violations(policy)
        failed = failed or bool(broken)
        for rule in broken:
            click.echo(f"{file}: broken rule: {rule}")
        for warning in policy_warnings(policy):
            click.echo(f"{file}: warning: {warning}")
        if not broken:
            count = len(override.model_fields_set)
            click.echo(f"{file}: valid over profile {profile}; {count} value{'s' * (count != 1)} set")
    ctx.exit(1 if failed else 0)


def _read_override(file: Path) -> AutoScalePolicyOverride:
    try:
        text = file.read_text(encoding="utf-8")
        if text.lstrip().startswith("{"):
            return AutoScalePolicyOverride.model_validate_json(text)
        return read_policy(text)
    except (PolicyError, ValidationError, OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{file}: {printable(_first_error(error))}") from error


def _read_own(file: Path) -> AutoScalePolicyOverride | None:
    try:
        return ScalableTopicMetadata.model_validate_json(file.read_text(encoding="utf-8")).auto_scale_policy
    except (ValidationError, OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{file}: not a layout record: {printable(_first_error(error))}") from error


def _first_error(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    return str(error)


def _lines(resolved: ResolvedPolicy, files: dict[str, str], explain: bool) -> list[str]:
    effective = policy_override(resolved.policy)
    rows = []
    for wire, field in POLICY_FIELDS.items():
        value = getattr(effective, field.attribute)
        is_broken = wire == "enabled" and resolved.broken is not None
        origin = "a broken rule" if is_broken else resolved.origins[wire]
        written = (
            str(value).lower() if isinstance(value, bool) else f"{value:.15g}" if isinstance(value, float) else value
        )
        rows.append((f"{wire} = {written}", f"{origin} ({files[origin]})" if origin in files else origin))
    width = max(len(row) for row, _ in rows)
    return [f"{row.ljust(width)}  # {origin}" if explain else row for row, origin in rows]
