"""Policies in columns, so that topics of many policies are evaluated together.

Stage: under `decisions.autoscale.next_due`. A caller picks from each array by the policies of its topics or segments.
Waits are milliseconds. One that is too long for sums of 64 bits is cut; it means the same.
"""

from collections.abc import Sequence

import numpy as np

from decisions.autoscale.columns import NEVER, Bools, Floats, Ints
from decisions.autoscale.past import FULL_REGRETS, MAX_REGRETS
from decisions.autoscale.policy import Policy
from decisions.autoscale.significance import crossing_thresholds
from decisions.kernel.readings import MAX_INSTANT_MS
from decisions.topic.layout import HASH_SPACE

NOT_DUE = 2**61
"""An instant that never comes."""
BY_SPLIT, BY_MERGE = 1, 2
"""Origin of a segment; 0: neither."""
_LONGEST_SETTLE_MS = 2**40
"""Still fits 64 bits multiplied with a width in hashes."""


class PolicyColumns:
    """Limits of policies, one entry each."""

    def __init__(self, policies: Sequence[Policy], has_buckets: bool = False) -> None:
        """`has_buckets`: some topics have entry buckets of their own."""
        self.policies = policies
        self.split: Floats = np.array([policy.split_thresholds for policy in policies])
        self.merge: Floats = np.array([policy.merge_thresholds for policy in policies])
        self.written: Floats = np.array([policy.written_merge_thresholds for policy in policies])
        self.crosses = _flags([policy.threshold_crossing for policy in policies])
        crossing = np.array([crossing_thresholds(policy) for policy in policies])
        self.crossing: Floats = np.where(self.crosses[:, None], crossing, np.nan)
        self.is_on = _flags([policy.enabled and policy.broken is None for policy in policies])
        self.max_segments = _numbers([policy.max_segments for policy in policies])
        self.min_segments = _numbers([policy.min_segments for policy in policies])
        self.max_depth = _numbers([policy.max_dag_depth for policy in policies])
        self.split_cooldown = _numbers([policy.split_cooldown_ms for policy in policies])
        self.merge_cooldown = _numbers([policy.merge_cooldown_ms for policy in policies])
        self.merge_window = _numbers([policy.merge_window_ms for policy in policies])
        self.backoff = _numbers([policy.retry_backoff_ms for policy in policies])
        self.load_age = _numbers([policy.max_load_age_ms or NOT_DUE for policy in policies])
        self.keeps_consumers = _flags([policy.merge_keeps_consumers for policy in policies])
        self.skips_single = _flags([policy.skip_unsplittable for policy in policies])
        self.acts_in_parallel = _flags([policy.parallel_actions for policy in policies])
        self.rebuckets = _flags([policy.rebuckets for policy in policies])
        self.shares = self.rebuckets & _flags([has_buckets or policy.entry_bucket_budget > 0 for policy in policies])
        """Consumers may share segments by their entry buckets: those of the topics, or those that the policy gives."""
        self.max_buckets = _numbers([policy.max_entry_buckets_per_segment for policy in policies])
        self.asks = self.shares | _flags(
            [policy.parallel_actions or policy.hot_key_splits > 0 or policy.as_shipped for policy in policies]
        )
        """`decide` has to answer, a topic at a time."""
        self.evaluates_at_once = _flags([policy.evaluates_at_once for policy in policies])
        self.keeps_depth = _flags([policy.explicit_lineage for policy in policies])
        self.returns_within = _numbers([policy.returns_within_ms for policy in policies])
        self._settle = _numbers([min(policy.settle_ms, _LONGEST_SETTLE_MS) for policy in policies])
        self._merges_into_hot = _flags([policy.merges_into_hot for policy in policies])
        self._regret_window = _numbers([min(policy.regret_window_ms, _LONGEST_SETTLE_MS) for policy in policies])
        self._by_coldness = _flags([policy.cold_since_threshold for policy in policies])

    def window_start(self, policy: Ints, cold_since: Ints, modified_at: Ints) -> Ints:
        """Return when the merge window of each cold segment began (`Load.window_start`)."""
        return np.where(self._by_coldness[policy] & (cold_since >= 0), cold_since, modified_at)

    def rest_end(self, policy: Ints, origin: Ints, made_at: Ints, regrets: Ints) -> Ints:
        """Return until when each segment rests after it was made (`past.settle_ms`); `NEVER`: it does not."""
        settle = self._settle[policy]
        wait_ms = np.where((regrets >= MAX_REGRETS) & self._merges_into_hot[policy], NOT_DUE, settle)
        wait_ms = np.where(origin == BY_MERGE, self.merge_cooldown[policy], wait_ms)
        return np.where((origin > 0) & (settle > 0), np.minimum(made_at + wait_ms, MAX_INSTANT_MS), NEVER)

    def regret_window(self, policy: Ints, regrets: Ints, width: Ints) -> Ints:
        """Return for how long each segment has to be cold after regrets (`past.regret_window_ms`)."""
        window = self._regret_window[policy] * 2 * width // HASH_SPACE * 2 * width // HASH_SPACE
        return window * np.minimum(regrets, FULL_REGRETS) // FULL_REGRETS


def _numbers(values: Sequence[int]) -> Ints:
    return np.array([max(-NOT_DUE, min(value, NOT_DUE)) for value in values])


def _flags(values: Sequence[bool]) -> Bools:
    return np.array(values, np.bool_)
