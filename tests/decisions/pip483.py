"""The rules of PIP-483 once more, written straight from its text, to be compared with `decisions.autoscale.decide`.

It shares the frozen values with the system (snapshot, policy, segments) and none of its rules: cooldowns, scores,
coldness, adjacency and merge depth are all worked out here again, the slow and obvious way. Where the text is silent it
does what Pulsar 5.0.0-M1 does, with ties broken by the lowest id, of a pair by the lowest hash start.
"""

from __future__ import annotations

from decisions.autoscale.snapshot import TopicSnapshot

NAMES = ("msgRateIn", "bytesRateIn", "msgRateOut", "bytesRateOut")


def decide_by_the_text(snapshot: TopicSnapshot) -> tuple:
    """`("split", id, reason)`, `("merge", (low, high), "cold")` or `("none",)`."""
    return equal_answers_by_the_text(snapshot)[0]


def equal_answers_by_the_text(snapshot: TopicSnapshot) -> list[tuple]:
    """The answers that the text leaves open between, where there are ties; the first is the one that is given."""
    policy, now = snapshot.policy, snapshot.now
    if not policy.enabled or not valid(policy) or snapshot.in_flight is not None:
        return [("none",)]
    active = [segment for segment in snapshot.layout.segments.values() if segment.state.value == "ACTIVE"]
    by_id = sorted(active, key=lambda segment: segment.segment_id)

    # Pass 1: SPLIT
    skip = len(active) >= policy.max_segments
    if snapshot.last_split_at is not None and now - snapshot.last_split_at < policy.split_cooldown_ms:
        skip = True
    if not skip:
        required = 0
        for kind, count in snapshot.consumers.values():
            if kind != "QUEUE":
                required = max(required, count)
        if required > len(active):
            msgs_in = {segment.segment_id: rates(snapshot, segment.segment_id)[0] for segment in by_id}
            most = max(msgs_in.values())
            return [("split", number, "consumer-count") for number, rate in msgs_in.items() if rate == most]
        if snapshot.trigger == "tick":
            found = []
            for segment in by_id:
                current = rates(snapshot, segment.segment_id)
                over = any(rate > limit for rate, limit in zip(current, split_limits(policy), strict=True))
                score, reason = 0.0, ""
                for name, rate, limit in zip(NAMES, current, split_limits(policy), strict=True):
                    if not reason or rate / limit > score:
                        score, reason = rate / limit, name
                if over:
                    found.append((score, ("split", segment.segment_id, reason)))
            if found:
                worst = max(score for score, _ in found)
                return [answer for score, answer in found if score == worst]
    if snapshot.trigger == "consumer":
        return [("none",)]

    # Pass 2: MERGE
    if snapshot.last_merge_at is not None and now - snapshot.last_merge_at < policy.merge_cooldown_ms:
        return [("none",)]
    if len(active) <= policy.min_segments:
        return [("none",)]
    pairs = []
    for left in sorted(active, key=lambda segment: segment.start):
        for right in active:
            if right.start != left.end + 1:
                continue
            if not all(durably_cold(snapshot, one.segment_id) for one in (left, right)):
                continue
            if any(merges(snapshot, one.segment_id) >= policy.max_dag_depth for one in (left, right)):
                continue
            combined = added_up(rates(snapshot, left.segment_id)) + added_up(rates(snapshot, right.segment_id))
            pairs.append((combined, ("merge", (left.segment_id, right.segment_id), "cold")))
    coldest = min((combined for combined, _ in pairs), default=0.0)
    return [answer for combined, answer in pairs if combined == coldest] or [("none",)]


def rates(snapshot, segment_id):
    record = snapshot.loads.get(segment_id)
    if record is None:
        return (0.0, 0.0, 0.0, 0.0)
    return (record.msg_rate_in, record.bytes_rate_in, record.msg_rate_out, record.bytes_rate_out)


def added_up(four):
    return four[0] + four[1] + four[2] + four[3]


def split_limits(policy):
    return (
        policy.split_msg_rate_in_threshold,
        policy.split_bytes_rate_in_threshold,
        policy.split_msg_rate_out_threshold,
        policy.split_bytes_rate_out_threshold,
    )


def merge_limits(policy):
    return (
        policy.merge_msg_rate_in_threshold,
        policy.merge_bytes_rate_in_threshold,
        policy.merge_msg_rate_out_threshold,
        policy.merge_bytes_rate_out_threshold,
    )


def durably_cold(snapshot, segment_id):
    record = snapshot.loads.get(segment_id)
    if record is None or snapshot.now - record.modified_at < snapshot.policy.merge_window_ms:
        return False
    limits = merge_limits(snapshot.policy)
    return all(rate < limit for rate, limit in zip(rates(snapshot, segment_id), limits, strict=True))


def merges(snapshot, segment_id):
    segments = snapshot.layout.segments
    ancestry, grown = {segment_id}, True
    while grown:
        parents = {parent for one in ancestry for parent in segments[one].parent_ids if parent in segments}
        grown = not parents <= ancestry
        ancestry |= parents
    return len([one for one in ancestry if len(segments[one].parent_ids) >= 2])


def valid(policy):
    pairs = list(zip(split_limits(policy), merge_limits(policy), strict=True))
    return (
        1 <= policy.min_segments <= policy.max_segments
        and policy.max_dag_depth >= 0
        and min(policy.split_cooldown_ms, policy.merge_cooldown_ms, policy.merge_window_ms) >= 0
        and all(split > 0 and merge >= 0 and split > merge for split, merge in pairs)
    )
