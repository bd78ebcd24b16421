"""Search by backtest for a policy with fewer segment-hours and less overload, and few reversals.

Stage: above `trying`. Random policies first, then neighbours of the best so far, seeded; each round is one simulation
of many policies. Of many topics only a sample is searched; the best policies are then tried on all. "Over threshold"
uses the split thresholds of the policy that ran, for all of them: the capacity of a segment does not change with the
policy. The best of many policies is partly the luckiest, so the search sees only the first two thirds of a record, and
its result is validated on the last third.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from typing import Any

from anabranch.simulation.backtest.policies import with_settings
from anabranch.simulation.backtest.reading import History
from anabranch.simulation.backtest.running import resolved, violation
from anabranch.simulation.backtest.trying import Scope, TrialResult, Trials
from decisions.autoscale.policy import POLICY_FIELDS, RATE_WORDS, Policy
from engine.autoscale.topics import ConfiguredPolicy

TODAY = "today"
LEAST_TICKS = 30
"""Minimum length of the time on which policies are validated."""
ROUND = 12
"""Policies that are tried together; on a sample of the topics twice as many, as fewer rows cost more each."""
FINALISTS = 5
"""Policies that are tried on all topics, if the others were compared on a sample."""
_STEP = 0.35
"""Distance of a neighbour, as a share of a key's range."""


@dataclass
class Suggestion:
    """Result of a search."""

    today: TrialResult
    tried: list[TrialResult] = field(default_factory=list)
    max_reversals: int = 0
    validation: Mapping[str, TrialResult] = field(default_factory=dict)
    """Results of today's policy and of the frontier in the time that was not searched, by name."""
    policies: int = 0
    """Number of policies tried, today's included; more than `tried` if most were only tried on a sample."""
    sampled: int = 0
    """Number of topics in that sample; 0: there was none."""

    @property
    def allowed(self) -> list[TrialResult]:
        """Return the policies, with today's, that stay within the cap on reversals."""
        return [policy for policy in self.tried if policy.reversals <= self.max_reversals]

    @property
    def frontier(self) -> list[TrialResult]:
        """Return the allowed policies that no other one beats in both measures, by segment-hours."""
        return frontier(self.allowed)

    @property
    def best(self) -> TrialResult | None:
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
        if best is None or best.name not in self.validation:
            return None
        suggested, today = self.validation[best.name], self.validation[self.today.name]
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


def beats(policy: TrialResult, other: TrialResult) -> bool:
    """Return True if a policy is nowhere worse than the other, and somewhere better."""
    mine, theirs = (policy.segment_hours, policy.minutes_over), (other.segment_hours, other.minutes_over)
    return mine != theirs and all(a <= b for a, b in zip(mine, theirs, strict=True))


def frontier(tried: Sequence[TrialResult]) -> list[TrialResult]:
    """Return the policies that no other one beats, by segment-hours; of equals the first."""
    unbeaten: list[TrialResult] = []
    least = float("inf")
    for policy in sorted(tried, key=lambda each: (each.segment_hours, each.minutes_over)):
        if policy.minutes_over < least:
            unbeaten.append(policy)
            least = policy.minutes_over
    return unbeaten


def suggest(
    trials: Trials,
    budget: int,
    max_reversals: int | None,
    seed: int,
    progress: Callable[[int, int], None] = lambda *_: None,
    validate: bool = True,
) -> Suggestion:
    """Try `budget` policies and validate the best on unseen time.

    `max_reversals` None: as many as today's.
    """
    chance, has_buckets = random.Random(seed), trials.has_buckets()
    scope: Scope = "sample" if trials.sample else "searched"
    suggestion = _start_search(trials, scope, {}, max_reversals)
    while (tried := len(suggestion.tried) - 1) < budget:
        progress(tried, budget)
        size = min(2 * ROUND if trials.sample else ROUND, budget - tried)
        # The first half is anywhere, the second near the frontier.
        near = suggestion.frontier or [suggestion.today]
        drawn = {
            f"s{tried + number + 1}": anywhere(trials.ran, chance, has_buckets)
            if 2 * tried < budget
            else neighbour(trials.ran, chance.choice(near).policy, chance, has_buckets)
            for number in range(size)
        }
        suggestion.tried += trials.run(scope, drawn)
    if trials.sample:
        best = {policy.name: policy.policy for policy in finalists(suggestion)}
        suggestion = _start_search(trials, "searched", best, max_reversals)
        suggestion.sampled = trials.sample
    suggestion.policies = budget + 1
    if validate:
        listed = {policy.name: policy.policy for policy in (suggestion.today, *suggestion.frontier)}
        if suggestion.best is not None:
            listed[suggestion.best.name] = suggestion.best.policy
        suggestion.validation = {policy.name: policy for policy in trials.run("unseen", listed)}
    progress(budget, budget)
    return suggestion


def _start_search(
    trials: Trials, scope: Scope, policies: Mapping[str, ConfiguredPolicy], max_reversals: int | None
) -> Suggestion:
    """Return a search that has tried today's policy and these."""
    today, *results = trials.run(scope, {TODAY: trials.ran, **policies})
    return Suggestion(today, [today, *results], today.reversals if max_reversals is None else max_reversals)


def finalists(search: Suggestion) -> list[TrialResult]:
    """Return the policies worth a trial on all topics: the best, then frontier after frontier.

    Of a frontier, what beats today's policy comes first, then what differs least from its time over threshold.
    """
    today, best = search.today, search.best
    chosen = [] if best is None or best.name == TODAY else [best]
    left = [policy for policy in search.allowed if policy.name != TODAY and policy is not best]
    while left and len(chosen) < FINALISTS:
        layer = frontier(left)
        left = [policy for policy in left if policy not in layer]
        chosen += sorted(
            layer, key=lambda policy: (not beats(policy, today), abs(policy.minutes_over - today.minutes_over))
        )
    return chosen[:FINALISTS]


_RANGES = {
    "split": (0.5, 1.25),
    "merge": (0.02, 0.45),
    "split_cooldown": (20, 600),
    "merge_cooldown": (60, 3600),
    "merge_window": (60, 7200),
    "most": (0.5, 4),
    "least": (1, 4),
}
"""Searched ranges, logarithmic. `split`: relative to today's split thresholds, taken as the capacity of a segment;
`merge`: relative to the split thresholds; `most`: relative to today's maxSegments."""
LOOKING_BACK = {
    "mergeHeadroom": (0.3, 0.95),
    "settleSeconds": (60, 7200),
    "regretWindowSeconds": (600, 28_800),
    "returnsWithinSeconds": (600, 14_400),
}
"""Ranges of the guards that look back; searched if today's policy has them."""
OF_BUCKETS = {"rebucketCooldownSeconds": (20, 600), "splitVsRebucketMinMsgRateInThreshold": (100, 10_000)}
"""Ranges for topics with entry buckets; searched if today's policy rebuckets."""


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
    coordinates = _coordinates(ran, start, has_buckets)
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


def _coordinates(ran: ConfiguredPolicy, policy_at_hand: ConfiguredPolicy, has_buckets: bool) -> dict[str, float]:
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
