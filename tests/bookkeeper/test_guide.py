"""The commands of docs/bookies.md, word for word, from one real BookKeeper cluster to another and back.

What stands for something of the reader's own is put in: the addresses of ZooKeeper.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.bookkeeper.conftest import BookKeepers
from tests.bookkeeper.pulsar_like import pulsar_like
from tests.docs.guides import blocks

pytestmark = pytest.mark.timeout(300)

HERE = "tests/bookkeeper/test_guide.py"
REFUSED = {
    # Until the next block, as ids of the new cluster may not be beyond those of the old one.
    "anabranch bookies switch --target new": "ids-beyond-source",
    # For fifteen days.
    "anabranch bookies cleanup": "window",
    "anabranch bookies cleanup --no-dry-run --max-deletions 100": "window",
}
"""Commands that the page's reader may see refused, and why."""
ASKED_FOR = {"anabranch bookies rollback --no-dry-run": "anabranch bookies precheck --name old --advance"}
"""Commands that the page asks for in its sentences, before one of a block."""


@pytest.mark.soak
def test_bookies_guide_blocks_run_as_written(bookkeepers: BookKeepers, tmp_path: Path) -> None:
    clusters = bookkeepers.clusters
    commands = [command for block in blocks("docs/bookies.md") if block.run_by == HERE for command in block.commands]
    with pulsar_like(bookkeepers, tmp_path) as pulsar:
        pulsar.populate(schemas=2, cursors=1)
        written = {
            "zk+hierarchical://zk1:2181/ledgers": clusters["old"].uri,
            "zk+hierarchical://zk9:2181/ledgers": clusters["new"].uri,
            "zk://zk1:2181,zk2:2181": f"zk://{pulsar.address}",
        }
        for command in commands:
            bare = command.partition("#")[0].strip()
            for line in (ASKED_FOR.get(bare), bare):
                for example, value in written.items():
                    line = line and line.replace(example, value)
                if line is None:
                    continue
                program, *arguments = shlex.split(line)
                if program == "export":
                    name, _, value = arguments[0].partition("=")
                    assert pulsar.environment()[name] == value
                    continue
                done = pulsar.run(*arguments[1:])
                is_refused = bare in REFUSED and REFUSED[bare] in done.stdout + done.stderr
                assert done.returncode == 0 or is_refused, f"{line}\n{done.stdout}{done.stderr}"
                if bare == "anabranch bookies check --contents":
                    assert set(pulsar.attributions().values()) == {f"new:{one}" for one in pulsar.attributions()}
        assert set(pulsar.attributions().values()) == {f"old:{one}" for one in pulsar.attributions()}
