"""Start-up as people meet it: `make run` until the page and its first topics, the help, the prompt of `anabranch sql`.

Run as `python -m benchmarks.start [--quick]` after `make setup`; state is in a temporary folder. Prints a table and
writes benchmarks/start.json.
"""

import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import httpx

from benchmarks.record import machine_now, publish

HOME = Path(__file__).resolve().parents[1]
PATIENCE_S = 180
_TOPICS = re.compile(r">[1-9]\d*</\w+>\s*topics")


def seconds_until(begun: float, answers: Callable[[], Any], process: subprocess.Popen[bytes]) -> float:
    """Seconds since `begun` until something answers."""
    while not answers():
        if process.poll() is not None or time.monotonic() > begun + PATIENCE_S:
            raise SystemExit("the run has ended, or takes too long")
        time.sleep(0.1)
    return round(time.monotonic() - begun, 1)


def make_run() -> dict[str, float]:
    """Seconds of a first `make run` on a clone that is set up."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "ANABRANCH_HOME": folder, "ANABRANCH_LOCAL__JARS": str(HOME / ".cache/jars")}
        log, begun = Path(folder, "out.log"), time.monotonic()
        with open(log, "wb") as output:
            process = subprocess.Popen(
                ["make", "run"], cwd=HOME, env=environment, stdout=output, stderr=output, start_new_session=True
            )

        def page() -> str:
            address = re.search(r"to look at: (\S+)", log.read_text())
            return httpx.get(address[1], timeout=30).text if address else ""

        try:
            return {
                "page": seconds_until(begun, page, process),
                "all_parts": seconds_until(begun, lambda: "running; logs in" in log.read_text(), process),
                "first_topics": seconds_until(begun, lambda: _TOPICS.search(page()), process),
            }
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
            process.wait(PATIENCE_S)


def sql_prompt() -> float:
    """Seconds until `anabranch sql` asks on a terminal."""
    begun = time.monotonic()
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-m", "anabranch", "sql"])
    said = b""
    while b"sql>" not in said:
        said += os.read(terminal, 4096)
    took = time.monotonic() - begun
    os.write(terminal, b"\x04")
    os.waitpid(pid, 0)
    os.close(terminal)
    return round(took, 2)


def help_text() -> float:
    """Seconds of `anabranch --help`."""
    begun = time.monotonic()
    subprocess.run([sys.executable, "-m", "anabranch", "--help"], check=True, stdout=subprocess.DEVNULL)
    return round(time.monotonic() - begun, 2)


@click.command()
@click.option("--quick", is_flag=True, help="One start, and nothing is recorded.")
def main(quick: bool) -> None:
    """Measures, prints, writes."""
    report = {
        "machine": machine_now(),
        "make_run_seconds": [make_run() for _ in range(1 if quick else 3)],
        "help_seconds": min(help_text() for _ in range(3)),
        "sql_prompt_seconds": min(sql_prompt() for _ in range(3)),
    }
    publish("start", report, quick)


if __name__ == "__main__":
    main()
