"""Policies that ran on a seeded demand in virtual time: the job's bucket, its rows in a lake as the sink writes them,
layouts that follow what it decides. Every decision is applied soon; with the executor it is `benchmarks.reality`.

`python -m tests.simulation.backtest.really` prints the table of benchmarks/backtest.txt: what a backtest of each policy
says on the history of another, beside what came of it when it really ran.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from anabranch.simulation.backtest.assumptions import ceiling_intervals, length
from anabranch.simulation.backtest.reading import History, open_history
from anabranch.simulation.backtest.running import RAN, RECORD, backtest, prepare_part, resolved
from decisions.topic.layout import HASH_SPACE, SegmentLayout
from engine.autoscale.topics import ConfiguredPolicy
from engine.kernel.settings import EngineSettings
from tests.engine.buckets import knowing
from tests.engine.records import configured, consumers, layout, outcome, record, tick
from tests.engine.test_replay import RecordedBucket
from tests.simulation.backtest.lakes import written_by_batch

NOW = 1_767_225_600_000
MINUTE, STEP = 60_000, 10_000
SLICES = 128
NAMES = ("splits", "merges", "reversals", "segmentHours", "minutesOverThreshold", "consumerMinutesWaiting")


class Seeded:
    """Waves of two to four hours over a wandering hot range, bursts on a narrow one, and noise."""

    def __init__(self, topics: int, seed: int, noise: float = 0.03, peak: float = 45_000.0) -> None:
        random = np.random.default_rng(seed)
        self.topics = [f"topic://acme/shop/t{number:02}" for number in range(topics)]
        self._random, self._noise = np.random.default_rng(seed + 1), noise
        self._peak = peak * random.uniform(0.3, 1.0, topics)
        self._period = random.uniform(2, 4, topics) * 60 * MINUTE
        self._phase, self._hot = random.uniform(0, 1, topics), random.uniform(0, 1, topics)
        self._speed = random.uniform(-0.1, 0.1, topics) / (60 * MINUTE)
        self._burst = random.uniform(1, 3, topics) * 60 * MINUTE
        self._size = random.uniform(500, 1500, topics)

    def rates(self, topic: int, since: int) -> np.ndarray:
        """Messages a second of each slice."""
        place = np.arange(SLICES) / SLICES
        level = 0.02 + 0.98 * max(0.0, np.sin(2 * np.pi * (since / self._period[topic] + self._phase[topic])))
        distance = np.abs(place - (self._hot[topic] + self._speed[topic] * since) % 1.0)
        near = np.clip(1 - np.minimum(distance, 1 - distance) / 0.15, 0, None)
        wave = level * self._peak[topic] * (0.4 / SLICES + 0.6 * near / near.sum())
        into = (since + self._phase[topic] * self._burst[topic]) % self._burst[topic]
        if into < 8 * MINUTE:
            wave[int(self._hot[topic] * SLICES * 0.9) :][:6] += 0.05 * self._peak[topic]
        return wave

    def noise(self) -> float:
        """Of one sample."""
        return float(1 + self._noise * self._random.standard_normal())

    def consumers(self, topic: int, since: int) -> int:
        """Of one STREAM subscription."""
        return int(2.5 + 2 * np.sin(2 * np.pi * (since / self._period[topic] + topic / 7)))


def really_run(
    demand: Seeded,
    policy: ConfiguredPolicy,
    hours: float,
    lake: Path,
    band: float = 0.25,
    batches: int = 20,
    delay_steps: int = 1,
    step_ms: int = STEP,
) -> str:
    """The lake of a job that ran with this policy, a file of so many batches in each table; a batch in every step."""
    every = MINUTE // step_ms
    bucket = RecordedBucket(EngineSettings(band, MINUTE))
    bucket.packed = knowing(policy, bucket.settings)
    layouts = {name: SegmentLayout.create(1 + number % 2, NOW) for number, name in enumerate(demand.topics)}
    override = None if policy.override is None else json.loads(policy.override)
    records = [
        configured(override, policy.profile),
        *(layout(one, at=NOW, topic=name) for name, one in layouts.items()),
    ]
    told: dict[int, int] = {}
    due: list[tuple[str, int]] = []
    decided: list[dict] = []
    for step in range(int(hours * 60 * every)):
        now = NOW + step * step_ms
        for number, name in enumerate(demand.topics):
            sessions = demand.consumers(number, now - NOW)
            if step % every == 0 and told.get(number) != sessions:
                told[number] = sessions
                records.append(consumers(sessions, now, topic=name))
            records.append(_sample(demand, number, layouts[name], now))
        records += [tick(now, name) for name, at in due if at <= now]
        if step % every == every // 2:
            records.append(tick(now))
        output = bucket.batch(now, *records)
        due = [one for one in due if one[1] > now] + output.due
        records = []
        decided += output.decisions
        applied = [row for row in decided if row["decided_at"] <= now - (delay_steps - 1) * step_ms]
        decided = decided[len(applied) :]
        for row in applied:
            name, segments = row["subject"], json.loads(row["arguments"])["segments"]
            before = layouts[name]
            after = (
                before.split_segment(*segments, now + step_ms)
                if row["action"] == "split"
                else before.merge_segments(*segments, now + step_ms)
            )
            layouts[name] = _pruned(after)
            records += [
                layout(layouts[name], row["action"], at=now + step_ms, topic=name),
                outcome(row["decision_id"], "applied", now + step_ms, name),
            ]
    return written_by_batch(bucket, lake, batches)


def _pruned(one: SegmentLayout) -> SegmentLayout:
    sealed = sorted(number for number, segment in one.segments.items() if not segment.is_active)
    for number in sealed[:-24]:
        one = one.prune_segment(number)
    return one


def _sample(demand: Seeded, number: int, now_layout: SegmentLayout, now: int):
    below = np.concatenate([[0.0], np.cumsum(demand.rates(number, now - NOW))])
    size, bounds = float(demand._size[number]), np.arange(SLICES + 1) * (HASH_SPACE // SLICES)
    segments = []
    for one in now_layout.active:
        low, high = np.interp([one.start, one.end + 1], bounds, below)
        rate = float(max(0.0, high - low)) * demand.noise()
        segments.append(
            {
                "id": one.segment_id,
                "msgRateIn": rate,
                "bytesRateIn": rate * size,
                "msgRateOut": 2 * rate,
                "bytesRateOut": 2 * rate * size,
            }
        )
    name = demand.topics[number]
    return record(
        "segment-stats", name, {"v": 1, "topic": name, "reporter": "broker-1", "sampledAt": now, "segments": segments}
    )


def judged(policies: dict[str, ConfiguredPolicy], folder: Path, topics: int, hours: float, seed: int):
    """By the policy that ran: what really came of every policy, and the backtest of all on its history."""
    lakes = {
        name: really_run(Seeded(topics, seed), policy, hours, folder / f"lake-{name}")
        for name, policy in policies.items()
    }
    found = {}
    for name, lake in lakes.items():
        history = open_history(lake, folder / f"loads-{name}", None, None, None, policies[name])
        found[name] = history, backtest(history, {other: one for other, one in policies.items() if other != name})
    return found


def really_over(history: History, measure: ConfiguredPolicy) -> float:
    """Minutes for which a segment really carried more than this policy's split thresholds."""
    limits = resolved(measure)
    return sum(length(ceiling_intervals(one.demand, limits)) for one in prepare_part(history, 0)) / MINUTE


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=6)
    parser.add_argument("--hours", type=float, default=8)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    policies = {
        "default": ConfiguredPolicy("default", None),
        "eager": ConfiguredPolicy(
            "default",
            json.dumps(
                {
                    "splitMsgRateInThreshold": 7000.0,
                    "mergeMsgRateInThreshold": 1500.0,
                    "mergeCooldownSeconds": 120,
                    "mergeWindowSeconds": 120,
                }
            ),
        ),
        "patient": ConfiguredPolicy(
            "default",
            json.dumps(
                {"splitMsgRateInThreshold": 14000.0, "mergeMsgRateInThreshold": 500.0, "mergeWindowSeconds": 1200}
            ),
        ),
    }
    with TemporaryDirectory() as folder:
        found = judged(policies, Path(folder), given.topics, given.hours, given.seed)
        print("| history of | policy | " + " | ".join(NAMES) + " | confidence |")
        print("| --- | --- |" + " ---: |" * (len(NAMES) + 1))
        for ran, (history, one) in found.items():
            for policy in policies:
                mine = one.totals(RAN if policy == ran else policy)
                really = found[policy][1].totals(RECORD)
                really["minutesOverThreshold"] = really_over(found[policy][0], history.ran)
                cells = [f"{mine[name]:.5g} ({really[name]:.5g})" for name in NAMES]
                share = one.confidence(RAN if policy == ran else policy).confidence
                print(f"| {ran} | {policy} | " + " | ".join(cells) + f" | {share:.0%} |")
            print(f"{ran}: agreement {one.agreement.to_json()}")


if __name__ == "__main__":
    main()
