"""Routes of segment topics (PIP-468 "Segment Topic Management via Admin API").

For operators and repair tools: splits, merges and deletions do not need it. A controller without segment topics
(`controller.segments = "none"`) responds with 404.
"""

from typing import Annotated, cast

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from anabranch.controller.access.roles import READ
from anabranch.controller.errors import BadRequest, PreconditionFailed
from anabranch.controller.policies import parse_json
from anabranch.controller.rest.parameters import ADMINISTERS, Body, Service, SubscriptionName, Timestamp, Topic, takes
from anabranch.controller.segments.base import SegmentStore
from anabranch.controller.segments.no_segments import NoSegments
from anabranch.controller.segments.waiting import waits_for_segments
from decisions.topic.names import parse_segment_descriptor, segment_topic_name
from schemas.base import MAX_NAME_BYTES
from schemas.metadata import HashRange

MAX_SUBSCRIPTIONS = 1_000
"""Limit of one request to create a segment."""


def _segments(request: Request, service: Service, topic: Topic) -> SegmentStore:
    store = cast(SegmentStore, request.app.state.segments)
    if isinstance(store, NoSegments):
        raise HTTPException(404)
    return store.of_incarnation(service.life(topic))


async def _descriptor(descriptor: str) -> str:
    try:
        parse_segment_descriptor(descriptor)
    except ValueError as error:
        raise PreconditionFailed(str(error)[:300]) from None
    return descriptor


Segments = Annotated[SegmentStore, Depends(_segments)]
Descriptor = Annotated[str, Depends(_descriptor)]

routes = APIRouter(prefix="/admin/v2/segments/{tenant}/{namespace}/{topic}/{descriptor}", tags=["segments"])
_NAMES = {"type": "array", "items": {"type": "string"}}


@routes.put("", **takes(_NAMES))
@waits_for_segments
def create_segment(segments: Segments, service: Service, topic: Topic, descriptor: Descriptor, body: Body) -> None:
    """Create the topic of a segment with subscriptions at its beginning; an existing one is unchanged."""
    subscriptions = parse_json(body) or []
    if not isinstance(subscriptions, list) or not all(isinstance(name, str) for name in subscriptions):
        raise BadRequest("the body must be empty or a JSON array of names of subscriptions")
    if len(subscriptions) > MAX_SUBSCRIPTIONS or not all(0 < len(name) <= MAX_NAME_BYTES for name in subscriptions):
        raise PreconditionFailed(
            f"at most {MAX_SUBSCRIPTIONS} subscriptions, each with a name of 1 to {MAX_NAME_BYTES} characters"
        )
    service.layout_json(topic)
    segments.check_topic(topic)
    start, end, number = parse_segment_descriptor(descriptor)
    segments.create(topic, number, HashRange(start=start, end=end), subscriptions)


@routes.post("/terminate", **ADMINISTERS)
@waits_for_segments
def terminate_segment(segments: Segments, service: Service, topic: Topic, descriptor: Descriptor) -> None:
    """Make a segment refuse all writes, idempotently; the layout is changed by splits and merges alone."""
    # The layout knows whether there are transactions, which are to end first.
    layout = service.layout(topic)
    store = segments if layout is None else segments.of_layout(layout)
    store.terminate(segment_topic_name(topic, descriptor))


@routes.delete("", **ADMINISTERS)
@waits_for_segments
def delete_segment(
    segments: Segments, service: Service, topic: Topic, descriptor: Descriptor, force: str = "false"
) -> None:
    """Delete a segment with its messages, if it exists; one in the layout needs `force=true`."""
    if force.lower() != "true" and service.has_segment(topic, descriptor):
        raise PreconditionFailed(f"the layout of {topic} has the segment {descriptor}; force=true deletes its messages")
    segments.delete(segment_topic_name(topic, descriptor))


@routes.put("/subscription/{subscription}", **ADMINISTERS)
@waits_for_segments
def create_subscription(
    segments: Segments, topic: Topic, descriptor: Descriptor, subscription: SubscriptionName
) -> None:
    """Create a subscription at the beginning of one segment; an existing one keeps its position."""
    segments.create_subscription(segment_topic_name(topic, descriptor), subscription)


@routes.delete("/subscription/{subscription}", **ADMINISTERS)
@waits_for_segments
def delete_subscription(
    segments: Segments, topic: Topic, descriptor: Descriptor, subscription: SubscriptionName
) -> None:
    """Delete a subscription of one segment; a missing one is fine."""
    segments.delete_subscription(segment_topic_name(topic, descriptor), subscription)


@routes.get("/subscription/{subscription}/backlog", dependencies=READ, responses={200: {"model": int}})
@waits_for_segments
def get_backlog(
    segments: Segments, topic: Topic, descriptor: Descriptor, subscription: SubscriptionName
) -> JSONResponse:
    """Return the number of messages of a segment that a subscription has not acknowledged."""
    return JSONResponse(segments.backlog(segment_topic_name(topic, descriptor), subscription))


@routes.post("/subscription/{subscription}/seek", **ADMINISTERS)
@waits_for_segments
def seek_subscription(
    segments: Segments, topic: Topic, descriptor: Descriptor, subscription: SubscriptionName, timestamp: Timestamp
) -> None:
    """Move a subscription on a segment to the first message at a time or later; sessions are not notified."""
    segments.seek(segment_topic_name(topic, descriptor), subscription, timestamp)


@routes.post("/subscription/{subscription}/skip-all", **ADMINISTERS)
@waits_for_segments
def clear_backlog(segments: Segments, topic: Topic, descriptor: Descriptor, subscription: SubscriptionName) -> None:
    """Move a subscription past the last message of one segment."""
    segments.seek(segment_topic_name(topic, descriptor), subscription, "latest")
