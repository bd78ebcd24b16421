"""Latency of the executor's calls, and time for 1,000 decisions in one commit, limited and unlimited.

Run as `python -m benchmarks.executor [--quick]`. The executor is the real command in a process of its own, on a real
lake; what it calls answers at once (`benchmarks.interface`); no Kafka is there, so outcomes wait to be announced.

- *latency*: decisions of a topic each, one a commit, at random intervals: from the commit (the time of its file in the
  table's log) until the call arrives.
- *burst*: 1,000 decisions in one commit, an evaluation of four splits on one layout of each of 250 topics, several
  times over in one process: from the commit until the last call, processor time and memory of the executor.
- *limited*: the same once with a limit of calls a minute, and a kill -9 with a restart in the middle: calls in any 60
  seconds as they arrived, and the time that the limit allows at best.

In all of them each decision is called for exactly once and applied, or it fails. Prints a table and writes
benchmarks/executor.json.
"""

import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from itertools import count
from pathlib import Path
from typing import Any

import httpx
from deltalake import DeltaTable, write_deltalake

from benchmarks.interface import CREATED_MS, SEGMENTS
from benchmarks.processes import process_seconds, resident_kb
from benchmarks.record import machine_now, percentile, publish, quick_command
from benchmarks.serving import process_of
from decisions.topic.layout import SegmentLayout
from lake.tables import create_table, read_columns, table_path
from schemas.ids import canonical_json, decision_id
from schemas.snapshot import Snapshot
from schemas.tables.arrow import to_arrow
from schemas.tables.rows import DECISIONS, OUTCOMES, DecisionRow

LATENCIES, QUICK_LATENCIES = 300, 30
BURST = 1_000
BURSTS = 5
LIMIT, WINDOW_S = 600, 60.0
KILL_AFTER = 0.3
"""Of the calls: then the executor is killed."""
MAX_WAIT_S = 150.0
_numbers = count(1)


@quick_command
def main(quick: bool) -> None:
    """Measures, prints, writes."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        report: dict[str, Any] = {"machine": machine_now()}
        report["latency_seconds"] = _latency(work / "latency", QUICK_LATENCIES if quick else LATENCIES)
        report["bursts"] = _bursts(work / "bursts", 2 if quick else BURSTS)
        if not quick:
            report["limited"] = _limited(work / "limited")
    publish("executor", report, quick)


def _latency(work: Path, decisions: int) -> dict[str, float]:
    chance = random.Random(7)
    with _interface() as url, _executor(work, url):
        committed = {}
        for number in range(decisions + 5):
            [row] = _evaluation(f"topic-{number}", 1)
            time.sleep(chance.uniform(0.05, 0.35))
            committed[row.decision_id] = _commit(work, [row])
        calls = _calls_when(url, len(committed))
    # The first ones warm up.
    waits = [called_at - committed[decision] for decision, _, called_at in calls][5:]
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "most": 1.0}
    return {name: round(percentile(waits, share), 3) for name, share in shares.items()}


def _bursts(work: Path, rounds: int) -> list[dict[str, Any]]:
    bursts = []
    with _interface() as url, _executor(work, url) as pid:
        for number in range(rounds):
            rows = _burst(f"round-{number}")
            cpu, before = process_seconds(pid), resident_kb(pid)
            committed_at = _commit(work, rows)
            calls = _calls_when(url, (number + 1) * BURST)[number * BURST :]
            _when(lambda expected=(number + 1) * BURST: _applied(work) == expected)
            _check(rows, calls)
            bursts.append(
                {
                    "decisions": BURST,
                    "seconds_to_last_call": round(calls[-1][2] - committed_at, 2),
                    "executor_cpu_seconds": round(process_seconds(pid) - cpu, 2),
                    "resident_mb_before": before // 1024,
                    "resident_mb_after": resident_kb(pid) // 1024,
                }
            )
    return bursts


def _limited(work: Path) -> dict[str, Any]:
    rows, limit = _burst("limited"), f"[executor.brakes]\nactions_per_minute = {LIMIT}\n"
    with _interface() as url:
        with _executor(work, url, limit) as pid:
            committed_at = _commit(work, rows)
            _calls_when(url, int(KILL_AFTER * BURST))
            os.kill(pid, signal.SIGKILL)
        with _executor(work, url, limit):
            calls = _calls_when(url, BURST)
            _when(lambda: _applied(work) == BURST)
    _check(rows, calls)
    arrived = [call[2] for call in calls]
    most = max(sum(first <= other < first + WINDOW_S for other in arrived) for first in arrived)
    assert most <= LIMIT, f"{most} calls within {WINDOW_S:g} s, {LIMIT} are allowed"
    return {
        "decisions": BURST,
        "limit_a_minute": LIMIT,
        "most_in_any_minute": most,
        "seconds_to_last_call": round(arrived[-1] - committed_at, 1),
        "seconds_at_best": (BURST - 1) // LIMIT * WINDOW_S,
        "killed_after_calls": int(KILL_AFTER * BURST),
    }


def _burst(name: str) -> list[DecisionRow]:
    evaluations = [_evaluation(f"{name}-{number}", SEGMENTS) for number in range(BURST // SEGMENTS)]
    return [row for evaluation in evaluations for row in evaluation]


def _evaluation(name: str, splits: int) -> list[DecisionRow]:
    """Splits of one topic, all decided on its first layout, as an evaluation of the job takes them."""
    topic, layout, rows = f"topic://acme/shop/{name}", SegmentLayout.create(SEGMENTS, CREATED_MS), []
    decided_at = datetime.now(timezone.utc)
    snapshot = Snapshot(topic=topic, now=int(decided_at.timestamp() * 1000), layout=layout.to_metadata())
    for segment in layout.active[:splits]:
        number = next(_numbers)
        rows.append(
            DecisionRow(
                decision_id=decision_id(topic, layout.epoch, "split", [segment.segment_id], 1, [segment.created_at_ms]),
                family="autoscale",
                subject=topic,
                action="split",
                arguments=canonical_json({"segments": [segment.segment_id]}),
                reason="msgRateIn",
                trigger="tick",
                layout_epoch=layout.epoch,
                policy_digest="0" * 32,
                decided_at=decided_at,
                inputs=snapshot.to_json(),
                gates="[]",
                engine_version="benchmark",
                batch_id=number,
                seq=number,
                day=decided_at.date(),
            )
        )
    return rows


def _commit(work: Path, rows: Sequence[DecisionRow]) -> float:
    """One commit; when it was there, Unix seconds."""
    write_deltalake(create_table(work, DECISIONS), to_arrow(DECISIONS, rows), mode="append")
    version = DeltaTable(table_path(work, DECISIONS)).version()
    return (work / DECISIONS.name / "_delta_log" / f"{version:020}.json").stat().st_mtime


def _applied(work: Path) -> int:
    rows = read_columns(str(work), OUTCOMES, ["status"])["status"].to_pylist()
    assert set(rows) <= {"intent", "applied"}, set(rows)
    return rows.count("applied")


def _check(rows: Sequence[DecisionRow], calls: Sequence[tuple[str, str, float]]) -> None:
    """Each decision was called for once."""
    wanted = sorted((row.decision_id, row.subject.removeprefix("topic://")) for row in rows)
    assert sorted((decision, topic) for decision, topic, _ in calls) == wanted


@contextmanager
def _interface() -> Iterator[str]:
    with process_of([sys.executable, "-m", "benchmarks.interface"]) as (_, url):
        yield url


@contextmanager
def _executor(work: Path, url: str, more: str = "") -> Iterator[int]:
    """The executor's process id, when it is ready."""
    work.mkdir(exist_ok=True)
    settings = work / "bench.toml"
    settings.write_text(
        f'[kafka]\nbootstrap = "127.0.0.1:1"\n[lake]\npath = "{work}"\n[controller]\nurl = "{url}"\n{more}'
    )
    options = ["--log-level", "error", "-c", str(settings)]
    command = [sys.executable, "-m", "anabranch", *options, "executor", "--mode", "act"]
    with process_of(command) as (process, line):
        assert line.startswith("executor ready"), line
        yield process.pid


def _calls_when(url: str, number: int) -> list[tuple[str, str, float]]:
    """All calls, once there are so many."""
    return _when(lambda: len(calls := httpx.get(f"{url}/calls", timeout=30).json()) >= number and calls)


def _when(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + MAX_WAIT_S
    while not (result := condition()):
        assert time.monotonic() < end, f"not within {MAX_WAIT_S:g} s"
        time.sleep(0.5)
    return result


if __name__ == "__main__":
    main()
