"""Policies tried on the topics of a history: on a sample of them, on all, and on unseen time.

Stage: above `running`, under `suggesting`. Each process prepares its share of the topics once, and is then asked for
sums: they are whole numbers, so they do not depend on the number of processes. On the sample a step is a whole tick,
which is enough to compare policies.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from anabranch.simulation.backtest.assumptions import Guessed, together
from anabranch.simulation.backtest.reading import History
from anabranch.simulation.backtest.running import Prepared, guessed_of, prepared_part, simulated
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


class Share:
    """Prepared topics of one process."""

    def __init__(
        self, searched: History, unseen: History | None, keys: Collection[TopicKey], sample: Collection[TopicKey]
    ) -> None:
        """Prepare topics. Raises what Delta raises."""
        topics = _prepared(searched, keys)
        self._scopes: dict[Scope, tuple[History, Sequence[Prepared]]] = {
            "sample": (searched, [topic for key, topic in topics if key in sample]),
            "searched": (searched, [topic for _, topic in topics]),
        }
        if unseen is not None:
            self._scopes["unseen"] = unseen, [topic for _, topic in _prepared(unseen, keys)]

    def has_buckets(self) -> bool:
        """Return True if a topic ever had entry buckets."""
        topics = self._scopes["searched"][1]
        return any(announced.layout.has_buckets for topic in topics for announced in topic.record.announced)

    def count(self, scope: Scope, policies: Mapping[str, ConfiguredPolicy]) -> dict[str, PolicySums]:
        """Simulate the topics under each policy."""
        history, prepared = self._scopes[scope]
        sums = {name: np.zeros(6, np.int64) for name in policies}
        guesses: dict[str, list[Guessed]] = {name: [] for name in policies}
        step_ms = history.tick_ms if scope == "sample" else history.step_ms
        for group, outcomes in simulated(history, prepared, policies, step_ms):
            for name, outcome in outcomes.items():
                counted = (outcome.splits, outcome.merges, outcome.reversals)
                times = (outcome.segment_ms, outcome.over_ms, outcome.waiting_ms)
                sums[name] += [column.sum() for column in (*counted, *times)]
                if scope != "sample":
                    guesses[name] += (
                        guessed_of(history, topic, index, outcome, policies[name]) for index, topic in enumerate(group)
                    )
        return {name: PolicySums._make([*sums[name].tolist(), together(guesses[name])]) for name in policies}


class Trials:
    """The topics of all processes; see `open_trials`."""

    def __init__(self, ran: ConfiguredPolicy, topics: int, sample: int, shares: Share | Sequence[Any]) -> None:
        """`shares`: topics of this process, or the pools that hold them."""
        self.ran, self.topics, self.sample, self._shares = ran, topics, sample, shares

    @property
    def is_sampled(self) -> bool:
        """Return True if the sample is not all of the topics."""
        return self.sample < self.topics

    def has_buckets(self) -> bool:
        """Return True if a topic ever had entry buckets."""
        return any(self._ask("has_buckets"))

    def run(self, scope: Scope, policies: Mapping[str, ConfiguredPolicy]) -> list[Tried]:
        """Return the results of each policy. Scope `sample` reports no confidence."""
        shares: list[dict[str, PolicySums]] = self._ask("count", scope, dict(policies))
        return [_tried(name, policy, [counts[name] for counts in shares]) for name, policy in policies.items()]

    def _ask(self, method: str, *arguments: Any) -> list[Any]:
        if isinstance(self._shares, Share):
            return [getattr(self._shares, method)(*arguments)]
        answers = [pool.apply_async(_answer, (method, *arguments)) for pool in self._shares]
        return [answer.get() for answer in answers]


@contextmanager
def open_trials(searched: History, unseen: History | None, processes: int = 1) -> Iterator[Trials]:
    """Prepare the topics of a history, in shares for so many processes. Raises what Delta raises."""
    order = [(number, name) for number, part in enumerate(searched.parts) for name in part]
    sample = order[:: max(1, -(-len(order) // SAMPLE))]
    dealt = sorted(order, key=lambda key: key not in set(sample))
    with ExitStack() as pools:
        shares: Share | list[Any]
        if processes == 1:
            shares = Share(searched, unseen, dealt, sample)
        else:
            # Spawned: a process that has threads, as those of Arrow are, must not be forked.
            works = [(searched, unseen, dealt[number::processes], sample) for number in range(processes)]
            shares = [pools.enter_context(get_context("spawn").Pool(1, _begin, work)) for work in works]
        yield Trials(searched.ran, len(order), len(sample), shares)


_work: tuple[Any, ...]


def _begin(*work: Any) -> None:
    """Set up a worker process: keep its work, and leave Ctrl-C to the main process."""
    global _work
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _work = work


@cache
def _share() -> Share:
    """Prepare the topics of this process when it is first asked.

    A pool would replace a worker that fails in its initializer, again and again.
    """
    return Share(*_work)


def _answer(method: str, *arguments: Any) -> Any:
    return getattr(_share(), method)(*arguments)


def _prepared(history: History, keys: Collection[TopicKey]) -> list[tuple[TopicKey, Prepared]]:
    names: dict[int, set[str]] = {}
    for number, name in keys:
        names.setdefault(number, set()).add(name)
    return [
        ((number, topic.record.name), topic)
        for number in sorted(names)
        for topic in prepared_part(history, number, names[number])
    ]


def _tried(name: str, policy: ConfiguredPolicy, parts: Sequence[PolicySums]) -> Tried:
    *sums, guesses = zip(*parts, strict=True)
    splits, merges, reversals, segments, over, waiting = map(sum, sums)
    confidence = together(guesses).confidence
    return Tried(
        name, policy, splits, merges, reversals, segments / 3_600_000, over / 60_000, waiting / 60_000, confidence
    )
