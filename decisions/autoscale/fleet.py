"""A fleet at once: the answer of `decide` for many topics in one call, on packed columns.

Stage: where thousands of topics are evaluated at a tick and nearly all hold. `decide_fleet` answers with columns: the
action, its segments, its reason, or the binding gate. Every rule is the one of `decisions.autoscale.decide`, over
arrays, and the binding gate comes from the same table; a test compares the two topic by topic. What was measured at the
binding gate: `decisions.autoscale.fleet_readings`. For all the readings behind an answer, call `decide` on that one
topic.

Topics are walked in blocks that fit the processor's cache, one policy at a time, so that thresholds are plain numbers.
Longer than other modules because both passes share these columns.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from decisions.autoscale.columns import (
    ANY_ACTION,
    ASK,
    GATES,
    HOLD,
    MERGE,
    NEVER,
    ONLY_MERGE,
    ONLY_SPLIT,
    REASONS,
    SPLIT,
    Bools,
    FleetAnswers,
    Floats,
    Ints,
    SnapshotColumns,
    segments_of,
)
from decisions.autoscale.gates import PRECEDENCE, Gate, Situation
from decisions.autoscale.next_due import backoff_pause
from decisions.autoscale.policy import Policy
from decisions.kernel.precedence import PrecedenceRow
from decisions.kernel.readings import MAX_INSTANT_MS

__all__ = [
    "ANY_ACTION",
    "ASK",
    "GATES",
    "HOLD",
    "MERGE",
    "NEVER",
    "ONLY_MERGE",
    "ONLY_SPLIT",
    "REASONS",
    "SPLIT",
    "FleetAnswers",
    "SnapshotColumns",
    "decide_fleet",
]

MAX_WAIT_MS = 2**61
"""Longer waits mean the same, and an instant and a wait together fit 64 bits."""
MAX_BLOCK_SEGMENTS = 32_768
"""Segments that are evaluated together: their columns stay in the cache."""
_CODE = {gate: code for code, gate in enumerate(GATES)}
_CONSUMER_COUNT, _COLD = REASONS.index("consumer-count"), REASONS.index("cold")


def decide_fleet(fleet: SnapshotColumns) -> FleetAnswers:
    """The answer of `decide` for every topic of the fleet."""
    count = len(fleet)
    ends = [*fleet.policy_starts, count][1:]
    answers = FleetAnswers(
        action=np.zeros(count, np.int8),
        segment=np.full(count, -1, np.int64),
        other=np.full(count, -1, np.int64),
        reason=np.zeros(count, np.int8),
        gate=np.full(count, -1, np.int8),
    )
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        for policy, start, end in zip(fleet.policies, fleet.policy_starts, ends, strict=True):
            for first, last in _topic_blocks(fleet.offsets, start, end):
                _Block(fleet, policy, first, last, answers).decide()
    return answers


def _topic_blocks(offsets: Ints, start: int, end: int) -> Iterable[tuple[int, int]]:
    while start < end:
        stop = int(np.searchsorted(offsets, offsets[start] + MAX_BLOCK_SEGMENTS, side="right")) - 1
        stop = min(max(stop, start + 1), end)
        yield start, stop
        start = stop


@dataclass(frozen=True, slots=True)
class _Found:
    """Findings in one situation: for each of its gates, the topics that the gate does not let pass."""

    failing: Mapping[Gate, Bools]
    ends: Mapping[Gate, Ints] = field(default_factory=dict)
    """When each of the waits ends, where it has not."""


class _Block:
    """Neighbouring topics of one policy: their columns as views, and their answers."""

    def __init__(self, fleet: SnapshotColumns, policy: Policy, first: int, last: int, answers: FleetAnswers) -> None:
        self.policy = policy
        self.topics = slice(first, last)
        begin, end = int(fleet.offsets[first]), int(fleet.offsets[last])
        self.segments = slice(begin, end)
        self.fleet = fleet
        self.offsets: Ints = fleet.offsets[first : last + 1] - begin
        self.starts: Ints = self.offsets[:-1]
        self.counts: Ints = np.diff(self.offsets)
        self.now: Ints = fleet.now[self.topics]
        self.tick: Bools = ~fleet.by_consumer[self.topics]
        self.rates = tuple(column[self.segments] for column in fleet.rates)
        self.action, self.gate, self.reason = (
            column[self.topics] for column in (answers.action, answers.gate, answers.reason)
        )
        self.segment, self.other = answers.segment[self.topics], answers.other[self.topics]

    def decide(self) -> None:
        """Decide as `decisions.autoscale.decide.decide` does, for all topics of the block."""
        open_decision = self.fleet.in_flight[self.topics]
        situations = self._switched_off(open_decision)
        if self.policy.broken is None and self.policy.enabled:
            self.topic_of: Ints = np.repeat(np.arange(len(self.counts)), self.counts)
            self.unknown = self._unknown()
            self._find_shared()
            situations |= self._rest()
            if not self.tick.all():
                situations[Situation.NO_DEMAND] = _Found(
                    {Gate.CONSUMER_DEMAND: ~self.tick & ~self.served, Gate.ENTRY_BUCKETS: ~self.tick & self.served}
                )
            leaves_splits = self.fleet.only_merges_open[self.topics] & self.policy.parallel_actions
            situations |= self._split_pass(open_decision & ~leaves_splits)
            situations |= self._merge_pass(open_decision)
        self._bind(situations)
        self.gate[self.action != HOLD] = -1

    def _bind(self, situations: Mapping[Situation, _Found]) -> None:
        """Set the binding gate of each topic, from the table's end, so that its first rows are written last."""
        for row in reversed(PRECEDENCE):
            if row.situation in situations:
                self._bind_row(row, situations[row.situation])

    def _bind_row(self, row: PrecedenceRow[Situation, Gate], situation: _Found) -> None:
        latest: Ints | None = None
        for gate in reversed(row.waits):
            ends, binds = situation.ends[gate], situation.failing[gate]
            if latest is not None:
                binds = binds & (ends >= latest)
            np.copyto(self.gate, _CODE[gate], where=binds)
            latest = np.where(binds, ends, NEVER if latest is None else latest)
        for gate in reversed(row.forbidding):
            np.copyto(self.gate, _CODE[gate], where=situation.failing[gate])

    def _switched_off(self, open_decision: Bools) -> dict[Situation, _Found]:
        everywhere, nowhere = np.ones(len(self.counts), np.bool_), np.zeros(len(self.counts), np.bool_)
        is_broken, is_off = self.policy.broken is not None, not self.policy.enabled
        if not is_broken and not is_off and not open_decision.any():
            return {}
        failing = {
            Gate.INVALID_POLICY: everywhere if is_broken else nowhere,
            Gate.DISABLED: everywhere if is_off else nowhere,
            Gate.IN_FLIGHT: open_decision,
        }
        return {Situation.SWITCHED_OFF: _Found(failing)}

    def _rest(self) -> dict[Situation, _Found]:
        """Return the situations of topics that need neither a split nor a merge."""
        above_floor = self.counts > max(self.policy.min_segments, 1)
        situations = {
            Situation.ABOVE_FLOOR: _Found({Gate.MERGE_THRESHOLDS: above_floor}),
            Situation.AT_FLOOR: _Found({Gate.SPLIT_THRESHOLDS: ~above_floor}),
        }
        if self.unknown is None:
            return situations
        has_load = ~self.unknown
        pair = has_load.copy()
        pair[:-1] &= has_load[1:] & (self.topic_of[1:] == self.topic_of[:-1])
        pair[-1] = False
        any_known, any_pair = np.logical_or.reduceat(has_load, self.starts), np.logical_or.reduceat(pair, self.starts)
        cannot_tell = np.where(above_floor, ~any_pair, ~any_known)
        missing = np.logical_or.reduceat(np.isnan(self.rates[0]), self.starts)
        failing = {Gate.LOAD_MISSING: cannot_tell & missing, Gate.LOAD_STALE: cannot_tell & ~missing}
        situations[Situation.UNKNOWN_LOAD] = _Found(failing)
        return situations

    def _unknown(self) -> Bools | None:
        """Segments whose load is missing or too old to be trusted; None when there is none."""
        unknown: Bools = np.isnan(self.rates[0])
        if self.policy.max_load_age_ms:
            oldest = self.now - min(self.policy.max_load_age_ms, MAX_WAIT_MS)
            same = oldest[0] if (oldest == oldest[0]).all() else oldest[self.topic_of]
            unknown |= self.fleet.seen_at[self.segments] < same
        return unknown if unknown.any() else None

    def _find_shared(self) -> None:
        """Find topics whose consumers share segments, and those served by it (`rebucket_pass`)."""
        policy, buckets = self.policy, self.fleet.buckets[self.segments]
        self.shares: Bools = np.zeros(len(self.counts), np.bool_)
        self.served: Bools = self.shares
        if not policy.rebuckets or not (policy.as_shipped or buckets.any()):
            return
        self.shares = np.logical_or.reduceat(buckets > 0, self.starts) | policy.as_shipped
        self.capacity: Ints = np.add.reduceat(np.maximum(buckets, 1), self.starts)
        rate = self.rates[0] if self.unknown is None else np.where(self.unknown, 0.0, self.rates[0])
        if policy.skip_unsplittable:
            rate = np.where(self.fleet.is_single_hash[self.segments], 0.0, rate)
        is_busy = np.maximum.reduceat(rate, self.starts) >= policy.split_vs_rebucket_min_msg_rate_in_threshold
        has_room = self.counts < policy.max_segments
        lacks_segments = self.fleet.unshared[self.topics] > self.counts
        splits = has_room & (is_busy | (lacks_segments & (not policy.as_shipped)))
        is_held = ~has_room & lacks_segments & (is_busy | (not policy.as_shipped))
        has_demand = self.fleet.required[self.topics] > self.counts
        have_buckets = self.fleet.sharing[self.topics] <= self.capacity
        self.served = self.shares & has_demand & have_buckets & ~splits & ~is_held

    # Pass 1: SPLIT

    def _split_pass(self, open_decision: Bools) -> dict[Situation, _Found]:
        """Answers the splits; tells which topics want one, and what holds them."""
        policy = self.policy
        demand = (self.fleet.required[self.topics] > self.counts) & ~self.served
        if self.shares.any():
            self.action[demand & self.shares & ~open_decision] = ASK
            demand &= ~self.shares
        hot = np.flatnonzero(self._hot())
        hot = hot[(self.tick & ~demand & (self.action == HOLD))[self.topic_of[hot]]]
        wanted: Bools = np.array(demand, np.bool_)
        wanted[self.topic_of[hot]] = True
        if not wanted.any():
            return {}
        if policy.parallel_actions or policy.hot_key_splits or policy.as_shipped:
            # What is done, and what holds, is of each segment: few topics are hot.
            self.action[wanted & ~open_decision] = ASK
            return {}
        failing = {
            Gate.RETRY_BACKOFF: wanted & self._backed_off(ONLY_SPLIT),
            Gate.MAX_SEGMENTS: wanted & (self.counts >= policy.max_segments),
            Gate.SPLIT_COOLDOWN: wanted & self._waits(self.fleet.last_split_at[self.topics], policy.split_cooldown_ms),
            Gate.ONE_HOT_KEY: np.zeros(len(wanted), np.bool_),
        }
        free = wanted & ~open_decision & ~_held_topics(failing)
        self._split_for_consumers(np.flatnonzero(free & demand))
        self._split_for_load(hot[free[self.topic_of[hot]]])
        failing[Gate.UNSPLITTABLE] = free & (self.action == HOLD)
        return {Situation.WANTS_TO_SPLIT: _Found(failing)}

    def _hot(self) -> Bools:
        """Segments with a known rate above its split threshold: its ratio is then above 1, and the reverse."""
        limits = self.policy.split_thresholds
        hot = self.rates[0] > limits[0]
        for rate, limit in zip(self.rates[1:], limits[1:], strict=True):
            hot |= rate > limit
        if self.unknown is not None:
            hot &= ~self.unknown
        is_hot: Bools = np.asarray(hot, np.bool_)
        return is_hot

    def _split_for_consumers(self, topics: Ints) -> None:
        """Rule (a): the busiest segment by msgRateIn, 0 when not known."""
        if not len(topics):
            return
        segments = segments_of(self.offsets, topics)
        if self.policy.skip_unsplittable:
            segments = segments[~self.fleet.is_single_hash[self.segments][segments]]
        rate = self.rates[0][segments]
        if self.unknown is not None:
            rate = np.where(self.unknown[segments], 0.0, rate)
        self._split(segments, rate, np.full(len(segments), _CONSUMER_COUNT))

    def _split_for_load(self, segments: Ints) -> None:
        """Rule (b): the segment with the largest rate / split threshold."""
        if self.policy.skip_unsplittable:
            segments = segments[~self.fleet.is_single_hash[self.segments][segments]]
        if not len(segments):
            return
        ratios = np.stack(
            [rate[segments] / limit for rate, limit in zip(self.rates, self.policy.split_thresholds, strict=True)]
        )
        worst = ratios.argmax(axis=0)
        self._split(segments, ratios.max(axis=0), worst + 1)

    def _split(self, segments: Ints, score: Floats, reason: npt.NDArray[Any]) -> None:
        """Per topic the highest score, of equals the lowest id."""
        ids = self.fleet.segment_ids[self.segments][segments]
        topics = self.topic_of[segments]
        order = np.lexsort((ids, -score, topics))
        chosen = order[_group_starts(topics[order])]
        split_topics = topics[chosen]
        self.action[split_topics] = SPLIT
        self.segment[split_topics] = ids[chosen]
        self.reason[split_topics] = reason[chosen]

    # Pass 2: MERGE

    def _merge_pass(self, open_decision: Bools) -> dict[Situation, _Found]:
        """Answers the merges; tells which topics want one, and what holds them."""
        policy = self.policy
        cold = self._cold()
        pairs = np.flatnonzero(cold[:-1] & cold[1:])
        if not len(pairs):
            return {}
        waiting = self.tick & (self.action == HOLD) & ~open_decision
        topics = self.topic_of[pairs]
        real = (topics == self.topic_of[pairs + 1]) & waiting[topics]
        pairs, topics = pairs[real], topics[real]
        if not len(pairs):
            return {}
        wanted = np.zeros(len(waiting), np.bool_)
        wanted[topics] = True

        fleet, columns = self.fleet, self.segments
        depths, began = fleet.depths[columns], fleet.cold_since[columns]
        shallow = np.maximum(depths[pairs], depths[pairs + 1]) < policy.max_dag_depth
        pairs, topics = pairs[shallow], topics[shallow]
        lacks_capacity = np.zeros(len(waiting), np.bool_)
        if self.shares.any():
            keeps = self._keeps_capacity(pairs, topics)
            lacks_capacity[topics] = True
            lacks_capacity[topics[keeps]] = False
            keeps |= lacks_capacity[topics]
            pairs, topics = pairs[keeps], topics[keeps]
        since = np.maximum(began[pairs], began[pairs + 1])
        # Since when both are cold, of the pair that is cold for longest; MAX_WAIT_MS where all lineages are too deep.
        longest = np.full(len(waiting), MAX_WAIT_MS, np.int64)
        firsts = _group_starts(topics)
        if len(firsts):
            longest[topics[firsts]] = np.minimum.reduceat(since, firsts)

        last_merge_at = fleet.last_merge_at[self.topics]
        cooldown, window = min(policy.merge_cooldown_ms, MAX_WAIT_MS), min(policy.merge_window_ms, MAX_WAIT_MS)
        settles = self._settling(pairs, topics, since)
        lacks_consumers = self.counts <= fleet.required[self.topics]
        failing = {
            Gate.RETRY_BACKOFF: wanted & self._backed_off(ONLY_MERGE),
            Gate.MIN_SEGMENTS: wanted & (self.counts <= policy.min_segments),
            Gate.MERGE_CONSUMERS: wanted & lacks_consumers & policy.merge_keeps_consumers,
            Gate.MAX_DAG_DEPTH: wanted & (longest == MAX_WAIT_MS),
            Gate.MERGE_CAPACITY: wanted & lacks_capacity,
            Gate.MERGE_COOLDOWN: wanted & self._waits(last_merge_at, cooldown) & (not policy.parallel_actions),
            Gate.MERGE_WINDOW: wanted & (self.now - longest < window),
            Gate.SETTLING: wanted & (settles > self.now),
        }
        ends = {
            Gate.MERGE_COOLDOWN: np.minimum(last_merge_at + cooldown, MAX_INSTANT_MS),
            Gate.MERGE_WINDOW: np.minimum(longest + window, MAX_INSTANT_MS),
            Gate.SETTLING: np.minimum(settles, MAX_INSTANT_MS),
        }
        free = wanted & ~_held_topics(failing)
        if policy.merge_keeps_consumers and self.shares.any():
            # Fewer segments than consumers may do: that is of each pair.
            self.action[wanted & self.shares & lacks_consumers] = ASK
            free &= ~(self.shares & lacks_consumers)
        if policy.parallel_actions:
            self.action[free] = ASK
        elif free.any():
            ready = free[topics] & (self.now[topics] - since >= window)
            if policy.settles:
                ready &= self._settled(pairs) <= self.now[topics]
            self._merge(pairs[ready], topics[ready])
        return {Situation.WANTS_TO_MERGE: _Found(failing, ends)}

    def _keeps_capacity(self, pairs: Ints, topics: Ints) -> Bools:
        """Which pairs leave each consumer its entry bucket when they merge."""
        buckets = np.maximum(self.fleet.buckets[self.segments], 1)
        loss = np.maximum(buckets[pairs] + buckets[pairs + 1] - self.policy.max_entry_buckets_per_segment, 0)
        used = np.minimum(self.fleet.required[self.topics], self.capacity)
        is_kept: Bools = ~self.shares[topics] | (loss <= (self.capacity - used)[topics])
        return is_kept

    def _settling(self, pairs: Ints, topics: Ints, since: Ints) -> Ints:
        """Return when the first pair of each topic settles, ready pairs first; `NEVER` where none has to."""
        settles_at = np.full(len(self.counts), NEVER, np.int64)
        if not self.policy.settles or not len(pairs):
            return settles_at
        settled = self._settled(pairs)
        is_ready = self.now[topics] - since >= min(self.policy.merge_window_ms, MAX_WAIT_MS)
        firsts = _group_starts(topics)
        of_all = np.minimum.reduceat(settled, firsts)
        of_ready = np.minimum.reduceat(np.where(is_ready, settled, MAX_WAIT_MS), firsts)
        any_ready = np.logical_or.reduceat(is_ready, firsts)
        settles_at[topics[firsts]] = np.where(any_ready, of_ready, of_all)
        return settles_at

    def _settled(self, pairs: Ints) -> Ints:
        settled = self.fleet.settled_at[self.segments]
        later: Ints = np.maximum(settled[pairs], settled[pairs + 1])
        return later

    def _cold(self) -> Bools:
        """Segments whose known rates are all strictly below their merge thresholds."""
        limits = self.policy.merge_thresholds
        cold = self.rates[0] < limits[0]
        for rate, limit in zip(self.rates[1:], limits[1:], strict=True):
            cold &= rate < limit
        if self.unknown is not None:
            cold &= ~self.unknown
        is_cold: Bools = np.asarray(cold, np.bool_)
        return is_cold

    def _merge(self, pairs: Ints, topics: Ints) -> None:
        """Per topic the coldest pair, of equals the first in the hash space."""
        if not len(pairs):
            return
        left = [rate[pairs] for rate in self.rates]
        right = [rate[pairs + 1] for rate in self.rates]
        if self.policy.normalized_coldness:
            limits = self.policy.merge_thresholds
            unions = [(own + other) / limit for own, other, limit in zip(left, right, limits, strict=True)]
            combined = np.maximum.reduce(unions)
        else:
            combined = (left[0] + left[1] + left[2] + left[3]) + (right[0] + right[1] + right[2] + right[3])
        order = np.lexsort((pairs, combined, topics))
        chosen = order[_group_starts(topics[order])]
        merge_topics, ids = topics[chosen], self.fleet.segment_ids[self.segments]
        self.action[merge_topics] = MERGE
        self.segment[merge_topics] = ids[pairs[chosen]]
        self.other[merge_topics] = ids[pairs[chosen] + 1]
        self.reason[merge_topics] = _COLD

    # What both passes use

    def _waits(self, since: Ints, wait_ms: int) -> Bools:
        """Something happened, and less than `wait_ms` have gone by."""
        waits: Bools = (since != NEVER) & (self.now - np.maximum(since, -MAX_WAIT_MS) < min(wait_ms, MAX_WAIT_MS))
        return waits

    def _backed_off(self, action: int) -> Bools:
        """The pause after failures of this kind of action has not ended."""
        first = self.policy.retry_backoff_ms
        failures, failed_at = self.fleet.failures[self.topics], self.fleet.failed_at[self.topics]
        failed_action = self.fleet.failed_action[self.topics]
        concerned = (failures > 0) & (failed_at != NEVER) & ((failed_action == ANY_ACTION) | (failed_action == action))
        if first == 0 or not concerned.any():
            return np.zeros(len(failures), np.bool_)
        pause = backoff_pause(min(first, MAX_WAIT_MS), failures)
        waiting: Bools = concerned & (self.now - np.where(concerned, failed_at, 0) < pause)
        return waiting


def _held_topics(failing: Mapping[Gate, Bools]) -> Bools:
    """Topics that some gate holds."""
    return reduce(np.logical_or, failing.values())


def _group_starts(groups: Ints) -> Ints:
    """Places at which a new group begins, in groups that lie together."""
    return np.flatnonzero(np.concatenate([[True], groups[1:] != groups[:-1]])) if len(groups) else groups
