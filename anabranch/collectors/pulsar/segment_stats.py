"""Subscriptions of a segment, as in brokers' loads and `…/segments/ID/stats`; pure.

`…/segments/ID/stats` exists in Pulsar 5.0.0 and later.

Under `broker_stats`. A number that is none, or is negative, counts as not reported: it must not cost the segment its
rates, nor become a zero.
"""

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from schemas.kafka.delivery import SLOW_SECONDS, SegmentDelivery

_MAX_COUNT = 2**31 - 1


class Consumer(msgspec.Struct, rename="camel", gc=False):
    """A consumer that is attached to a segment."""

    consumer_name: str = ""
    available_permits: Any = None
    blocked_consumer_on_unacked_msgs: Any = None

    @property
    def is_ready(self) -> bool:
        """Return whether it would accept a message now, as far as the broker reports."""
        permits = _number(self.available_permits, least=-math.inf)
        return not self.is_blocked and (permits is None or permits > 0)

    @property
    def is_blocked(self) -> bool:
        """Return whether unacknowledged messages block it."""
        return self.blocked_consumer_on_unacked_msgs is True


class SubscriptionStats(msgspec.Struct, rename="camel", gc=False):
    """A subscription on a segment."""

    type: str = ""
    consumers: list[Consumer] = []
    msg_backlog: Any = None
    msg_rate_out: Any = None
    unacked_messages: Any = None
    blocked_subscription_on_unacked_msgs: Any = None
    oldest_backlog_message_age_seconds: Any = None


class _SegmentStats(msgspec.Struct, rename="camel", gc=False):
    oldest_backlog_message_age_seconds: Any = None
    waiting_publishers: Any = None
    subscriptions: dict[str, SubscriptionStats] = {}


_decode = msgspec.json.Decoder(_SegmentStats).decode


def slow_delivery(
    segment: int, subscriptions: Mapping[str, SubscriptionStats], waiting_publishers: int | None = None
) -> SegmentDelivery | None:
    """The subscription that is furthest behind on a segment, one with consumers first; None: none is slow."""
    deliveries = [
        _delivery(segment, name, subscription, backlog, waiting_publishers)
        for name, subscription in subscriptions.items()
        if (backlog := _number(subscription.msg_backlog)) and name
    ]
    slow = [delivery for delivery in deliveries if delivery.behind_seconds >= SLOW_SECONDS]
    return max(
        slow,
        key=lambda delivery: (delivery.consumers > 0, delivery.behind_seconds, delivery.backlog, delivery.subscription),
        default=None,
    )


def read_segment_stats(body: bytes, segment: int) -> SegmentDelivery | None:
    """Return the delivery in `…/segments/ID/stats`; None: none is slow. Raises `ValueError`."""
    try:
        stats = _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{len(body)} bytes that are no segment's stats: {str(error)[:200]}") from None
    waiting = _number(stats.waiting_publishers)
    return slow_delivery(segment, stats.subscriptions, None if waiting is None else _count(waiting))


def _delivery(
    segment: int, name: str, subscription: SubscriptionStats, backlog: float, waiting_publishers: int | None
) -> SegmentDelivery:
    unacked, rate = _number(subscription.unacked_messages), _number(subscription.msg_rate_out)
    consumers = len(subscription.consumers)
    is_blocked = subscription.blocked_subscription_on_unacked_msgs is True
    return SegmentDelivery(
        id=segment,
        subscription=name,
        backlog=int(backlog),
        msg_rate_out=rate or 0.0,
        consumers=_count(consumers),
        ready_consumers=0 if is_blocked else sum(consumer.is_ready for consumer in subscription.consumers),
        blocked_consumers=consumers if is_blocked else sum(consumer.is_blocked for consumer in subscription.consumers),
        unacked_messages=None if unacked is None else int(unacked),
        backlog_age_seconds=_number(subscription.oldest_backlog_message_age_seconds),
        waiting_publishers=waiting_publishers,
    )


def _count(value: float) -> int:
    return min(_MAX_COUNT, int(value))


def _number(value: Any, least: float = 0.0) -> float | None:
    """A usable number; None: none was reported (Pulsar writes -1 for an age that it does not know)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) and least <= value < 2**63 else None
