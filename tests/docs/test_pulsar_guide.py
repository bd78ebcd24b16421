"""The walk of docs/pulsar.md, from nothing to shadowing, line by line as it stands there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from anabranch.local.setup import Jars
from tests.docs.guides import HOME, blocks
from tests.waiting import wait_until

pytestmark = [pytest.mark.pulsar, pytest.mark.local_run, pytest.mark.spark, pytest.mark.timeout(900)]

WALK = next(block for block in blocks("docs/pulsar.md") if block.run_by == "tests/docs/test_pulsar_guide.py").commands
SERVERS = {"python -m tests.harness.pulsar": 2, "python -m anabranch.local.kafka": 1}
"""Exports that each prints. They have fixed ports, for a reader's sake; a test takes free ones."""


class Terminals:
    """A shell for each command of the walk; they share what was exported."""

    def __init__(self, folder: Path, jars: Jars) -> None:
        self.folder, self._open = folder, ExitStack()
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("ANABRANCH_")} | {
            "ANABRANCH_HOME": str(folder),
            "ANABRANCH_LOCAL__JARS": str(jars.kafka.parent),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(HOME),
        }

    def start(self, command: str) -> subprocess.Popen[str]:
        """Start a command that stays; it ends with the test."""
        name = f"{len(list(self.folder.glob('*.log')))}.log"
        log = self._open.enter_context((self.folder / name).open("w"))
        line = f"exec {command.partition('#')[0]}"
        process = self._open.enter_context(
            subprocess.Popen(
                ["bash", "-c", line],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        )
        self._open.callback(process.terminate)
        return process

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )

    def export(self, assignments: str) -> None:
        words = (word.partition("=") for word in assignments.partition("#")[0].split() if "=" in word)
        self.environment |= {name: value for name, _, value in words}

    def close(self) -> None:
        self._open.close()

    def logs(self) -> str:
        return "\n".join(f"{log.name}: {log.read_text()[-1500:]}" for log in sorted(self.folder.glob("*.log")))


@pytest.fixture
def terminals(tmp_path: Path, jars: Jars, pulsar_jars: Path) -> Iterator[Terminals]:
    opened = Terminals(tmp_path, jars)
    try:
        yield opened
    finally:
        opened.close()


def test_pulsar_guide_leads_to_a_shadow_report(terminals: Terminals):
    running = []
    for command in WALK[:-1]:
        exports = next((number for server, number in SERVERS.items() if command.startswith(server)), 0)
        if exports:
            process = terminals.start(f"{command.partition('#')[0]} --port 0")
            assert process.stdout is not None
            for _ in range(exports):
                terminals.export(process.stdout.readline())
        elif command.startswith("export "):
            # The addresses are those that the two have printed.
            terminals.export(command.replace("ANABRANCH_CONTROLLER_URL=…  ANABRANCH_KAFKA_BOOTSTRAP=…", ""))
        elif "--once" in command or command.startswith("anabranch topics"):
            done = terminals.run(command)
            assert done.returncode == 0, done.stdout + done.stderr + terminals.logs()
        else:
            running.append(terminals.start(command))
    report = wait_until(lambda: (done := terminals.run(WALK[-1])).returncode == 0 and done.stdout, 400, 3)
    assert "over a threshold before a split by load" in report
    assert [process.poll() for process in running] == [None] * len(running), terminals.logs()
    assert (terminals.folder / "var/beside/lake/batches/_delta_log").is_dir()
