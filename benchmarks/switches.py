"""Whole switches between two BookKeeper clusters: time and memory by size, and one killed repeatedly.

Run as `python -m benchmarks.switches [--quick]`. Two clusters of two bookies, each under a ZooKeeper of its own, all on
this machine; records as Pulsar writes them, half of the ledgers of schemas and half of subscriptions, three entries of
200 bytes each, and as many unstamped data ledgers of topics, which `status` and `check` look at. Each size is
rehearsed, switched, asked for its status and read whole by the commands that an operator uses, each a process with its
Java sidecar. Then one switch whose processes are killed with -9 every few seconds, its sidecar first every other time,
until it has ended. Fails when `check --contents` finds anything, or when a step did not end exactly once. Prints a
table and writes benchmarks/switches.json.
"""

import random
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from benchmarks.bookies import two_clusters
from benchmarks.processes import descendants, resident_kb
from benchmarks.record import machine_now, print_row, publish, quick_command
from lake.rows import WholeTables
from schemas.tables.rows import DECISIONS, OUTCOMES
from tests.bookkeeper.pulsar_like import PulsarLike, pulsar_like

SIZES, KILLED_SIZE, QUICK_SIZE = (1_000, 4_000, 16_000), 4_000, 500
KILLED_AFTER_S = (2.0, 12.0)
_LOOK_SECONDS = 0.2


@quick_command
def main(quick: bool) -> None:
    """Measures, prints, writes."""
    report: dict[str, Any] = {"machine": machine_now(), "sizes": []}
    for size in (QUICK_SIZE,) if quick else SIZES:
        with _pulsar(size) as pulsar:
            figures = {"ledgers": size, "data_ledgers": size, **_switched(pulsar)}
        report["sizes"].append(figures)
        print_row(figures)
    with _pulsar(QUICK_SIZE if quick else KILLED_SIZE) as pulsar:
        report["killed"] = {"ledgers": QUICK_SIZE if quick else KILLED_SIZE, **_killed(pulsar, random.Random(3))}
    publish("switches", report, quick)


def _switched(pulsar: PulsarLike) -> dict[str, float]:
    """Seconds of each command, and the most memory of the one that switches."""
    figures = {}
    rehearsal = ("switch", "--target", "new")
    for name, arguments in (
        ("rehearsal", rehearsal),
        ("switch", (*rehearsal, "--no-dry-run")),
        ("status", ("status",)),
        ("check", ("check", "--contents")),
        ("cleanup", ("cleanup", "--force", "--no-dry-run")),
    ):
        began = time.perf_counter()
        python_kb, java_kb = _run(pulsar, *arguments)
        figures[f"{name}_seconds"] = round(time.perf_counter() - began, 1)
        if name in ("switch", "check"):
            figures |= {f"{name}_python_mb": python_kb // 1024, f"{name}_hands_mb": java_kb // 1024}
    return figures


def _killed(pulsar: PulsarLike, chance: random.Random) -> dict[str, float]:
    """A switch that is killed until it has come to its end."""
    began, kills = time.perf_counter(), Counter[str]()
    while (process := _started(pulsar, "switch", "--target", "new", "--no-dry-run")) is not None:
        with suppress(subprocess.TimeoutExpired):
            if process.wait(chance.uniform(*KILLED_AFTER_S)):
                raise SystemExit(f"the switch ended with {process.returncode}")
            break
        if chance.random() < 0.5:
            for child in descendants(process.pid):
                psutil.Process(child).kill()
            kills["hands"] += 1
            with suppress(subprocess.TimeoutExpired):
                process.wait(chance.uniform(0, 1))
        process.kill()
        process.wait()
        kills["orchestrator"] += 1
    seconds = time.perf_counter() - began
    _run(pulsar, "check", "--contents")
    rows = WholeTables(str(pulsar.folder / "lake"))
    ends = Counter(row["decision_id"] for row in rows.rows(OUTCOMES) if row["status"] != "intent")
    if set(ends) != {row["decision_id"] for row in rows.rows(DECISIONS)} or set(ends.values()) != {1}:
        raise SystemExit("a step did not end exactly once")
    return {
        "seconds": round(seconds, 1),
        "kills": kills["orchestrator"],
        "hands_first": kills["hands"],
        "steps": len(ends),
    }


def _started(pulsar: PulsarLike, *arguments: str) -> subprocess.Popen[bytes]:
    with open(pulsar.folder / "commands.log", "ab") as log:
        return subprocess.Popen(pulsar.command(*arguments), env=pulsar.environment(), stdout=log, stderr=log)


def _run(pulsar: PulsarLike, *arguments: str) -> tuple[int, int]:
    """A command to its end; the most memory, in KiB, of its Python and of its Java."""
    process, python, java = _started(pulsar, *arguments), 0, 0
    while True:
        with suppress(subprocess.TimeoutExpired):
            if process.wait(_LOOK_SECONDS):
                raise SystemExit(f"{' '.join(arguments)}: {(pulsar.folder / 'commands.log').read_text()[-2000:]}")
            return python, java
        python = max(python, resident_kb(process.pid))
        java = max(java, sum(map(resident_kb, descendants(process.pid))))


@contextmanager
def _pulsar(size: int) -> Iterator[PulsarLike]:
    """Yield a Pulsar look-alike with `size` ledgers of schemas and subscriptions, and of messages."""
    with (
        tempfile.TemporaryDirectory() as work,
        two_clusters(Path(work), bookies=2) as bookkeepers,
        pulsar_like(bookkeepers, Path(work)) as pulsar,
    ):
        topics = size // 4
        data = pulsar.ledgers(size, {"component": "managed-ledger"})
        for index in range(topics):
            pulsar.topic(f"s{index}", data[index::topics])
        pulsar.populate(schemas=topics, cursors=size // 2)
        pulsar.register()
        yield pulsar


if __name__ == "__main__":
    main()
