"""The commands of docs/bundles.md, word for word, on the record of a cluster with bundles.

What stands for something of the reader's own is put in: CLUSTER, NAME, instants. Made-up clusters run with one seed.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable

from anabranch.cli.main import cli
from tests.docs.guides import HOME, Block, blocks
from tests.query.views.recorded_cluster import recorded_cluster

PAGE = "docs/bundles.md"
BLOCKS = [block for block in blocks(PAGE) if block.run_by == "tests/history/bundles/test_guide.py"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a reader's own, with the record."""
    folder = tmp_path_factory.mktemp("guide")
    recorded_cluster().write(folder / "lake")
    (folder / "anabranch.toml").write_text(f'[lake]\npath = "{folder}/lake"\n')
    return folder


def run_line(home: Path, line: str) -> Result:
    """Run a command of the page."""
    arguments = shlex.split(line, comments=True)[1:]
    return CliRunner().invoke(cli, ["--home", str(home), *arguments])


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: str(block.line))
def test_bundles_guide_block_runs_as_written(block: Block, home: Path) -> None:
    decisions = DeltaTable(str(home / "lake" / "decisions")).to_pyarrow_table(columns=["arguments", "decided_at"])
    move = decisions.sort_by("decided_at").to_pylist()[0]
    bundle = json.loads(move["arguments"])["bundle"]
    written = {
        "CLUSTER": "west",
        "--broker NAME": "--broker broker-1:8080",
        "--bundle NAME": f"--bundle {bundle}",
        "acme/shop/0x00000000_0x00000010": bundle,
        "14:05": move["decided_at"].isoformat(),
        "--seeds 10": "--seeds 1",
    }
    for command in block.commands:
        line = command
        for example, value in written.items():
            line = line.replace(example, value)
        done = run_line(home, line)
        assert done.exit_code == 0, f"{line}\n{done.output}"
        assert done.output


def test_bundles_guide_example_gives_its_answer(home: Path) -> None:
    text = (HOME / PAGE).read_text()
    example, answer = re.search(r"```json\n(.*?)```.*?```text\n(.*?)```", text, re.DOTALL).groups()
    (home / "FILE").write_text(json.dumps(json.loads(example)) + "\n")
    done = run_line(home, f"anabranch decisions decide --explain {home}/FILE")
    assert done.output.strip() == answer.strip()
