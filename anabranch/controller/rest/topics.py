"""Routes of topics and their operations, as in Pulsar 5 (design "REST").

Where Pulsar responds to a wrong argument with 500 and a stack trace, this responds with the fitting 4xx.
"""

import re
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import JSONResponse
from pydantic import ValidationError

from anabranch.controller.access.roles import READ
from anabranch.controller.errors import BadRequest, NotFound, PreconditionFailed
from anabranch.controller.operations.adoption import Adoption
from anabranch.controller.policies import parse_json
from anabranch.controller.rest.parameters import ADMINISTERS, OPERATES, Body, Namespace, Service, Topic, takes
from anabranch.controller.segments.waiting import waits_for_segments
from schemas.metadata import ScalableTopicMetadata

_INTEGER = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_PROPERTIES = {"type": "object", "additionalProperties": {"type": "string"}}

Decision = Annotated[
    str | None,
    Header(alias="X-Anabranch-Decision", max_length=128, description="Id of the decision that is being applied."),
]
Layout = Annotated[
    str | None,
    Header(
        alias="X-Anabranch-Layout",
        max_length=64,
        description="`createdAtMs.epoch` of the layout that this is meant for: 409 on any other one.",
    ),
]

routes = APIRouter(prefix="/admin/v2/scalable/{tenant}/{namespace}", tags=["scalable topics"])


@routes.get("", dependencies=READ)
def list_topics(
    service: Service, namespace: Namespace, property: Annotated[list[str], Query(default_factory=list)]
) -> list[str]:
    """List the topics of a namespace; `property=key=value`, repeatable, keeps those that have all of them."""
    filters = []
    for text in property:
        key, _, value = text.partition("=")
        if not key or not value:
            raise PreconditionFailed(f"property filter must be in the form key=value, got: {text[:200]}")
        filters.append((key, value))
    return service.list_topics(namespace, filters)


@routes.put("/{topic}", **takes(_PROPERTIES))
@waits_for_segments
def create_topic(service: Service, topic: Topic, body: Body, numInitialSegments: str = "1") -> None:
    """Create a topic; the body is empty or an object of string properties."""
    if (properties := parse_json(body)) is None:
        properties = {}
    if not isinstance(properties, dict) or not all(isinstance(value, str) for value in properties.values()):
        raise BadRequest("the body must be empty or a JSON object of string properties")
    if not _INTEGER.fullmatch(numInitialSegments):
        raise PreconditionFailed(f"numInitialSegments must be a whole number, got: {numInitialSegments[:200]}")
    service.create_topic(topic, int(numInitialSegments), properties)


@routes.get("/{topic}", dependencies=READ, responses={200: {"model": ScalableTopicMetadata}})
def get_layout(service: Service, topic: Topic) -> Response:
    """Return the layout record of a topic (ScalableTopicMetadata)."""
    return Response(service.layout_json(topic), media_type="application/json")


@routes.delete("/{topic}", **ADMINISTERS)
@waits_for_segments
def delete_topic(service: Service, topic: Topic) -> None:
    """Delete a topic; `force` is accepted and makes no difference."""
    service.delete_topic(topic)


@routes.post("/{topic}/migrate", **takes({"type": "object"}))
@waits_for_segments
def migrate_topic(service: Service, topic: Topic, body: Body) -> None:
    """Create the topic from a sealed Kafka topic: `kafkaTopic`, `partitions`, `segments`, `subscriptions`.

    Without a body, as Pulsar's clients call it, every topic is scalable (409) or missing (404).
    """
    record = parse_json(body)
    try:
        adoption = None if record is None else Adoption.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise BadRequest(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from None
    service.adopt_topic(topic, adoption)


@routes.get("/{topic}/stats", dependencies=READ)
def get_stats(service: Service, topic: Topic) -> JSONResponse:
    """Return epoch, segments with names and states, and sessions of each subscription."""
    return JSONResponse(service.stats(topic))


@routes.post("/{topic}/split/{segment}", **OPERATES)
@waits_for_segments
def split_segment(
    service: Service, topic: Topic, segment: str, decision: Decision = None, layout: Layout = None
) -> None:
    """Split an active segment at the middle of its hash range."""
    service.split_segment(topic, _segment_id(segment), decision or None, layout or None)


@routes.post("/{topic}/merge/{first}/{second}", **OPERATES)
@waits_for_segments
def merge_segments(
    service: Service, topic: Topic, first: str, second: str, decision: Decision = None, layout: Layout = None
) -> None:
    """Merge two adjacent active segments."""
    service.merge_segments(topic, _segment_id(first), _segment_id(second), decision or None, layout or None)


@routes.post("/{topic}/rebucket/{segment}", **OPERATES)
@waits_for_segments
def rebucket_segment(
    service: Service,
    topic: Topic,
    segment: str,
    bucketCount: str = "",
    decision: Decision = None,
    layout: Layout = None,
) -> None:
    """Replace an active segment by one of the same range with `bucketCount` entry buckets of equal width."""
    if not _INTEGER.fullmatch(bucketCount):
        raise PreconditionFailed(f"bucketCount must be a whole number, got: {bucketCount[:200]}")
    service.rebucket_segment(topic, _segment_id(segment), int(bucketCount), decision or None, layout or None)


@routes.get("/{topic}/operations", dependencies=READ)
def list_operations(service: Service, topic: Topic) -> JSONResponse:
    """List the newest operations on segments with their steps, newest first (not in Pulsar's REST)."""
    return JSONResponse([operation.model_dump(mode="json", by_alias=True) for operation in service.operations(topic)])


@routes.get("/{topic}/sealed", dependencies=READ)
def list_sealed(service: Service, topic: Topic) -> JSONResponse:
    """List the sealed segments with the reason for keeping each, oldest first (not in Pulsar's REST)."""
    return JSONResponse(
        [
            {"segment": segment.segment, "sealedAtMs": segment.sealed_at_ms, "keptBecause": segment.reason}
            for segment in service.sealed(topic)
        ]
    )


def _segment_id(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise NotFound(f"not a segment id: {text[:200]}")
    return int(text)
