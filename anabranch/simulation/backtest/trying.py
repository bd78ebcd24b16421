"""Trials of policies on the topics of a history: on a sample of them, on all, and on unseen time.

Stage: above `running` and `workers`, under `suggesting`. Each process prepares its share of the topics once and then
answers with sums; these are whole numbers, so they do not depend on the number of processes. Half of the sample are the
topics with the longest time over thresholds or the most sealed segments; the others represent those left out. On the
sample a step is a whole tick, which is enough to compare policies.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, zip_longest
from random import Random
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from anabranch.simulation.backtest.assumptions import AssumedTime, sum_assumptions
from anabranch.simulation.backtest.reading import History
from anabranch.simulation.backtest.running import (
    PreparedTopic,
    assumptions_of,
    counts_on_record,
    prepare_part,
    simulated,
)
from anabranch.simulation.workers import Worker
from engine.autoscale.topics import ConfiguredPolicy

SAMPLE = 24
"""Topics that policies are compared on first; up to so many are all tried at once."""
Scope: TypeAlias = Literal["sample", "searched", "unseen"]
TopicKey: TypeAlias = tuple[int, str]
"""Number of a topic's part, and its name."""


@dataclass(frozen=True)
class TrialResult:
    """Results of a policy."""

    name: str
    policy: ConfiguredPolicy
    splits: int
    merges: int
    reversals: int
    segment_hours: float
    minutes_over: float
    minutes_waiting: float
    confidence: float
    """Share of the time that rests on no assumption."""

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
    assumed: AssumedTime


class TopicStrain(NamedTuple):
    """Overload and actions of a topic on record, in the searched time."""

    minutes_over: float
    sealed: int
    """Segments sealed by splits and merges."""


class Share:
    """Prepared topics of one process."""

    def __init__(self, searched: History, unseen: History | None, keys: Collection[TopicKey]) -> None:
        """Prepare topics. Raises what Delta raises."""
        self._scopes = {"searched": (searched, _prepare_topics(searched, keys))}
        if unseen is not None:
            self._scopes["unseen"] = unseen, _prepare_topics(unseen, keys)

    def strains(self) -> dict[str, TopicStrain]:
        """Return the strain of each topic, by name; summed over incarnations."""
        strains: dict[str, TopicStrain] = {}
        for topic in self._scopes["searched"][1]:
            before, counts = strains.get(topic.record.name, TopicStrain(0.0, 0)), counts_on_record(topic)
            strains[topic.record.name] = TopicStrain(
                before.minutes_over + counts["minutesOverThreshold"], before.sealed + int(counts["sealedSegments"])
            )
        return strains

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
        assumptions: dict[str, list[AssumedTime]] = {name: [] for name in policies}
        step_ms = history.tick_ms if scope == "sample" else history.step_ms
        for group, outcomes in simulated(history, prepared, policies, step_ms):
            weights = np.array([sample[topic.record.name] if scope == "sample" else 1 for topic in group])
            for name, outcome in outcomes.items():
                counted = (outcome.splits, outcome.merges, outcome.reversals)
                times = (outcome.segment_ms, outcome.over_ms, outcome.waiting_ms)
                sums[name] += [(column * weights).sum() for column in (*counted, *times)]
                if scope != "sample":
                    assumptions[name] += (
                        assumptions_of(history, topic, index, outcome, policies[name])
                        for index, topic in enumerate(group)
                    )
        return {name: PolicySums._make([*sums[name].tolist(), sum_assumptions(assumptions[name])]) for name in policies}


class Trials:
    """The topics of all processes; see `open_trials`."""

    def __init__(self, ran: ConfiguredPolicy, topics: int, shares: Share | Sequence[Worker], seed: int) -> None:
        """`shares`: topics of this process, or the workers that hold them; `seed`: of the sample."""
        self.ran, self.topics, self._shares = ran, topics, shares
        self._sample: Mapping[str, int] = {}
        if topics > SAMPLE:
            strains = {name: strain for share in self._ask("strains") for name, strain in share.items()}
            self._sample = drawn_sample(strains, seed)

    @property
    def sample(self) -> int:
        """Return the number of topics that policies are compared on first; 0: there is no sample."""
        return len(self._sample)

    def has_buckets(self) -> bool:
        """Return True if a topic ever had entry buckets."""
        return any(self._ask("has_buckets"))

    def run(self, scope: Scope, policies: Mapping[str, ConfiguredPolicy]) -> list[TrialResult]:
        """Return the results of each policy. Scope `sample` estimates those of all topics, without confidence."""
        shares: list[dict[str, PolicySums]] = self._ask("count", scope, dict(policies), self._sample)
        return [_trial_result(name, policy, [counts[name] for counts in shares]) for name, policy in policies.items()]

    def _ask(self, method: str, *arguments: Any) -> list[Any]:
        if isinstance(self._shares, Share):
            return [getattr(self._shares, method)(*arguments)]
        for worker in self._shares:
            worker.ask(method, *arguments)
        return [worker.answer() for worker in self._shares]


def drawn_sample(strains: Mapping[str, TopicStrain], seed: int) -> dict[str, int]:
    """Return the topics of a sample, each with its weight: the number of topics that it represents.

    Up to half are the topics under most strain, by time and by sealed segments in turn; the others are drawn.
    """
    rankings = [
        sorted((name for name in strains if strains[name][measure]), key=lambda name: (-strains[name][measure], name))
        for measure in range(len(TopicStrain._fields))
    ]
    worst = [name for name in dict.fromkeys(chain(*zip_longest(*rankings))) if name is not None]
    certain = dict.fromkeys(worst[: SAMPLE // 2], 1)
    left = sorted(strains.keys() - certain)
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


def _prepare_topics(history: History, keys: Collection[TopicKey]) -> list[PreparedTopic]:
    names: dict[int, set[str]] = {}
    for number, name in keys:
        names.setdefault(number, set()).add(name)
    return [topic for number in sorted(names) for topic in prepare_part(history, number, names[number])]


def _trial_result(name: str, policy: ConfiguredPolicy, parts: Sequence[PolicySums]) -> TrialResult:
    *sums, assumptions = zip(*parts, strict=True)
    splits, merges, reversals, segments, over, waiting = map(sum, sums)
    confidence = sum_assumptions(assumptions).confidence
    return TrialResult(
        name, policy, splits, merges, reversals, segments / 3_600_000, over / 60_000, waiting / 60_000, confidence
    )
