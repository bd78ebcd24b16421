"""Pass 1: SPLIT (fast, lightly coalesced).

Stage: in `decisions.autoscale.decide`. PIP-483 "Pass 1 — SPLIT (fast, lightly coalesced)"; a consumer event evaluates
rule (a) only, the consumer-count split (`_split_for_consumers`), as PIP-483 "Evaluation triggers" says. `maxSegments`
is one of PIP-483 "Caps".

As the PIP has it one segment of a topic is split at a time, with one cooldown. By the guard `parallelActions` all that
are above a threshold are split at once, each after a cooldown of its own, and all that consumers lack.
"""

from collections.abc import Sequence
from typing import NamedTuple

from decisions.autoscale.gates import ROWS, Gate, Situation
from decisions.autoscale.hot_keys import (
    GROWN,
    HASHES,
    HotKey,
    count_halvings,
    find_key,
    key_in,
    remembered_keys,
    retry_at,
)
from decisions.autoscale.known import Loads, fresh_until, load_evidence, retry_backoff
from decisions.autoscale.rates import MAX_RATIO, segment_overload
from decisions.autoscale.rebucket_pass import RebucketPass, busiest_rate
from decisions.autoscale.snapshot import TopicSnapshot
from decisions.kernel.readings import MAX_INSTANT_MS, Reading, due_at, read_above, read_below, read_waited
from decisions.topic.segment import Segment
from schemas.metadata import RATES

SHIPPED_REASONS = {"bytesRateIn": "byteRateIn", "bytesRateOut": "byteRateOut"}
"""The reasons of load splits that Pulsar 5.0 renamed."""


class SplitPass(NamedTuple):
    """Result of pass 1: its readings and the segments to split, each with the reason.

    Where a split is wanted but held: the readings that hold it, and when time alone would let it go.
    """

    readings: list[Reading[Gate]]
    chosen: Sequence[tuple[int, str]] = ()
    failing: Sequence[Reading[Gate]] = ()
    due: int | None = None


def split_pass(
    snapshot: TopicSnapshot, loads: Loads, keys: Sequence[HotKey], lane: RebucketPass | None = None
) -> SplitPass:
    """Run pass 1 with the known hot `keys`; consumers served by the bucket `lane` need no split."""
    policy, active = snapshot.policy, snapshot.layout.active
    room = policy.max_segments - len(active)
    readings = retry_backoff(snapshot, "split")
    readings.append(read_below(Gate.MAX_SEGMENTS, len(active), policy.max_segments))
    if not policy.parallel_actions:
        readings.append(
            read_waited(Gate.SPLIT_COOLDOWN, snapshot.now, snapshot.last_split_at, policy.split_cooldown_ms)
        )
    demand = read_above(Gate.CONSUMER_DEMAND, snapshot.required_segments, len(active))
    readings.append(demand)
    fresh = MAX_INSTANT_MS
    chosen: Sequence[tuple[int, str]]
    held: list[Reading[Gate]] = []
    if lane is not None:
        readings += [reading for reading in lane.readings if reading not in readings]
        held = _held_in_lane(snapshot, loads, readings)
    busiest = _split_for_consumers(snapshot, loads) if demand.passed and lane is None else []
    if busiest and policy.as_shipped and busiest[0].width == 1:
        held = [reading for reading in readings if reading.gate is Gate.SPLIT_COOLDOWN and not reading.passed]
        if not held:
            single = _read_splittable(busiest[0])
            return SplitPass([*readings, single], failing=[single])
    if demand.passed and lane is None and not held:
        lacking = snapshot.required_segments - len(active) if policy.parallel_actions else 1
        if snapshot.shares_segments:
            busiest, fresh = _worth_a_split(snapshot, loads, busiest)
        chosen = [(entry.segment_id, "consumer-count") for entry in busiest[: min(lacking, room)]]
        if not chosen and room > 0:
            readings.append(_read_splittable(active[0]))
    elif snapshot.trigger == "consumer":
        return SplitPass([*readings, *(entry for entry in held if entry not in readings)], failing=held)
    else:
        readings += load_evidence(snapshot)
        scores = _score_segments(snapshot, loads)
        if (candidates := _overloaded_segments(snapshot, scores, readings)) is None:
            return SplitPass([*readings, *(entry for entry in held if entry not in readings)], failing=held)
        fresh = max(fresh_until(snapshot, loads[index]) for index in candidates)
        if policy.parallel_actions:
            candidates = _segments_to_split(snapshot, scores, candidates, keys, readings)
        else:
            candidates = candidates[:1]
        is_single = bool(candidates) and active[candidates[0]].width == 1
        if policy.as_shipped and not policy.skip_unsplittable and is_single:
            readings.append(_read_splittable(active[candidates[0]]))
        chosen = [
            (active[index].segment_id, SHIPPED_REASONS.get(score[1], score[1]) if policy.as_shipped else score[1])
            for index in candidates[:room]
            if (score := scores[index])
        ]

    if policy.parallel_actions:
        readings.sort(key=lambda reading: _ORDER[reading.gate])
    if failing := ROWS[Situation.WANTS_TO_SPLIT].failing(readings):
        # When a hot key may be tried again it may also be found again.
        is_key = any(reading.gate is Gate.ONE_HOT_KEY for reading in failing)
        return SplitPass(readings, failing=failing, due=None if is_key else due_at(failing, fresh))
    return SplitPass(readings, chosen)


def _held_in_lane(snapshot: TopicSnapshot, loads: Loads, readings: Sequence[Reading[Gate]]) -> list[Reading[Gate]]:
    """Return the gate `max-segments` where it holds CHECKPOINT consumers, which cannot share a segment."""
    floor = snapshot.policy.split_vs_rebucket_min_msg_rate_in_threshold
    if snapshot.unshared_consumers <= len(snapshot.layout.active):
        return []
    if snapshot.policy.as_shipped and busiest_rate(snapshot, loads) < floor:
        return []
    return [reading for reading in readings if reading.gate is Gate.MAX_SEGMENTS and not reading.passed]


def _worth_a_split(snapshot: TopicSnapshot, loads: Loads, busiest: Sequence[Segment]) -> tuple[list[Segment], int]:
    """Return the busiest segments to split for consumers that could share, and the end of that.

    These are the segments at or above the floor, and one for each consumer that cannot share.
    """
    policy, active = snapshot.policy, snapshot.layout.active
    alone = 0 if policy.as_shipped else max(snapshot.unshared_consumers - len(active), 0)
    load_of = {segment.segment_id: load for segment, load in zip(active, loads, strict=True)}
    chosen, fresh = list(busiest[:alone]), MAX_INSTANT_MS
    for segment in busiest[alone:]:
        load = load_of[segment.segment_id]
        if (0.0 if load is None else load.msg_rate_in) >= policy.split_vs_rebucket_min_msg_rate_in_threshold:
            chosen.append(segment)
            fresh = min(fresh, fresh_until(snapshot, load))
    return chosen, fresh


_ORDER = {gate: index for index, gate in enumerate(Gate)}


def hot_keys_after(snapshot: TopicSnapshot) -> tuple[HotKey, ...]:
    """Return the known hot keys after an evaluation, for the next snapshot (guard `hotKeySplits`)."""
    policy, active = snapshot.policy, snapshot.layout.active
    if not policy.hot_key_splits or snapshot.trigger != "tick" or not policy.enabled or policy.broken is not None:
        return snapshot.hot_keys
    # However old: when a load was last seen is not on record, and a rebuild has to find the same.
    loads = [snapshot.loads.get(segment.segment_id) for segment in active]
    keys: dict[int, HotKey] = {}
    carried: dict[str, list[float | None]] = {}
    is_hot = False
    for index, score in enumerate(_score_segments(snapshot, loads)):
        if score is None or score[0] <= 1.0:
            continue
        is_hot = True
        splits = count_halvings(snapshot.hot_keys, active[index], score[0], policy, snapshot.now)
        if not splits or active[index].width > HASHES >> splits:
            continue
        if score[1] not in carried:
            rate = RATES.index(score[1])
            carried[score[1]] = [None if load is None else load.rates[rate] for load in loads]
        key = find_key(index, active, carried[score[1]], min(score[0], MAX_RATIO), splits, snapshot.now)
        if key is not None:
            keys[index] = key
    if not is_hot:
        return snapshot.hot_keys
    return remembered_keys(snapshot.hot_keys, keys, policy, snapshot.now)


def news_of_hot_keys(snapshot: TopicSnapshot) -> tuple[HotKey, ...] | None:
    """Return `hot_keys_after(snapshot)` if it differs from the snapshot's own, else None."""
    keys = hot_keys_after(snapshot)
    return None if keys == snapshot.hot_keys else keys


def _split_for_consumers(snapshot: TopicSnapshot, loads: Loads) -> list[Segment]:
    """Return, for rule (a), the active segments that can be split, highest msgRateIn first.

    An unknown rate counts as 0. Of equals the lowest id comes first; with the guard `parallelActions`, the widest.
    """
    skip, widest = snapshot.policy.skip_unsplittable, snapshot.policy.parallel_actions
    rated = [
        (0.0 if load is None else -load.msg_rate_in, -segment.width if widest else 0, segment.segment_id, segment)
        for segment, load in zip(snapshot.layout.active, loads, strict=True)
        if not (skip and segment.width == 1)
    ]
    return [segment for *_, segment in sorted(rated, key=lambda ranked: ranked[:3])]


Scores = Sequence[tuple[float, str] | None]


def _score_segments(snapshot: TopicSnapshot, loads: Loads) -> Scores:
    """The overload of each segment with a known load, and the rate that it is of."""
    return [None if load is None else segment_overload(load.rates, snapshot.policy) for load in loads]


def _overloaded_segments(snapshot: TopicSnapshot, scores: Scores, readings: list[Reading[Gate]]) -> list[int] | None:
    """Return, for rule (b), the indexes of overloaded segments that can be split, most overloaded first.

    If none of them can be split, all overloaded ones are returned; if none is overloaded, None. The readings tell of
    the first.
    """
    active, skip = snapshot.layout.active, snapshot.policy.skip_unsplittable
    ranked = sorted(
        (-score[0], active[index].segment_id, index) for index, score in enumerate(scores) if score is not None
    )
    if not ranked:
        readings.append(Reading(Gate.SPLIT_THRESHOLDS, False, limit=1.0))
        return None
    overloaded = [index for score, _, index in ranked if -score > 1.0]
    splittable = [index for index in overloaded if active[index].width > 1] if skip else overloaded
    shown = (splittable or overloaded or [ranked[0][2]])[0]
    score = scores[shown]
    assert score is not None
    readings.append(read_above(Gate.SPLIT_THRESHOLDS, min(score[0], MAX_RATIO), 1.0, active[shown].segment_id))
    if not overloaded:
        return None
    if not splittable:
        readings.append(_read_splittable(active[shown]))
    return splittable or overloaded


def _segments_to_split(
    snapshot: TopicSnapshot,
    scores: Scores,
    candidates: Sequence[int],
    keys: Sequence[HotKey],
    readings: list[Reading[Gate]],
) -> list[int]:
    """Return which overloaded segments are split now, with the guard `parallelActions`.

    These hold no known hot key, and are urgent or have stood for a cooldown. A reading tells of the one that is let go
    first.
    """
    policy, active, now = snapshot.policy, snapshot.layout.active, snapshot.now
    overloads = {index: min(score[0], MAX_RATIO) for index in candidates if (score := scores[index]) is not None}
    held = {
        index: key
        for index in candidates
        if (key := key_in(keys, active[index], overloads[index], policy, now)) is not None
    }
    relieved = [index for index in candidates if index not in held]
    if held and not relieved:
        first = min(held, key=lambda index: retry_at(held[index], policy))
        readings.append(_one_hot_key(active[first], overloads[first], held[first], retry_at(held[first], policy)))
        return []
    since = {
        index: past.at for index in relieved if (past := snapshot.known_pasts.get(active[index].segment_id)) is not None
    }
    waits = [
        Reading(Gate.SPLIT_COOLDOWN, True, limit=float(policy.split_cooldown_ms), segment=active[index].segment_id)
        if policy.urgent_overload and overloads[index] >= policy.urgent_overload
        else read_waited(Gate.SPLIT_COOLDOWN, now, since.get(index), policy.split_cooldown_ms, active[index].segment_id)
        for index in relieved
    ]
    passed = [index for index, wait in zip(relieved, waits, strict=True) if wait.passed]
    readings.append(min(waits, key=lambda wait: (not wait.passed, wait.eligible_at or 0)))
    return passed


def _one_hot_key(segment: Segment, measured: float, key: HotKey, retry: int) -> Reading[Gate]:
    limit = min(key.overload * GROWN, MAX_RATIO)
    return Reading(
        Gate.ONE_HOT_KEY,
        False,
        measured,
        limit,
        measured - limit,
        retry,
        segment.segment_id,
        f"one hot key, about hashes {key.start:04x} to {key.end:04x}, {key.overload:.3g} times the threshold: more "
        "segments cannot help",
    )


def _read_splittable(segment: Segment) -> Reading[Gate]:
    return read_above(Gate.UNSPLITTABLE, segment.width, 1, segment.segment_id)
