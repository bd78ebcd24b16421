"""Commands on the recorded run, as a user gives them, in this process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from anabranch.cli.main import cli
from tests.reallake.recording import Recording


def copied_lake(recording: Recording, folder: Path) -> tuple[str, ...]:
    """Copy the lake, for commands that write; the options of `anabranch` that lead to the copy."""
    shutil.copytree(recording.lake, folder / "lake")
    settings = folder / "copy.toml"
    settings.write_text(f'[lake]\npath = "{folder}/lake"\n')
    return "--config", str(settings)


def run_command(recording: Recording, *arguments: str, copy: Sequence[str] = (), exit_code: int | None = 0) -> Result:
    """Run a command with the settings of the run, on a copy of its lake if one is named.

    `exit_code`: None expects none in particular.
    """
    result = CliRunner().invoke(cli, [*recording.settings, *copy, *arguments])
    unexpected = result.exception if not isinstance(result.exception, SystemExit) else None
    if unexpected is not None:
        raise unexpected
    assert exit_code in (None, result.exit_code), result.output[-3000:]
    return result


def answer(recording: Recording, *arguments: str, copy: Sequence[str] = ()) -> Any:
    """Return the JSON that a command answers with `--output json`."""
    told = run_command(recording, *arguments, "--output", "json", copy=copy)
    return json.loads(told.stdout)


def rows(recording: Recording, sql: str) -> list[dict[str, Any]]:
    """Return the rows that `anabranch sql` answers."""
    told = run_command(recording, "sql", sql, "--output", "json")
    return [json.loads(line) for line in told.stdout.splitlines()]
