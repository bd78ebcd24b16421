"""decide(snapshot): the two passes of PIP-483, each rule a named gate, in the PIP's order.

Split first (short cooldown), then merge (long cooldown), at most one action (PIP-483 "The decision"):

    off?  in flight?  backing off?
    pass 1   max segments . split cooldown . (a) consumers without a segment . (b) a rate above its split threshold
    pass 2   min segments . consumers kept . a pair known, cold, not too deep . merge cooldown . cold for the window

The answer is a value: `Split`, `Merge` or `Hold`, each with every gate that was looked at; a hold names the binding one
(the rule is in docs/gates.md). Pure and total: no snapshot of valid values raises. Where the PIP is silent, this is
what Pulsar 5.0.0-M1 does, with every tie broken by the lowest id, of a pair by the lowest hash start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from decisions.gates import Gate, Reading
from decisions.layout import Segment
from decisions.significance import is_cold
from decisions.snapshot import Load, TopicSnapshot
from schemas.metadata import RATES
from schemas.snapshot import GateReading, HoldAnswer, MergeAnswer, SplitAnswer

MAX_BACKOFF_MS = 3_600_000
"""The back-off after repeated failures stops doubling here."""


@dataclass(frozen=True, slots=True)
class Split:
    """Split one segment. `reason` is `consumer-count` or the rate that is furthest over its threshold."""

    segment: int
    reason: str
    gates: tuple[Reading, ...]


@dataclass(frozen=True, slots=True)
class Merge:
    """Merge two neighbours, in the order of their ranges."""

    segments: tuple[int, int]
    reason: str
    gates: tuple[Reading, ...]


@dataclass(frozen=True, slots=True)
class Hold:
    """Do nothing, and say why: `binding` is the one reading that holds."""

    binding: Reading
    gates: tuple[Reading, ...]

    @property
    def gate(self) -> Gate:
        """The binding gate."""
        return self.binding.gate


def decide(snapshot: TopicSnapshot) -> Split | Merge | Hold:
    """The one action to take now, or why none (PIP-483 "AutoScalePolicyEvaluator")."""
    gates: list[Reading] = []
    closed = _switched_off(snapshot) or _open_decision(snapshot)
    if closed:
        return Hold(closed, (closed,))
    wanted = _split_pass(snapshot, gates)
    if isinstance(wanted, Split):
        return wanted
    if snapshot.trigger == "consumer":
        return Hold(wanted or _of(gates, Gate.CONSUMER_DEMAND), tuple(gates))
    merge = _merge_pass(snapshot, gates)
    if isinstance(merge, Merge):
        return merge
    return Hold(wanted or merge, tuple(gates))


def next_due(hold: Hold) -> int | None:
    """The earliest instant, in milliseconds, at which time alone could open the binding gate; None when it cannot."""
    return hold.binding.eligible_at


def answer_to_wire(answer: Split | Merge | Hold) -> SplitAnswer | MergeAnswer | HoldAnswer:
    """The answer as JSON model (DESIGN section 4.3)."""
    gates = [
        GateReading(
            gate=reading.gate.value,
            measured=reading.measured,
            limit=reading.limit,
            margin=reading.margin,
            eligible_at=reading.eligible_at,
            passed=reading.passed,
            segment=reading.segment,
        )
        for reading in answer.gates
    ]
    if isinstance(answer, Split):
        return SplitAnswer(segment=answer.segment, reason=answer.reason, gates=gates)
    if isinstance(answer, Merge):
        return MergeAnswer(segments=answer.segments, reason=answer.reason, gates=gates)
    return HoldAnswer(gate=answer.gate.value, gates=gates)


def _switched_off(snapshot: TopicSnapshot) -> Reading | None:
    if snapshot.policy.broken is not None:
        return Reading(Gate.INVALID_POLICY, passed=False)
    if not snapshot.policy.enabled:
        return Reading(Gate.DISABLED, passed=False)
    return None


def _open_decision(snapshot: TopicSnapshot) -> Reading | None:
    if snapshot.in_flight is None:
        return None
    return Reading(Gate.IN_FLIGHT, passed=False, measured=float(snapshot.now - snapshot.in_flight[1]))


# Pass 1: SPLIT


def _split_pass(snapshot: TopicSnapshot, gates: list[Reading]) -> Split | Reading | None:
    """The split, or the gate that forbids one that is wanted, or None when none is wanted."""
    active = snapshot.layout.active
    most = snapshot.policy.max_segments
    caps = [
        _backoff(snapshot, "split"),
        _count_gate(Gate.MAX_SEGMENTS, len(active), most, passed=len(active) < most),
        _wait_gate(Gate.SPLIT_COOLDOWN, snapshot.now, snapshot.last_split_at, snapshot.policy.split_cooldown_ms),
    ]
    gates += [reading for reading in caps if reading is not None]
    forbidden = next((reading for reading in caps if reading is not None and not reading.passed), None)
    chosen, reason, unsplittable = _consumer_rule(snapshot, gates)
    if chosen is None and unsplittable is None and snapshot.trigger == "tick":
        chosen, reason, unsplittable = _load_rule(snapshot, gates)
    if chosen is None:
        return unsplittable and (forbidden or unsplittable)
    return forbidden or Split(chosen.segment_id, reason, tuple(gates))


def _consumer_rule(snapshot: TopicSnapshot, gates: list[Reading]) -> tuple[Segment | None, str, Reading | None]:
    """Rule (a): consumers without a segment of their own split the busiest one by msgRateIn."""
    required, active = snapshot.required_segments, snapshot.layout.active
    gates.append(_count_gate(Gate.CONSUMER_DEMAND, required, len(active), passed=required > len(active), above=True))
    if required <= len(active):
        return None, "", None
    splittable = _splittable(snapshot, active)
    if not splittable:
        return None, "", _unsplittable(min(active, key=lambda segment: segment.segment_id), gates)
    busiest = max(splittable, key=lambda segment: (_msg_rate_in(snapshot, segment), -segment.segment_id))
    return busiest, "consumer-count", None


def _load_rule(snapshot: TopicSnapshot, gates: list[Reading]) -> tuple[Segment | None, str, Reading | None]:
    """Rule (b): the segment whose largest rate / threshold is above 1, and the largest of those."""
    scored = []
    for segment in snapshot.layout.active:
        load = _known_load(snapshot, segment)
        if load is not None:
            score, reason = _overload(snapshot, load)
            scored.append((score, -segment.segment_id, reason, segment))
    splittable = [entry for entry in scored if _splittable(snapshot, [entry[3]])]
    best = max(splittable, default=None, key=lambda entry: entry[:2])
    hottest = max(scored, default=None, key=lambda entry: entry[:2])
    shown = best if best is not None and best[0] > 1 else hottest
    gates.append(
        Reading(
            Gate.SPLIT_THRESHOLDS,
            passed=shown is not None and shown[0] > 1,
            measured=None if shown is None else shown[0],
            limit=1.0,
            margin=None if shown is None else shown[0] - 1,
            segment=None if shown is None else shown[3].segment_id,
        )
    )
    if best is not None and best[0] > 1:
        return best[3], best[2], None
    if hottest is not None and hottest[0] > 1:
        return None, "", _unsplittable(hottest[3], gates)
    return None, "", None


def _overload(snapshot: TopicSnapshot, load: Load) -> tuple[float, str]:
    """The largest of the four ratios rate / split threshold, and the rate that it is of."""
    ratios = [rate / limit for rate, limit in zip(load.rates, snapshot.policy.split_thresholds, strict=True)]
    worst = max(range(4), key=lambda number: (ratios[number], -number))
    return ratios[worst], RATES[worst]


def _splittable(snapshot: TopicSnapshot, segments: Sequence[Segment]) -> list[Segment]:
    return [segment for segment in segments if segment.width > 1 or not snapshot.policy.skip_unsplittable]


def _unsplittable(segment: Segment, gates: list[Reading]) -> Reading:
    reading = Reading(Gate.UNSPLITTABLE, passed=False, measured=1.0, limit=1.0, margin=0.0, segment=segment.segment_id)
    gates.append(reading)
    return reading


# Pass 2: MERGE


def _merge_pass(snapshot: TopicSnapshot, gates: list[Reading]) -> Merge | Reading:
    """The merge, or the gate that binds."""
    policy, active = snapshot.policy, snapshot.layout.active
    least = policy.min_segments
    structure = [
        _backoff(snapshot, "merge"),
        _count_gate(Gate.MIN_SEGMENTS, len(active), least, passed=len(active) > least, above=True),
    ]
    if policy.merge_keeps_consumers:
        left, required = len(active) - 1, snapshot.required_segments
        structure.append(_count_gate(Gate.MERGE_CONSUMERS, left, required, passed=left >= required, above=True))
    gates += [reading for reading in structure if reading is not None]
    for reading in structure:
        if reading is not None and not reading.passed:
            return reading
    cooldown = _wait_gate(Gate.MERGE_COOLDOWN, snapshot.now, snapshot.last_merge_at, policy.merge_cooldown_ms)
    pairs = _PairSearch(snapshot, gates)
    gates.append(cooldown)
    if pairs.closed is not None:
        return pairs.closed
    ready = [pair for pair in pairs.mergeable if _cold_for(snapshot, pair) >= policy.merge_window_ms]
    longest = max(pairs.mergeable, key=lambda pair: _cold_for(snapshot, pair))
    shown = ready[0] if ready else longest
    cold_since = snapshot.now - _cold_for(snapshot, shown)
    window = _wait_gate(Gate.MERGE_WINDOW, snapshot.now, cold_since, policy.merge_window_ms, shown[0].segment_id)
    gates.append(window)
    if ready and cooldown.passed:
        first, second = min(ready, key=lambda pair: (_warmth(snapshot, pair), pair[0].start))
        return Merge((first.segment_id, second.segment_id), "cold", tuple(gates))
    waiting = [reading for reading in (cooldown, window) if not reading.passed]
    return max(waiting, key=lambda reading: reading.eligible_at or 0)


Pair = tuple[Segment, Segment]


class _PairSearch:
    """The neighbours that could merge, narrowed gate by gate: known loads, both cold, lineages not too deep."""

    def __init__(self, snapshot: TopicSnapshot, gates: list[Reading]) -> None:
        policy = snapshot.policy
        pairs = list(pairwise(snapshot.layout.active))
        known = [pair for pair in pairs if all(_known_load(snapshot, segment) for segment in pair)]
        cold = [pair for pair in known if all(_is_cold(snapshot, segment) for segment in pair)]
        depths = [max(snapshot.merge_depth(segment.segment_id) for segment in pair) for pair in cold]
        self.mergeable: list[Pair] = [
            pair for pair, depth in zip(cold, depths, strict=True) if depth < policy.max_dag_depth
        ]
        self.closed: Reading | None = None
        self._note(gates, _count_gate(Gate.MERGE_LOADS, len(known), 1, passed=bool(known), above=True))
        if known:
            coldest = min(known, key=lambda pair: _hottest_ratio(snapshot, pair))
            ratio = _hottest_ratio(snapshot, coldest)
            self._note(
                gates,
                Reading(Gate.MERGE_THRESHOLDS, bool(cold), ratio, 1.0, 1.0 - ratio, segment=coldest[0].segment_id),
            )
        if cold:
            deepest = policy.max_dag_depth
            self._note(gates, _count_gate(Gate.MAX_DAG_DEPTH, min(depths), deepest, passed=bool(self.mergeable)))

    def _note(self, gates: list[Reading], reading: Reading) -> None:
        gates.append(reading)
        if self.closed is None and not reading.passed:
            self.closed = reading


def _is_cold(snapshot: TopicSnapshot, segment: Segment) -> bool:
    load = _known_load(snapshot, segment)
    return load is not None and is_cold(load.rates, snapshot.policy)


def _cold_for(snapshot: TopicSnapshot, pair: Pair) -> int:
    """For how long both have been cold, milliseconds: since the later of the two."""
    since = []
    for segment in pair:
        load = snapshot.loads[segment.segment_id]
        from_threshold = snapshot.policy.cold_since_threshold and load.cold_since is not None
        since.append(load.cold_since if from_threshold else load.modified_at)
    return snapshot.now - max(at for at in since if at is not None)


def _warmth(snapshot: TopicSnapshot, pair: Pair) -> float:
    """What the coldest pair has least of: all eight rates added up, or each first divided by its merge threshold."""
    total = 0.0
    for segment in pair:
        for rate, limit in zip(snapshot.loads[segment.segment_id].rates, snapshot.policy.merge_thresholds, strict=True):
            total += rate / limit if snapshot.policy.normalized_coldness else rate
    return total


def _hottest_ratio(snapshot: TopicSnapshot, pair: Pair) -> float:
    """The largest rate / merge threshold of a pair; a threshold of 0 is never undercut."""
    ratios = [
        rate / limit if limit > 0 else float("inf")
        for segment in pair
        for rate, limit in zip(snapshot.loads[segment.segment_id].rates, snapshot.policy.merge_thresholds, strict=True)
    ]
    return max(ratios)


# What both passes use


def _known_load(snapshot: TopicSnapshot, segment: Segment) -> Load | None:
    """The segment's load, unless it is missing or, by the guard, too old to be trusted."""
    load = snapshot.loads.get(segment.segment_id)
    if load is None or snapshot.policy.max_load_age_ms == 0:
        return load
    seen_at = load.modified_at if load.seen_at is None else load.seen_at
    return load if snapshot.now - seen_at <= snapshot.policy.max_load_age_ms else None


def _msg_rate_in(snapshot: TopicSnapshot, segment: Segment) -> float:
    load = _known_load(snapshot, segment)
    return 0.0 if load is None else load.msg_rate_in


def _backoff(snapshot: TopicSnapshot, action: str) -> Reading | None:
    """The pause after decisions of this kind that ended without effect; None when there is none to make."""
    first = snapshot.policy.retry_backoff_ms
    concerned = snapshot.failed_action in (None, action)
    if first == 0 or snapshot.failures == 0 or snapshot.failed_at is None or not concerned:
        return None
    pause = min(first * 2 ** min(snapshot.failures - 1, 20), max(first, MAX_BACKOFF_MS))
    return _wait_gate(Gate.RETRY_BACKOFF, snapshot.now, snapshot.failed_at, pause)


def _wait_gate(gate: Gate, now: int, since: int | None, wait_ms: int, segment: int | None = None) -> Reading:
    """Passes when at least `wait_ms` have gone by since `since`, or nothing ever happened. Exactly equal passes."""
    if since is None:
        return Reading(gate, passed=True, limit=float(wait_ms), segment=segment)
    elapsed = now - since
    passed = elapsed >= wait_ms
    eligible_at = None if passed else since + wait_ms
    return Reading(gate, passed, float(elapsed), float(wait_ms), float(elapsed - wait_ms), eligible_at, segment)


def _count_gate(gate: Gate, measured: int, limit: int, *, passed: bool, above: bool = False) -> Reading:
    margin = measured - limit if above else limit - measured
    return Reading(gate, passed, float(measured), float(limit), float(margin))


def _of(gates: Sequence[Reading], gate: Gate) -> Reading:
    return next(reading for reading in gates if reading.gate is gate)
