"""Speed of decisions on one core: one by one, as a fleet, and through the pipe of `anabranch decisions decide`.

Run as `python -m benchmarks.decide [--quick]`: prints a table and writes benchmarks/decide.json. What is compared is
measured in turns (scalar, fleet, scalar, fleet, …), and the median of each is kept.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np

from benchmarks.record import machine_now, publish, quick_command
from decisions.autoscale.decide import decide
from decisions.autoscale.fleet import NEVER, SnapshotColumns, decide_fleet
from decisions.autoscale.policy import PROFILES, Policy
from decisions.autoscale.snapshot import Load, TopicSnapshot, snapshot_to_wire
from decisions.topic.layout import SegmentLayout
from tests.decisions.packing import pack_snapshots

NOW = 1_763_660_000_000
ROUNDS = 5
PIPE_LINES = 20_000
SEGMENTS = (1, 4, 10, 16, 64)
"""Of a topic."""
MIXES = {"at rest": (0.0, 0.0), "1 % act": (0.01, 0.0), "all cold, in the window": (0.0, 1.0), "all split": (1.0, 0.0)}
"""Share of topics that are hot and are cold."""


@quick_command
def main(quick: bool) -> None:
    """Measures, prints, writes."""
    fleets = [(topics, 10) for topics in ((1_000, 10_000, 100_000) if quick else (1_000, 10_000, 100_000, 1_000_000))]
    fleets += [(20_000, segments) for segments in SEGMENTS]
    report = {
        "machine": machine_now(),
        "scalar": [_scalar_row(segments, 200 if quick else 2_000) for segments in SEGMENTS],
        "fleet": [_fleet_row(*size) for size in fleets],
        "mixes": [_mix_row(name, mix, 1_000 if quick else 4_000) for name, mix in MIXES.items()],
        "pipe": [
            _pipe_row(segments, (2_000 if quick else PIPE_LINES) * 10 // max(segments, 10)) for segments in (1, 10, 64)
        ],
    }
    publish("decide", report, quick)


def a_fleet(topics: int, segments: int, hot: float = 0.0, cold: float = 0.0, seed: int = 1) -> SnapshotColumns:
    """A fleet in columns, made without snapshots; hot topics have one segment over a threshold."""
    rng = np.random.default_rng(seed)
    count = topics * segments
    rates = [rng.uniform(0.2, 0.9, count) * limit for limit in PROFILES["default"].split_thresholds]
    is_hot, is_cold = rng.random(topics) < hot, rng.random(topics) < cold
    rates[0][np.flatnonzero(is_hot) * segments] *= 10
    for rate in rates:
        rate.reshape(topics, segments)[is_cold] *= 0.01
    never = np.full(topics, NEVER, np.int64)
    seen = NOW - rng.integers(0, 60_000, count)
    return SnapshotColumns(
        policies=[PROFILES["default"]],
        policy_starts=[0],
        offsets=np.arange(topics + 1) * segments,
        now=np.full(topics, NOW),
        by_consumer=np.zeros(topics, np.bool_),
        required=rng.integers(0, segments + 1, topics),
        last_split_at=never,
        last_merge_at=never,
        opened_at=never,
        only_merges_open=never != NEVER,
        failures=np.zeros(topics, np.int64),
        failed_at=never,
        failed_action=np.zeros(topics, np.int8),
        segment_ids=np.tile(np.arange(segments), topics),
        is_single_hash=np.zeros(count, np.bool_),
        rates=tuple(rates),
        seen_at=seen,
        cold_since=seen,
        depths=np.zeros(count, np.int64),
        shallow_at=np.zeros(count, np.int64),
        settled_at=np.zeros(count, np.int64),
        sharing=np.zeros(topics, np.int64),
        unshared=np.zeros(topics, np.int64),
        buckets=np.zeros(count, np.int64),
    )


def snapshots_of(fleet: SnapshotColumns, policy: Policy) -> list[TopicSnapshot]:
    """The fleet's topics as snapshots, for the loop that it is compared with."""
    snapshots = []
    for topic in range(len(fleet)):
        rows = range(int(fleet.offsets[topic]), int(fleet.offsets[topic + 1]))
        loads = {
            number: Load(*(float(rate[row]) for rate in fleet.rates), int(fleet.seen_at[row]), int(fleet.seen_at[row]))
            for number, row in enumerate(rows)
        }
        layout = SegmentLayout.create(len(rows), 0)
        required = int(fleet.required[topic])
        snapshots.append(
            TopicSnapshot(
                f"topic://acme/shop/t{topic}",
                NOW,
                layout,
                policy,
                loads=loads,
                consumers={"billing": ("STREAM", required)},
            )
        )
    return snapshots


def _scalar_row(segments: int, count: int) -> dict[str, float]:
    snapshots = snapshots_of(a_fleet(count, segments), PROFILES["default"])
    seconds = _median(lambda: [decide(snapshot) for snapshot in snapshots])
    return {"segments": segments, "topics_per_second": count / seconds}


def _fleet_row(topics: int, segments: int) -> dict[str, float]:
    fleet = a_fleet(topics, segments)
    return {"topics": topics, "segments": segments, "topics_per_second": topics / _median(lambda: decide_fleet(fleet))}


def _mix_row(name: str, mix: tuple[float, float], topics: int) -> dict[str, object]:
    snapshots = snapshots_of(a_fleet(topics, 10, *mix), PROFILES["default"])
    packed, _ = pack_snapshots(snapshots)
    packing = _median(lambda: pack_snapshots(snapshots))
    turns = [
        (_once(lambda: [decide(snapshot) for snapshot in snapshots]), _once(lambda: decide_fleet(packed)))
        for _ in range(ROUNDS)
    ]
    loop, one_call = (statistics.median(seconds) for seconds in zip(*turns, strict=True))
    return {
        "mix": name,
        "fleet_per_second": topics / one_call,
        "loop_per_second": topics / loop,
        "packed_per_second": topics / packing,
    }


def _pipe_row(segments: int, lines: int) -> dict[str, float]:
    snapshots = snapshots_of(a_fleet(min(lines, 500), segments), PROFILES["default"])
    texts = []
    for snapshot in snapshots:
        wire = json.loads(snapshot_to_wire(snapshot).to_json())
        texts.append(json.dumps({**wire, "policy": {}}, separators=(",", ":")))
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        for line in range(lines):
            file.write(texts[line % len(texts)] + "\n")
        file.flush()
        command = [sys.executable, "-m", "anabranch", "decide"]
        run = lambda path: subprocess.run([*command, path], check=True, stdout=subprocess.DEVNULL)  # noqa: E731
        whole = statistics.median(_once(lambda: run(file.name)) for _ in range(3))
        seconds = whole - statistics.median(_once(lambda: run(os.devnull)) for _ in range(3))
    return {"segments": segments, "lines_per_second": lines / seconds}


def _median(work: Callable[[], object]) -> float:
    return statistics.median(_once(work) for _ in range(ROUNDS))


def _once(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
