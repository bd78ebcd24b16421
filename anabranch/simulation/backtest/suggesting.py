"""Search by backtest for a policy with fewer segment-hours and less overload, and few reversals.

Stage: above `running`. Random policies first, then neighbours of the best so far, seeded; each round is one simulation
of many policies. "Over threshold" uses the split thresholds of the policy that ran, for all of them: the capacity of a
segment does not change with the policy. The best of many policies is partly the luckiest, so the search sees only the
first two thirds of a record, and its result is judged on the last third.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from typing import Any

from anabranch.simulation.backtest.assumptions import Guessed, together
from anabranch.simulation.backtest.policies import with_settings
from anabranch.simulation.backtest.reading import History
from anabranch.simulation.backtest.running import Prepared, guessed_of, resolved, simulated, violation
from decisions.autoscale.policy import POLICY_FIELDS, RATE_WORDS, Policy
from engine.autoscale.topics import ConfiguredPolicy

TODAY = "today"
LEAST_TICKS = 30
"""Of the time in which a policy is judged."""
ROUND = 12
"""Policies that are tried together."""
_STEP = 0.35
"""Distance of a neighbour, as a share of a key's range."""


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


@dataclass
class Suggestion:
    """Result of a search."""

    today: Tried
    tried: list[Tried] = field(default_factory=list)
    max_reversals: int = 0
    judged: Mapping[str, Tried] = field(default_factory=dict)
    """Of today's policy and of those on the frontier, by name, what came of them in the time that was not searched."""

    @property
    def allowed(self) -> list[Tried]:
        """Return the policies, with today's, that stay within the cap on reversals."""
        return [policy for policy in self.tried if policy.reversals <= self.max_reversals]

    @property
    def frontier(self) -> list[Tried]:
        """Return the allowed policies that no other one beats in both measures, by segment-hours."""
        return frontier(self.allowed)

    @property
    def best(self) -> Tried | None:
        """Return the cheapest policy that beats today's; None: keep today's.

        If today's policy exceeds the cap on reversals it is no measure: then the one with the least time over
        threshold.
        """
        if self.today.reversals > self.max_reversals:
            return min(self.allowed, key=lambda policy: (policy.minutes_over, policy.segment_hours), default=None)
        better = [policy for policy in self.frontier if beats(policy, self.today)]
        return min(better, key=lambda policy: (policy.segment_hours, policy.minutes_over), default=None)

    @property
    def is_confirmed(self) -> bool | None:
        """Return True if the best is nowhere worse than today's in the unsearched time; None: not judged."""
        best = self.best
        if best is None or best.name not in self.judged:
            return None
        suggested, today = self.judged[best.name], self.judged[self.today.name]
        if today.reversals > self.max_reversals:
            return suggested.minutes_over <= today.minutes_over
        return suggested.segment_hours <= today.segment_hours and suggested.minutes_over <= today.minutes_over


def split_in_time(history: History) -> tuple[History, History] | None:
    """Return the first two thirds of a history and the last third; None: it is too short for that."""
    step, phase = history.step_ms, history.phase_ms
    cut = history.began_at + (history.ends_at - history.began_at) * 2 // 3
    cut = (cut - phase) // step * step + phase
    if history.ends_at - cut < LEAST_TICKS * history.tick_ms:
        return None
    return history.between(history.began_at, cut), history.between(cut, history.ends_at)


def beats(policy: Tried, other: Tried) -> bool:
    """Return True if a policy is nowhere worse than the other, and somewhere better."""
    mine, theirs = (policy.segment_hours, policy.minutes_over), (other.segment_hours, other.minutes_over)
    return mine != theirs and all(a <= b for a, b in zip(mine, theirs, strict=True))


def frontier(tried: Sequence[Tried]) -> list[Tried]:
    """Return the policies that no other one beats, by segment-hours; of equals the first."""
    unbeaten: list[Tried] = []
    least = float("inf")
    for policy in sorted(tried, key=lambda each: (each.segment_hours, each.minutes_over)):
        if policy.minutes_over < least:
            unbeaten.append(policy)
            least = policy.minutes_over
    return unbeaten


def suggest(
    history: History,
    prepared: Sequence[Prepared],
    budget: int,
    max_reversals: int | None,
    seed: int,
    progress: Callable[[int, int], None] = lambda *_: None,
    unseen: tuple[History, Sequence[Prepared]] | None = None,
) -> Suggestion:
    """Try `budget` policies on these topics, and judge the result on the `unseen` time.

    `max_reversals`: None: as many as today's policy has.
    """
    chance = random.Random(seed)
    has_buckets = any(announced.layout.has_buckets for topic in prepared for announced in topic.record.announced)
    today = _try(history, prepared, {TODAY: history.ran})[0]
    suggestion = Suggestion(today, [today], today.reversals if max_reversals is None else max_reversals)
    while (tried := len(suggestion.tried) - 1) < budget:
        progress(tried, budget)
        size = min(ROUND, budget - tried)
        # The first half is anywhere, the second near the frontier.
        near = suggestion.frontier or [today]
        drawn = {
            f"s{tried + number + 1}": anywhere(history.ran, chance, has_buckets)
            if 2 * tried < budget
            else neighbour(history.ran, chance.choice(near).policy, chance, has_buckets)
            for number in range(size)
        }
        suggestion.tried += _try(history, prepared, drawn)
    if unseen is not None:
        listed = {policy.name: policy.policy for policy in (today, *suggestion.frontier)}
        if suggestion.best is not None:
            listed[suggestion.best.name] = suggestion.best.policy
        suggestion.judged = {policy.name: policy for policy in _try(*unseen, listed)}
    progress(budget, budget)
    return suggestion


def _try(history: History, prepared: Sequence[Prepared], policies: Mapping[str, ConfiguredPolicy]) -> list[Tried]:
    sums = {name: [0.0] * 6 for name in policies}
    guesses: dict[str, list[Guessed]] = {name: [] for name in policies}
    for group, outcomes in simulated(history, prepared, policies):
        for name, outcome in outcomes.items():
            of_group = (
                outcome.splits.sum(),
                outcome.merges.sum(),
                outcome.reversals.sum(),
                outcome.segment_ms.sum() / 3_600_000,
                outcome.over_ms.sum() / 60_000,
                outcome.waiting_ms.sum() / 60_000,
            )
            guesses[name] += (
                guessed_of(history, topic, index, outcome, policies[name]) for index, topic in enumerate(group)
            )
            sums[name] = [total + float(more) for total, more in zip(sums[name], of_group, strict=True)]
    return [
        Tried(
            name,
            policy,
            int(splits),
            int(merges),
            int(reversals),
            hours,
            over,
            waiting,
            together(guesses[name]).confidence,
        )
        for name, policy in policies.items()
        for splits, merges, reversals, hours, over, waiting in [sums[name]]
    ]


_RANGES = {
    "split": (0.5, 1.25),
    "merge": (0.02, 0.45),
    "split_cooldown": (20, 600),
    "merge_cooldown": (60, 3600),
    "merge_window": (60, 7200),
    "most": (0.5, 4),
    "least": (1, 4),
}
"""From 0 to 1, logarithmic. `split`: of today's split thresholds, where what a segment can carry is 1; `merge`: of the
split thresholds; `most`: of today's maxSegments."""
LOOKING_BACK = {
    "mergeHeadroom": (0.3, 0.95),
    "settleSeconds": (60, 7200),
    "regretWindowSeconds": (600, 28_800),
    "returnsWithinSeconds": (600, 14_400),
}
"""Of the guards that look back, the ones that today's policy has; from 0 to 1, logarithmic."""


OF_BUCKETS = {"rebucketCooldownSeconds": (20, 600), "splitVsRebucketMinMsgRateInThreshold": (100, 10_000)}
"""Of topics with entry buckets, where today's policy rebuckets; from 0 to 1, logarithmic."""


def _ranges(today: Policy, has_buckets: bool = False) -> dict[str, tuple[float, float]]:
    """Return the searched range of each key."""
    guards = {name: limits for name, limits in LOOKING_BACK.items() if _guard(today, name)}
    return _RANGES | guards | (OF_BUCKETS if has_buckets and today.rebuckets else {})


def _guard(policy: Policy, name: str) -> float:
    """Return the value of a guard as policy files write it; 0: off."""
    field = POLICY_FIELDS[name]
    value = float(getattr(policy, field.name))
    return value / 1000 if field.name.endswith("_ms") else value


def anywhere(ran: ConfiguredPolicy, chance: random.Random, has_buckets: bool = False) -> ConfiguredPolicy:
    """Draw a valid policy from the whole range."""
    while True:
        policy = _policy(ran, {name: chance.random() for name in _ranges(resolved(ran), has_buckets)}, has_buckets)
        if violation(policy) is None:
            return policy


def neighbour(
    ran: ConfiguredPolicy, start: ConfiguredPolicy, chance: random.Random, has_buckets: bool = False
) -> ConfiguredPolicy:
    """Draw another valid policy, one to three keys away from a known one."""
    coordinates = _places(ran, start, has_buckets)
    while True:
        moved = dict(coordinates)
        for name in chance.sample(sorted(coordinates), chance.randint(1, 3)):
            moved[name] = min(1.0, max(0.0, coordinates[name] + chance.uniform(-_STEP, _STEP)))
        policy = _policy(ran, moved, has_buckets)
        if policy != start and violation(policy) is None:
            return policy


def _policy(ran: ConfiguredPolicy, coordinates: Mapping[str, float], has_buckets: bool) -> ConfiguredPolicy:
    today = resolved(ran)
    values = {
        name: low * (high / low) ** coordinates[name] for name, (low, high) in _ranges(today, has_buckets).items()
    }
    settings: dict[str, Any] = {}
    for word, limit in zip(RATE_WORDS, today.split_thresholds, strict=True):
        whole = int if word.startswith("Bytes") else float
        settings[f"split{word}Threshold"] = whole(_round(limit * values["split"]))
        settings[f"merge{word}Threshold"] = whole(_round(limit * values["split"] * values["merge"]))
    most = max(1, round(today.max_segments * values["most"]))
    settings |= {
        "splitCooldownSeconds": round(values["split_cooldown"] / 10) * 10,
        "mergeCooldownSeconds": round(values["merge_cooldown"] / 30) * 30,
        "mergeWindowSeconds": round(values["merge_window"] / 30) * 30,
        "maxSegments": most,
        "minSegments": min(most, round(values["least"])),
        **{name: round(values[name] / 60) * 60 for name in LOOKING_BACK if name in values and name.endswith("Seconds")},
        **{name: round(values[name], 2) for name in LOOKING_BACK if name in values and not name.endswith("Seconds")},
        **{name: round(values[name]) for name in OF_BUCKETS if name in values},
    }
    return with_settings(ran, settings)


def _places(ran: ConfiguredPolicy, policy_at_hand: ConfiguredPolicy, has_buckets: bool) -> dict[str, float]:
    today, policy = resolved(ran), resolved(policy_at_hand)
    split = policy.split_msg_rate_in_threshold
    values = {
        "split": split / today.split_msg_rate_in_threshold,
        "merge": policy.merge_msg_rate_in_threshold / split,
        "split_cooldown": policy.split_cooldown_ms / 1000,
        "merge_cooldown": policy.merge_cooldown_ms / 1000,
        "merge_window": policy.merge_window_ms / 1000,
        "most": policy.max_segments / today.max_segments,
        "least": policy.min_segments,
        **{name: _guard(policy, name) for name in (*LOOKING_BACK, *OF_BUCKETS)},
    }
    return {
        name: min(1.0, max(0.0, log(max(values[name], low / 10) / low) / log(high / low)))
        for name, (low, high) in _ranges(today, has_buckets).items()
    }


def _round(value: float) -> float:
    """Round to two digits."""
    return float(f"{value:.2g}")
