"""`anabranch config`: the settings that count in the end, checked, and their JSON Schema."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from pydantic import SecretStr

from anabranch.cli.commands import token
from anabranch.cli.completion import SHELLS, script
from anabranch.cli.context import Context
from anabranch.cli.exits import FOUND


@click.group("config")
def config_command() -> None:
    """Show and check the settings, after files and environment."""


@config_command.command("show")
@click.option(
    "--output",
    type=click.Choice(["text", "json", "environment"]),
    default="text",
    show_default=True,
    help="environment: as variables, for an image without files.",
)
@click.argument("section", required=False)
@click.pass_obj
def show_settings(context: Context, output: str, section: str | None) -> None:
    """Show every setting, or those of SECTION. Secrets are not shown, only that they are set."""
    from schemas.settings.environment import variable_of

    rows = dict(flatten_settings(context.settings.model_dump(exclude={"home", "former_keys"})))
    sections = list(dict.fromkeys(path[0] for path in rows))
    if section is not None:
        if section not in sections:
            raise click.UsageError(f"there is no section {section}; sections: {', '.join(sections)}")
        rows = {path: value for path, value in rows.items() if path[0] == section}
    if output == "json":
        click.echo(json.dumps({".".join(path): without_secret(value) for path, value in rows.items()}, indent=2))
        return
    for path, value in rows.items():
        if output == "text":
            click.echo(f"{'.'.join(path)} = {as_toml(value)}")
        elif not isinstance(value, SecretStr) and value is not None:
            click.echo(f"{variable_of(path)}={value if isinstance(value, str) else as_toml(value)}")


@config_command.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes commands and options in a shell; it starts no Python.

    \b
    eval "$(anabranch config completion bash)"
    anabranch config completion zsh >> ~/.zshrc
    """
    from anabranch.cli.main import cli

    click.echo(script(cli, shell))


@config_command.command("check")
@click.pass_obj
def check_settings(context: Context) -> None:
    """Check the settings and the files that they name: policy, rules, certificates, keys, tokens. Calls nobody.

    Exit code 1: a file is missing or wrong; 2: a setting is.
    """
    from anabranch.admin.credentials import NoToken, read_key
    from anabranch.alerts.rules import RulesError, read_rules
    from anabranch.auth.tokens import TokensError, read_tokens
    from schemas.settings.root import SettingsError
    from streaming.job.policy import configured_policy

    settings = context.settings
    problems = []

    def read_named(read: Callable[[Path], object], file: str) -> None:
        if file:
            read(settings.path(file))

    def find_spark_conf() -> None:
        if not (file := settings.path(settings.stream.spark_conf)).is_file():
            raise SettingsError(f"there is no file {file}, [stream] spark_conf")

    for look in (
        find_spark_conf,
        lambda: read_named(read_key, settings.controller.oauth2_key),
        lambda: read_named(read_tokens, settings.controller.tokens_file),
        lambda: read_named(read_tokens, settings.web.tokens_file),
        lambda: configured_policy(settings),
        lambda: read_rules(settings.path(settings.alerts.rules)),
        settings.kafka_connection,
        settings.listener_context,
        settings.web_context,
        settings.url_context,
        settings.oauth2_context,
        settings.alerts_context,
        settings.metadata_context,
        settings.bookies_context,
    ):
        try:
            look()
        except (SettingsError, RulesError, NoToken, TokensError) as error:
            problems.append(str(error))
    for problem in dict.fromkeys(problems):
        click.echo(problem)
    if problems:
        raise click.exceptions.Exit(FOUND)
    click.echo(f"settings are valid: lake {settings.lake_path}, Kafka {settings.kafka.bootstrap}")


@config_command.command("schema")
def print_schema() -> None:
    """Print the JSON Schema of the settings, with a description of every key."""
    from schemas.settings.root import Settings

    click.echo(json.dumps(Settings.model_json_schema(), indent=2))


def flatten_settings(tree: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Return the leaves of the settings by their paths."""
    leaves: list[tuple[tuple[str, ...], Any]] = []
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            leaves += flatten_settings(value, (*path, name))
        else:
            leaves.append(((*path, name), value))
    return leaves


def without_secret(value: Any) -> Any:
    """Return a value as JSON, without its secret."""
    if isinstance(value, SecretStr):
        return "(set)"
    return list(value) if isinstance(value, tuple) else value


def as_toml(value: Any) -> str:
    """Return a value as TOML writes it."""
    if value is None:
        return "(not set)"
    return "{}" if value == {} else json.dumps(without_secret(value), ensure_ascii=False, default=str)


config_command.add_command(token.token_command)
