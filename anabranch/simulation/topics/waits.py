"""Waits of topics: the instants to which the kernel may skip.

Stage: under the kernel. It determines which topics may act now (`decide_fleet` decides their actions), when time alone
lets a topic act that wants to, and when the job would ask for an extra tick, by the rules of
`decisions.autoscale.decide` and `engine.autoscale.evaluation`. A topic that is not named here would be held at any
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from anabranch.simulation.topics.timeline import Floats, Ints
from decisions.autoscale.columns import NEVER
from decisions.autoscale.decide import MAX_BACKOFF_MS, MAX_DOUBLINGS
from decisions.autoscale.past import FORGOTTEN_MS, MAX_REGRETS, MAX_SETTLE_MS
from decisions.autoscale.policy import Policy
from decisions.autoscale.significance import crossing_thresholds
from decisions.kernel.readings import MAX_INSTANT_MS
from decisions.topic.layout import HASH_SPACE

Bools = npt.NDArray[np.bool_]
NOT_DUE = 2**61
"""An instant that never comes."""
BY_SPLIT, BY_MERGE = 1, 2
"""Origin of a segment."""
_LONGEST_SETTLE_MS = 2**40
"""Longer rests mean the same, and fit 64 bits however often they were regretted."""


class Limits:
    """Policies of rows in columns; rows of equal policies are adjacent."""

    def __init__(self, policies: Sequence[Policy], starts: Sequence[int], rows: int, has_buckets: bool = False) -> None:
        """`starts`: the first row of each policy; `has_buckets`: some topics have entry buckets of their own."""
        self.policies, self.starts = policies, list(starts)
        self.of: Ints = np.repeat(np.arange(len(policies)), np.diff([*starts, rows]))
        self.split: Floats = np.array([policy.split_thresholds for policy in policies])
        self.merge: Floats = np.array([policy.merge_thresholds for policy in policies])
        self.written: Floats = np.array([policy.written_merge_thresholds for policy in policies])
        self.crosses: Bools = np.array([policy.threshold_crossing for policy in policies])
        all_of_them = np.array([crossing_thresholds(policy) for policy in policies])
        self.crossing: Floats = np.where(self.crosses[:, None], all_of_them, np.nan)
        self.is_on: Bools = self._by_row([policy.enabled and policy.broken is None for policy in policies])
        self.max_segments = self._by_row([policy.max_segments for policy in policies])
        self.min_segments = self._by_row([policy.min_segments for policy in policies])
        self.max_depth = self._by_row([policy.max_dag_depth for policy in policies])
        self.split_cooldown = self._by_row([min(policy.split_cooldown_ms, NOT_DUE) for policy in policies])
        self.merge_cooldown = self._by_row([min(policy.merge_cooldown_ms, NOT_DUE) for policy in policies])
        self.merge_window = self._by_row([min(policy.merge_window_ms, NOT_DUE) for policy in policies])
        self.backoff = self._by_row([min(policy.retry_backoff_ms, NOT_DUE) for policy in policies])
        self.load_age = self._by_row([min(policy.max_load_age_ms or NOT_DUE, NOT_DUE) for policy in policies])
        self.keeps_consumers: Bools = self._by_row([policy.merge_keeps_consumers for policy in policies])
        self.skips_single: Bools = self._by_row([policy.skip_unsplittable for policy in policies])
        self.acts_in_parallel: Bools = self._by_row([policy.parallel_actions for policy in policies])
        self.rebuckets: Bools = self._by_row([policy.rebuckets for policy in policies])
        self.shares: Bools = self._by_row(
            [policy.rebuckets and (has_buckets or policy.entry_bucket_budget > 0) for policy in policies]
        )
        """Consumers may share segments by their entry buckets: those of the topics, or those that the policy gives."""
        self.max_buckets = self._by_row([policy.max_entry_buckets_per_segment for policy in policies])
        self.asks: Bools = self.shares | self._by_row(
            [policy.parallel_actions or policy.hot_key_splits > 0 or policy.as_shipped for policy in policies]
        )
        """Rows that `decide` has to answer, a topic at a time."""
        self.evaluates_at_once: Bools = self._by_row([policy.evaluates_at_once for policy in policies])
        self._settle = self._by_row([min(policy.settle_ms, _LONGEST_SETTLE_MS) for policy in policies])
        self._merges_into_hot: Bools = self._by_row([policy.merges_into_hot for policy in policies])
        self._regret_window = self._by_row([min(policy.regret_window_ms, _LONGEST_SETTLE_MS) for policy in policies])
        self._returns_within = self._by_row([min(policy.returns_within_ms, NOT_DUE) for policy in policies])
        self._by_coldness = self._by_row([policy.cold_since_threshold for policy in policies])
        self.keeps_depth: Bools = self._by_row([policy.explicit_lineage for policy in policies])

    def window_start(self, row: Ints, cold_since: Ints, modified_at: Ints) -> Ints:
        """Return the beginning of the merge window of each cold segment (`Load.window_start`)."""
        return np.where(self._by_coldness[row] & (cold_since >= 0), cold_since, modified_at)

    def depth(self, row: Ints, remembered: Ints, shown: Ints) -> Ints:
        """Return the merge depth of each segment (`TopicSnapshot.merge_depth`)."""
        return np.where(self.keeps_depth[row], remembered, shown)

    def shallow_at(self, row: Ints, remembered: Ints, shown: Ints, made_at: Ints) -> Ints:
        """Return when segments' depths (`remembered` since `made_at`) permit a merge, as `TopicSnapshot`."""
        cap, keeps = self.max_depth[row], self.keeps_depth[row]
        fades_at = np.where((made_at == NEVER) | (cap <= 0), NOT_DUE, made_at + (remembered - cap + 1) * FORGOTTEN_MS)
        depth = np.where(keeps, remembered, shown)
        return np.where(depth < cap, NEVER, np.where(keeps, fades_at, NOT_DUE))

    def settled_at(
        self,
        row: Ints,
        origin: Ints,
        made_at: Ints,
        regrets: Ints,
        pauses: Sequence[Ints],
        cold_since: Ints,
        width: Ints,
    ) -> Ints:
        """Return until when segments are not merged, as `merge_pass.settled_at`; `origin` 0: neither."""
        settle, within = self._settle[row], self._returns_within[row]
        pause_ms = np.minimum(settle << np.minimum(regrets, MAX_REGRETS), np.maximum(settle, MAX_SETTLE_MS))
        pause_ms = np.where((regrets >= MAX_REGRETS) & self._merges_into_hot[row], NOT_DUE, pause_ms)
        pause_ms = np.where(origin == BY_MERGE, self.merge_cooldown[row], pause_ms)
        settled = np.where((origin > 0) & (settle > 0), made_at + pause_ms, NEVER)
        is_regretted = (regrets > 0) & (cold_since >= 0) & (self._regret_window[row] > 0)
        window = self._regret_window[row] * 2 * width // HASH_SPACE
        settled = np.maximum(settled, np.where(is_regretted, cold_since + window, NEVER))
        for pause in pauses:
            is_expected = (cold_since >= 0) & (pause > 0) & (pause <= within)
            settled = np.maximum(settled, np.where(is_expected, cold_since + pause * 3 // 2, NEVER))
        return np.minimum(settled, MAX_INSTANT_MS)

    def _by_row(self, values: Sequence[int]) -> npt.NDArray[Any]:
        return np.array(values)[self.of]


class TopicColumns(NamedTuple):
    """Topics to evaluate, in columns by row."""

    rows: Ints
    """Their rows in `Limits`."""
    now: Ints
    active: Ints
    """Number of active segments."""
    required: Ints
    last_split: Ints
    last_merge: Ints
    failures: Ints
    failed_at: Ints


class SegmentColumns(NamedTuple):
    """Their segments, in columns; those of a topic are adjacent, in the order of the topics."""

    owner: Ints
    """Index of the topic in `TopicColumns`."""
    hot: Bools
    is_cold: Bools
    is_single: Bools
    cold_since: Ints
    shallow_at: Ints
    settled_at: Ints


class WaitSituation:
    """Wishes and waits of some rows, as instants; `NOT_DUE`: time alone does not bring it."""

    def __init__(self, limits: Limits, topics: TopicColumns, segments: SegmentColumns) -> None:
        first = np.cumsum(topics.active) - topics.active
        self.demand: Bools = topics.required > topics.active
        self._find_splits(limits, topics, segments, first)
        self._find_merges(limits, topics, segments)

    def _find_splits(self, limits: Limits, topics: TopicColumns, segments: SegmentColumns, first: Ints) -> None:
        rows, now, count = topics.rows, topics.now, topics.active
        owner, hot = segments.owner, segments.hot
        self.may_split: Bools = np.zeros(len(rows), np.bool_)
        self.is_urgent: Bools = self.may_split
        """The gate that binds is one that the job asks an extra tick for."""
        self.opens_at: Ints = np.full(len(rows), NOT_DUE)
        """Instant when that gate opens."""
        self.split_due: Ints = self.opens_at
        wants = limits.is_on[rows] & (self.demand | np.logical_or.reduceat(hot, first))
        if not wants.any():
            return
        splittable = ~(segments.is_single & limits.skips_single[rows][owner])
        candidates = splittable & (hot | self.demand[owner])
        can_split = np.logical_or.reduceat(candidates, first)
        rests_until = np.where(topics.last_split == NEVER, NEVER, topics.last_split + limits.split_cooldown[rows])
        pauses_until = self._pauses_until(limits, rows, topics.failures, topics.failed_at)
        pauses, rests, is_full = pauses_until > now, rests_until > now, count >= limits.max_segments[rows]
        fails = pauses | rests | is_full | ~can_split
        asks = limits.asks[rows]
        self.may_split = wants & (asks | ~fails)
        self.is_urgent = wants & ~asks & (pauses | (~is_full & rests))
        self.opens_at = np.where(pauses, pauses_until, rests_until)
        due = np.maximum(np.where(pauses, pauses_until, NEVER), np.where(rests, rests_until, NEVER))
        # A load is trusted for a time only; consumers are.
        is_known = self.demand | (due - now <= limits.load_age[rows])
        self.split_due = np.where(wants & ~asks & fails & ~is_full & can_split & is_known, due, NOT_DUE)

    def _pauses_until(self, limits: Limits, rows: Ints, failures: Ints, failed_at: Ints) -> Ints:
        backoff = limits.backoff[rows]
        pauses = (failures > 0) & (backoff > 0)
        if not pauses.any():
            return np.full(len(rows), NEVER)
        doubled = np.minimum(backoff, MAX_BACKOFF_MS) << np.clip(failures - 1, 0, MAX_DOUBLINGS)
        pause = np.maximum(np.minimum(doubled, MAX_BACKOFF_MS), backoff)
        return np.where(pauses, np.where(pauses, failed_at, 0) + pause, NEVER)

    def _find_merges(self, limits: Limits, topics: TopicColumns, segments: SegmentColumns) -> None:
        rows, now, count, required = topics.rows, topics.now, topics.active, topics.required
        owner, is_cold, cold_since = segments.owner, segments.is_cold, segments.cold_since
        shallow_at, settled_at = segments.shallow_at, segments.settled_at
        never = np.full(len(rows), NOT_DUE)
        self.merges_at = self.merge_due = never
        """Instant when the first pair may merge, as things are; and the same if its loads are trusted until then."""
        self.may_merge: Bools = np.zeros(len(rows), np.bool_)
        pairs = np.flatnonzero(is_cold[:-1] & is_cold[1:] & (owner[:-1] == owner[1:]))
        if not len(pairs):
            return
        own = owner[pairs]
        is_free = limits.is_on[rows] & (count > limits.min_segments[rows])
        is_free &= ~limits.keeps_consumers[rows] | (count > required) | limits.shares[rows]
        shallow = np.maximum(shallow_at[pairs], shallow_at[pairs + 1])
        is_possible = is_free[own] & (shallow < NOT_DUE)
        pairs, own, shallow = pairs[is_possible], own[is_possible], shallow[is_possible]
        if not len(pairs):
            return
        ends = np.maximum(cold_since[pairs], cold_since[pairs + 1]) + limits.merge_window[rows][own]
        ends = np.maximum(ends, np.maximum(settled_at[pairs], settled_at[pairs + 1]))
        starts = np.flatnonzero(np.append(True, own[1:] != own[:-1]))
        of_rows = own[starts]
        first_end = np.minimum.reduceat(np.maximum(ends, shallow), starts)
        first_of_shallow = np.minimum.reduceat(np.where(shallow <= now[own], ends, NOT_DUE), starts)
        last = topics.last_merge[of_rows]
        has_none = (last == NEVER) | limits.acts_in_parallel[rows][of_rows]
        rests_until = np.where(has_none, NEVER, last + limits.merge_cooldown[rows][of_rows])
        merges_at = np.maximum(first_end, rests_until)
        self.merges_at = never.copy()
        self.merges_at[of_rows] = merges_at
        self.may_merge[of_rows] = merges_at <= now[of_rows]
        due = np.maximum(np.maximum(first_of_shallow, rests_until), now[of_rows])
        is_known = due - now[of_rows] <= limits.load_age[rows][of_rows]
        self.merge_due = never.copy()
        self.merge_due[of_rows] = np.where(is_known, due, NOT_DUE)
