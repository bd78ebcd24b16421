"""The guides' commands, word for word, on the lake of a real run: in this process, those with a pipe in a shell.

What stands for something of the reader's own is put in: instants, names of files, TOPIC.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from anabranch.cli.main import cli
from tests.docs.guides import HOME, Block, every_block
from tests.reallake.raw import Raw
from tests.reallake.recording import Recording

pytestmark = [pytest.mark.local_run, pytest.mark.spark, pytest.mark.timeout(900)]

BLOCKS = [block for block in every_block() if block.is_run_here]
POLICY = HOME / "conf/policies/demonstration.toml"
FOUND = {"anabranch status", "anabranch -c my.toml doctor"}
"""Commands that end with 1, since no process of the run is at work any more."""


@pytest.fixture(scope="module")
def home(real_lake: Recording, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a reader's own, with a copy of the lake."""
    folder = tmp_path_factory.mktemp("guides")
    shutil.copytree(real_lake.lake, folder / "lake")
    settings = f'[lake]\npath = "{folder}/lake"\n[policy]\ncluster = "{POLICY}"\n'
    settings += '[controller]\ntokens_file = "conf/tokens"\n'
    for name in ("anabranch.toml", "my.toml"):
        (folder / name).write_text(settings)
    for name in ("mine.toml", "FILE"):
        shutil.copy(POLICY, folder / name)
    return folder


@pytest.fixture
def written(raw: Raw) -> dict[str, str]:
    """What the pages write, by what it is on this lake."""
    (topic,) = (topic for topic in raw.layouts if topic.endswith("/orders"))
    # In the middle of its longest layout, so that no batch's border decides.
    lifetime, layout = max(
        (((layout.ends or raw.last_batch) - layout.begins, layout) for layout in raw.layouts[topic]),
        key=lambda pair: pair[0],
    )
    instant = layout.begins + lifetime / 2
    return {
        "2026-11-22T14:05Z": instant.isoformat(),
        "14:05": instant.isoformat(),
        "--segment 3": f"--segment {min(layout.active)}",
        "TOPIC": topic,
    }


def run_line(line: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a line of a guide."""
    if "|" in line:
        shell = ["bash", "-o", "pipefail", "-c", line]
        done = subprocess.run(shell, input="SELECT 1", capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr
    program, *words = shlex.split(line, comments=True)
    assert program == "anabranch"
    result = CliRunner().invoke(cli, words, input="SELECT 1")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block.page}:{block.line}")
def test_guide_block_runs_as_written(block: Block, home: Path, written: dict[str, str], monkeypatch):
    for name in [name for name in os.environ if name.startswith("ANABRANCH_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ANABRANCH_HOME", str(home))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.chdir(home)
    for command in block.commands:
        line = command
        for example, value in written.items():
            line = line.replace(example, value)
        exit_code, output, errors = run_line(line)
        expected = 1 if command.partition("#")[0].strip() in FOUND else 0
        assert exit_code == expected, f"{line}\n{output[-2000:]}{errors[-2000:]}"
        assert "Traceback" not in errors
        assert output or errors
