"""Names of topics, namespaces, subscriptions and consumers from the raw path of a request.

Stage: between the raw path and the service; the canonical spelling is that of `anabranch.auth.spelling`.
"""

from anabranch.auth.spelling import SpellingError, canonical, decode_once
from anabranch.controller.errors import BadRequest, PreconditionFailed
from schemas.base import MAX_NAME_BYTES
from schemas.ids import topic_name


def topic_of_path(tenant: str, namespace: str, topic: str) -> str:
    """Return `topic://tenant/namespace/name` of raw path segments. Raises `ControllerError` if invalid."""
    name = topic_name(*(canonical_segment(part) for part in (tenant, namespace, topic)))
    if len(name) > MAX_NAME_BYTES:
        raise PreconditionFailed(f"the topic's name has {len(name)} characters, at most {MAX_NAME_BYTES}")
    return name


def namespace_of_path(tenant: str, namespace: str) -> str:
    """Return `tenant/namespace` of two raw path segments."""
    name = f"{canonical_segment(tenant)}/{canonical_segment(namespace)}"
    if len(name) > MAX_NAME_BYTES:
        raise PreconditionFailed(f"the namespace has {len(name)} characters, at most {MAX_NAME_BYTES}")
    return name


def plain_name(segment: str, kind: str) -> str:
    """Return the name of a subscription or consumer from a raw path segment: decoded once, like Pulsar."""
    name = _decoded(segment)
    if not 0 < len(name) <= MAX_NAME_BYTES:
        raise PreconditionFailed(f"the {kind}'s name must have 1 to {MAX_NAME_BYTES} characters, got {len(name)}")
    return name


def canonical_segment(segment: str) -> str:
    """Return the canonical form of one raw path segment of a topic's name; equal for every spelling of it."""
    try:
        return canonical(segment)
    except SpellingError as error:
        raise (PreconditionFailed if error.is_too_long else BadRequest)(str(error)) from None


def _decoded(segment: str) -> str:
    try:
        return decode_once(segment)
    except SpellingError as error:
        raise BadRequest(str(error)) from None
