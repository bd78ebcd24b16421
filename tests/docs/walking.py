"""A reader of a guide at several terminals: exports hold in all of them, servers run on, other commands end.

The reader's home is a folder of its own; programs, tests and jars are those of this clone.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from anabranch.local.processes import session_members
from tests.docs.guides import HOME
from tests.waiting import wait_until

READY = {
    "python -m tests.harness.pulsar": "Ctrl-C ends it",
    "python -m anabranch.local.kafka": "export ANABRANCH_KAFKA_BOOTSTRAP",
    "python -m anabranch.local.pulsar.load": ".",
    "anabranch serve collector": "collector ready|collect ready|: \\d+ messages",
    "anabranch serve stream": "reading .*, writing ",
    "anabranch serve executor": "executor ready",
}
"""What a server says when it is ready; by the beginnings of commands."""
_EXPORT = re.compile(r"^export (\w+)=(.*)$", re.MULTILINE)


class Reader:
    """Runs the lines of a guide."""

    def __init__(self, home: Path, written: Mapping[str, str]) -> None:
        """`written`: what a line writes, by what is put in for it."""
        self.home, self.written = home, written
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("ANABRANCH_")}
        self.environment |= {
            "ANABRANCH_HOME": str(home),
            "ANABRANCH_LOCAL__JARS": str(HOME / ".cache/jars"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(HOME),
        }
        self._servers: list[tuple[subprocess.Popen[bytes], Path]] = []

    def follow(self, line: str, deadline_s: float = 0) -> str:
        """Run a line and return what it printed. An end other than 0 fails, after a deadline if one is given."""
        command = line.partition("  #")[0].strip()
        for example, value in self.written.items():
            command = command.replace(example, value)
        if command.startswith("export "):
            return self._export(command)
        for beginning, ready in READY.items():
            if command.startswith(beginning) and "--once" not in command:
                return self._serve(command, ready)
        done = self._run(command)
        if deadline_s:
            wait_until(lambda: done.returncode == 0 or self._again(command, done), deadline_s, 2)
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout

    def _again(self, command: str, done: subprocess.CompletedProcess[str]) -> bool:
        done.__dict__.update(self._run(command).__dict__)
        return done.returncode == 0

    def _run(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", command], cwd=self.home, env=self.environment, capture_output=True, text=True, timeout=300
        )

    def _export(self, command: str) -> str:
        printed = {name: value for _, log in self._servers for name, value in _EXPORT.findall(log.read_text())}
        for word in shlex.split(command)[1:]:
            name, _, value = word.partition("=")
            self.environment[name] = printed[name] if value == "…" else value
        return ""

    def _serve(self, command: str, ready: str) -> str:
        log = self.home / f"server-{len(self._servers)}.log"
        with open(log, "wb") as output:
            process = subprocess.Popen(
                shlex.split(command),
                cwd=self.home,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._servers.append((process, log))
        wait_until(lambda: re.search(ready, log.read_text()) or process.poll() is not None, 300, 0.2)
        assert process.poll() is None, f"{command}\n{log.read_text()[-3000:]}"
        return log.read_text()

    def stop(self, beginning: str) -> None:
        """Press Ctrl-C in the terminals whose command begins so."""
        for process, _ in self._servers:
            if shlex.join(process.args).startswith(beginning) and process.poll() is None:  # type: ignore[arg-type]
                process.send_signal(signal.SIGINT)
                process.wait(120)

    def close(self) -> None:
        """End all servers, the newest first, with all that they started."""
        for process, _ in reversed(self._servers):
            try:
                if process.poll() is None:
                    process.send_signal(signal.SIGINT)
                    process.wait(120)
            finally:
                for pid in session_members(process.pid):
                    os.kill(pid, signal.SIGKILL)


@contextmanager
def reader(home: Path, written: Mapping[str, str]) -> Iterator[Reader]:
    """A reader in a folder; servers that it started are ended."""
    one = Reader(home, written)
    try:
        yield one
    finally:
        one.close()
