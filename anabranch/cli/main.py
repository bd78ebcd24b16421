"""Command line: `anabranch COMMAND`.

Commands are in modules of `anabranch.cli.commands`, loaded on use; their examples are in `anabranch.cli.examples`.

Exit codes: `anabranch.cli.exits`. What failed is one line on stderr.
"""

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

import click

from anabranch.cli.context import Context, hide_new_files
from anabranch.cli.examples import EXAMPLES
from schemas.printable import printable


@dataclass(frozen=True)
class Entry:
    """A command by its module, or a group by its entries."""

    help: str
    module: str = ""
    """`MODULE` with an object `MODULE_command`, or `MODULE:OBJECT`."""
    entries: "Mapping[str, Entry]" = field(default_factory=dict)


COMMANDS = {
    "run": Entry("the whole system on this machine: Kafka, controller, traffic, job, executor, page", "run"),
    "serve": Entry(
        "one process of a deployment: stream (the job), executor, controller, collector, web (the page), alerts",
        entries={
            "stream": Entry("the Spark job: segment load and events in, decisions out", "stream"),
            "executor": Entry("applies decisions from the Delta table through the admin REST interface", "executor"),
            "controller": Entry("the scalable-topic controller: layouts, split, merge, sessions, REST", "controller"),
            "collector": Entry("reads the load of segments and consumers from Pulsar or Kafka into Kafka", "collect"),
            "web": Entry("the page, which operators keep open", "web"),
            "alerts": Entry("rules on the lake, told to Alertmanager, Slack, webhooks", "alerts"),
        },
    ),
    "status": Entry("the fleet in ten lines: processes, overloaded topics, open decisions, alerts", "status"),
    "plan": Entry("what would be done now, topic by topic, and what holds the others", "plan"),
    "explain": Entry("why a topic was split, merged or left alone, and what would change that", "explain"),
    "history": Entry("how a topic's segments split and merged, in the terminal or as a picture", "history"),
    "sql": Entry("questions in SQL over the lake: its tables and views, without a JVM", "sql"),
    "decisions": Entry(
        "list, show, approve, reject, pause, resume, decide and replay decisions",
        entries={
            "list": Entry("the newest decisions and how each ended", "decisions:list_decisions"),
            "show": Entry("one decision: what it was decided on, its calls and its end", "decisions:show_decision"),
            "waiting": Entry("safeguards in force, and the decisions that wait for them", "executor:show_waiting"),
            "approve": Entry("let decisions be applied that wait for a person", "decisions:approve"),
            "reject": Entry("end decisions that nobody should apply", "decisions:reject"),
            "pause": Entry("have nothing applied to a topic, a namespace, a cluster or all", "executor:pause_scope"),
            "resume": Entry("end a pause, or the stop after too many failures", "executor:resume_scope"),
            "decide": Entry("decide snapshots from a file or standard input, one JSON object a line", "decide"),
            "replay": Entry("decide everything on record again with this release, and compare", "replay"),
        },
    ),
    "whatif": Entry(
        "policies compared: simulate, backtest, suggest, shadow",
        entries={
            "simulate": Entry("what policies would do with a demand, in virtual time", "simulate"),
            "backtest": Entry("what policies would have done on the recorded history", "backtest"),
            "suggest": Entry("which policy to have, found by backtests of many; a diff to review", "suggest"),
            "shadow": Entry("what the cluster's own scaler did, beside what we would have done", "shadow"),
        },
    ),
    "topics": Entry("topics and namespaces at the controller: create, show, split, merge, policy", "topics"),
    "policy": Entry("show, explain and check policies", "policy"),
    "bundles": Entry("Pulsar's bundles: why they were moved and brokers left alone", "bundles"),
    "bookies": Entry("brokers to another BookKeeper cluster: precheck, switch, status, rollback, check", "bookies"),
    "lake": Entry("the Delta tables: create, show, check, retain; the job's state beside them", "lake"),
    "kafka": Entry("create and check the Kafka topics, or print them for Strimzi", "kafka"),
    "config": Entry("the settings that count in the end, their JSON Schema, and tokens", "config"),
    "doctor": Entry("check this machine and the set-up, and say what is wrong", "doctor"),
    "local": Entry(
        "parts of the local run: setup, traffic, reset",
        entries={
            "setup": Entry("fetch and check the jars (done by make and by the first local run)", "local:setup"),
            "traffic": Entry("the load generator of the local run", "local:traffic"),
            "reset": Entry("forget all state of the local run", "local:reset_command"),
        },
    ),
}

ALIASES = {
    **{name: f"{group} {name}" for group in ("serve", "whatif", "local") for name in COMMANDS[group].entries},
    **{name: f"decisions {name}" for name in ("approve", "reject", "decide", "replay")},
    "collect": "serve collector",
    "state": "lake state",
    "namespaces": "topics namespaces",
    "token": "config token",
}
"""Former names and today's; not listed, and to be removed in release 0.2."""


OF_THE_JOB = ("pyspark", "delta", "pandas", "plotly")
"""Modules that only the extra `job` of the package brings."""


class LazyGroup(click.Group):
    """A group whose commands are imported only when they are called: `anabranch decide` must start fast."""

    def __init__(self, *arguments: object, path: str = "", entries: Mapping[str, Entry] = COMMANDS, **more: object):
        super().__init__(*arguments, **more)  # type: ignore[arg-type]
        self._path, self._entries = path, entries

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._entries)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if (entry := self._entries.get(name)) is None:
            return None if self._path or name not in ALIASES else self._former(ctx, name)
        path = f"{self._path} {name}".strip()
        if entry.entries:
            summary = entry.help[0].upper() + entry.help[1:] + "."
            return LazyGroup(name, path=path, entries=entry.entries, help=summary, no_args_is_help=True)
        module, _, attribute = entry.module.partition(":")
        loaded = importlib.import_module(f"anabranch.cli.commands.{module}")
        command: click.Command = getattr(loaded, attribute or f"{module}_command")
        return with_examples(command, path)

    def _former(self, ctx: click.Context, name: str) -> click.Command | None:
        command: click.Command | None = self
        for part in ALIASES[name].split():
            command = command.get_command(ctx, part) if isinstance(command, click.Group) else None
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return name, command and arguments; the error for a misspelt name lists the nearest, with group."""
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            names = {name: f"{self._path} {name}".strip() for name in self._entries}
            if not self._path:
                names = {
                    inner: f"{name} {inner}" for name, entry in COMMANDS.items() for inner in entry.entries
                } | names
            nearest = ", ".join(names[name] for name in get_close_matches(args[0], names))
            ctx.fail(f"there is no command {printable(args[0])}" + (f"; nearest: {nearest}" if nearest else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self._entries.items()])


def with_examples(command: click.Command, path: str) -> click.Command:
    """Return the command with its examples, and those of its subcommands, at the end of the help.

    A group's list of commands has the whole first paragraph of each."""
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            inner.short_help = " ".join((inner.help or "").split("\n\n")[0].split())  # click would cut it
            with_examples(inner, f"{path} {name}")
    if path in EXAMPLES:
        command.epilog = "\b\nExamples:\n" + "\n".join(f"  anabranch {example}" for example in EXAMPLES[path])
    return command


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
    Then look:    anabranch status, anabranch plan, anabranch explain TOPIC
    A deployment: anabranch doctor, anabranch serve stream, anabranch serve executor
    """
    ctx.obj = Context(config, home, log_level, log_format)


def main() -> None:
    """Entry point: errors of ours are one line on stderr, never a traceback."""
    hide_new_files()
    try:
        sys.exit(cli(standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in OF_THE_JOB:
            raise
        click.echo(f"Error: this needs {error.name}, which the package has with its extra: anabranch[job]", err=True)
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)
    except ValueError as error:
        from schemas.settings.root import SettingsError

        if not isinstance(error, SettingsError):
            raise
        click.echo(f"Error: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
