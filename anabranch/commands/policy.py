"""`anabranch policy`: what policy a topic has and who set each value of it; and whether policy files are sound."""

from __future__ import annotations

from pathlib import Path

import click
from pydantic import ValidationError

from anabranch.context import Context
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
def command() -> None:
    """Show, explain and check auto-scale policies (PIP-483 "Policy resolution")."""


@command.command("show")
@click.argument("topic")
@click.option("--profile", type=_PROFILE, help="Instead of the settings' [policy] profile.")
@click.option(
    "--cluster", type=_FILE, metavar="FILE", help="Cluster policy, instead of the settings' [policy] cluster."
)
@click.option("--namespace", type=_FILE, metavar="FILE", help="Policy of the topic's namespace.")
@click.option("--metadata", type=_FILE, metavar="FILE", help="The topic's layout record (JSON), with its own policy.")
@click.option("--explain", is_flag=True, help="Add who set each value.")
@click.pass_obj
def show(
    context: Context, topic: str, profile: str | None, cluster: Path | None, namespace: Path | None,
    metadata: Path | None, explain: bool,
) -> None:  # fmt: skip
    """Show the effective policy of TOPIC, field by field; the most specific source wins.

    \b
    Sources, from the widest: the profile's defaults, the cluster's file, the namespace's file, the topic's own
    autoScalePolicy in --metadata. Policy files are TOML, or JSON as the admin REST interface has them.
    """
    try:
        topic_parts(topic)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="TOPIC") from None
    configured = context.settings.policy
    chosen = profile or configured.profile
    files = {"cluster": cluster or context.settings.path(configured.cluster), "namespace": namespace, "topic": metadata}
    resolved = resolve_policy(
        chosen,
        _read_override(files["cluster"]),
        None if namespace is None else _read_override(namespace),
        None if metadata is None else _read_own(metadata),
    )
    click.echo(f"# {printable(topic)}: profile {chosen}, digest {policy_digest(resolved.policy)}")
    for line in _lines(resolved, {scope: file for scope, file in files.items() if file}, explain):
        click.echo(line)
    if resolved.broken is not None:
        click.echo(f"# scaling is off for this topic: {resolved.broken}")


@command.command("check")
@click.argument("files", nargs=-1, required=True, type=_FILE)
@click.option("--profile", default="default", show_default=True, type=_PROFILE)
@click.pass_context
def check(ctx: click.Context, files: tuple[Path, ...], profile: str) -> None:
    """Check that each of FILES can be read and, laid over the profile, breaks no rule. Exit code 1 when one does."""
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
        text = file.read_text()
        if text.lstrip().startswith("{"):
            return AutoScalePolicyOverride.model_validate_json(text)
        return read_policy(text)
    except (PolicyError, ValidationError, OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{file}: {printable(_first(error))}") from error


def _read_own(file: Path) -> AutoScalePolicyOverride | None:
    try:
        return ScalableTopicMetadata.model_validate_json(file.read_text()).auto_scale_policy
    except (ValidationError, OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{file}: not a layout record: {printable(_first(error))}") from error


def _first(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    return str(error)


def _lines(resolved: ResolvedPolicy, files: dict[str, Path], explain: bool) -> list[str]:
    effective = policy_override(resolved.policy)
    rows = []
    for wire, known in POLICY_FIELDS.items():
        value = getattr(effective, known.attribute)
        origin = resolved.origins[wire]
        if wire == "enabled" and resolved.broken is not None:
            origin = "a broken rule"
        written = (
            str(value).lower() if isinstance(value, bool) else f"{value:.15g}" if isinstance(value, float) else value
        )
        rows.append((f"{wire} = {written}", f"{origin} ({files[origin]})" if origin in files else origin))
    width = max(len(row) for row, _ in rows)
    return [f"{row.ljust(width)}  # {origin}" if explain else row for row, origin in rows]
