"""Speed of simulations: topic-hours per CPU second of one core, by demand, topics and policies.

Run as `python -m benchmarks.simulate [--quick] [--large]`: prints a table and writes benchmarks/simulate.json. A
topic-hour is one topic under one policy for an hour: 360 samples of each of its segments, 60 ticks. The floor is one
numpy pass over the same demand: what each topic wants in all at each of its changes, beside the thresholds, for each
policy. Times are CPU seconds of this process, the demand's making included; the median of three in turns with the
floor's. `--large` is what a backtest of a month takes: 1,000 topics, 30 days, 5 policies, once.
"""

import json
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import click
import numpy as np

from anabranch.simulation.topics.run import simulate
from anabranch.simulation.topics.shapes import SHAPES, ShapedDemand
from anabranch.simulation.topics.timeline import STEP_MS, Source, Timeline, Window, even_slices
from benchmarks.record import machine_now, print_row, publish
from decisions.autoscale.policy import PROFILES
from decisions.topic.layout import SegmentLayout
from engine.autoscale.topics import ConfiguredPolicy

BEGAN_AT = 1_767_225_600_000
ROUNDS = 3
RECORDED = "recorded"
SLICES = 8
CHANGES_A_DAY = 240
"""Of a topic on record: each of its slices moves by more than the filter's band 30 times a day."""
DAY_MS = 86_400_000


class RecordedSeries:
    """Demand as a lake records it: a step whenever a slice of a topic leaves the filter's band; seeded.

    Every slice follows a day, with a noon of the topic's own, and noise of 20 %.
    """

    def __init__(self, topics: int, hours: float) -> None:
        self.topics = [f"topic://simulated/recorded/t{number:04d}" for number in range(topics)]
        self.began_at, self.step_ms, self.steps = BEGAN_AT, STEP_MS, round(hours * 3_600_000 / STEP_MS)

    def layouts(self, indexes: range) -> list[SegmentLayout]:
        """See `Source`."""
        return [SegmentLayout.create(2, BEGAN_AT) for _ in indexes]

    def windows(self, indexes: range) -> Iterator[Window]:
        """See `Source`: days."""
        randoms = [np.random.default_rng(index) for index in indexes]
        until = self.began_at + self.steps * self.step_ms
        last: list[Any] = [None] * len(indexes)
        for begin in range(self.began_at, until, DAY_MS):
            end = min(begin + DAY_MS, until)
            timelines = []
            for index, random in enumerate(randoms):
                timelines.append(_recorded_day(random, begin, end, last[index]))
                last[index] = timelines[-1].profiles[-1]
            yield Window(begin, end, timelines)


def _recorded_day(random: np.random.Generator, begin: int, end: int, last: np.ndarray | None) -> Timeline:
    count = max(1, CHANGES_A_DAY * (end - begin) // DAY_MS)
    instants = np.unique(np.append(begin, random.integers(begin, end, count)))
    slices = random.integers(0, SLICES, len(instants))
    wave = np.clip(np.sin(2 * np.pi * instants / DAY_MS), 0.02, 1.0)
    values = 40_000.0 / SLICES * (0.3 + slices / SLICES * 2) * wave * random.lognormal(0.0, 0.2, len(instants))
    profiles = np.empty((len(instants), SLICES, 1))
    # Each slice keeps its value until its next change.
    for number in range(SLICES):
        mine = np.flatnonzero(slices == number)
        held = np.repeat(
            np.append(0.0 if last is None else last[number, 0], values[mine]),
            np.diff([0, *mine.tolist(), len(instants)]),
        )
        profiles[:, number, 0] = held
    factors = np.array([1.0, 1_000.0, 2.0, 2_000.0])
    return Timeline(even_slices(SLICES), profiles, instants, np.arange(len(instants)), factors=factors)


@click.command()
@click.option("--quick", is_flag=True, help="A short look: fewer topics, and nothing is written.")
@click.option("--large", is_flag=True, help="Also a month of 1,000 topics on record under 5 policies: minutes.")
def main(quick: bool, large: bool) -> None:
    """Measures, prints, writes."""
    report: dict[str, Any] = {"machine": machine_now(), "rows": []}
    sizes = [(name, 200, 24.0, 5) for name in (RECORDED, *SHAPES)]
    if not quick:
        sizes += [(RECORDED, topics, 24.0, policies) for topics, policies in ((10, 1), (10, 5), (1_000, 1), (1_000, 5))]
        sizes += [("day", topics, 24.0, policies) for topics, policies in ((10, 1), (10, 5), (1_000, 1), (1_000, 5))]
    for size in sizes:
        report["rows"].append(_row(*size, rounds=1 if quick else ROUNDS))
    if large:
        report["rows"].append(_row(RECORDED, 1_000, 720.0, 5, rounds=1))
    report["peak_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    publish("simulate", report, quick)


def policies_of(count: int) -> dict[str, ConfiguredPolicy]:
    """The default, and the same with other thresholds."""
    overrides = [None, *(json.dumps({"splitMsgRateInThreshold": 10_000 + 1_500 * more}) for more in range(1, count))]
    return {f"policy {number}": ConfiguredPolicy("default", override) for number, override in enumerate(overrides)}


def _row(name: str, topics: int, hours: float, policies: int, rounds: int) -> dict[str, Any]:
    def source() -> Source:
        if name == RECORDED:
            return RecordedSeries(topics, hours)
        return ShapedDemand(name, topics, hours, began_at=BEGAN_AT)  # type: ignore[arg-type]

    topic_hours = topics * hours * policies
    seconds, floors = [], []
    for _ in range(rounds):
        took, outcomes = _timed(lambda: simulate(source(), policies_of(policies)))
        seconds.append(took)
        floors.append(_timed(lambda: _floor(source(), policies))[0])
    actions = sum(len(outcome.actions.at) for outcome in outcomes.values())
    speed, floor = topic_hours / statistics.median(seconds), topic_hours / statistics.median(floors)
    row = {"demand": name, "topics": topics, "hours": hours, "policies": policies, "actions": actions}
    row |= {"topic_hours_per_cpu_second": speed, "floor": floor}
    print_row(row)
    return row


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.process_time()
    result = work()
    return time.process_time() - began, result


def _floor(source: Source, policies: int) -> int:
    """One pass over the demand: how often a topic as a whole is over a threshold."""
    limits = np.array(PROFILES["default"].split_thresholds)
    over_limit = 0
    for first in range(0, len(source.topics), 200):
        for window in source.windows(range(first, min(first + 200, len(source.topics)))):
            for _ in range(policies):
                for timeline in window.timelines:
                    wanted = timeline.profiles.sum(axis=1)[timeline.which] * (
                        1.0 if timeline.factors is None else timeline.factors
                    )
                    level = 1.0 if timeline.level is None else timeline.level[:, None]
                    over_limit += int((wanted * level > limits).any(axis=1).sum())
    return over_limit


if __name__ == "__main__":
    main()
