"""The command line itself: what is loaded for it, and what a misspelt command is answered with."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from anabranch.cli.examples import EXAMPLES
from anabranch.cli.main import ALIASES, cli

FILES = ("snapshots.jsonl", "channel.jsonl", "calm.toml")
"""Files that examples name, beside those of the repository."""


def leaves(command: click.Command, context: click.Context, path: str = "") -> Iterator[str]:
    """Paths of all listed commands that do something by themselves."""
    if not isinstance(command, click.Group) or command.invoke_without_command:
        yield path
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from leaves(inner, click.Context(inner, parent=context, info_name=name), f"{path} {name}".strip())


LEAVES = list(leaves(cli, click.Context(cli)))


def test_top_level_has_at_most_18_entries():
    assert len(cli.list_commands(click.Context(cli))) <= 18


@pytest.mark.parametrize("command", LEAVES)
def test_every_help_has_an_example(command):
    result = CliRunner().invoke(cli, [*command.split(), "--help"])
    assert (result.exit_code, f"anabranch {EXAMPLES[command][0]}" in result.output) == (0, True)


@pytest.mark.parametrize(
    "group", ["bundles", "bookies", "policy", "topics", "lake", "serve alerts", "serve collector", "config token"]
)
def test_list_of_commands_is_not_cut(group):
    listed = CliRunner().invoke(cli, [*group.split(), "--help"]).output.split("\nCommands:\n")[1]
    assert "..." not in listed, listed


@pytest.mark.parametrize("example", [one for examples in EXAMPLES.values() for one in examples])
def test_every_example_parses(example, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in FILES:
        (tmp_path / name).touch()
    arguments, command = shlex.split(example), cli
    context = cli.make_context("anabranch", arguments)
    while isinstance(command, click.Group) and (rest := [*context._protected_args, *context.args]):
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)
    assert not isinstance(command, click.Group) or command.invoke_without_command


@pytest.mark.parametrize("former", sorted(ALIASES))
def test_former_names_still_work(former):
    result = CliRunner().invoke(cli, [former, "--help"])
    assert (result.exit_code, "Usage: " in result.output) == (0, True)
    assert former not in cli.list_commands(click.Context(cli))


def test_misspelt_command_gets_nearest_match():
    result = CliRunner().invoke(cli, ["explan", "orders"])
    assert (result.exit_code, "there is no command explan; nearest: explain" in result.output) == (2, True)


def test_nearest_name_says_its_group():
    result = CliRunner().invoke(cli, ["simulat"])
    assert "nearest: whatif simulate" in result.output


@pytest.mark.process
@pytest.mark.parametrize(
    ("module", "heavy"),
    [("anabranch.cli.main", ("pydantic", "pyarrow", "numpy")), ("anabranch.cli.sql_prompt", ("pyarrow", "deltalake"))],
)
def test_help_and_prompt_load_no_heavy_modules(module, heavy):
    ask = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.process
def test_pandas_is_there_for_spark_only():
    ask = "import sys, anabranch.executor.process; print({'pandas', 'trio', 'rich'} & {*sys.modules})"
    asked = [sys.executable, "-c", f"{ask}; import pyspark, pandas"]
    assert subprocess.run(asked, capture_output=True, text=True, check=True).stdout == "set()\n"
