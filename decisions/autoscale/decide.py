"""decide(snapshot): the two passes of the PIP, each rule a named gate.

PIP-483 "The decision: `AutoScalePolicyEvaluator`": split first (short cooldown), then merge (long cooldown), at most
one action:

    invalid-policy . disabled . in-flight
    pass 1  retry-backoff . max-segments . split-cooldown
            (a) consumer-demand                              -> split the busiest segment
            (b) load-missing . load-stale . split-thresholds -> split the most overloaded segment
    pass 2  retry-backoff . min-segments . merge-cooldown . merge-consumers
            merge-thresholds . max-dag-depth . merge-window  -> merge the coldest neighbours

Every gate is read even when an earlier one has failed, so that a hold can say what would have to change. Which gate
binds, and whether an action that is wanted is taken, is told by `decisions.autoscale.gates.PRECEDENCE`. Pure and total.
Where the PIP is silent this is what Pulsar 5.0.0-M1 does, with every tie broken by the lowest id, of a pair by the
lowest hash start.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from decisions.autoscale.answers import Answer, Hold, Merge, Split, answer_to_wire, next_due
from decisions.autoscale.gates import PRECEDENCE, ROWS, Gate, Situation
from decisions.autoscale.policy import Policy
from decisions.autoscale.rates import MAX_RATIO, combined_rate, heat, is_cold, overload
from decisions.autoscale.snapshot import Load, TopicSnapshot
from decisions.kernel.precedence import binding
from decisions.kernel.readings import MAX_INSTANT_MS, Reading, above, at_most, below, due_at, waited
from decisions.topic.segment import Segment

__all__ = [
    "MAX_BACKOFF_MS", "Hold", "Merge", "Split", "answer_to_wire", "consumers_ask_nothing", "decide", "next_due"
]  # fmt: skip

MAX_BACKOFF_MS = 3_600_000
"""The pause after repeated failures stops doubling here (or at the policy's first pause, if that is longer)."""
MAX_DOUBLINGS = 20
Loads = Sequence[Load | None]
"""The known load of each active segment, in their order; None: missing, or too old to be trusted."""


class _SplitPass(NamedTuple):
    """What pass 1 found: its readings; the segment to split with the reason; or which readings hold a split that is
    wanted, and when time alone would let it go."""

    readings: list[Reading[Gate]]
    chosen: tuple[int, str] | None = None
    failing: Sequence[Reading[Gate]] = ()
    due: int | None = None


class _MergePass(NamedTuple):
    """The same of pass 2, with the pair to merge."""

    readings: list[Reading[Gate]]
    chosen: tuple[int, int] | None = None
    failing: Sequence[Reading[Gate]] = ()
    due: int | None = None


def decide(snapshot: TopicSnapshot) -> Answer:
    """The one action to take now, or why none."""
    switched_off = _switched_off(snapshot)
    if switched_off:
        bound = binding(PRECEDENCE, {Situation.SWITCHED_OFF: switched_off})
        return Hold(bound, (bound,))
    loads = _known_loads(snapshot)
    split = _split_pass(snapshot, loads)
    if split.chosen is not None:
        return Split(*split.chosen, tuple(split.readings))
    found = {Situation.WANTS_TO_SPLIT: split.failing} if split.failing else {}
    if snapshot.trigger == "consumer":
        gates = [*split.readings, Reading(Gate.NOT_THIS_TRIGGER, False)]
        found[Situation.NO_DEMAND] = gates
        return Hold(binding(PRECEDENCE, found), tuple(gates), split.due)
    merge = _merge_pass(snapshot, loads)
    # A back-off from both actions is read in both passes, and told once.
    rest = [one for one in merge.readings if one.gate is not Gate.RETRY_BACKOFF or one not in split.readings]
    gates = [*split.readings, *rest]
    if merge.chosen is not None:
        return Merge(merge.chosen, "cold", tuple(gates))
    if merge.failing:
        found[Situation.WANTS_TO_MERGE] = merge.failing
    found[_rest(snapshot, loads)] = gates
    due = min((due for due in (split.due, merge.due) if due is not None), default=None)
    return Hold(binding(PRECEDENCE, found), tuple(gates), due)


def consumers_ask_nothing(policy: Policy, required: int, active: int, is_open: bool) -> bool:
    """Whether `decide` answers a consumer event with a hold for `consumer-demand`, whatever else it would see: scaling
    is not switched off, and `active` segments are enough for the `required`."""
    return policy.broken is None and policy.enabled and not is_open and required <= active


def _switched_off(snapshot: TopicSnapshot) -> list[Reading[Gate]]:
    """What switches scaling off for this topic: its policy, or its open decision.

    PIP-483 "Policy resolution (namespace + topic overrides)"; the in-flight guard is that of
    PIP-483 "Pass 1 — SPLIT (fast, lightly coalesced)".
    """
    readings = []
    if snapshot.policy.broken is not None:
        readings.append(Reading(Gate.INVALID_POLICY, False, detail=snapshot.policy.broken))
    if not snapshot.policy.enabled:
        readings.append(Reading(Gate.DISABLED, False))
    if snapshot.in_flight is not None:
        readings.append(Reading(Gate.IN_FLIGHT, False, measured=float(snapshot.now - snapshot.in_flight[1])))
    return readings


def _rest(snapshot: TopicSnapshot, loads: Loads) -> Situation:
    """Where a topic stands that wants neither to split nor to merge."""
    if len(loads) > max(snapshot.policy.min_segments, 1):
        can_tell = any(left and right for left, right in pairwise(loads))
        return Situation.ABOVE_FLOOR if can_tell else Situation.UNKNOWN_LOAD
    return Situation.AT_FLOOR if any(loads) else Situation.UNKNOWN_LOAD


# Pass 1: SPLIT (fast, lightly coalesced)


def _split_pass(snapshot: TopicSnapshot, loads: Loads) -> _SplitPass:
    """PIP-483 "Pass 1 — SPLIT (fast, lightly coalesced)"; a consumer event evaluates rule (a) only, as
    PIP-483 "Evaluation triggers" says. `maxSegments` is one of PIP-483 "Caps"."""
    policy, active = snapshot.policy, snapshot.layout.active
    readings = _backoff(snapshot, "split")
    readings.append(below(Gate.MAX_SEGMENTS, len(active), policy.max_segments))
    readings.append(waited(Gate.SPLIT_COOLDOWN, snapshot.now, snapshot.last_split_at, policy.split_cooldown_ms))
    demand = above(Gate.CONSUMER_DEMAND, snapshot.required_segments, len(active))
    readings.append(demand)
    fresh_until = MAX_INSTANT_MS
    if demand.passed:
        chosen, reason = _busiest(snapshot, loads), "consumer-count"
        if chosen is None:
            readings.append(_unsplittable(active[0]))
    elif snapshot.trigger == "consumer":
        return _SplitPass(readings)
    else:
        readings += _evidence(snapshot)
        chosen, reason, overloaded = _most_overloaded(snapshot, loads, readings)
        if not overloaded:
            return _SplitPass(readings)
        fresh_until = max(_fresh_until(snapshot, loads[at]) for at in overloaded)

    failing = ROWS[Situation.WANTS_TO_SPLIT].failing(readings)
    if failing:
        return _SplitPass(readings, failing=failing, due=due_at(failing, fresh_until))
    assert chosen is not None
    return _SplitPass(readings, (chosen.segment_id, reason))


def _busiest(snapshot: TopicSnapshot, loads: Loads) -> Segment | None:
    """Rule (a): the active segment with the highest msgRateIn, 0 when not known. None: all are unsplittable."""
    best, best_rate = None, -1.0
    for segment, load in zip(snapshot.layout.active, loads, strict=True):
        if snapshot.policy.skip_unsplittable and segment.width == 1:
            continue
        rate = 0.0 if load is None else load.msg_rate_in
        if rate > best_rate or (rate == best_rate and best is not None and segment.segment_id < best.segment_id):
            best, best_rate = segment, rate
    return best


def _most_overloaded(
    snapshot: TopicSnapshot, loads: Loads, readings: list[Reading[Gate]]
) -> tuple[Segment | None, str, list[int]]:
    """Rule (b): the segment with the highest overload above 1, the rate that this is of, and the places of all that
    could be chosen (of all that are overloaded, when none of them can be split)."""
    active, skip = snapshot.layout.active, snapshot.policy.skip_unsplittable
    scores = [None if load is None else overload(load.rates, snapshot.policy) for load in loads]
    overloaded = [at for at, score in enumerate(scores) if score is not None and score[0] > 1.0]
    splittable = [at for at in overloaded if active[at].width > 1] if skip else overloaded
    shown, shown_score = None, (-1.0, "")
    for at in splittable or overloaded or range(len(scores)):
        score = scores[at]
        if score is None:
            continue
        segment = active[at]
        if shown is None or score[0] > shown_score[0] or (
            score[0] == shown_score[0] and segment.segment_id < shown.segment_id
        ):  # fmt: skip
            shown, shown_score = segment, score
    if shown is None:
        readings.append(Reading(Gate.SPLIT_THRESHOLDS, False, limit=1.0))
        return None, "", []
    readings.append(above(Gate.SPLIT_THRESHOLDS, min(shown_score[0], MAX_RATIO), 1.0, shown.segment_id))
    if overloaded and not splittable:
        readings.append(_unsplittable(shown))
        return None, "", overloaded
    return shown, shown_score[1], splittable


def _unsplittable(segment: Segment) -> Reading[Gate]:
    return above(Gate.UNSPLITTABLE, segment.width, 1, segment.segment_id)


# Pass 2: MERGE (lazy, rate-limited)


def _merge_pass(snapshot: TopicSnapshot, loads: Loads) -> _MergePass:
    """PIP-483 "Pass 2 — MERGE (lazy, rate-limited)"; `minSegments` and `maxDagDepth` are of PIP-483 "Caps"."""
    policy, active, now = snapshot.policy, snapshot.layout.active, snapshot.now
    readings = _backoff(snapshot, "merge")
    readings.append(above(Gate.MIN_SEGMENTS, len(active), policy.min_segments))
    readings.append(waited(Gate.MERGE_COOLDOWN, now, snapshot.last_merge_at, policy.merge_cooldown_ms))
    if policy.merge_keeps_consumers:
        readings.append(above(Gate.MERGE_CONSUMERS, len(active), snapshot.required_segments))

    cold = [load is not None and is_cold(load.rates, policy) for load in loads]
    pairs = [at for at in range(len(cold) - 1) if cold[at] and cold[at + 1]]
    readings.append(_coldness(snapshot, loads, pairs))
    if not pairs:
        return _MergePass(readings)

    depths = {at: max(snapshot.merge_depth(active[i].segment_id) for i in (at, at + 1)) for at in pairs}
    shallowest = min(pairs, key=depths.__getitem__)
    depth = below(Gate.MAX_DAG_DEPTH, depths[shallowest], policy.max_dag_depth, active[shallowest].segment_id)
    readings.append(depth)
    if not depth.passed:
        return _MergePass(readings, failing=ROWS[Situation.WANTS_TO_MERGE].failing(readings))

    pairs = [at for at in pairs if depths[at] < policy.max_dag_depth]
    starts = [0 if load is None else load.window_start(policy) for load in loads]
    since = {at: max(starts[at], starts[at + 1]) for at in pairs}
    longest = min(pairs, key=since.__getitem__)
    readings.append(waited(Gate.MERGE_WINDOW, now, since[longest], policy.merge_window_ms, active[longest].segment_id))
    failing = ROWS[Situation.WANTS_TO_MERGE].failing(readings)
    if not failing:
        ready = [at for at in pairs if now - since[at] >= policy.merge_window_ms]
        coldest = min(ready, key=lambda at: _combined_rate(snapshot, loads[at], loads[at + 1]))
        return _MergePass(readings, (active[coldest].segment_id, active[coldest + 1].segment_id))

    # Each pair has a window of its own, and the load of the pair whose window ends first may be too old by then.
    others = (reading for reading in failing if reading.gate is not Gate.MERGE_WINDOW)
    others_open = due_at(others, at_least=now)
    if others_open is None:
        return _MergePass(readings, failing=failing)
    fresh_until = [_fresh_until(snapshot, load) for load in loads]
    ends = ((max(others_open, since[at] + policy.merge_window_ms), at) for at in pairs)
    dues = [end for end, at in ends if end <= min(fresh_until[at : at + 2]) and end < MAX_INSTANT_MS]
    return _MergePass(readings, failing=failing, due=min(dues, default=None))


def _coldness(snapshot: TopicSnapshot, loads: Loads, cold_pairs: Sequence[int]) -> Reading[Gate]:
    """The heat of the coldest two neighbours with known loads, and the hotter one of them."""
    known = cold_pairs or [at for at in range(len(loads) - 1) if loads[at] and loads[at + 1]]
    if not known:
        return Reading(Gate.MERGE_THRESHOLDS, False, limit=1.0)
    heats = [MAX_RATIO if load is None else heat(load.rates, snapshot.policy) for load in loads]
    hotter = [left if left > right else right for left, right in pairwise(heats)]
    nearest = min(known, key=hotter.__getitem__)
    ratio = hotter[nearest]
    hottest = nearest if heats[nearest] == ratio else nearest + 1
    segment = snapshot.layout.active[hottest].segment_id
    return Reading(Gate.MERGE_THRESHOLDS, bool(cold_pairs), ratio, 1.0, 1.0 - ratio, segment=segment)


def _combined_rate(snapshot: TopicSnapshot, left: Load | None, right: Load | None) -> float:
    assert left is not None
    assert right is not None
    return combined_rate(left.rates, right.rates, snapshot.policy)


# Loads: which are known, and until when


def _known_loads(snapshot: TopicSnapshot) -> Loads:
    """The load of each active segment, unless it is missing or, by the guard, too old to be trusted."""
    found = snapshot.loads.get
    loads = [found(segment.segment_id) for segment in snapshot.layout.active]
    if snapshot.policy.max_load_age_ms == 0:
        return loads
    oldest = snapshot.now - snapshot.policy.max_load_age_ms
    return [load if load is not None and load.last_seen_at >= oldest else None for load in loads]


def _evidence(snapshot: TopicSnapshot) -> list[Reading[Gate]]:
    """What is not known of the load, before it is judged."""
    active, found = snapshot.layout.active, snapshot.loads
    missing = [segment.segment_id for segment in active if segment.segment_id not in found]
    readings = [at_most(Gate.LOAD_MISSING, len(missing), 0, missing[0] if missing else None)]
    limit = snapshot.policy.max_load_age_ms
    if limit and len(missing) < len(active):
        known = [segment for segment in active if segment.segment_id in found] if missing else active
        seen = [found[segment.segment_id].last_seen_at for segment in known]
        oldest = min(seen)
        segment_id = known[seen.index(oldest)].segment_id
        readings.append(at_most(Gate.LOAD_STALE, snapshot.now - oldest, limit, segment_id))
    return readings


def _fresh_until(snapshot: TopicSnapshot, load: Load | None) -> int:
    """The last instant at which a known load is still known."""
    if load is None or snapshot.policy.max_load_age_ms == 0:
        return MAX_INSTANT_MS
    return load.last_seen_at + snapshot.policy.max_load_age_ms


def _backoff(snapshot: TopicSnapshot, action: str) -> list[Reading[Gate]]:
    """The pause after decisions of this kind that ended without effect; empty when there is none to make."""
    first = snapshot.policy.retry_backoff_ms
    if first == 0 or snapshot.failures == 0 or snapshot.failed_at is None:
        return []
    if snapshot.failed_action is not None and snapshot.failed_action != action:
        return []
    pause = min(first << min(snapshot.failures - 1, MAX_DOUBLINGS), max(first, MAX_BACKOFF_MS))
    return [waited(Gate.RETRY_BACKOFF, snapshot.now, snapshot.failed_at, pause)]
