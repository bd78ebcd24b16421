"""Routes of overrides of the auto split/merge policy, for topics and namespaces, as in Pulsar 5.

Stage: `anabranch.controller.policies` parses an override strictly; `anabranch.controller.service`, for a namespace
`anabranch.controller.namespaces`, checks and stores it. It reaches the job over Kafka: a topic's override as part of
its layout, a namespace's as a `PolicyEvent`.
"""

from fastapi import APIRouter, Response

from anabranch.controller.access.roles import READ
from anabranch.controller.policies import EffectivePolicy, parse_override
from anabranch.controller.rest.parameters import ADMINISTERS, Body, Namespace, Namespaces, Service, Topic, takes
from schemas.metadata import AutoScalePolicyOverride

_POLICY = {"$ref": "#/components/schemas/AutoScalePolicyOverride"}
_POLICY_READ: dict[int | str, dict[str, type[AutoScalePolicyOverride]]] = {200: {"model": AutoScalePolicyOverride}}

topic_routes = APIRouter(prefix="/admin/v2/scalable/{tenant}/{namespace}", tags=["scalable topics"])
namespace_routes = APIRouter(
    prefix="/admin/v2/namespaces/{tenant}/{namespace}/scalableTopicAutoScalePolicy", tags=["namespaces"]
)


@topic_routes.get("/{topic}/autoScalePolicy", dependencies=READ, responses=_POLICY_READ)
def get_policy(service: Service, topic: Topic) -> Response:
    """Return the override of a topic as it was set; 200 without a body if there is none, like Pulsar."""
    return _policy_answer(service.policy(topic))


@topic_routes.get("/{topic}/autoScalePolicy/effective", dependencies=READ, responses={200: {"model": EffectivePolicy}})
def get_effective_policy(service: Service, topic: Topic) -> Response:
    """Return the resolved policy of a topic, with the origin of each value (not in Pulsar's REST)."""
    return Response(service.effective_policy(topic).to_json(), media_type="application/json")


@topic_routes.post("/{topic}/autoScalePolicy", **takes(_POLICY))
def set_policy(service: Service, topic: Topic, body: Body) -> None:
    """Replace the override of a topic; an empty body removes it."""
    service.set_policy(topic, parse_override(body))


@topic_routes.delete("/{topic}/autoScalePolicy", **ADMINISTERS)
def remove_policy(service: Service, topic: Topic) -> None:
    """Remove the override of a topic."""
    service.set_policy(topic, None)


@namespace_routes.get("", dependencies=READ, responses=_POLICY_READ)
def get_namespace_policy(namespaces: Namespaces, namespace: Namespace) -> Response:
    """Return the override of a namespace as it was set; 200 without a body if there is none, like Pulsar."""
    return _policy_answer(namespaces.policy(namespace))


@namespace_routes.post("", **takes(_POLICY))
def set_namespace_policy(namespaces: Namespaces, namespace: Namespace, body: Body) -> None:
    """Replace the override of a namespace; an empty body removes it."""
    namespaces.set_policy(namespace, parse_override(body))


@namespace_routes.delete("", **ADMINISTERS)
def remove_namespace_policy(namespaces: Namespaces, namespace: Namespace) -> None:
    """Remove the override of a namespace."""
    namespaces.set_policy(namespace, None)


def _policy_answer(policy: AutoScalePolicyOverride | None) -> Response:
    return Response(status_code=200) if policy is None else Response(policy.to_json(), media_type="application/json")
