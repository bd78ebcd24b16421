"""Completion in a real shell, by the script that the command prints."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from anabranch.cli.completion import completions
from anabranch.cli.main import cli

TREE = {words.path: words for words in completions(cli, click.Context(cli))}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("completion")
    for shell in ("bash", "zsh"):
        result = CliRunner().invoke(cli, ["config", "completion", shell])
        assert result.exit_code == 0, result.output
        (folder / shell).write_text(result.output)
    return folder


def completed(scripts, *lines, shell="bash"):
    """Complete the last word of each line, and return the words offered."""
    asked = [f"source {shlex.quote(str(scripts / shell))}"]
    for line in lines:
        words = ["anabranch", *line.split(" ")]
        quoted = " ".join(map(shlex.quote, words))
        asked.append(f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _anabranch; echo ${{COMPREPLY[@]}}")
    done = subprocess.run([shell, "-c", "\n".join(asked)], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return [offered.split() for offered in done.stdout.split("\n")[:-1]]


@pytest.mark.process
def test_words_of_lines_are_completed(scripts):
    lines = [
        "st",
        "serve ex",
        "whatif back",
        "--log-level ",
        "-c own.toml status --out",
        "status --output ",
        "nothing ",
    ]
    assert completed(scripts, *lines) == [
        ["status"],
        ["executor"],
        ["backtest"],
        ["debug", "info", "warning", "error"],
        ["--output"],
        ["text", "json"],
        TREE[""].commands + TREE[""].options,
    ]


@pytest.mark.process
def test_every_group_offers_its_commands(scripts):
    groups = [path for path, words in TREE.items() if words.commands]
    offered = completed(scripts, *(f"{path} ".lstrip() for path in groups))
    assert len(groups) > 10
    for path, words in zip(groups, offered, strict=True):
        context, command = click.Context(cli), cli
        for name in path.split():
            command = command.get_command(context, name)
        assert set(command.list_commands(context)) <= set(words), path


@pytest.mark.process
@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh on this machine")
def test_script_of_zsh_loads(scripts):
    subprocess.run(["zsh", "-f", "-c", f"autoload -U compinit && compinit; source {scripts / 'zsh'}"], check=True)


@pytest.mark.process
def test_completion_starts_no_other_program(scripts):
    text = (scripts / "bash").read_text()
    assert sys.executable not in text
    asked = f"PATH=; source {scripts / 'bash'}; COMP_WORDS=(anabranch pl); COMP_CWORD=1; _anabranch; echo $COMPREPLY"
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("plan\n", "")
