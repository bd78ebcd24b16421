"""The bucket lane: consumers without a segment share one by its entry buckets (guard `rebuckets`).

Stage: in `decisions.autoscale.decide`, before pass 1, for topics whose consumers share segments. A segment is divided
into entry buckets on a ring of its own, and each consumer of a STREAM subscription owns at least one. More buckets cost
no segment: a rebucket replaces segments by successors of the same range. So consumers are given a segment only where
the busiest one carries enough to be worth a split; else the lane raises all segments that have too few buckets to the
same number at once. Buckets are never taken away: a count of consumers that comes and goes must not move clients.
"""

from collections.abc import Sequence
from typing import NamedTuple

from decisions.autoscale.gates import ROWS, Gate, Situation
from decisions.autoscale.known import Loads, retry_backoff
from decisions.autoscale.snapshot import TopicSnapshot
from decisions.kernel.readings import Reading, due_at, read_above, read_below, read_waited

AT_MAX_SEGMENTS, BELOW_FLOOR = "at-max-segments", "below-split-rate-floor"


class RebucketPass(NamedTuple):
    """Result of the lane: its readings, the segments to rebucket and their new number of buckets.

    Where a rebucket is wanted but held: the readings that hold it, and when time alone would let it go. Nothing is
    wanted where every consumer has a bucket.
    """

    readings: list[Reading[Gate]]
    chosen: tuple[int, ...] = ()
    bucket_count: int = 0
    reason: str = ""
    failing: Sequence[Reading[Gate]] = ()
    due: int | None = None


def rebucket_pass(snapshot: TopicSnapshot, loads: Loads) -> RebucketPass | None:
    """Run the lane; None where consumers have a segment each, or a split is to give them one."""
    active, policy = snapshot.layout.active, snapshot.policy
    if not snapshot.shares_segments or snapshot.required_segments <= len(active):
        return None
    has_room = len(active) < policy.max_segments
    if has_room and (
        busiest_rate(snapshot, loads) >= policy.split_vs_rebucket_min_msg_rate_in_threshold
        # Pulsar 5.0 lets a checkpoint's consumers wait below the floor; no bucket helps them.
        or (not policy.as_shipped and snapshot.unshared_consumers > len(active))
    ):
        return None
    consumers = snapshot.sharing_consumers
    demand = read_above(Gate.ENTRY_BUCKETS, consumers, snapshot.capacity)
    if not demand.passed:
        return RebucketPass([demand])
    wanted = min(bucket_target(consumers, len(active)), policy.max_entry_buckets_per_segment)
    fewest = min(active, key=lambda segment: (segment.bucket_count, segment.segment_id))
    readings = [
        *retry_backoff(snapshot, "rebucket"),
        demand,
        read_waited(Gate.REBUCKET_COOLDOWN, snapshot.now, snapshot.last_rebucket_at, policy.rebucket_cooldown_ms),
        read_below(Gate.MAX_ENTRY_BUCKETS, fewest.bucket_count, wanted, fewest.segment_id),
    ]
    if failing := ROWS[Situation.WANTS_TO_REBUCKET].failing(readings):
        return RebucketPass(readings, failing=failing, due=due_at(failing))
    chosen = sorted(segment.segment_id for segment in active if segment.bucket_count < wanted)
    return RebucketPass(readings, tuple(chosen), wanted, BELOW_FLOOR if has_room else AT_MAX_SEGMENTS)


def bucket_target(consumers: int, segments: int) -> int:
    """Return the smallest power of two with which `segments` have a bucket for each of `consumers`."""
    return 1 << (-(-consumers // segments) - 1).bit_length()


def busiest_rate(snapshot: TopicSnapshot, loads: Loads) -> float:
    """Return the highest msgRateIn of a segment that can be split, 0 where it is not known."""
    skip = snapshot.policy.skip_unsplittable
    return max(
        (
            0.0 if load is None else load.msg_rate_in
            for segment, load in zip(snapshot.layout.active, loads, strict=True)
            if not (skip and segment.width == 1)
        ),
        default=0.0,
    )
