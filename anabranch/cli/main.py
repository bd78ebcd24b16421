"""Command line: `anabranch COMMAND`. Each command is a module of `anabranch.cli.commands`, loaded on use.

Exit codes: `anabranch.cli.exits`. What failed is one line on stderr.
"""

from __future__ import annotations

import importlib
import sys
from difflib import get_close_matches
from pathlib import Path

import click

from anabranch.cli.context import Context
from schemas.printable import printable

COMMANDS = {
    "run": "the whole system on this machine: broker, controller, traffic, job, executor",
    "stream": "the Spark job: segment load and events in, decisions out",
    "state": "what the job knows of a topic; a lost checkpoint rebuilt from the lake",
    "executor": "applies decisions from the Delta table through the admin REST interface; its brakes",
    "approve": "let decisions be applied that wait for a person",
    "reject": "end decisions that nobody should apply",
    "collect": "reads a Pulsar cluster's load, layouts and consumers into Kafka",
    "controller": "the scalable-topic controller: layouts, split, merge, sessions, REST",
    "traffic": "the load generator of the local run",
    "status": "the fleet in ten lines: processes, topics over their threshold, open decisions, alerts",
    "plan": "what would be done now, topic by topic, and what holds the others",
    "explain": "why a topic was split, merged or left alone, now or at any time, and what would change that",
    "web": "the page that operators keep open: fleet, topics as rivers, decisions, brakes",
    "history": "how a topic's segments split and merged, in the terminal or as a picture",
    "replay": "decide everything on record again with this release, and compare: a gate for upgrades",
    "sql": "questions in SQL over the lake: its tables and views, without a JVM",
    "simulate": "what policies would do with a demand, in virtual time",
    "backtest": "what policies would have done on the recorded history",
    "suggest": "which policy to have, found by backtests of many; a diff to review",
    "shadow": "what the cluster's own scaler did, beside what we would have done",
    "alerts": "rules on the lake, evaluated as it grows, and told to Alertmanager, Slack, webhooks",
    "decide": "decide snapshots from a file or standard input, one JSON object a line",
    "bundles": "Pulsar's bundles: why they were moved and brokers left alone; check an ownership channel",
    "bookies": "brokers to another BookKeeper cluster: precheck, switch, status, cleanup, rollback, check",
    "topics": "scalable topics at the controller: create, show, split, merge, delete, watch, policy",
    "namespaces": "namespaces at the controller: create, list, delete",
    "token": "the tokens of the controller and their roles: make, list, remove",
    "policy": "show, explain and check policies",
    "config": "show and check the settings that count in the end, print their JSON Schema",
    "kafka": "create and check the Kafka topics, or print them for Strimzi",
    "lake": "create the Delta tables and show what is in them",
    "doctor": "check this machine and the set-up, and say what is wrong",
    "setup": "fetch and check the jars (done by make and by the first local run)",
    "reset": "forget all state of the local run",
}


OF_THE_JOB = ("pyspark", "delta", "pandas", "plotly")
"""Modules that only the extra `job` of the package brings."""


class LazyGroup(click.Group):
    """A group whose commands are imported only when they are called: `anabranch decide` must start fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        return importlib.import_module(f"anabranch.cli.commands.{name}").command  # type: ignore[no-any-return]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return name, command and the remaining arguments.

        The error for a misspelt name lists the nearest ones.
        """
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            nearest = ", ".join(get_close_matches(args[0], COMMANDS))
            ctx.fail(f"there is no command {printable(args[0])}" + (f"; nearest: {nearest}" if nearest else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="anabranch")
@click.option(
    "--config",
    "-c",
    "config",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Settings laid over conf/anabranch.toml, instead of ./anabranch.toml; may be given several times, later wins.",
)
@click.option(
    "--home",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder that relative paths belong to; holds a conf/ of your own, if any.",
)
@click.option(
    "--log-level",
    default="info",
    show_default=True,
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    help="Of long-running parts, on stderr; instead of [log] format of the settings.",
)
@click.pass_context
def cli(
    ctx: click.Context, config: tuple[Path, ...], home: Path | None, log_level: str, log_format: str | None
) -> None:
    """Anabranch scales segmented topics: it splits hot segments, merges cold ones, and explains both.

    \b
    Start here:   anabranch run --local
    Then look:    anabranch doctor, anabranch lake show, anabranch explain TOPIC
    """
    ctx.obj = Context(config, home, log_level, log_format)


def main() -> None:
    """Entry point: errors of ours are one line on stderr, never a traceback."""
    try:
        sys.exit(cli(standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in OF_THE_JOB:
            raise
        click.echo(
            f"anabranch: this needs {error.name}, which the package has with its extra: anabranch[job]", err=True
        )
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)
    except ValueError as error:
        from schemas.settings.root import SettingsError

        if not isinstance(error, SettingsError):
            raise
        click.echo(f"anabranch: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
