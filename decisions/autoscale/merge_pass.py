"""Pass 2: MERGE (lazy, rate-limited).

Stage: in `decisions.autoscale.decide`. PIP-483 "Pass 2 — MERGE (lazy, rate-limited)" and "Caps". The PIP's terms:
merge window (`mergeWindowSeconds`, gate `merge-window`), min segments (`minSegments`), max DAG depth (`maxDagDepth`:
merges in one lineage, `decisions.topic.lineage.count_merges`; with the guard `explicitLineage`,
`decisions.autoscale.past.depths_after_layout`).

As the PIP has it one pair of a topic is merged at a time, with one cooldown. By the guard `parallelActions` all pairs
that may merge do, each after a cooldown of its own. By `settleSeconds` and `returnsWithinSeconds` a pair waits as long
as its load may come back, and what was split in search of a hot key is given back (`hotKeySplits`).
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from decisions.autoscale.gates import ROWS, Gate, Situation
from decisions.autoscale.hot_keys import HotKey, is_within, key_in
from decisions.autoscale.known import Loads, fresh_until, retry_backoff
from decisions.autoscale.past import regret_window_ms, settle_ms
from decisions.autoscale.rates import MAX_RATIO, combined_rate, is_cold, segment_heat, segment_overload
from decisions.autoscale.snapshot import Load, TopicSnapshot
from decisions.kernel.readings import MAX_INSTANT_MS, Reading, due_at, read_above, read_below, read_waited
from decisions.topic.segment import Segment


class MergePass(NamedTuple):
    """Result of pass 2: its readings and the pairs to merge.

    Where a merge is wanted but held: the readings that hold it, and when time alone would let it go.
    """

    readings: list[Reading[Gate]]
    chosen: Sequence[tuple[int, int]] = ()
    failing: Sequence[Reading[Gate]] = ()
    due: int | None = None


def merge_pass(
    snapshot: TopicSnapshot, loads: Loads, keys: Sequence[HotKey], splits: Collection[int] = ()
) -> MergePass:
    """Run pass 2; `keys` are the known hot keys, `splits` the segments that pass 1 splits."""
    policy, active, now = snapshot.policy, snapshot.layout.active, snapshot.now
    count, required = len(active) + len(splits), snapshot.required_segments
    readings = retry_backoff(snapshot, "merge")
    readings.append(read_above(Gate.MIN_SEGMENTS, count, policy.min_segments))
    if not policy.parallel_actions:
        readings.append(read_waited(Gate.MERGE_COOLDOWN, now, snapshot.last_merge_at, policy.merge_cooldown_ms))
    cold = [load is not None and is_cold(load.rates, policy) for load in loads]
    pairs = [index for index in range(len(cold) - 1) if cold[index] and cold[index + 1]]
    if keys:
        fruitless = _fruitless(snapshot, loads, keys, cold)
        pairs = sorted({*pairs, *(index for index in range(len(cold) - 1) if fruitless(index))})
    needed = required if policy.merge_keeps_consumers else 0
    if needed and snapshot.shares_segments and snapshot.unshared_consumers < count <= required:
        sharing = [index for index in pairs if _stays_shared(snapshot, loads, index)]
        pairs, needed = (sharing, snapshot.unshared_consumers) if sharing else (pairs, needed)
    if policy.merge_keeps_consumers:
        readings.append(read_above(Gate.MERGE_CONSUMERS, count, needed))
    readings.append(_read_coldness(snapshot, loads, pairs))
    if splits:
        pairs = [
            index
            for index in pairs
            if active[index].segment_id not in splits and active[index + 1].segment_id not in splits
        ]
    if not pairs:
        return MergePass(readings)

    shallow_at = {index: max(snapshot.shallow_at(active[i].segment_id) for i in (index, index + 1)) for index in pairs}
    depths = {index: max(snapshot.merge_depth(active[i].segment_id) for i in (index, index + 1)) for index in pairs}
    depth = _read_depth(snapshot, depths, shallow_at)
    readings.append(depth)
    may_merge = depth.passed
    if depth.passed:
        pairs = [index for index in pairs if depths[index] < policy.max_dag_depth]
    if snapshot.shares_segments:
        capacity = _read_capacity(snapshot, pairs)
        may_merge = depth.passed and capacity.passed
        if depth.passed or not capacity.passed:
            readings.append(capacity)
        if capacity.passed:
            pairs = [index for index in pairs if _bucket_loss(snapshot, index) <= _spare_buckets(snapshot)]
    starts = [load.window_start(policy) if load is not None and cold[index] else 0 for index, load in enumerate(loads)]
    since = {index: max(starts[index], starts[index + 1]) for index in pairs}
    longest = min(pairs, key=since.__getitem__)
    if may_merge:
        window = read_waited(Gate.MERGE_WINDOW, now, since[longest], policy.merge_window_ms, active[longest].segment_id)
        readings.append(window)
    ready = [index for index in pairs if now - since[index] >= policy.merge_window_ms]
    ends = {index: max(since[index] + policy.merge_window_ms, shallow_at[index]) for index in pairs}
    if policy.settles:
        settled = [settled_at(snapshot, segment, load) for segment, load in zip(active, loads, strict=True)]
        at_rest = {index: max(settled[index], settled[index + 1]) for index in pairs}
        if may_merge:
            readings.append(_read_settling(now, at_rest, ready or pairs, active))
        ready = [index for index in ready if at_rest[index] <= now]
        ends = {index: max(end, at_rest[index]) for index, end in ends.items()}
    if not (failing := ROWS[Situation.WANTS_TO_MERGE].failing(readings)):
        spare = count - max(policy.min_segments, needed)
        coldest = sorted(ready, key=lambda index: _combined_rate(snapshot, loads, index))
        chosen = _disjoint_pairs(coldest, spare if policy.parallel_actions else 1)
        if snapshot.shares_segments:
            chosen = _within_capacity(snapshot, chosen)
        return MergePass(readings, [(active[index].segment_id, active[index + 1].segment_id) for index in chosen])

    # Each pair has waits of its own, and the load of the pair whose waits end first may be too old by then.
    own = (Gate.MAX_DAG_DEPTH, Gate.MERGE_WINDOW, Gate.SETTLING)
    others_open = due_at((reading for reading in failing if reading.gate not in own), at_least=now)
    if others_open is None:
        return MergePass(readings, failing=failing)
    fresh = [fresh_until(snapshot, load) for load in loads]
    due = ((max(others_open, end), index) for index, end in ends.items())
    dues = [end for end, index in due if end <= min(fresh[index : index + 2]) and end < MAX_INSTANT_MS]
    return MergePass(readings, failing=failing, due=min(dues, default=None))


def _read_depth(snapshot: TopicSnapshot, depths: Mapping[int, int], shallow_at: Mapping[int, int]) -> Reading[Gate]:
    """Return the reading of the shallowest pair (left index), and when the first falls below the cap."""
    active, policy = snapshot.layout.active, snapshot.policy
    shallowest = min(depths, key=depths.__getitem__)
    reading = read_below(Gate.MAX_DAG_DEPTH, depths[shallowest], policy.max_dag_depth, active[shallowest].segment_id)
    first = min(shallow_at.values())
    return reading if reading.passed or first >= MAX_INSTANT_MS else msgspec.structs.replace(reading, eligible_at=first)


def _stays_shared(snapshot: TopicSnapshot, loads: Loads, index: int) -> bool:
    """Tell if consumers still share segments after a merge that leaves fewer segments than consumers.

    They do if no segment is then worth a split. The limit is the floor, times the part of a split threshold that the
    guard `mergeHeadroom` allows.
    """
    policy = snapshot.policy
    rates = [None if load is None else load.msg_rate_in for load in loads]
    left, right = rates[index], rates[index + 1]
    if left is None or right is None:
        return False
    most = policy.split_vs_rebucket_min_msg_rate_in_threshold * (policy.merge_headroom or 1.0)
    return left + right < most and all(rate is not None and rate < most for rate in rates)


def _bucket_loss(snapshot: TopicSnapshot, index: int) -> int:
    """Return how many entry buckets a merge would cost, given `maxEntryBucketsPerSegment`."""
    left, right = snapshot.layout.active[index : index + 2]
    return max(left.bucket_count + right.bucket_count - snapshot.policy.max_entry_buckets_per_segment, 0)


def _spare_buckets(snapshot: TopicSnapshot) -> int:
    """Return the entry buckets that no consumer needs."""
    return snapshot.capacity - min(snapshot.required_segments, snapshot.capacity)


def _read_capacity(snapshot: TopicSnapshot, pairs: Sequence[int]) -> Reading[Gate]:
    """Compare the entry buckets after the merge that costs fewest with those that consumers own now."""
    cheapest = min(pairs, key=lambda index: _bucket_loss(snapshot, index))
    after, used = (
        snapshot.capacity - _bucket_loss(snapshot, cheapest),
        min(snapshot.required_segments, snapshot.capacity),
    )
    return Reading(
        Gate.MERGE_CAPACITY,
        after >= used,
        float(after),
        float(used),
        float(after - used),
        None,
        snapshot.layout.active[cheapest].segment_id,
    )


def _within_capacity(snapshot: TopicSnapshot, pairs: Sequence[int]) -> list[int]:
    """Return the first of the pairs that all together leave each consumer its entry bucket."""
    spare, chosen = _spare_buckets(snapshot), []
    for index in pairs:
        if _bucket_loss(snapshot, index) <= spare:
            spare -= _bucket_loss(snapshot, index)
            chosen.append(index)
    return chosen


def _disjoint_pairs(pairs: Sequence[int], most: int) -> list[int]:
    """Return at most `most` pairs that do not touch each other, first ones first."""
    chosen: list[int] = []
    used: set[int] = set()
    for index in pairs:
        if len(chosen) < most and index not in used and index + 1 not in used:
            chosen.append(index)
            used |= {index, index + 1}
    return chosen


def settled_at(snapshot: TopicSnapshot, segment: Segment, load: Load | None) -> int:
    """Return the instant until which a segment is not merged, because its load may come back.

    Guards `settleSeconds`, `regretWindowSeconds` and `returnsWithinSeconds`.
    """
    policy = snapshot.policy
    instant = 0
    past = snapshot.known_pasts.get(segment.segment_id) if policy.settles else None
    if policy.settle_ms and past is not None:
        instant = past.at + settle_ms(past, policy)
    if load is not None and load.cold_since is not None:
        instant = max(instant, load.cold_since + regret_window_ms(past, segment.width, policy))
        for pause in (load.returned_after or 0, past.returned_after if past else 0):
            if 0 < pause <= policy.returns_within_ms:
                instant = max(instant, load.cold_since + pause * 3 // 2)
    return max(min(instant, MAX_INSTANT_MS), -MAX_INSTANT_MS)


def _read_settling(now: int, at_rest: dict[int, int], pairs: Sequence[int], active: Sequence[Segment]) -> Reading[Gate]:
    """Return the reading of the pair that settles first."""
    first = min(pairs, key=at_rest.__getitem__)
    left = max(at_rest[first] - now, 0)
    eligible_at = at_rest[first] if left > 0 and at_rest[first] < MAX_INSTANT_MS else None
    return Reading(Gate.SETTLING, left == 0, float(left), 0.0, float(-left), eligible_at, active[first].segment_id)


class _fruitless:
    """Neighbours that are pieces of a range split in search of a hot key: cold ones beside the hot one."""

    def __init__(self, snapshot: TopicSnapshot, loads: Loads, keys: Sequence[HotKey], cold: Sequence[bool]) -> None:
        policy, active, now = snapshot.policy, snapshot.layout.active, snapshot.now
        self._active, self._cold = active, cold
        self._holds: dict[int, HotKey] = {}
        for index, load in enumerate(loads):
            score = 0.0 if load is None else segment_overload(load.rates, policy)[0]
            if score > 1.0 and (key := key_in(keys, active[index], score, policy, now)) is not None:
                self._holds[index] = key

    def __call__(self, index: int) -> bool:
        for holder, other in ((index, index + 1), (index + 1, index)):
            key = self._holds.get(holder)
            if key is not None and self._cold[other] and is_within(key, self._active[index], self._active[index + 1]):
                return True
        return False


def _read_coldness(snapshot: TopicSnapshot, loads: Loads, cold_pairs: Sequence[int]) -> Reading[Gate]:
    """Return the reading of the coldest two neighbours with known loads: the heat of the hotter one."""
    pairs = cold_pairs or [index for index in range(len(loads) - 1) if loads[index] and loads[index + 1]]
    if not pairs:
        return Reading(Gate.MERGE_THRESHOLDS, False, limit=1.0)
    heats = [MAX_RATIO if load is None else segment_heat(load.rates, snapshot.policy) for load in loads]
    hotter = {index: max(heats[index], heats[index + 1]) for index in pairs}
    nearest = min(pairs, key=hotter.__getitem__)
    ratio = hotter[nearest]
    hottest = nearest if heats[nearest] == ratio else nearest + 1
    segment = snapshot.layout.active[hottest].segment_id
    if cold_pairs and ratio >= 1.0:
        detail = "what was split in search of one hot key is given back"
        return Reading(Gate.MERGE_THRESHOLDS, True, segment=segment, detail=detail)
    return Reading(Gate.MERGE_THRESHOLDS, bool(cold_pairs), ratio, 1.0, 1.0 - ratio, segment=segment)


def _combined_rate(snapshot: TopicSnapshot, loads: Loads, index: int) -> float:
    left, right = loads[index], loads[index + 1]
    assert left is not None
    assert right is not None
    return combined_rate(left.rates, right.rates, snapshot.policy)
