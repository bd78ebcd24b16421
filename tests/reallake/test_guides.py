"""The guides' commands, word for word in a shell, on the lake of a real run.

What stands for something of the reader's own is put in: instants, names of files, TOPIC.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block.page}:{block.line}")
def test_guide_block_runs_as_written(block: Block, home: Path, written: dict[str, str]):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANABRANCH_")}
    environment |= {"ANABRANCH_HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for command in block.commands:
        line = command
        for example, value in written.items():
            line = line.replace(example, value)
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line],
            cwd=home,
            env=environment,
            input="SELECT 1",
            capture_output=True,
            text=True,
        )
        expected = 1 if command.partition("#")[0].strip() in FOUND else 0
        assert done.returncode == expected, f"{line}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        assert "Traceback" not in done.stderr
        assert done.stdout or done.stderr
