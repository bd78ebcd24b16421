"""Backtests of changed policies against really running them, over seeds and shapes of demand.

`python -m tests.simulation.backtest.judging` runs the default policy and four others on each seeded demand, each
recorded as the job writes it; backtests the four on the history of the default; and prints the table of
benchmarks/backtest.txt. The topics of all seeds are in one history, for topics do not know of each other; counts are
sums over them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from anabranch.simulation.backtest.reading import open_history
from anabranch.simulation.backtest.running import RECORD, backtest
from anabranch.simulation.workers import in_processes
from engine.autoscale.topics import ConfiguredPolicy
from tests.simulation.backtest.really import MINUTE, SLICES, Seeded, really_run

NAMES = ("splits", "merges", "segmentHours", "consumerMinutesWaiting")
SHAPES = ("waves", "steps", "bursts", "wandering")
DEFAULT = ConfiguredPolicy("default", None)


def _changed(**override: float) -> ConfiguredPolicy:
    return ConfiguredPolicy("default", json.dumps(override))


POLICIES = {
    "halved": _changed(splitMsgRateInThreshold=5_000.0, mergeMsgRateInThreshold=500.0),
    "doubled": _changed(splitMsgRateInThreshold=20_000.0, mergeMsgRateInThreshold=2_000.0),
    "slow": _changed(splitCooldownSeconds=600, mergeCooldownSeconds=1_200),
    "capped": _changed(maxSegments=4),
}


class Shaped(Seeded):
    """`waves` are those of `Seeded`; `steps` jump, `bursts` hit few keys, `wandering` is a hot range that moves."""

    def __init__(self, shape: str, topics: int, seeds: int) -> None:
        super().__init__(topics, 1)
        self._shape = shape
        each = [Seeded(topics, seed) for seed in range(1, seeds + 1)]
        self.topics = [f"topic://acme/shop/t{number:02}" for number in range(topics * seeds)]
        for name in ("_peak", "_period", "_phase", "_hot", "_speed", "_burst", "_size"):
            setattr(self, name, np.concatenate([getattr(one, name) for one in each]))

    def rates(self, topic: int, since: int) -> np.ndarray:
        """Messages a second of each slice."""
        if self._shape == "waves":
            return super().rates(topic, since)
        place, peak = np.arange(SLICES) / SLICES, self._peak[topic]
        turn = since / self._period[topic] + self._phase[topic]
        if self._shape == "bursts":
            rates = np.full(SLICES, 0.25 * peak / SLICES)
            if (since + self._phase[topic] * 40 * MINUTE) % (40 * MINUTE) < 10 * MINUTE:
                rates[int(self._hot[topic] * SLICES * 0.9) :][:8] += 0.08 * peak
            return rates
        centre = self._hot[topic] if self._shape == "steps" else turn
        level = (1.0 if 1 / 3 <= turn % 1.0 < 2 / 3 else 0.05) if self._shape == "steps" else 0.8
        distance = np.abs(place - centre % 1.0)
        near = np.clip(1 - np.minimum(distance, 1 - distance) / 0.15, 0, None)
        return level * peak * (0.4 / SLICES + 0.6 * near / near.sum())


Counts = dict[str, dict[str, float]]


def judged(shape: str, topics: int, seeds: int, hours: float) -> dict[str, tuple[Counts, float]]:
    """Of each policy: predicted and real counts, those of the default that ran, and the confidence."""
    with TemporaryDirectory() as made:
        folder = Path(made)
        lake = really_run(Shaped(shape, topics, seeds), DEFAULT, hours, folder / "default")
        found = backtest(open_history(lake, folder / "loads", None, None, None, DEFAULT), POLICIES)
        told = {}
        for name, policy in POLICIES.items():
            lake = really_run(Shaped(shape, topics, seeds), policy, hours, folder / name)
            own = backtest(open_history(lake, folder / f"loads-{name}", None, None, None, policy), {})
            counts = {
                "predicted": _counts(found.totals(name)),
                "real": _counts(own.totals(RECORD)),
                "default": _counts(found.totals(RECORD)),
            }
            told[name] = counts, found.confidence(name).confidence
        return told


def error(predicted: float, real: float) -> float:
    """In parts of what is real; of nothing real, in absolute terms."""
    return (predicted - real) / (real or 1.0)


def rows(shape: str, told: dict[str, tuple[Counts, float]]) -> list[str]:
    """Of the table, a row for each policy."""
    lines = []
    for name, (counts, confidence) in told.items():
        cells = []
        for column in NAMES:
            said, real, before = (counts[side][column] for side in ("predicted", "real", "default"))
            cells.append(f"{before:.4g} | {said:.4g} ({real:.4g}), {error(said, real):+.0%}")
        lines.append(f"| {shape} | {name} | " + " | ".join(cells) + f" | {confidence:.0%} |")
    return lines


def _counts(totals: dict[str, float]) -> dict[str, float]:
    return {name: totals[name] for name in NAMES}


def _judged(given: tuple[str, int, int, float]) -> list[str]:
    return rows(given[0], judged(*given))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=2, help="of each seed")
    parser.add_argument("--hours", type=float, default=2)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    tasks = [(shape, given.topics, given.seeds, given.hours) for shape in SHAPES]
    print(
        "| demand | policy | " + " | ".join(f"{name}: before | predicted (real)" for name in NAMES) + " | confidence |"
    )
    print("| --- | --- |" + " ---: |" * (2 * len(NAMES) + 1))
    for lines in in_processes(_judged, tasks, given.processes):
        print("\n".join(lines), flush=True)


if __name__ == "__main__":
    main()
