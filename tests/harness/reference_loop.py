"""Reference loop: one topic under one policy, a step at a time, as plainly as possible.

Independent of `anabranch.simulation.topics.kernel`, which runs the same closed loop for many topics in columns. Every
step: apply the last decision, filter samples, and call `decide` at a tick, at a change of consumers and after an
action. Demand is a rate for each slice of the key space.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from anabranch.simulation.topics.demands import Demand
from anabranch.simulation.topics.outcome import REVERSAL_MS
from decisions.autoscale.answers import Action, Answer, Rebucket, Split
from decisions.autoscale.clocks import Cooldowns, Failures, cooldowns_after_layout, failures_after_outcome
from decisions.autoscale.decide import Hold, decide, hot_keys_after
from decisions.autoscale.hot_keys import HotKey
from decisions.autoscale.past import Past, depths_after_layout, past_after_layout
from decisions.autoscale.policy import Policy
from decisions.autoscale.significance import accept_cause, is_cold
from decisions.autoscale.snapshot import Load, TopicSnapshot
from decisions.topic.layout import SegmentLayout
from tests.decisions.single_samples import cold_since_after_sample, returned_after_sample

STEP_MS, TICK_MS, TAKES_MS = 10_000, 60_000, 2_000
"""Between two samples; between two ticks; how long an action takes."""
CHANGE_THRESHOLD = 0.25
_WORTH_A_TICK = ("split-cooldown", "rebucket-cooldown", "retry-backoff")
HASHES = 65_536


@dataclass
class Came:
    """Results of a run. Times are milliseconds."""

    splits: int = 0
    merges: int = 0
    rebuckets: int = 0
    """Decisions, each of as many segments as it is."""
    reversals: int = 0
    """Actions taken back by their opposite on an overlapping range within half an hour."""
    failed: int = 0
    over_ms: int = 0
    """With a segment above a split threshold."""
    segment_ms: int = 0
    waiting_ms: int = 0
    """With more consumers than segments, or than entry buckets."""
    left: int = 0
    """Segments at the end."""
    most: int = 0
    log: list[tuple[int, str, tuple[int, ...], int, str]] = field(default_factory=list)
    """Of each action: when, what, its ranges, segments after it, why."""


Decide = Callable[[TopicSnapshot], Answer]


def alone(demand: Demand, policy: Policy, *, decided_by: Decide = decide, prunes: bool = True) -> Came:
    """Run one topic through its demand."""
    return _Loop(demand, policy, decided_by, prunes).run()


class _Loop:
    def __init__(self, demand: Demand, policy: Policy, decided_by: Decide, prunes: bool) -> None:
        self._demand, self._policy, self._decide = demand, policy, decided_by
        self._prunes = prunes
        steps, self._slices = demand.rates.shape
        self._sums = np.concatenate([np.zeros((steps, 1)), np.cumsum(demand.rates, axis=1)], axis=1)
        self._layout = SegmentLayout.create(demand.segments, 0, bucket_budget=policy.entry_bucket_budget)
        self._loads: dict[int, Load] = {}
        self._cooldowns, self._failures = Cooldowns(), Failures()
        self._depths: dict[int, int] = {}
        self._pasts: dict[int, Past] = {}
        self._keys: tuple[HotKey, ...] = ()
        self._made: list[tuple[int, str, int, int]] = []
        self._came = Came()

    def run(self) -> Came:
        came, steps = self._came, len(self._demand.rates)
        waiting: list[Action] = []
        consumers, due = 0, None
        for step in range(steps):
            now = step * STEP_MS
            had_actions = bool(waiting)
            for index, action in enumerate(waiting):
                self._apply(action, now - STEP_MS + TAKES_MS * (index + 1))
            waiting = []
            is_hot = self._sample(step, now)
            changed, consumers = consumers != self._demand.consumers[step], int(self._demand.consumers[step])
            lacks = consumers > len(self._layout.active)
            trigger = None
            if now % TICK_MS == 0 or is_hot or (due is not None and now >= due):
                trigger, due = "tick", None
            elif changed or (had_actions and lacks):
                trigger = "consumer"
            if trigger is not None:
                snapshot = self._snapshot(now, trigger, consumers)
                answer = self._decide(snapshot)
                self._keys = hot_keys_after(snapshot)
                if not isinstance(answer, Hold):
                    waiting = [answer, *answer.also]
                    if self._policy.parallel_actions:
                        due = now + 2 * STEP_MS
                elif answer.due is not None and answer.gate.value in _WORTH_A_TICK:
                    due = answer.due
            came.segment_ms += len(self._layout.active) * STEP_MS
            came.most = max(came.most, len(self._layout.active))
            came.over_ms += STEP_MS * self._is_over(step)
            came.waiting_ms += STEP_MS * (consumers > sum(segment.bucket_count for segment in self._layout.active))
        came.left = len(self._layout.active)
        return came

    def _snapshot(self, now: int, trigger: str, consumers: int) -> TopicSnapshot:
        return TopicSnapshot(
            topic="topic://a/b/c",
            now=now,
            layout=self._layout,
            policy=self._policy,
            trigger=trigger,  # type: ignore[arg-type]
            loads=self._loads,
            consumers={"s": ("STREAM", consumers)},
            last_split_at=self._cooldowns.last_split_at,
            last_merge_at=self._cooldowns.last_merge_at,
            last_rebucket_at=self._cooldowns.last_rebucket_at,
            failures=self._failures.in_a_row,
            failed_at=self._failures.failed_at,
            failed_action=self._failures.action,
            merge_depths=self._depths if self._policy.explicit_lineage else None,
            pasts=self._pasts,
            hot_keys=self._keys,
        )

    def _carried(self, step: int, start: int, end: int) -> float:
        scale = self._slices / HASHES
        low, high = start * scale, (end + 1) * scale
        sums, edges = self._sums[step], np.arange(self._slices + 1)
        return float(np.interp(high, edges, sums) - np.interp(low, edges, sums))

    def _is_over(self, step: int) -> bool:
        limit = self._policy.split_msg_rate_in_threshold
        return any(self._carried(step, segment.start, segment.end) > limit for segment in self._layout.active)

    def _sample(self, step: int, now: int) -> bool:
        """Filter the loads of the segments; return True if they need an evaluation right now."""
        policy, is_hot = self._policy, False
        for segment in self._layout.active:
            number = segment.segment_id
            rates = (self._carried(step, segment.start, segment.end), 0.0, 0.0, 0.0)
            last = self._loads.get(number)
            if accept_cause(None if last is None else last.rates, rates, CHANGE_THRESHOLD, policy):
                is_hot |= policy.evaluates_at_once and rates[0] > policy.split_msg_rate_in_threshold
                since, back = (None, None) if last is None else (last.cold_since, last.returned_after)
                cold = is_cold(rates, policy)
                self._loads[number] = Load(
                    *rates,
                    now,
                    now,
                    cold_since_after_sample(since, cold, now),
                    returned_after_sample(back, last is not None, since, cold, now),
                )
            else:
                assert last is not None
                self._loads[number] = Load(*last.rates, last.modified_at, now, last.cold_since, last.returned_after)
        return is_hot

    def _returned(self) -> dict[int, int]:
        return {number: load.returned_after for number, load in self._loads.items() if load.returned_after is not None}

    def _apply(self, action: Action, now: int) -> None:
        before, came = self._layout, self._came
        segments = [before.segments[number] for number in action.ids]
        low, high = min(segment.start for segment in segments), max(segment.end for segment in segments)
        if isinstance(action, Split):
            if low == high:
                came.failed += 1
                self._failures = failures_after_outcome(self._failures, "split", "failed", now)
                return
            self._layout = before.split_segment(action.segment, now)
            came.splits += 1
        elif isinstance(action, Rebucket):
            for number in action.segments:
                self._layout = self._layout.rebucket_segment(number, action.bucket_count, now)
            came.rebuckets += 1
        else:
            self._layout = before.merge_segments(*action.segments, now, self._policy.max_entry_buckets_per_segment)
            came.merges += 1
        self._failures = Failures()
        for index, (acted_at, kind, start, end) in enumerate(self._made):
            if (
                {kind, action.action} == {"split", "merge"}
                and now - acted_at <= REVERSAL_MS
                and start <= high
                and low <= end
            ):
                came.reversals += 1
                del self._made[index]
                break
        self._made.append((now, action.action, low, high))
        self._cooldowns = cooldowns_after_layout(self._cooldowns, before.segments, self._layout, now)
        self._depths = depths_after_layout(self._depths, self._pasts, before.segments, self._layout, now)
        self._pasts = past_after_layout(self._pasts, before.segments, self._layout, now, self._returned())
        if self._prunes:
            for segment in list(self._layout.segments.values()):
                if not segment.is_active and segment.sealed_at_ms < now - 3_600_000:
                    self._layout = self._layout.prune_segment(segment.segment_id)
        active = {segment.segment_id for segment in self._layout.active}
        self._loads = {number: load for number, load in self._loads.items() if number in active}
        came.log.append((now, action.action, (low, high), len(active), action.reason))
