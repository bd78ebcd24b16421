"""decide(snapshot): the two passes of the PIP, each rule a named gate.

PIP-483 "The decision: `AutoScalePolicyEvaluator`": split first (short cooldown), then merge (long cooldown), at most
one action:

    invalid-policy . disabled . in-flight
    lane    entry-buckets . rebucket-cooldown . max-entry-buckets -> rebucket all that have too few buckets
    pass 1  retry-backoff . max-segments . split-cooldown
            (a) consumer-demand . unsplittable               -> split the busiest segment
            not-this-trigger: here a consumer event ends
            (b) load-missing . load-stale . split-thresholds . unsplittable . one-hot-key
                                                             -> split the most overloaded segment
    pass 2  retry-backoff . min-segments . merge-cooldown . merge-consumers
            merge-thresholds . max-dag-depth . merge-capacity . merge-window . settling
                                                             -> merge the coldest neighbours

The lane is Pulsar 5.0's: where consumers share segments it stands in for rule (a) unless a split is worth its segment.
Every gate is read even when an earlier one has failed, so that a hold can say what would have to change. Which gate
binds, and whether an action that is wanted is taken, is told by `decisions.autoscale.gates.PRECEDENCE`. Pure and total.
Where the PIP is silent this is what Pulsar 5.0.0-M1 does, with every tie broken by the lowest id, of a pair by the
lowest hash start.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from decisions.autoscale.answers import Answer, Hold, Merge, Rebucket, Split, next_due
from decisions.autoscale.gates import PRECEDENCE, Gate, Situation
from decisions.autoscale.known import MAX_BACKOFF_MS, MAX_DOUBLINGS, Loads, known_loads
from decisions.autoscale.merge_pass import MergePass, merge_pass
from decisions.autoscale.policy import Policy
from decisions.autoscale.rebucket_pass import rebucket_pass
from decisions.autoscale.snapshot import TopicSnapshot
from decisions.autoscale.split_pass import SplitPass, hot_keys_after, split_pass
from decisions.kernel.precedence import binding_reading
from decisions.kernel.readings import Reading

__all__ = [
    "MAX_BACKOFF_MS",
    "MAX_DOUBLINGS",
    "Hold",
    "Merge",
    "Rebucket",
    "Split",
    "consumers_ask_nothing",
    "decide",
    "hot_keys_after",
    "next_due",
]


def decide(snapshot: TopicSnapshot) -> Answer:
    """Decide what to do now, or why nothing.

    With the guard `parallelActions` there may be several actions, on disjoint parts of the key space: the first one
    contains the others. A merge that waits to be applied then does not hold splits.
    """
    switched_off = _switched_off(snapshot)
    only_merges_wait = snapshot.may_split_meanwhile and all(answer.gate is Gate.IN_FLIGHT for answer in switched_off)
    if switched_off and not only_merges_wait:
        bound = binding_reading(PRECEDENCE, {Situation.SWITCHED_OFF: switched_off})
        return Hold(bound, (bound,))
    loads = known_loads(snapshot)
    keys = hot_keys_after(snapshot) if snapshot.policy.hot_key_splits else ()
    lane = rebucket_pass(snapshot, loads)
    split = split_pass(snapshot, loads, keys, lane)
    if lane is not None and lane.chosen and not only_merges_wait:
        return Rebucket(lane.chosen, lane.bucket_count, lane.reason, tuple(split.readings))
    if only_merges_wait:
        gates = [*switched_off, *split.readings]
        if split.chosen:
            return _answer_actions(split, MergePass([]), gates)
        held = {Situation.WANTS_TO_SPLIT: split.failing} if split.failing else {Situation.SWITCHED_OFF: switched_off}
        return Hold(binding_reading(PRECEDENCE, held), tuple(gates), split.due)
    is_tick, parallel = snapshot.trigger == "tick", snapshot.policy.parallel_actions
    if split.chosen and not (is_tick and parallel):
        return _answer_actions(split, MergePass([]), split.readings)
    readings_of = {Situation.WANTS_TO_SPLIT: split.failing} if split.failing else {}
    dues = [split.due]
    if lane is not None and lane.failing:
        readings_of[Situation.WANTS_TO_REBUCKET] = lane.failing
        dues.append(lane.due)
    if snapshot.policy.as_shipped and [reading.gate for reading in split.failing] == [Gate.UNSPLITTABLE]:
        # Pulsar 5.0.1 goes on after whatever else blocks a pass, and not after this.
        return Hold(split.failing[0], tuple(split.readings))
    if not is_tick:
        gates = [*split.readings, Reading(Gate.NOT_THIS_TRIGGER, False)]
        readings_of[Situation.NO_DEMAND] = gates
        return Hold(binding_reading(PRECEDENCE, readings_of), tuple(gates), _earliest_due(dues))
    merge = merge_pass(snapshot, loads, keys, [segment for segment, _ in split.chosen])
    # A back-off from both actions is read in both passes, and told once.
    merge_gates = [
        answer for answer in merge.readings if answer.gate is not Gate.RETRY_BACKOFF or answer not in split.readings
    ]
    gates = [*split.readings, *merge_gates]
    if split.chosen or merge.chosen:
        return _answer_actions(split, merge, gates)
    if merge.failing:
        readings_of[Situation.WANTS_TO_MERGE] = merge.failing
    readings_of[_situation_at_rest(snapshot, loads)] = gates
    return Hold(binding_reading(PRECEDENCE, readings_of), tuple(gates), _earliest_due([*dues, merge.due]))


def _earliest_due(dues: Sequence[int | None]) -> int | None:
    return min((due for due in dues if due is not None), default=None)


def _answer_actions(split: SplitPass, merge: MergePass, gates: Sequence[Reading[Gate]]) -> Answer:
    """Return the first action with the gates; its `also` holds the other actions."""
    read = tuple(gates)
    actions: list[Split | Merge] = [Split(segment, reason, read) for segment, reason in split.chosen]
    actions += [Merge(pair, "cold", read) for pair in merge.chosen]
    return replace(actions[0], also=tuple(actions[1:]))


def consumers_ask_nothing(policy: Policy, required: int, active: int, is_open: bool) -> bool:
    """Tell if `decide` answers any consumer event with `consumer-demand`: `active` segments are enough."""
    return policy.broken is None and policy.enabled and not is_open and required <= active


def _switched_off(snapshot: TopicSnapshot) -> list[Reading[Gate]]:
    """Return the readings that switch scaling off for this topic: its policy, or its open decision.

    PIP-483 "Policy resolution (namespace + topic overrides)"; the in-flight guard is that of
    PIP-483 "Pass 1 — SPLIT (fast, lightly coalesced)". `consumers_ask_nothing` repeats these conditions.
    """
    readings = []
    if snapshot.policy.broken is not None:
        readings.append(Reading(Gate.INVALID_POLICY, False, detail=snapshot.policy.broken))
    if not snapshot.policy.enabled:
        readings.append(Reading(Gate.DISABLED, False))
    if snapshot.in_flight is not None:
        readings.append(Reading(Gate.IN_FLIGHT, False, measured=float(snapshot.now - snapshot.in_flight[1])))
    return readings


def _situation_at_rest(snapshot: TopicSnapshot, loads: Loads) -> Situation:
    """Return the situation of a topic that needs neither a split nor a merge."""
    if len(loads) > max(snapshot.policy.min_segments, 1):
        can_tell = any(left and right for left, right in pairwise(loads))
        return Situation.ABOVE_FLOOR if can_tell else Situation.UNKNOWN_LOAD
    return Situation.AT_FLOOR if any(loads) else Situation.UNKNOWN_LOAD
