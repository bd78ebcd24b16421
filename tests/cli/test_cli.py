"""The command line itself: what is loaded for it, and what a misspelt command is answered with."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from anabranch.cli.main import COMMANDS, cli


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_help(command):
    result = CliRunner().invoke(cli, [command, "--help"])
    assert (result.exit_code, "Usage: " in result.output) == (0, True)


def test_misspelt_command_is_answered_with_the_nearest():
    result = CliRunner().invoke(cli, ["explan", "orders"])
    assert (result.exit_code, "there is no command explan; nearest: explain" in result.output) == (2, True)


@pytest.mark.process
def test_help_loads_no_models():
    ask = (
        "import sys, anabranch.cli.main; print([one for one in ('pydantic', 'pyarrow', 'numpy') if one in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True).stdout == "[]\n"
