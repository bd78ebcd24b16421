"""The decision of Pulsar 5.0.1 once more, from the description of its rules, to be compared with profile `pulsar-5.0`.

It shares the frozen values with the system (snapshot, policy, segments) and none of its rules. A consumer event looks
at the consumers only, as in this system; in Pulsar it looks at everything.
"""

from __future__ import annotations

from decisions.autoscale.snapshot import TopicSnapshot
from tests.decisions.pip483 import added_up, durably_cold, merges, rates, split_limits, valid

NAMES = ("msgRateIn", "byteRateIn", "msgRateOut", "byteRateOut")
NONE = ("none", None)


def decide_as_shipped(snapshot: TopicSnapshot) -> tuple:
    """`("split", id, reason)`, `("merge", (low, high), "cold")`, `("rebucket", ids, buckets, reason)`, or
    `("none", blocked)` where `blocked` is Pulsar's word for what blocks it, or None."""
    policy = snapshot.policy
    is_valid = (
        valid(policy)
        and policy.rebucket_cooldown_ms >= 0
        and 1 <= policy.max_entry_buckets_per_segment <= 65_536
        and policy.split_vs_rebucket_min_msg_rate_in_threshold >= 0
    )
    if not policy.enabled or not is_valid or snapshot.in_flight is not None:
        return NONE
    active = [segment for segment in snapshot.layout.segments.values() if segment.state.value == "ACTIVE"]
    by_id = sorted(active, key=lambda segment: segment.segment_id)
    blocked = []
    passes = [for_consumers]
    if snapshot.trigger == "tick":
        passes += [for_load, for_cold]
    for one in passes:
        answer = one(snapshot, by_id)
        if answer[0] != "none" or answer[1] == "unsplittable":
            return answer
        blocked.append(answer[1])
    return ("none", next((reason for reason in blocked if reason), None))


def for_consumers(snapshot, active):
    policy = snapshot.policy
    counts = {kind: [n for k, n in snapshot.consumers.values() if k == kind] for kind in ("STREAM", "CHECKPOINT")}
    streams, checkpoints = (max(counts[kind], default=0) for kind in ("STREAM", "CHECKPOINT"))
    segments = len(active)
    if max(streams, checkpoints) <= segments:
        return NONE
    busiest, most = None, -1.0
    for segment in active:
        rate = rates(snapshot, segment.segment_id)[0]
        if rate > most:
            busiest, most = segment, rate
    at_cap = segments >= policy.max_segments
    below_floor = most < policy.split_vs_rebucket_min_msg_rate_in_threshold
    cools = cooling(snapshot.now, snapshot.last_split_at, policy.split_cooldown_ms)
    if not at_cap and not below_floor:
        if cools:
            return NONE
        if busiest.start == busiest.end:
            return ("none", "unsplittable")
        return ("split", busiest.segment_id, "consumer-count")
    blocked = "max_segments" if at_cap and not below_floor and not cools and checkpoints > segments else None
    if streams <= sum(buckets(segment) for segment in active):
        return ("none", blocked)
    if cooling(snapshot.now, snapshot.last_rebucket_at, policy.rebucket_cooldown_ms):
        return ("none", blocked)
    target = 1
    while target * segments < streams:
        target *= 2
    target = min(target, policy.max_entry_buckets_per_segment)
    below = tuple(segment.segment_id for segment in active if buckets(segment) < target)
    if not below:
        return ("none", "max_entry_buckets")
    return ("rebucket", below, target, "at-max-segments" if at_cap else "below-split-rate-floor")


def for_load(snapshot, active):
    policy = snapshot.policy
    if cooling(snapshot.now, snapshot.last_split_at, policy.split_cooldown_ms):
        return NONE
    hottest, highest, reason = None, 1.0, None
    for segment in active:
        ratios = [
            rate / limit for rate, limit in zip(rates(snapshot, segment.segment_id), split_limits(policy), strict=True)
        ]
        if max(ratios) > highest:
            hottest, highest, reason = segment, max(ratios), NAMES[ratios.index(max(ratios))]
    if hottest is None:
        return NONE
    if len(active) >= policy.max_segments:
        return ("none", "max_segments")
    if hottest.start == hottest.end:
        return ("none", "unsplittable")
    return ("split", hottest.segment_id, reason)


def for_cold(snapshot, active):
    policy = snapshot.policy
    if len(active) <= policy.min_segments or cooling(snapshot.now, snapshot.last_merge_at, policy.merge_cooldown_ms):
        return NONE
    total = sum(buckets(segment) for segment in active)
    consumers = max((count for kind, count in snapshot.consumers.values() if kind != "QUEUE"), default=0)
    pairs, blocked = [], []
    for left in sorted(active, key=lambda segment: segment.start):
        for right in active:
            if right.start != left.end + 1 or not all(durably_cold(snapshot, s.segment_id) for s in (left, right)):
                continue
            if any(merges(snapshot, segment.segment_id) >= policy.max_dag_depth for segment in (left, right)):
                blocked.append("max_dag_depth")
                continue
            both = buckets(left) + buckets(right)
            if total - both + min(both, policy.max_entry_buckets_per_segment) < min(consumers, total):
                blocked.append("max_entry_buckets")
                continue
            combined = added_up(rates(snapshot, left.segment_id)) + added_up(rates(snapshot, right.segment_id))
            pairs.append((combined, left.start, (left.segment_id, right.segment_id)))
    if pairs:
        return ("merge", min(pairs)[2], "cold")
    return ("none", "max_dag_depth" if "max_dag_depth" in blocked else "max_entry_buckets" if blocked else None)


def buckets(segment):
    return 1 + len(segment.entry_bucket_splits or ())


def cooling(now, last, cooldown):
    return last is not None and now - last < cooldown
