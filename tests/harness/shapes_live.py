"""Every shape of demand through the real processes, beside the engine alone on the same demand.

Run as `python -m tests.harness.shapes_live [--minutes 18]`. Each of the shapes of
`anabranch.simulation.topics.demands` is one topic of one local run: Kafka, job, executor and controller under the
supervisor. Six hours of demand pass in the given minutes, under a policy with clocks to match. The same demand, policy
and clock then go through the simulation's kernel: as the engine alone acts, at once, and once more with the run's
median time from a decision to its layout. What really happened is added up from the lake's raw rows
(`tests.harness.raw_rows`).
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import click
import numpy as np
from deltalake import DeltaTable
from numpy.typing import ArrayLike, NDArray

from anabranch.local.demand import DemandedSubscription, TopicDemand
from anabranch.local.traffic import (
    Counters,
    DemandSessions,
    KafkaOutlet,
    SampleReports,
    controller_topics,
    next_instant,
)
from anabranch.simulation.backtest.running import resolved
from anabranch.simulation.topics.demands import SHAPES, SLICES
from anabranch.simulation.topics.run import simulate
from anabranch.simulation.topics.timeline import ConsumersFrom, Timeline, Window, even_slices
from decisions.autoscale.policy import read_policy
from decisions.topic.layout import SegmentLayout
from engine.autoscale.topics import ConfiguredPolicy
from schemas.settings.root import Settings, load_settings
from tests.harness.raw_rows import counts_of, lag_seconds, minutes_over, outcomes_of

HOME = Path(__file__).resolve().parents[2]
POLICY = """
splitCooldownSeconds = "20s"
mergeCooldownSeconds = "40s"
mergeWindowSeconds = "30s"
maxLoadAgeSeconds = "30s"
retryBackoffSeconds = "10s"
settleSeconds = "60s"
regretWindowSeconds = "60s"
returnsWithinSeconds = "120s"
"""
REPORT_MS = 1_000
COUNTS = ("splits", "merges", "segmentHours", "minutesOverThreshold")


class ShapeDemand(TopicDemand):
    """A shape as one topic of the local run; see `anabranch.local.demand.TopicDemand`."""

    def __init__(self, name: str, minutes: float, seed: int) -> None:
        drawn = SHAPES[name](np.random.default_rng(seed))
        steps = np.arange(round(minutes * 60_000 / REPORT_MS)) * len(drawn.rates) // round(minutes * 60_000 / REPORT_MS)
        self.topic = "topic://acme/shapes/" + re.sub(r"\W+", "-", name)
        self.initial_segments = drawn.segments
        self.subscriptions = (DemandedSubscription("orders", "STREAM"),)
        self.origin = math.inf
        self.slices, self.sessions = drawn.rates[steps], drawn.consumers[steps]
        self._sums = np.concatenate([np.zeros((len(steps), 1)), np.cumsum(self.slices, axis=1)], axis=1)

    def _step(self, t: float) -> int:
        return min(max(round((t - self.origin) * 1000 / REPORT_MS), 0), len(self.slices) - 1)

    def rates(self, t: float, starts: ArrayLike, ends: ArrayLike) -> NDArray[np.float64]:
        """Return messages in per second of each inclusive range; the other three rates are 0."""
        sums, borders = self._sums[self._step(t)], np.arange(SLICES + 1) * (65_536 // SLICES)
        figures = np.zeros((len(np.asarray(starts)), 4))
        figures[:, 0] = np.interp(np.asarray(ends) + 1, borders, sums) - np.interp(np.asarray(starts), borders, sums)
        return figures

    def consumers(self, t: float) -> dict[str, int]:
        """Return the sessions of the one subscription, none before the start."""
        return {"orders": int(self.sessions[self._step(t)]) if t >= self.origin else 0}


class ShapesSource:
    """Demand shapes as a source for simulations; see `anabranch.simulation.topics.timeline.Source`."""

    def __init__(self, demands: list[ShapeDemand], began_at: int) -> None:
        self._demands, self.began_at, self.step_ms = demands, began_at, REPORT_MS
        self.topics: Sequence[str] = [demand.topic for demand in demands]
        self.steps = len(demands[0].slices)

    def layouts(self, indexes: range) -> list[SegmentLayout]:
        """See `Source`."""
        return [SegmentLayout.create(self._demands[index].initial_segments, self.began_at) for index in indexes]

    def windows(self, indexes: range) -> Iterator[Window]:
        """See `Source`: one window."""
        instants = self.began_at + np.arange(self.steps) * self.step_ms
        timelines = [self._timeline(self._demands[index], instants) for index in indexes]
        yield Window(self.began_at, self.began_at + self.steps * self.step_ms, timelines)

    def _timeline(self, demand: ShapeDemand, instants: NDArray[np.int64]) -> Timeline:
        changed = np.flatnonzero(np.diff(demand.sessions, prepend=-1))
        consumers = [ConsumersFrom(int(instants[i]), "orders", "STREAM", int(demand.sessions[i])) for i in changed]
        only_in = np.array([1.0, 0.0, 0.0, 0.0])
        return Timeline(
            even_slices(SLICES),
            demand.slices[:, :, None],
            instants,
            np.arange(len(instants)),
            np.ones(len(instants)),
            only_in,
            consumers,
        )


def run_shapes(
    folder: Path,
    demands: Sequence[ShapeDemand],
    minutes: float,
    policy: str = POLICY,
    tick_seconds: int = 10,
    lead_seconds: float = 0,
) -> tuple[Settings, int]:
    """Run the whole system on the demands; return its settings and the start of the demand.

    It starts `lead_seconds` before a tick. Raises `SystemExit`.
    """
    folder.mkdir(parents=True)
    (folder / "policy.toml").write_text(policy)
    (folder / "overlay.toml").write_text(
        f'[lake]\npath = "{folder}/lake"\n[stream]\ncheckpoint = "{folder}/checkpoint"\n'
        f"tick_seconds = {tick_seconds}\n"
        f'[controller]\ndatabase = "{folder}/controller.db"\n[local]\nfolder = "{folder}"\n'
        f'[policy]\ncluster = "{folder}/policy.toml"\n'
    )
    files = [HOME / "conf" / "demonstration.toml", folder / "overlay.toml"]
    command = [
        sys.executable,
        "-m",
        "anabranch",
        *(word for file in files for word in ("--config", str(file))),
        "run",
        "--local",
        "--no-screen",
        "--without",
        "page",
        "--without",
        "traffic",
        "--report",
        str(folder / "report.json"),
    ]
    with open(folder / "out.log", "w") as log:
        process = subprocess.Popen(command, cwd=HOME, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _wait_for(folder / "run.toml", process)
        settings = load_settings([*files, folder / "run.toml"], HOME, {})
        _wait_for(folder / "lake" / "batches" / "_delta_log", process)
        return settings, _feed(settings, demands, minutes, lead_seconds)
    finally:
        process.terminate()
        process.wait(180)


def _wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 300
    while not path.exists():
        if process.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"the local run did not come up; see {path.parent}")
        time.sleep(0.5)


def _wait_for_tick(lake: str, topics: int) -> None:
    """Wait until a batch has evaluated every topic: the first batches take long."""
    end = time.monotonic() + 300
    while not any(number >= topics for number in _evaluations(lake)):
        if time.monotonic() > end:
            raise SystemExit(f"the job evaluates nothing; see {lake}")
        time.sleep(0.5)


def _evaluations(lake: str) -> list[int]:
    return DeltaTable(f"{lake}/batches").to_pyarrow_table(columns=["evaluations"])["evaluations"].to_pylist()


def _feed(settings: Settings, demands: Sequence[ShapeDemand], minutes: float, lead_seconds: float) -> int:
    """Report the demands until their end; return when they began, milliseconds since 1970."""
    stop, counters = threading.Event(), Counters(Path(settings.path(settings.local.folder)) / "shapes.json")
    outlet = KafkaOutlet(settings.kafka_connection(), counters)
    reports = SampleReports(demands, outlet)
    with closing(controller_topics(settings)) as topics:
        sessions = DemandSessions(topics, demands, max(int(demand.sessions.max()) for demand in demands))
        while any(demand.topic not in sessions.layouts for demand in demands):
            sessions.synchronise(0.0)
        _wait_for_tick(settings.lake_path, len(demands))
        origin = next_instant(time.time() + lead_seconds, settings.stream.tick_seconds) - lead_seconds
        for demand in demands:
            demand.origin = origin

        def keep_sessions() -> None:
            while not stop.wait(0.5):
                sessions.synchronise(time.time(), stop)

        keeper = threading.Thread(target=keep_sessions, daemon=True)
        keeper.start()
        while (t := max(origin, next_instant(time.time(), REPORT_MS / 1000))) < origin + minutes * 60:
            time.sleep(max(0.0, t - time.time()))
            reports.report(t, dict(sessions.layouts))
        stop.set()
        keeper.join(30)
    outlet.close()
    return round(origin * 1000)


def compare(settings: Settings, demands: list[ShapeDemand], began_at: int) -> dict[str, dict[str, dict[str, float]]]:
    """Return the counts of each shape: `real` from the raw rows, `alone` and `late` from the kernel.

    In `late` each layout comes as long after its decision as the median one of the run did.
    """
    policy = ConfiguredPolicy("default", read_policy(POLICY).to_json())
    tick_ms = round(settings.stream.tick_seconds * 1000)
    alone, late = (
        simulate(
            ShapesSource(demands, began_at),
            {"": policy},
            tick_ms=tick_ms,
            change_threshold=settings.stream.change_threshold,
            delay_ms=delay_ms,
        )[""].of_topics()
        for delay_ms in (0, round(lag_seconds(settings.lake_path) * 1000))
    )
    end = began_at + len(demands[0].slices) * REPORT_MS
    limits = resolved(policy).split_thresholds
    return {
        demand.topic: {
            "real": counts_of(settings.lake_path, began_at, end, limits, demand.topic)
            | {"minutesOverThreshold": minutes_over(settings.lake_path, began_at, end, limits, [demand])},
            "alone": {name: float(row[name]) for name in COUNTS},
            "late": {name: float(late_row[name]) for name in COUNTS},
        }
        for demand, row, late_row in zip(demands, alone, late, strict=True)
    }


@click.command()
@click.option("--minutes", type=click.FloatRange(1, 360), default=18.0, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), help="Keep the run here.")
def main(minutes: float, seed: int, folder: Path | None) -> None:
    """Take every shape through the real processes and through the engine alone, and print both."""
    demands = [ShapeDemand(name, minutes, seed) for name in SHAPES]
    with tempfile.TemporaryDirectory(prefix="anabranch-shapes-") as scratch:
        settings, began_at = run_shapes((folder or Path(scratch) / "run").resolve(), demands, minutes, lead_seconds=2)
        rows, ended = compare(settings, demands, began_at), outcomes_of(settings.lake_path)
        lag = lag_seconds(settings.lake_path)
    click.echo(f"From {began_at}. Late: with the median time from decision to layout, {lag:.2f} s.\n")
    click.echo(f"| shape | {' | '.join(f'{name}, real (alone; late)' for name in COUNTS)} |\n| --- |" + " ---: |" * 4)
    for topic, sides in rows.items():
        cells = (
            f"{sides['real'][name]:.4g} ({sides['alone'][name]:.4g}; {sides['late'][name]:.4g})" for name in COUNTS
        )
        click.echo(f"| {topic.rpartition('/')[2]} | {' | '.join(cells)} |")
    click.echo(f"decisions that ended: {json.dumps(ended)}")


if __name__ == "__main__":
    main()
