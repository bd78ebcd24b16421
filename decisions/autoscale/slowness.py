"""Slowness of a topic: short of segments or consumers, or one hot key. `decide` does not use it.

Theory: a subscription is slow on a segment when its backlog is old (`SLOW_SECONDS`). Messages pass two stations. A
consumer that has no permits left, is blocked or is not there does not take them; a broker whose consumers are ready has
no excuse but the load of the segment. So, of each slow segment, the first that holds:

| observation | cause |
| --- | --- |
| no consumer, or all blocked on unacknowledged messages | consumers |
| one hash, or a hot key that was found within it (guard `hotKeySplits`) | hot key: no split relieves it |
| no consumer is ready; others of the subscription have no segment to read | segments |
| no consumer is ready; the segment is above a split threshold, while another one is not slow | segments: uneven |
| no consumer is ready; the load is not known | unknown |
| no consumer is ready | consumers |
| consumers are ready; the segment is above a split threshold | segments |
| consumers are ready | unknown: the brokers' own speed, or a backlog that is being caught up |

The topic's cause is that of the largest part of the backlog. What was not reported is unknown, never "not slow".
"""

from dataclasses import dataclass
from typing import Literal

from decisions.autoscale.rates import segment_overload
from decisions.autoscale.snapshot import MANAGED, SHARING, TopicSnapshot
from decisions.topic.segment import Segment
from schemas.kafka.delivery import SLOW_SECONDS, SegmentDelivery

Cause = Literal["hot-key", "consumers", "segments", "unknown"]
Verdict = Literal["hot-key", "consumers", "segments", "unknown", "not-slow"]

SLOW_REPORT_MS = 300_000
"""A report of slow segments is repeated every minute, and believed for as long as this."""
CLEAR_REPORT_MS = 7_200_000
"""A report without any is repeated every hour."""
_CAUSES: tuple[Cause, ...] = ("hot-key", "consumers", "segments", "unknown")
"""Of equal backlogs the first one counts."""


@dataclass(frozen=True)
class SlowSegment:
    """A segment on which a subscription is behind."""

    segment: Segment
    delivery: SegmentDelivery
    cause: Cause
    overload: float | None
    """Largest rate by its split threshold; None: the load is not known."""
    idle_consumers: int
    """Registered consumers of the subscription that no segment is left for."""


@dataclass(frozen=True)
class Slowness:
    """Verdict about a topic, and the figures behind it."""

    verdict: Verdict
    slow: tuple[SlowSegment, ...]
    """The largest backlog first."""
    unreported: int
    """Active segments that the report does not cover."""
    age_ms: int | None
    """Of the report; None: there is none."""

    @property
    def backlog(self) -> int:
        """Messages that slow segments are behind."""
        return sum(segment.delivery.backlog for segment in self.slow)

    def backlog_of(self, cause: Cause) -> int:
        """The part of it that has this cause."""
        return sum(segment.delivery.backlog for segment in self.slow if segment.cause == cause)


def slowness_of(snapshot: TopicSnapshot) -> Slowness:
    """Judge a topic by its newest delivery report; `unknown` if that is missing, old or incomplete."""
    report, active = snapshot.delivery, {segment.segment_id: segment for segment in snapshot.layout.active}
    if report is None:
        return Slowness("unknown", (), len(active), None)
    age = snapshot.now - report.at
    newer = sum(segment.created_at_ms > report.at for segment in active.values())
    unreported = max(newer, len(active) - report.reported, 0)
    if age > (SLOW_REPORT_MS if report.segments else CLEAR_REPORT_MS):
        return Slowness("unknown", (), len(active), age)
    behind = [segment for segment in report.segments if segment.id in active and segment.behind_seconds >= SLOW_SECONDS]
    others_keep_up = report.reported > len(report.segments)
    slow = sorted(
        (_slow_segment(snapshot, active[segment.id], segment, others_keep_up) for segment in behind),
        key=lambda segment: (-segment.delivery.backlog, segment.segment.segment_id),
    )
    judged = Slowness("unknown", tuple(slow), unreported, age)
    if not slow:
        # Segments of the report that are gone were replaced by some that it does not know.
        is_whole = unreported == 0 and all(segment.id in active for segment in report.segments)
        return Slowness("not-slow" if is_whole else "unknown", (), unreported, age)
    largest: Cause = max(_CAUSES, key=judged.backlog_of)
    return Slowness(largest, judged.slow, unreported, age)


def _slow_segment(
    snapshot: TopicSnapshot, segment: Segment, delivery: SegmentDelivery, others_keep_up: bool
) -> SlowSegment:
    load = snapshot.loads.get(segment.segment_id)
    ratio = None if load is None else segment_overload(load.rates, snapshot.policy)[0]
    idle = _idle_consumers(snapshot, delivery.subscription)
    return SlowSegment(
        segment, delivery, _cause_of_slowness(snapshot, segment, delivery, ratio, idle, others_keep_up), ratio, idle
    )


def _cause_of_slowness(
    snapshot: TopicSnapshot,
    segment: Segment,
    delivery: SegmentDelivery,
    ratio: float | None,
    idle: int,
    others_keep_up: bool,
) -> Cause:
    is_over = ratio is not None and ratio > 1.0
    if delivery.blocked_consumers >= delivery.consumers:
        return "consumers"
    has_hot_key = any(segment.start <= key.start and key.end <= segment.end for key in snapshot.hot_keys)
    if has_hot_key or segment.start == segment.end:
        return "hot-key"
    if delivery.ready_consumers > 0:
        return "segments" if is_over else "unknown"
    if idle > 0 or (is_over and others_keep_up):
        return "segments"
    return "unknown" if ratio is None else "consumers"


def _idle_consumers(snapshot: TopicSnapshot, subscription: str) -> int:
    """Registered consumers beyond what the segments, or their entry buckets, have room for."""
    kind, count = snapshot.consumers.get(subscription, ("", 0))
    if kind not in MANAGED:
        return 0
    shares = kind in SHARING and snapshot.layout.has_buckets
    return max(0, count - (snapshot.capacity if shares else len(snapshot.layout.active)))
