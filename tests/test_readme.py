"""The README tells the truth: its commands give the output that it shows, and what it links to is there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from anabranch.cli.main import cli
from anabranch.simulation.backtest.policies import read_candidate
from decisions.autoscale.policy import read_policy
from engine.autoscale.topics import ConfiguredPolicy

HOME = Path(__file__).resolve().parents[1]
README = (HOME / "README.md").read_text()
SESSIONS = [
    (command, shown.rstrip("\n"))
    for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
]


def test_the_readme_shows_commands_with_their_output():
    assert SESSIONS


@pytest.mark.process
@pytest.mark.parametrize(("command", "shown"), SESSIONS, ids=[command for command, _ in SESSIONS])
def test_readme_command_prints_shown_output(command, shown):
    run = command.replace(".venv/bin/anabranch", f"{sys.executable} -m anabranch.cli.main")
    done = subprocess.run(
        run, shell=True, cwd=HOME, capture_output=True, text=True, timeout=60, env={**os.environ, "COLUMNS": "120"}
    )
    assert done.returncode == 0, done.stderr
    assert [line.rstrip() for line in done.stdout.rstrip("\n").splitlines()] == shown.splitlines()


@pytest.mark.parametrize("command", re.findall(r"`anabranch ([^`…]+)`", README))
def test_readme_inline_command_can_be_pasted(command, tmp_path, monkeypatch):
    """It parses where the reader has no file yet; a policy is one over that of the local run."""
    monkeypatch.chdir(tmp_path)
    inner: click.Command = cli
    context = cli.make_context("anabranch", shlex.split(command))
    while isinstance(inner, click.Group) and (words := [*context._protected_args, *context.args]):
        name, inner, words = inner.resolve_command(context, words)
        context = inner.make_context(name, words, parent=context)
    ran = read_policy((HOME / "conf/policies/clients.toml").read_text()).to_json()
    for policy in context.params.get("policies", ()):
        read_candidate(policy, ConfiguredPolicy("default", ran))


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)#]+)\)", README))))
def test_what_the_readme_links_to_is_there(target):
    assert (HOME / target).exists()


@pytest.mark.parametrize("target", sorted(set(re.findall(r"^make ([a-z]+)", README, re.MULTILINE))))
def test_the_make_targets_of_the_readme_exist(target):
    assert re.search(rf"^{target}:", (HOME / "Makefile").read_text(), re.MULTILINE)
