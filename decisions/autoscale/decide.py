"""decide(snapshot): the two passes of PIP-483 "The decision: AutoScalePolicyEvaluator", each rule a named gate.

Split first (short cooldown), then merge (long cooldown), at most one action:

    invalid-policy . disabled . in-flight
    pass 1  retry-backoff . max-segments . split-cooldown
            (a) consumer-demand                              -> split the busiest segment
            (b) load-missing . load-stale . split-thresholds -> split the most overloaded segment
    pass 2  retry-backoff . min-segments . merge-cooldown . merge-consumers
            merge-thresholds . max-dag-depth . merge-window  -> merge the coldest neighbours

Every gate is read even when an earlier one has failed, so that a hold can say what would have to change; which gate
binds is told in docs/gates.md. Pure and total. Where the PIP is silent this is what Pulsar 5.0.0-M1 does, with every
tie broken by the lowest id, of a pair by the lowest hash start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from decisions.autoscale.answers import Answer, Hold, Merge, Split, answer_to_wire, next_due
from decisions.autoscale.gates import Gate, Reading
from decisions.autoscale.rates import MAX_RATIO, heat, is_cold, overload, warmth
from decisions.autoscale.snapshot import Load, TopicSnapshot
from decisions.topic.layout import Segment

__all__ = ["MAX_BACKOFF_MS", "Hold", "Merge", "Split", "answer_to_wire", "decide", "next_due"]

MAX_BACKOFF_MS = 3_600_000
"""The pause after repeated failures stops doubling here (or at the policy's first pause, if that is longer)."""
MAX_DOUBLINGS = 20
LAST_INSTANT_MS = 253_402_300_799_000
"""Year 9999: what would be eligible later counts as never."""
Loads = Sequence[Load | None]
"""The known load of each active segment, in their order; None: missing, or too old to be trusted."""
Held = tuple[Reading, int | None]
"""What holds an action that is wanted, and when time alone would let it go."""


def decide(snapshot: TopicSnapshot) -> Answer:
    """The one action to take now, or why none."""
    switched_off = _switched_off(snapshot)
    if switched_off is not None:
        return Hold(switched_off, (switched_off,))
    gates: list[Reading] = []
    loads = _known_loads(snapshot)
    split = _split_pass(snapshot, loads, gates)
    if isinstance(split, Split):
        return split
    if snapshot.trigger == "consumer":
        gates.append(Reading(Gate.NOT_THIS_TRIGGER, False))
        binding, due = split or (_reading_of(Gate.CONSUMER_DEMAND, gates), None)
        return Hold(binding, tuple(gates), due)
    merge = _merge_pass(snapshot, loads, gates)
    if isinstance(merge, Merge):
        return merge
    binding, due = split or merge or (_at_rest(snapshot, loads, gates), None)
    if split is not None and merge is not None:
        due = min((instant for instant in (split[1], merge[1]) if instant is not None), default=None)
    return Hold(binding, tuple(gates), due)


def _switched_off(snapshot: TopicSnapshot) -> Reading | None:
    """PIP-483 "Policy resolution" and the in-flight guard of "Pass 1": nothing else is looked at."""
    if snapshot.policy.broken is not None:
        return Reading(Gate.INVALID_POLICY, False, detail=snapshot.policy.broken)
    if not snapshot.policy.enabled:
        return Reading(Gate.DISABLED, False)
    if snapshot.in_flight is not None:
        return Reading(Gate.IN_FLIGHT, False, measured=float(snapshot.now - snapshot.in_flight[1]))
    return None


def _at_rest(snapshot: TopicSnapshot, loads: Loads, gates: list[Reading]) -> Reading:
    """What binds a topic that wants neither to split nor to merge."""
    above_floor = len(loads) > max(snapshot.policy.min_segments, 1)
    if above_floor and any(left and right for left, right in pairwise(loads)):
        return _reading_of(Gate.MERGE_THRESHOLDS, gates)
    if not above_floor and any(loads):
        return _reading_of(Gate.SPLIT_THRESHOLDS, gates)
    missing = _reading_of(Gate.LOAD_MISSING, gates)
    return _reading_of(Gate.LOAD_STALE, gates) if missing.passed else missing


# Pass 1: SPLIT (fast, lightly coalesced)


def _split_pass(snapshot: TopicSnapshot, loads: Loads, gates: list[Reading]) -> Split | Held | None:
    """The split; or what holds one that is wanted; or None when none is wanted."""
    policy, active = snapshot.policy, snapshot.layout.active
    backoff = _backoff(snapshot, "split")
    if backoff is not None:
        gates.append(backoff)
    room = _below(Gate.MAX_SEGMENTS, len(active), policy.max_segments)
    cooldown = _waited(Gate.SPLIT_COOLDOWN, snapshot.now, snapshot.last_split_at, policy.split_cooldown_ms)
    gates += (room, cooldown)

    required = snapshot.required_segments
    demand = _above(Gate.CONSUMER_DEMAND, required, len(active))
    gates.append(demand)
    fresh_until = LAST_INSTANT_MS
    if demand.passed:
        chosen, reason = _busiest(snapshot, loads), "consumer-count"
        if chosen is None:
            gates.append(_unsplittable(active[0]))
    elif snapshot.trigger == "consumer":
        return None
    else:
        gates += _evidence(snapshot, loads)
        chosen, reason, overloaded = _most_overloaded(snapshot, loads, gates)
        if not overloaded:
            return None
        fresh_until = max(_fresh_until(snapshot, loads[at]) for at in overloaded)

    for forbidding in (backoff, room, cooldown):
        if forbidding is not None and not forbidding.passed:
            possible = room.passed and chosen is not None
            due = _due((backoff, cooldown), fresh_until) if possible else None
            return forbidding, due
    if chosen is None:
        return _reading_of(Gate.UNSPLITTABLE, gates), None
    return Split(chosen.segment_id, reason, tuple(gates))


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
    snapshot: TopicSnapshot, loads: Loads, gates: list[Reading]
) -> tuple[Segment | None, str, list[int]]:
    """Rule (b): the segment whose largest rate / split threshold is above 1 and highest, the rate that it is of, and
    the places of all that could be chosen (of all that are above, when none of them can be split)."""
    active, skip = snapshot.layout.active, snapshot.policy.skip_unsplittable
    scores = [None if load is None else overload(load.rates, snapshot.policy) for load in loads]
    above = [at for at, score in enumerate(scores) if score is not None and score[0] > 1.0]
    splittable = [at for at in above if active[at].width > 1] if skip else above
    shown, shown_score = None, (-1.0, "")
    for at in splittable or above or range(len(scores)):
        score = scores[at]
        if score is None:
            continue
        segment = active[at]
        if shown is None or score[0] > shown_score[0] or (
            score[0] == shown_score[0] and segment.segment_id < shown.segment_id
        ):  # fmt: skip
            shown, shown_score = segment, score
    if shown is None:
        gates.append(Reading(Gate.SPLIT_THRESHOLDS, False, limit=1.0))
        return None, "", []
    gates.append(_above(Gate.SPLIT_THRESHOLDS, min(shown_score[0], MAX_RATIO), 1.0, shown.segment_id))
    if above and not splittable:
        gates.append(_unsplittable(shown))
        return None, "", above
    return shown, shown_score[1], splittable


def _unsplittable(segment: Segment) -> Reading:
    return Reading(Gate.UNSPLITTABLE, False, float(segment.width), 1.0, segment.width - 1.0, segment=segment.segment_id)


# Pass 2: MERGE (lazy, rate-limited)


def _merge_pass(snapshot: TopicSnapshot, loads: Loads, gates: list[Reading]) -> Merge | Held | None:
    """The merge; or what holds one that is wanted; or None when no neighbours are both cold."""
    policy, active, now = snapshot.policy, snapshot.layout.active, snapshot.now
    backoff = _backoff(snapshot, "merge")
    if backoff is not None and backoff not in gates:
        gates.append(backoff)
    floor = _above(Gate.MIN_SEGMENTS, len(active), policy.min_segments)
    cooldown = _waited(Gate.MERGE_COOLDOWN, now, snapshot.last_merge_at, policy.merge_cooldown_ms)
    gates += (floor, cooldown)
    forbidding = [reading for reading in (backoff, floor) if reading is not None and not reading.passed]
    if policy.merge_keeps_consumers:
        consumers = _above(Gate.MERGE_CONSUMERS, len(active), snapshot.required_segments)
        gates.append(consumers)
        if not consumers.passed:
            forbidding.append(consumers)

    cold = [load is not None and is_cold(load.rates, policy) for load in loads]
    pairs = [at for at in range(len(cold) - 1) if cold[at] and cold[at + 1]]
    gates.append(_coldness(snapshot, loads, pairs))
    if not pairs:
        return None

    depths = {at: max(snapshot.merge_depth(active[i].segment_id) for i in (at, at + 1)) for at in pairs}
    shallowest = min(pairs, key=depths.__getitem__)
    depth = _below(Gate.MAX_DAG_DEPTH, depths[shallowest], policy.max_dag_depth, active[shallowest].segment_id)
    gates.append(depth)
    if not depth.passed:
        return (forbidding[0] if forbidding else depth), None

    pairs = [at for at in pairs if depths[at] < policy.max_dag_depth]
    since = {at: max(_cold_since(snapshot, loads[at]), _cold_since(snapshot, loads[at + 1])) for at in pairs}
    longest = min(pairs, key=since.__getitem__)
    window = _waited(Gate.MERGE_WINDOW, now, since[longest], policy.merge_window_ms, segment=active[longest].segment_id)
    gates.append(window)
    waits = [reading for reading in (cooldown, window) if not reading.passed]
    if not forbidding and not waits:
        ready = [at for at in pairs if now - since[at] >= policy.merge_window_ms]
        coldest = min(ready, key=lambda at: _pair_warmth(snapshot, loads[at], loads[at + 1]))
        return Merge((active[coldest].segment_id, active[coldest + 1].segment_id), "cold", tuple(gates))

    binding = forbidding[0] if forbidding else max(waits, key=_ends_at)
    if any(reading is not backoff for reading in forbidding):
        return binding, None
    dues = []
    for at in pairs:
        until = min(_fresh_until(snapshot, loads[at]), _fresh_until(snapshot, loads[at + 1]))
        due = _due((backoff, cooldown), until, since[at] + policy.merge_window_ms)
        if due is not None:
            dues.append(due)
    return binding, min(dues, default=None)


def _coldness(snapshot: TopicSnapshot, loads: Loads, cold_pairs: Sequence[int]) -> Reading:
    """How near to being cold the neighbours with known loads are that are nearest."""
    known = cold_pairs or [at for at in range(len(loads) - 1) if loads[at] and loads[at + 1]]
    if not known:
        return Reading(Gate.MERGE_THRESHOLDS, False, limit=1.0)
    heats = [MAX_RATIO if load is None else heat(load.rates, snapshot.policy) for load in loads]
    warmer = [left if left > right else right for left, right in pairwise(heats)]
    nearest = min(known, key=warmer.__getitem__)
    ratio = warmer[nearest]
    warmest = nearest if heats[nearest] == ratio else nearest + 1
    segment = snapshot.layout.active[warmest].segment_id
    return Reading(Gate.MERGE_THRESHOLDS, bool(cold_pairs), ratio, 1.0, 1.0 - ratio, segment=segment)


def _cold_since(snapshot: TopicSnapshot, load: Load | None) -> int:
    """When the window of a cold segment began: with its record, or by the guard when it fell below the thresholds."""
    assert load is not None
    if snapshot.policy.cold_since_threshold and load.cold_since is not None:
        return load.cold_since
    return load.modified_at


def _pair_warmth(snapshot: TopicSnapshot, left: Load | None, right: Load | None) -> float:
    assert left is not None
    assert right is not None
    return warmth(left.rates, right.rates, snapshot.policy)


# Loads: which are known, and until when


def _known_loads(snapshot: TopicSnapshot) -> Loads:
    """The load of each active segment, unless it is missing or, by the guard, too old to be trusted."""
    found = snapshot.loads.get
    loads = [found(segment.segment_id) for segment in snapshot.layout.active]
    if snapshot.policy.max_load_age_ms == 0:
        return loads
    oldest = snapshot.now - snapshot.policy.max_load_age_ms
    return [load if load is not None and _seen_at(load) >= oldest else None for load in loads]


def _evidence(snapshot: TopicSnapshot, loads: Loads) -> list[Reading]:
    """What is not known of the load, before it is judged."""
    active, found = snapshot.layout.active, snapshot.loads
    missing = [segment.segment_id for segment in active if segment.segment_id not in found]
    count = float(len(missing))
    readings = [
        Reading(Gate.LOAD_MISSING, not missing, count, 0.0, 0.0 - count, segment=missing[0] if missing else None)
    ]
    limit = snapshot.policy.max_load_age_ms
    if limit and len(missing) < len(active):
        known = [segment for segment in active if segment.segment_id in found] if missing else active
        seen = [_seen_at(found[segment.segment_id]) for segment in known]
        oldest = min(seen)
        age, segment_id = snapshot.now - oldest, known[seen.index(oldest)].segment_id
        readings.append(
            Reading(Gate.LOAD_STALE, age <= limit, float(age), float(limit), float(limit - age), segment=segment_id)
        )
    return readings


def _seen_at(load: Load) -> int:
    return load.modified_at if load.seen_at is None else load.seen_at


def _fresh_until(snapshot: TopicSnapshot, load: Load | None) -> int:
    """The last instant at which a known load is still known."""
    if load is None or snapshot.policy.max_load_age_ms == 0:
        return LAST_INSTANT_MS
    return _seen_at(load) + snapshot.policy.max_load_age_ms


# Readings


def _backoff(snapshot: TopicSnapshot, action: str) -> Reading | None:
    """The pause after decisions of this kind that ended without effect; None when there is none to make."""
    first = snapshot.policy.retry_backoff_ms
    if first == 0 or snapshot.failures == 0 or snapshot.failed_at is None:
        return None
    if snapshot.failed_action is not None and snapshot.failed_action != action:
        return None
    pause = min(first << min(snapshot.failures - 1, MAX_DOUBLINGS), max(first, MAX_BACKOFF_MS))
    return _waited(Gate.RETRY_BACKOFF, snapshot.now, snapshot.failed_at, pause)


def _waited(gate: Gate, now: int, since: int | None, wait_ms: int, segment: int | None = None) -> Reading:
    """Passes when at least `wait_ms` have gone by since `since`, or nothing ever happened. Exactly equal passes."""
    if since is None:
        return Reading(gate, True, None, float(wait_ms))
    elapsed = now - since
    passed = elapsed >= wait_ms
    ends = since + wait_ms
    eligible_at = None if passed or ends > LAST_INSTANT_MS else ends
    return Reading(gate, passed, float(elapsed), float(wait_ms), float(elapsed - wait_ms), eligible_at, segment)


def _above(gate: Gate, measured: float, limit: float, segment: int | None = None) -> Reading:
    return Reading(gate, measured > limit, float(measured), float(limit), float(measured - limit), None, segment)


def _below(gate: Gate, measured: float, limit: float, segment: int | None = None) -> Reading:
    return Reading(gate, measured < limit, float(measured), float(limit), float(limit - measured), None, segment)


def _reading_of(gate: Gate, gates: Sequence[Reading]) -> Reading:
    return next(reading for reading in gates if reading.gate is gate)


def _ends_at(wait: Reading) -> int:
    return LAST_INSTANT_MS if wait.eligible_at is None else wait.eligible_at


def _due(waits: Iterable[Reading | None], until: int, at_least: int = 0) -> int | None:
    """The instant at which the last of these waits has ended, unless that is after `until`."""
    due = max([at_least, *(_ends_at(wait) for wait in waits if wait is not None and not wait.passed)])
    return due if due <= until and due < LAST_INSTANT_MS else None
