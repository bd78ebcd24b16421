"""A fleet at once: the answer of `decide` for many topics in one call, on packed columns.

Stage: where thousands of topics are evaluated at a tick and nearly all hold. `pack` lays snapshots out in columns (or a
caller fills `Fleet` itself); `decide_fleet` answers with columns: the action, its segments, its reason, or the binding
gate. Every rule is the one of `decisions.autoscale.decide`, over arrays; a test compares the two topic by topic. For
the readings behind an answer, call `decide` on that one topic.

Topics are walked in blocks that fit the processor's cache, one policy at a time, so that thresholds are plain numbers.
A segment without a record has NaN rates: every comparison with them is false, it is neither hot nor cold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from decisions.autoscale.decide import MAX_BACKOFF_MS, MAX_DOUBLINGS
from decisions.autoscale.gates import Gate
from decisions.autoscale.policy import Policy
from decisions.autoscale.snapshot import TopicSnapshot
from decisions.kernel.readings import MAX_INSTANT_MS as LAST_INSTANT_MS
from schemas.metadata import RATES

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

NEVER = np.iinfo(np.int64).min
"""Stands for an instant that is not set."""
HOLD, SPLIT, MERGE = 0, 1, 2
"""Codes of `FleetAnswers.action`."""
REASONS = ("", *RATES, "consumer-count", "cold")
"""`FleetAnswers.reason` counts into these."""
GATES = tuple(Gate)
"""`FleetAnswers.gate` counts into these; -1 for an action."""
_CONSUMER_COUNT, _COLD = REASONS.index("consumer-count"), REASONS.index("cold")
_CODE = {gate: code for code, gate in enumerate(GATES)}
_EITHER, _ONLY_SPLIT, _ONLY_MERGE = 0, 1, 2
_FAILED_ACTIONS = {None: _EITHER, "split": _ONLY_SPLIT, "merge": _ONLY_MERGE}
_LONGEST_WAIT = 2**62
"""Longer waits mean the same, and fit 64 bits."""
BLOCK_SEGMENTS = 32_768
"""Segments that are evaluated together: their columns stay in the cache."""


@dataclass(frozen=True)
class Fleet:
    """The snapshots of n topics with m active segments, topics of one policy side by side; instants in milliseconds."""

    policies: Sequence[Policy]
    policy_starts: Sequence[int]
    """The first topic of each policy."""
    offsets: Ints
    """n + 1: a topic's segments are `offsets[i]:offsets[i + 1]`, in the order of their hash ranges."""
    now: Ints
    by_consumer: Bools
    """The trigger was `consumer`."""
    required: Ints
    """Consumers of the largest managed subscription."""
    last_split_at: Ints
    last_merge_at: Ints
    in_flight: Bools
    failures: Ints
    failed_at: Ints
    failed_action: npt.NDArray[np.int8]
    segment_ids: Ints
    is_single_hash: Bools
    rates: tuple[Floats, Floats, Floats, Floats]
    """Four columns per second, NaN without a record."""
    seen_at: Ints
    cold_since: Ints
    """When the merge window of a cold segment began, as the policy measures it."""
    depths: Ints
    """Merges in each segment's lineage."""

    def __len__(self) -> int:
        return len(self.now)


@dataclass(frozen=True)
class FleetAnswers:
    """One answer per topic, in the fleet's order."""

    action: npt.NDArray[np.int8]
    """`HOLD`, `SPLIT` or `MERGE`."""
    segment: Ints
    """The segment to split, or the lower of the pair to merge; -1 for a hold."""
    other: Ints
    """The upper of the pair to merge; -1 otherwise."""
    reason: npt.NDArray[np.int8]
    """Place in `REASONS`."""
    gate: npt.NDArray[np.int8]
    """The binding gate of a hold, its place in `GATES`; -1 for an action."""


def pack(snapshots: Iterable[TopicSnapshot]) -> tuple[Fleet, Ints]:
    """The snapshots in columns, and for each topic of the fleet the place of its snapshot in the input."""
    by_policy: dict[Policy, list[tuple[int, TopicSnapshot]]] = {}
    for place, snapshot in enumerate(snapshots):
        by_policy.setdefault(snapshot.policy, []).append((place, snapshot))
    ordered = [entry for entries in by_policy.values() for entry in entries]
    topics = [_topic_columns(snapshot) for _, snapshot in ordered]
    segments = [row for _, snapshot in ordered for row in _segment_columns(snapshot)]
    counts = [len(snapshot.layout.active) for _, snapshot in ordered]
    sizes = [len(entries) for entries in by_policy.values()]
    topic = list(zip(*topics, strict=True)) or [()] * 9
    segment = list(zip(*segments, strict=True)) or [()] * 9
    fleet = Fleet(
        list(by_policy),
        np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64).tolist() if sizes else [],
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        np.array(topic[0], np.int64),
        np.array(topic[1], np.bool_),
        np.array(topic[2], np.int64),
        np.array(topic[3], np.int64),
        np.array(topic[4], np.int64),
        np.array(topic[5], np.bool_),
        np.array(topic[6], np.int64),
        np.array(topic[7], np.int64),
        np.array(topic[8], np.int8),
        np.array(segment[0], np.int64),
        np.array(segment[1], np.bool_),
        tuple(np.array(column, np.float64) for column in segment[2:6]),  # type: ignore[arg-type]
        np.array(segment[6], np.int64),
        np.array(segment[7], np.int64),
        np.array(segment[8], np.int64),
    )
    return fleet, np.array([place for place, _ in ordered], np.int64)


def _topic_columns(snapshot: TopicSnapshot) -> tuple[Any, ...]:
    return (
        snapshot.now,
        snapshot.trigger == "consumer",
        snapshot.required_segments,
        NEVER if snapshot.last_split_at is None else snapshot.last_split_at,
        NEVER if snapshot.last_merge_at is None else snapshot.last_merge_at,
        snapshot.in_flight is not None,
        snapshot.failures,
        NEVER if snapshot.failed_at is None else snapshot.failed_at,
        _FAILED_ACTIONS[snapshot.failed_action],
    )


def _segment_columns(snapshot: TopicSnapshot) -> Iterable[tuple[Any, ...]]:
    since_threshold = snapshot.policy.cold_since_threshold
    for segment in snapshot.layout.active:
        load = snapshot.loads.get(segment.segment_id)
        depth = snapshot.merge_depth(segment.segment_id)
        if load is None:
            yield (segment.segment_id, segment.width == 1, *_NO_RATES, NEVER, NEVER, depth)
            continue
        seen_at = load.modified_at if load.seen_at is None else load.seen_at
        since = load.cold_since if since_threshold and load.cold_since is not None else load.modified_at
        yield (segment.segment_id, segment.width == 1, *load.rates, seen_at, since, depth)


_NO_RATES = (float("nan"),) * 4


def decide_fleet(fleet: Fleet) -> FleetAnswers:
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
            for first, last in _blocks(fleet.offsets, start, end):
                _Block(fleet, policy, first, last, answers).decide()
    return answers


def _blocks(offsets: Ints, start: int, end: int) -> Iterable[tuple[int, int]]:
    while start < end:
        stop = int(np.searchsorted(offsets, offsets[start] + BLOCK_SEGMENTS, side="right")) - 1
        stop = min(max(stop, start + 1), end)
        yield start, stop
        start = stop


class _Block:
    """Neighbouring topics of one policy: their columns as views, and their answers."""

    def __init__(self, fleet: Fleet, policy: Policy, first: int, last: int, answers: FleetAnswers) -> None:
        self.policy = policy
        self.topics = slice(first, last)
        begin, end = int(fleet.offsets[first]), int(fleet.offsets[last])
        self.segments = slice(begin, end)
        self.fleet = fleet
        self.starts: Ints = fleet.offsets[first:last] - begin
        self.counts: Ints = np.diff(fleet.offsets[first : last + 1])
        self.now: Ints = fleet.now[self.topics]
        self.tick: Bools = ~fleet.by_consumer[self.topics]
        self.rates = tuple(column[self.segments] for column in fleet.rates)
        self.action, self.gate, self.reason = (
            column[self.topics] for column in (answers.action, answers.gate, answers.reason)
        )
        self.segment, self.other = answers.segment[self.topics], answers.other[self.topics]

    def decide(self) -> None:
        """The same order as `decisions.autoscale.decide.decide`."""
        policy = self.policy
        if policy.broken is not None or not policy.enabled:
            self.gate[:] = _CODE[Gate.DISABLED if policy.broken is None else Gate.INVALID_POLICY]
            return
        self.topic_of: Ints = np.repeat(np.arange(len(self.counts)), self.counts)
        self.unknown = self._unknown()
        open_decision = self.fleet.in_flight[self.topics]
        wanted = self._split_pass(open_decision)
        waiting = (self.action == HOLD) & ~open_decision
        self.gate[waiting & ~wanted & ~self.tick] = _CODE[Gate.CONSUMER_DEMAND]
        waiting &= self.tick
        merge_wanted = self._merge_pass(waiting, wanted)
        at_rest = waiting & ~wanted & ~merge_wanted
        self._rest(at_rest)
        self.gate[open_decision] = _CODE[Gate.IN_FLIGHT]
        self.gate[self.action != HOLD] = -1

    def _unknown(self) -> Bools | None:
        """Segments whose load is missing or too old to be trusted; None when there is none."""
        unknown: Bools = np.isnan(self.rates[0])
        if self.policy.max_load_age_ms:
            oldest = self.now - min(self.policy.max_load_age_ms, _LONGEST_WAIT)
            same = oldest[0] if (oldest == oldest[0]).all() else oldest[self.topic_of]
            unknown |= self.fleet.seen_at[self.segments] < same
        return unknown if unknown.any() else None

    # Pass 1: SPLIT

    def _split_pass(self, open_decision: Bools) -> Bools:
        """Answers the splits and the gates that hold those that are wanted; tells which topics want one."""
        policy = self.policy
        demand = self.fleet.required[self.topics] > self.counts
        hot = np.flatnonzero(self._hot())
        hot = hot[(self.tick & ~demand)[self.topic_of[hot]]]
        wanted: Bools = np.array(demand, np.bool_)
        wanted[self.topic_of[hot]] = True
        if not wanted.any():
            return wanted
        room = self.counts < policy.max_segments
        cooled = self._waited(self.fleet.last_split_at[self.topics], policy.split_cooldown_ms)
        backed_off = self._backed_off(_ONLY_SPLIT)
        self.gate[wanted & ~cooled] = _CODE[Gate.SPLIT_COOLDOWN]
        self.gate[wanted & ~room] = _CODE[Gate.MAX_SEGMENTS]
        self.gate[wanted & backed_off] = _CODE[Gate.RETRY_BACKOFF]
        allowed = wanted & room & cooled & ~backed_off & ~open_decision
        self.gate[allowed] = _CODE[Gate.UNSPLITTABLE]
        self._split_for_consumers(np.flatnonzero(allowed & demand))
        self._split_for_load(hot[allowed[self.topic_of[hot]]])
        return wanted

    def _hot(self) -> Bools:
        """Segments with a known rate above its split threshold: its ratio is then above 1, and the reverse."""
        limits = self.policy.split_thresholds
        hot = self.rates[0] > limits[0]
        for rate, limit in zip(self.rates[1:], limits[1:], strict=True):
            hot |= rate > limit
        if self.unknown is not None:
            hot &= ~self.unknown
        found: Bools = np.asarray(hot, np.bool_)
        return found

    def _split_for_consumers(self, topics: Ints) -> None:
        """Rule (a): the busiest segment by msgRateIn, 0 when not known."""
        if not len(topics):
            return
        segments = self._segments_of(topics)
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
        chosen = order[_firsts(topics[order])]
        at = topics[chosen]
        self.action[at] = SPLIT
        self.segment[at] = ids[chosen]
        self.reason[at] = reason[chosen]

    # Pass 2: MERGE

    def _merge_pass(self, waiting: Bools, split_wanted: Bools) -> Bools:
        """Answers the merges and the gates that hold those that are wanted; tells which topics want one."""
        policy = self.policy
        wanted = np.zeros(len(waiting), np.bool_)
        cold = self._cold()
        pairs = np.flatnonzero(cold[:-1] & cold[1:])
        if not len(pairs):
            return wanted
        topics = self.topic_of[pairs]
        real = (topics == self.topic_of[pairs + 1]) & waiting[topics]
        pairs, topics = pairs[real], topics[real]
        if not len(pairs):
            return wanted
        wanted[topics] = True

        fleet, columns = self.fleet, self.segments
        depths, began = fleet.depths[columns], fleet.cold_since[columns]
        shallow = np.maximum(depths[pairs], depths[pairs + 1]) < policy.max_dag_depth
        pairs, topics = pairs[shallow], topics[shallow]
        since = np.maximum(began[pairs], began[pairs + 1])
        longest = np.full(len(waiting), _LONGEST_WAIT, np.int64)
        firsts = _firsts(topics)
        if len(firsts):
            longest[topics[firsts]] = np.minimum.reduceat(since, firsts)

        cooled = self._waited(fleet.last_merge_at[self.topics], policy.merge_cooldown_ms)
        window = min(policy.merge_window_ms, _LONGEST_WAIT)
        is_ready = self.now - longest >= window
        shallow_topic = longest != _LONGEST_WAIT
        backed_off = self._backed_off(_ONLY_MERGE)
        floor = self.counts > policy.min_segments
        consumers = np.ones(len(waiting), np.bool_)
        if policy.merge_keeps_consumers:
            consumers = self.counts > fleet.required[self.topics]
        forbidden = backed_off | ~floor | ~consumers | ~shallow_topic

        bound = wanted & ~split_wanted
        ends_last = self._cooldown_ends_last(cooled, is_ready, longest)
        self.gate[bound & ~is_ready] = _CODE[Gate.MERGE_WINDOW]
        self.gate[bound & ends_last] = _CODE[Gate.MERGE_COOLDOWN]
        self.gate[bound & ~shallow_topic] = _CODE[Gate.MAX_DAG_DEPTH]
        self.gate[bound & ~consumers] = _CODE[Gate.MERGE_CONSUMERS]
        self.gate[bound & ~floor] = _CODE[Gate.MIN_SEGMENTS]
        self.gate[bound & backed_off] = _CODE[Gate.RETRY_BACKOFF]

        acts = wanted & ~forbidden & cooled & is_ready
        ready = acts[topics] & (self.now[topics] - since >= window)
        self._merge(pairs[ready], topics[ready])
        return wanted

    def _cold(self) -> Bools:
        """Segments whose known rates are all strictly below their merge thresholds."""
        limits = self.policy.merge_thresholds
        cold = self.rates[0] < limits[0]
        for rate, limit in zip(self.rates[1:], limits[1:], strict=True):
            cold &= rate < limit
        if self.unknown is not None:
            cold &= ~self.unknown
        found: Bools = np.asarray(cold, np.bool_)
        return found

    def _cooldown_ends_last(self, cooled: Bools, is_ready: Bools, longest: Ints) -> Bools:
        """Of the waits that have not ended, the cooldown ends last (or both at the same instant)."""
        cooldown, window = (
            min(ms, _LONGEST_WAIT // 2) for ms in (self.policy.merge_cooldown_ms, self.policy.merge_window_ms)
        )
        last = np.where(cooled, 0, self.fleet.last_merge_at[self.topics])
        cooldown_ends = np.minimum(last + cooldown, LAST_INSTANT_MS)
        window_ends = np.minimum(np.minimum(longest, _LONGEST_WAIT // 2) + window, LAST_INSTANT_MS)
        later: Bools = ~cooled & (is_ready | (cooldown_ends >= window_ends))
        return later

    def _merge(self, pairs: Ints, topics: Ints) -> None:
        """Per topic the coldest pair, of equals the first in the hash space."""
        if not len(pairs):
            return
        left = [rate[pairs] for rate in self.rates]
        right = [rate[pairs + 1] for rate in self.rates]
        if self.policy.normalized_coldness:
            limits = self.policy.merge_thresholds
            unions = [(one + other) / limit for one, other, limit in zip(left, right, limits, strict=True)]
            warmth = np.maximum.reduce(unions)
        else:
            warmth = (left[0] + left[1] + left[2] + left[3]) + (right[0] + right[1] + right[2] + right[3])
        order = np.lexsort((pairs, warmth, topics))
        chosen = order[_firsts(topics[order])]
        at, ids = topics[chosen], self.fleet.segment_ids[self.segments]
        self.action[at] = MERGE
        self.segment[at] = ids[pairs[chosen]]
        self.other[at] = ids[pairs[chosen] + 1]
        self.reason[at] = _COLD

    # What both passes use

    def _rest(self, at_rest: Bools) -> None:
        """What binds the topics that want neither: the thresholds, or the loads when none is known that could tell."""
        above_floor = self.counts > max(self.policy.min_segments, 1)
        self.gate[at_rest] = np.where(above_floor[at_rest], _CODE[Gate.MERGE_THRESHOLDS], _CODE[Gate.SPLIT_THRESHOLDS])
        if self.unknown is None:
            return
        known = ~self.unknown
        pair = known.copy()
        pair[:-1] &= known[1:] & (self.topic_of[1:] == self.topic_of[:-1])
        pair[-1] = False
        any_known, any_pair = np.logical_or.reduceat(known, self.starts), np.logical_or.reduceat(pair, self.starts)
        missing = np.logical_or.reduceat(np.isnan(self.rates[0]), self.starts)
        blind = at_rest & np.where(above_floor, ~any_pair, ~any_known)
        self.gate[blind] = np.where(missing[blind], _CODE[Gate.LOAD_MISSING], _CODE[Gate.LOAD_STALE])

    def _waited(self, since: Ints, wait_ms: int) -> Bools:
        """At least `wait_ms` have gone by, or nothing ever happened."""
        never = since == NEVER
        waited: Bools = never | (self.now - np.where(never, 0, since) >= min(wait_ms, _LONGEST_WAIT))
        return waited

    def _backed_off(self, action: int) -> Bools:
        """The pause after failures of this kind of action has not ended."""
        first = self.policy.retry_backoff_ms
        failures, failed_at = self.fleet.failures[self.topics], self.fleet.failed_at[self.topics]
        failed_action = self.fleet.failed_action[self.topics]
        concerned = (failures > 0) & (failed_at != NEVER) & ((failed_action == _EITHER) | (failed_action == action))
        if first == 0 or not concerned.any():
            return np.zeros(len(failures), np.bool_)
        if first >= MAX_BACKOFF_MS:
            pause = np.full(len(failures), min(first, _LONGEST_WAIT))
        else:
            pause = np.minimum(first << np.clip(failures - 1, 0, MAX_DOUBLINGS), MAX_BACKOFF_MS)
        waiting: Bools = concerned & (self.now - np.where(concerned, failed_at, 0) < pause)
        return waiting

    def _segments_of(self, topics: Ints) -> Ints:
        """Places of all segments of some topics, in order."""
        counts = self.counts[topics]
        begins = np.cumsum(counts) - counts
        segments: Ints = np.repeat(self.starts[topics] - begins, counts) + np.arange(int(counts.sum()))
        return segments


def _firsts(groups: Ints) -> Ints:
    """Places at which a new group begins, in groups that lie together."""
    return np.flatnonzero(np.concatenate([[True], groups[1:] != groups[:-1]])) if len(groups) else groups
