"""A local run beside busy loops: does every part stay up, and how long does a batch take?

First the seconds until the Python that Spark waits for has connected, as Spark starts it and by our launcher. Run as
`python -m tests.harness.loaded [--loops 26] [--seconds 120]`, with `--seconds 0` for the connections alone; it makes
the whole machine slow. The loops begin before the run and end after it; the seconds count
from the first batch.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pyspark
from deltalake import DeltaTable

from streaming.job.early_worker import SPARKS_WORKER, write_launcher

HOME = Path(__file__).resolve().parents[2]
CONNECT_SECONDS = 60
START_SECONDS = 900
"""How long the first batch is waited for."""


@contextmanager
def busy_loops(number: int) -> Iterator[None]:
    """Keep so many processes busy."""
    loops = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def connect_seconds(command: str) -> float | None:
    """Return how long Spark's first Python takes until it connects; None: longer than `CONNECT_SECONDS`."""
    zips = sorted(Path(pyspark.__file__).parent.glob("python/lib/*.zip"), reverse=True)
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.settimeout(CONNECT_SECONDS)
        listener.bind(path := f"{folder}/s")
        listener.listen()
        variables = {"PYTHONPATH": ":".join(map(str, zips)), "PYTHON_WORKER_FACTORY_SOCK_PATH": path}
        began = time.monotonic()
        worker = subprocess.Popen(
            [command, "-m", SPARKS_WORKER],
            env={**os.environ, **variables},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            listener.accept()[0].close()
            return time.monotonic() - began
        except TimeoutError:
            return None
        finally:
            worker.kill()
            worker.wait()


def print_connect_seconds() -> None:
    """Print both ways to start it; Spark gives up after ten seconds."""
    with tempfile.TemporaryDirectory() as folder:
        for words, command in (
            ("as Spark starts it", sys.executable),
            ("by the launcher", write_launcher(folder, sys.executable)),
        ):
            took = connect_seconds(command)
            print(f"connects {words} after {f'over {CONNECT_SECONDS}' if took is None else f'{took:.1f}'} s")


def batches(folder: Path) -> list[dict[str, object]]:
    """Return the batches on record, in their order."""
    table = folder / "lake" / "batches"
    if not (table / "_delta_log").is_dir():
        return []
    rows = DeltaTable(str(table)).to_pyarrow_table(columns=["batch_at", "committed_at"]).to_pylist()
    return sorted(rows, key=lambda row: row["batch_at"])


@click.command()
@click.option("--loops", default=26, help="Busy processes beside the run.")
@click.option("--seconds", default=120.0, help="From the first batch on; 0: no run.")
def main(loops: int, seconds: float) -> None:
    """Run the demonstration beside busy loops, and print what died and how long batches took."""
    if not seconds:
        with busy_loops(loops):
            print_connect_seconds()
        return
    folder = Path(tempfile.mkdtemp(prefix="loaded-"))
    overlay = folder / "overlay.toml"
    overlay.write_text(
        f'[lake]\npath = "{folder}/lake"\n[stream]\ncheckpoint = "{folder}/checkpoints/stream"\n'
        f'[controller]\ndatabase = "{folder}/controller.db"\n[local]\nfolder = "{folder}"\n'
    )
    command = [
        sys.executable,
        "-m",
        "anabranch",
        "--config",
        "conf/demonstration.toml",
        "--config",
        str(overlay),
        "run",
        "--local",
        "--no-screen",
        "--report",
        str(folder / "report.json"),
    ]
    with busy_loops(loops), open(folder / "out.log", "ab") as log:
        print_connect_seconds()
        began = time.monotonic()
        run = subprocess.Popen(command, cwd=HOME, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        while not batches(folder) and run.poll() is None and time.monotonic() - began < START_SECONDS:
            time.sleep(1)
        first = time.monotonic() - began
        load = os.getloadavg()[0]
        end = time.monotonic() + seconds
        while run.poll() is None and time.monotonic() < end:
            time.sleep(1)
            load = max(load, os.getloadavg()[0])
    if run.poll() is None:
        run.send_signal(signal.SIGTERM)
    code = run.wait(300)
    report = folder / "report.json"
    if not report.is_file():
        sys.exit(f"the run ended with {code} and no report: {folder}/out.log")
    result = json.loads(report.read_text())
    died = Counter(event["part"] for event in result["partEvents"] if event["what"] == "died")
    again = (folder / "log" / "job.log").read_text(errors="replace").count("the query starts again in")
    took = [(row["committed_at"] - row["batch_at"]).total_seconds() for row in batches(folder)]
    print(
        f"{loops} busy loops, load up to {load:.0f}; first batch after {first:.0f} s; {len(took)} batches, median "
        f"{statistics.median(took):.1f} s, longest {max(took):.1f} s"
    )
    print(
        f"died: {dict(died) or 'nothing'}; queries started again in the process: {again}; "
        f"integrity {'ok' if result['integrity']['ok'] else result['integrity']}; {folder}"
    )


if __name__ == "__main__":
    main()
