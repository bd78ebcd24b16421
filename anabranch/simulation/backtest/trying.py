"""Policies tried on the topics of a history: on a sample of them, on all, and on unseen time.

Stage: above `running` and `workers`, under `suggesting`. Each process prepares its share of the topics once, and is
then asked for sums: they are whole numbers, so they do not depend on the number of processes. Half of the sample are
the topics with the longest time over thresholds or the most sealed segments; the others stand for those left out. On
the sample a step is a whole tick, which is enough to compare policies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, zip_longest
from random import Random
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from anabranch.simulation.backtest.assumptions import Guessed, together
from anabranch.simulation.backtest.reading import History
from anabranch.simulation.backtest.running import Prepared, counts_on_record, guessed_of, prepared_part, simulated
from anabranch.simulation.workers import Worker
from engine.autoscale.topics import ConfiguredPolicy

SAMPLE = 24
"""Topics that policies are compared on first; up to so many are all tried at once."""
Scope: TypeAlias = Literal["sample", "searched", "unseen"]
TopicKey: TypeAlias = tuple[int, str]
"""Number of a topic's part, and its name."""


@dataclass(frozen=True)
class Tried:
    """A policy and its results."""

    name: str
    policy: ConfiguredPolicy
    splits: int
    merges: int
    reversals: int
    segment_hours: float
    minutes_over: float
    minutes_waiting: float
    confidence: float
    """Share of the time for which nothing had to be guessed."""

    def to_json(self) -> dict[str, Any]:
        """Return the results for scripts."""
        return {
            "policy": self.name,
            "splits": self.splits,
            "merges": self.merges,
            "reversals": self.reversals,
            "segmentHours": round(self.segment_hours, 3),
            "minutesOverThreshold": round(self.minutes_over, 3),
            "consumerMinutesWaiting": round(self.minutes_waiting, 3),
            "confidence": round(self.confidence, 4),
        }


class PolicySums(NamedTuple):
    """Sums over topics under one policy; times in milliseconds."""

    splits: int
    merges: int
    reversals: int
    segment_ms: int
    over_ms: int
    waiting_ms: int
    guessed: Guessed


class Trouble(NamedTuple):
    """What a topic has on record for the searched time."""

    minutes_over: float
    sealed: int
    """Segments sealed by splits and merges."""


class Share:
    """Prepared topics of one process."""

    def __init__(self, searched: History, unseen: History | None, keys: Collection[TopicKey]) -> None:
        """Prepare topics. Raises what Delta raises."""
        self._scopes = {"searched": (searched, _prepared(searched, keys))}
        if unseen is not None:
            self._scopes["unseen"] = unseen, _prepared(unseen, keys)

    def troubles(self) -> dict[str, Trouble]:
        """Return the troubles of each topic, by its name; of all its lives if it was created anew."""
        troubles: dict[str, Trouble] = {}
        for topic in self._scopes["searched"][1]:
            before, counts = troubles.get(topic.record.name, Trouble(0.0, 0)), counts_on_record(topic)
            troubles[topic.record.name] = Trouble(
                before.minutes_over + counts["minutesOverThreshold"], before.sealed + int(counts["sealedSegments"])
            )
        return troubles

    def has_buckets(self) -> bool:
        """Return True if a topic ever had entry buckets."""
        topics = self._scopes["searched"][1]
        return any(announced.layout.has_buckets for topic in topics for announced in topic.record.announced)

    def count(
        self, scope: Scope, policies: Mapping[str, ConfiguredPolicy], sample: Mapping[str, int]
    ) -> dict[str, PolicySums]:
        """Simulate the topics under each policy; `sample`: see `drawn_sample`."""
        history, prepared = self._scopes["searched" if scope == "sample" else scope]
        if scope == "sample":
            prepared = [topic for topic in prepared if topic.record.name in sample]
        sums = {name: np.zeros(6, np.int64) for name in policies}
        guesses: dict[str, list[Guessed]] = {name: [] for name in policies}
        step_ms = history.tick_ms if scope == "sample" else history.step_ms
        for group, outcomes in simulated(history, prepared, policies, step_ms):
            weights = np.array([sample[topic.record.name] if scope == "sample" else 1 for topic in group])
            for name, outcome in outcomes.items():
                counted = (outcome.splits, outcome.merges, outcome.reversals)
                times = (outcome.segment_ms, outcome.over_ms, outcome.waiting_ms)
                sums[name] += [(column * weights).sum() for column in (*counted, *times)]
                if scope != "sample":
                    guesses[name] += (
                        guessed_of(history, topic, index, outcome, policies[name]) for index, topic in enumerate(group)
                    )
        return {name: PolicySums._make([*sums[name].tolist(), together(guesses[name])]) for name in policies}


class Trials:
    """The topics of all processes; see `open_trials`."""

    def __init__(self, ran: ConfiguredPolicy, topics: int, shares: Share | Sequence[Worker], seed: int) -> None:
        """`shares`: topics of this process, or the workers that hold them; `seed`: of the sample."""
        self.ran, self.topics, self._shares = ran, topics, shares
        self._sample: Mapping[str, int] = {}
        if topics > SAMPLE:
            troubles = {name: trouble for share in self._ask("troubles") for name, trouble in share.items()}
            self._sample = drawn_sample(troubles, seed)

    @property
    def sample(self) -> int:
        """Return the number of topics that policies are compared on first; 0: there is no sample."""
        return len(self._sample)

    def has_buckets(self) -> bool:
        """Return True if a topic ever had entry buckets."""
        return any(self._ask("has_buckets"))

    def run(self, scope: Scope, policies: Mapping[str, ConfiguredPolicy]) -> list[Tried]:
        """Return the results of each policy. Scope `sample` estimates those of all topics, without confidence."""
        shares: list[dict[str, PolicySums]] = self._ask("count", scope, dict(policies), self._sample)
        return [_tried(name, policy, [counts[name] for counts in shares]) for name, policy in policies.items()]

    def _ask(self, method: str, *arguments: Any) -> list[Any]:
        if isinstance(self._shares, Share):
            return [getattr(self._shares, method)(*arguments)]
        for worker in self._shares:
            worker.ask(method, *arguments)
        return [worker.answer() for worker in self._shares]


def drawn_sample(troubles: Mapping[str, Trouble], seed: int) -> dict[str, int]:
    """Return the topics of a sample, each with the number of topics that it stands for.

    Up to half are the topics in most trouble, by time and by sealed segments in turns; the others are drawn.
    """
    rankings = [
        sorted(
            (name for name in troubles if troubles[name][measure]), key=lambda name: (-troubles[name][measure], name)
        )
        for measure in range(len(Trouble._fields))
    ]
    worst = [name for name in dict.fromkeys(chain(*zip_longest(*rankings))) if name is not None]
    certain = dict.fromkeys(worst[: SAMPLE // 2], 1)
    left = sorted(troubles.keys() - certain)
    each = max(1, -(-len(left) // (SAMPLE - len(certain))))
    return certain | dict.fromkeys(Random(seed).sample(left, -(-len(left) // each)), each)


@contextmanager
def open_trials(searched: History, unseen: History | None, processes: int = 1, seed: int = 1) -> Iterator[Trials]:
    """Prepare a history's topics in shares by process. Raises Delta's errors, and `WorkerLost` also later."""
    keys = [(number, name) for number, part in enumerate(searched.parts) for name in part]
    with ExitStack() as workers:
        shares: Share | list[Worker]
        if processes == 1:
            shares = Share(searched, unseen, keys)
        else:
            dealt = [keys[number::processes] for number in range(processes)]
            shares = [workers.enter_context(Worker(Share, searched, unseen, share)) for share in dealt]
        yield Trials(searched.ran, len(keys), shares, seed)


def _prepared(history: History, keys: Collection[TopicKey]) -> list[Prepared]:
    names: dict[int, set[str]] = {}
    for number, name in keys:
        names.setdefault(number, set()).add(name)
    return [topic for number in sorted(names) for topic in prepared_part(history, number, names[number])]


def _tried(name: str, policy: ConfiguredPolicy, parts: Sequence[PolicySums]) -> Tried:
    *sums, guesses = zip(*parts, strict=True)
    splits, merges, reversals, segments, over, waiting = map(sum, sums)
    confidence = together(guesses).confidence
    return Tried(
        name, policy, splits, merges, reversals, segments / 3_600_000, over / 60_000, waiting / 60_000, confidence
    )
