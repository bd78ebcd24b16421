"""`/topic/consumers`: the segments of each consumer, from the controller; a part of `/topic`.

No table has them: `[controller] url` is asked when somebody opens the list. Our controller's interface has this call,
Pulsar's does not.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from anabranch.admin.answers import Answered, Refused
from anabranch.admin.topics import ScalableTopics
from anabranch.web.fleet import WatchedFleet
from anabranch.web.pages.topic import asked_topic, part
from decisions.topic.segment import Segment

MAX_SUBSCRIPTIONS, SECONDS = 20, 6.0
"""That are asked for at once, and for how long."""
MAX_LAGS = 50
"""Segments of a subscription whose lags are asked for."""


@dataclass(frozen=True)
class SubscriptionReaders:
    """A subscription, and who reads what of it."""

    name: str
    count: int
    consumers: tuple[tuple[str, bool, tuple[int, ...]], ...]
    """Name, whether it is connected, and its segments."""
    lags: tuple[tuple[int, int], ...] = ()
    """Unacknowledged messages by segment, where segments are topics of our controller."""


def show(request: Request) -> Response:
    """The list, or why it is not known."""
    fleet: WatchedFleet = request.app.state.fleet
    name, topics = asked_topic(request), request.app.state.topics
    views = fleet.views([name])
    wanted = [subscription for subscription, kind, _ in (views[0].consumers if views else ()) if kind != "QUEUE"]
    subscriptions, problem, end = list[SubscriptionReaders](), None, time.monotonic() + SECONDS
    for subscription in wanted[:MAX_SUBSCRIPTIONS]:
        if topics is None or time.monotonic() > end:
            break
        reply = topics.consumers(name, subscription)
        held = _held(subscription, reply.value) if isinstance(reply, Answered) else None
        if held is None:
            has_answered = isinstance(reply, Answered | Refused)
            problem = (
                "The cluster does not say which segments a consumer reads."
                if has_answered
                else f"The controller does not answer: {str(reply)[:300]}"
            )
            break
        subscriptions.append(held)
    if subscriptions and topics is not None and isinstance(layout := topics.layout(name), Answered):
        segments = layout.value.segments
        subscriptions = [replace(held, lags=_lags(topics, name, held, segments, end)) for held in subscriptions]
    left = len(wanted) - len(subscriptions)
    return part(request, "consumers.html", name=name, subscriptions=subscriptions, problem=problem, left=left)


def _lags(
    topics: ScalableTopics, topic: str, held: SubscriptionReaders, segments: Mapping[int, Segment], end: float
) -> tuple[tuple[int, int], ...]:
    """Ask for the lag of each segment that is read, sealed ones included, until `time.monotonic()` of `end`."""
    read = sorted({id for _, _, ids in held.consumers for id in ids} & segments.keys())
    lags: list[tuple[int, int]] = []
    for id in read[:MAX_LAGS]:
        reply = topics.backlog(topic, segments[id].descriptor, held.name) if time.monotonic() < end else None
        if not isinstance(reply, Answered):
            break
        lags.append((id, reply.value))
    return tuple(lags)


def _held(subscription: str, reply: Any) -> SubscriptionReaders | None:
    """Parse the controller's answer; None if it has another form."""
    try:
        consumers = tuple(
            (str(consumer["consumer"]), bool(consumer["isConnected"]), tuple(map(int, consumer["segments"])))
            for consumer in reply["consumers"]
        )
        return SubscriptionReaders(subscription, int(reply["count"]), consumers)
    except (KeyError, TypeError, ValueError):
        return None
