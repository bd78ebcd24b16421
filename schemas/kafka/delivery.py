"""Delivery of a topic's segments to their subscriptions, as brokers report it.

For explanations only: no decision uses it. Part of `schemas.kafka.messages` (from the collector into `events`) and of
`schemas.snapshot`.
"""

import math
from typing import Annotated

from pydantic import Field

from schemas.base import Count, Millis, Name, SegmentId, Wire

MAX_SLOW_SEGMENTS = 1_000
"""Limit on the segments of one report, those with the largest backlogs; some 250 KiB."""
SLOW_SECONDS = 60.0
"""Delay from which a subscription is slow; brokers compute their rates at this interval by default."""

Backlog = Annotated[int, Field(ge=0, le=2**63 - 1)]
_Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class SegmentDelivery(Wire):
    """Delivery of one segment to the subscription that is furthest behind on it."""

    id: SegmentId
    subscription: Name
    backlog: Backlog
    """Unacknowledged messages."""
    msg_rate_out: _Amount
    """Messages delivered to this subscription, per second."""
    consumers: Count
    """Consumers of this subscription attached to the segment."""
    ready_consumers: Count
    """Consumers with permits left that are not blocked, ready to take a message."""
    blocked_consumers: Count = 0
    """Consumers that get nothing because they have too many unacknowledged messages."""
    unacked_messages: Backlog | None = None
    """Messages delivered and not acknowledged; absent = not counted for this type of subscription."""
    backlog_age_seconds: _Amount | None = None
    """Age of the oldest message of the backlog; absent = not reported (Pulsar before 5.0.0)."""
    waiting_publishers: Count | None = None
    """Producers that wait for exclusive access to the segment; absent = not reported."""

    @property
    def behind_seconds(self) -> float:
        """Delay of the subscription: the backlog's age, or time to deliver it; infinite without delivery."""
        if self.backlog == 0:
            return 0.0
        if self.backlog_age_seconds is not None:
            return self.backlog_age_seconds
        return self.backlog / self.msg_rate_out if self.msg_rate_out > 0 else math.inf


class Delivery(Wire):
    """Report on the delivery of a topic."""

    at: Millis
    reported: Count
    """Active segments whose brokers were read."""
    segments: Annotated[list[SegmentDelivery], Field(max_length=MAX_SLOW_SEGMENTS)]
    """The slow ones of the segments read."""
