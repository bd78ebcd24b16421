"""The admin REST interface: verbs, paths, bodies and status codes of Pulsar 5 (DESIGN section 4.4).

Stage: taken in by `controller.app`; a request is read here, `controller.service` does it. Where Pulsar answers a wrong
argument with 500 and a stack trace, this answers the 4xx that fits.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, cast

from fastapi import APIRouter, Depends, Header, Query, Response
from fastapi.responses import JSONResponse

from controller.access.callers import ADMIN, OPERATE, READ
from controller.errors import BadRequest, NotFound, PreconditionFailed
from controller.policies import parse_json, parse_override
from controller.rest.parameters import Body, Registry, Service, SubscriptionName, Timestamp, Topic
from controller.rest.topic_names import namespace_of_path, plain_name
from controller.sessions.connections import Sessions
from schemas.messages import SubscriptionType
from schemas.metadata import AutoScalePolicyOverride, ScalableTopicMetadata

_SUBSCRIPTION_TYPES = ("STREAM", "CHECKPOINT", "QUEUE")

_LONG = re.compile(r"-?[0-9]{1,18}", re.ASCII)


async def _namespace(tenant: str, namespace: str) -> str:
    return namespace_of_path(tenant, namespace)


async def _consumer(consumer: str) -> str:
    return plain_name(consumer, "consumer")


async def _subscription_type(type: str = "STREAM") -> SubscriptionType:
    if type not in _SUBSCRIPTION_TYPES:
        raise PreconditionFailed(f"type must be one of {', '.join(_SUBSCRIPTION_TYPES)}, got: {type[:200]}")
    return cast(SubscriptionType, type)


Namespace = Annotated[str, Depends(_namespace)]
Consumer = Annotated[str, Depends(_consumer)]
Type = Annotated[SubscriptionType, Depends(_subscription_type)]
Decision = Annotated[
    str | None,
    Header(alias="X-Anabranch-Decision", max_length=128, description="Id of the decision that is being applied."),
]

topics = APIRouter(prefix="/admin/v2/scalable/{tenant}/{namespace}", tags=["scalable topics"])
namespaces = APIRouter(
    prefix="/admin/v2/namespaces/{tenant}/{namespace}/scalableTopicAutoScalePolicy", tags=["namespaces"]
)


_DONE: dict[str, Any] = {"status_code": 204, "response_class": Response}
_OPERATES: dict[str, Any] = {**_DONE, "dependencies": OPERATE}
_ADMINISTERS: dict[str, Any] = {**_DONE, "dependencies": ADMIN}


def _takes(schema: dict[str, Any]) -> dict[str, Any]:
    return {**_ADMINISTERS, "openapi_extra": {"requestBody": {"content": {"application/json": {"schema": schema}}}}}


_PROPERTIES = {"type": "object", "additionalProperties": {"type": "string"}}
_POLICY = {"$ref": "#/components/schemas/AutoScalePolicyOverride"}
_POLICY_READ: dict[int | str, dict[str, Any]] = {200: {"model": AutoScalePolicyOverride}}


@topics.get("", dependencies=READ)
def list_topics(
    service: Service, namespace: Namespace, property: Annotated[list[str], Query(default_factory=list)]
) -> list[str]:
    """The topics of a namespace; `property=key=value`, repeated, keeps those that have all of them."""
    filters = []
    for text in property:
        key, _, value = text.partition("=")
        if not key or not value:
            raise PreconditionFailed(f"property filter must be in the form key=value, got: {text[:200]}")
        filters.append((key, value))
    return service.list_topics(namespace, filters)


@topics.put("/{topic}", **_takes(_PROPERTIES))
def create_topic(service: Service, topic: Topic, body: Body, numInitialSegments: str = "1") -> None:
    """Create a topic; the body is empty or an object of string properties."""
    properties = parse_json(body)
    if properties is None:
        properties = {}
    if not isinstance(properties, dict) or not all(isinstance(value, str) for value in properties.values()):
        raise BadRequest("the body must be empty or a JSON object of string properties")
    if not _LONG.fullmatch(numInitialSegments):
        raise PreconditionFailed(f"numInitialSegments must be a whole number, got: {numInitialSegments[:200]}")
    service.create_topic(topic, int(numInitialSegments), properties)


@topics.get("/{topic}", dependencies=READ, responses={200: {"model": ScalableTopicMetadata}})
def get_layout(service: Service, topic: Topic) -> Response:
    """The layout record of a topic (ScalableTopicMetadata)."""
    return Response(service.layout_json(topic), media_type="application/json")


@topics.delete("/{topic}", **_ADMINISTERS)
def delete_topic(service: Service, topic: Topic) -> None:
    """Delete a topic; `force` is accepted and makes no difference."""
    service.delete_topic(topic)


@topics.post("/{topic}/migrate", **_ADMINISTERS)
def migrate_topic(service: Service, topic: Topic) -> None:
    """Never done: every topic here is scalable (409) or is not there at all (404); `force` makes no difference."""
    service.migrate_topic(topic)


@topics.get("/{topic}/stats", dependencies=READ)
def get_stats(service: Service, topic: Topic) -> JSONResponse:
    """Epoch, segments with names and states, sessions of each subscription."""
    return JSONResponse(service.stats(topic))


@topics.post("/{topic}/split/{segment}", **_OPERATES)
def split_segment(service: Service, topic: Topic, segment: str, decision: Decision = None) -> None:
    """Split an active segment at the middle of its hash range."""
    service.split_segment(topic, _segment_id(segment), decision or None)


@topics.post("/{topic}/merge/{first}/{second}", **_OPERATES)
def merge_segments(service: Service, topic: Topic, first: str, second: str, decision: Decision = None) -> None:
    """Merge two adjacent active segments."""
    service.merge_segments(topic, _segment_id(first), _segment_id(second), decision or None)


@topics.get("/{topic}/operations", dependencies=READ)
def list_operations(service: Service, topic: Topic) -> JSONResponse:
    """The newest splits and merges with the step that each is at, the newest first (not in Pulsar's REST)."""
    return JSONResponse([operation.model_dump(mode="json", by_alias=True) for operation in service.operations(topic)])


@topics.get("/{topic}/autoScalePolicy", dependencies=READ, responses=_POLICY_READ)
def get_policy(service: Service, topic: Topic) -> Response:
    """The override of a topic as it was set; 200 without a body when there is none, as Pulsar."""
    return _policy_answer(service.policy(topic))


@topics.post("/{topic}/autoScalePolicy", **_takes(_POLICY))
def set_policy(service: Service, topic: Topic, body: Body) -> None:
    """Replace the override of a topic; an empty body removes it."""
    service.set_policy(topic, parse_override(body))


@topics.delete("/{topic}/autoScalePolicy", **_ADMINISTERS)
def remove_policy(service: Service, topic: Topic) -> None:
    """Remove the override of a topic."""
    service.set_policy(topic, None)


@namespaces.get("", dependencies=READ, responses=_POLICY_READ)
def get_namespace_policy(service: Service, namespace: Namespace) -> Response:
    """The override of a namespace as it was set; 200 without a body when there is none, as Pulsar."""
    return _policy_answer(service.namespace_policy(namespace))


@namespaces.post("", **_takes(_POLICY))
def set_namespace_policy(service: Service, namespace: Namespace, body: Body) -> None:
    """Replace the override of a namespace; an empty body removes it."""
    service.set_namespace_policy(namespace, parse_override(body))


@namespaces.delete("", **_ADMINISTERS)
def remove_namespace_policy(service: Service, namespace: Namespace) -> None:
    """Remove the override of a namespace."""
    service.set_namespace_policy(namespace, None)


@topics.put("/{topic}/subscriptions/{subscription}", **_OPERATES)
def create_subscription(subscriptions: Registry, topic: Topic, subscription: SubscriptionName, type: Type) -> None:
    """Create a subscription; nothing happens when it exists with this type."""
    subscriptions.create_subscription(topic, subscription, type)


@topics.delete("/{topic}/subscriptions/{subscription}", **_OPERATES)
def delete_subscription(subscriptions: Registry, topic: Topic, subscription: SubscriptionName) -> None:
    """Delete a subscription with its sessions."""
    subscriptions.delete_subscription(topic, subscription)


@topics.post("/{topic}/subscriptions/{subscription}/seek", **_OPERATES)
async def seek_subscription(
    consuming: Sessions, topic: Topic, subscription: SubscriptionName, timestamp: Timestamp
) -> None:
    """Move a subscription, on every segment, to the first message of a time or later, or to the end without one."""
    await consuming.subscriptions.seek((topic, subscription), timestamp)


@topics.post("/{topic}/subscriptions/{subscription}/skip-all", **_OPERATES)
async def clear_backlog(consuming: Sessions, topic: Topic, subscription: SubscriptionName) -> None:
    """Move a subscription behind the last message of every segment."""
    await consuming.subscriptions.seek((topic, subscription), "latest")


@topics.put("/{topic}/subscriptions/{subscription}/consumers/{consumer}", **_OPERATES)
def register_consumer(
    subscriptions: Registry, topic: Topic, subscription: SubscriptionName, consumer: Consumer, type: Type
) -> None:
    """Register a consumer session (not in Pulsar's REST); a known name changes nothing."""
    subscriptions.register_consumer(topic, subscription, consumer, type)


@topics.delete("/{topic}/subscriptions/{subscription}/consumers/{consumer}", **_OPERATES)
def unregister_consumer(
    subscriptions: Registry, topic: Topic, subscription: SubscriptionName, consumer: Consumer
) -> None:
    """Unregister a consumer session (not in Pulsar's REST)."""
    subscriptions.unregister_consumer(topic, subscription, consumer)


def _segment_id(text: str) -> int:
    if not _LONG.fullmatch(text):
        raise NotFound(f"not a segment id: {text[:200]}")
    return int(text)


def _policy_answer(policy: AutoScalePolicyOverride | None) -> Response:
    if policy is None:
        return Response(status_code=200)
    return Response(policy.to_json(), media_type="application/json")
