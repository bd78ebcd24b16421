"""Policy overrides as they come in over REST: read strictly, and refused when the policy they lead to is contradictory.

Stage: between the app and the service. Pulsar stores an empty override when a field is unknown; here that is a 400 that
names the field. What is valid is decided by `decisions.autoscale.policy`.
"""

from __future__ import annotations

from pydantic import ValidationError
from pydantic_core import from_json

from controller.errors import BadRequest, PreconditionFailed
from decisions.autoscale.policy import ClusterPolicy, policy_digest, policy_override, resolve_policy
from schemas.base import Wire
from schemas.metadata import AutoScalePolicyOverride, Profile

MAX_LONG = 2**63 - 1
MAX_INT = 2**31 - 1
_INTS = frozenset({"maxSegments", "minSegments", "maxDagDepth"})
_FIELDS = frozenset(field.alias for field in AutoScalePolicyOverride.model_fields.values())


def parse_override(body: bytes) -> AutoScalePolicyOverride | None:
    """The override in a request's body; None for an empty body or `null`, which removes it as in Pulsar.

    Raises `BadRequest` for anything but a JSON object, an unknown field, or a value of the wrong type.
    """
    value = parse_json(body)
    if value is None:
        return None
    if not isinstance(value, dict):
        raise BadRequest("the policy must be a JSON object")
    for name, number in value.items():
        if name not in _FIELDS:
            raise BadRequest(f"unknown policy field: {name[:200]}")
        if isinstance(number, (int, float)) and abs(number) > _max_value(name):
            raise BadRequest(f"{name}: out of range, at most {_max_value(name)}")
    try:
        return AutoScalePolicyOverride.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise BadRequest(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from None


def check_override(
    cluster: ClusterPolicy, namespace: AutoScalePolicyOverride | None, topic: AutoScalePolicyOverride | None
) -> None:
    """Raises `PreconditionFailed` naming the rule that the resolved policy breaks (PIP-483 "Policy resolution")."""
    broken = resolve_policy(*cluster, namespace, topic).broken
    if broken is not None:
        raise PreconditionFailed(f"Invalid auto split/merge configuration: {broken}")


class EffectivePolicy(Wire):
    """What a topic's policy is after PIP-483 "Policy resolution", and who set each value."""

    profile: Profile
    digest: str
    """Equal policies have equal digests, also those of the job and of `anabranch policy show`."""
    policy: AutoScalePolicyOverride
    """Every field, guards too."""
    origins: dict[str, str]
    """Field to `profile NAME`, `cluster`, `namespace` or `topic`."""
    broken: str | None = None
    """The rule that the combination breaks; scaling is off then."""


def effective_policy(
    cluster: ClusterPolicy, namespace: AutoScalePolicyOverride | None, topic: AutoScalePolicyOverride | None
) -> EffectivePolicy:
    """The policy that overrides lead to, by the same function as in the job."""
    resolved = resolve_policy(*cluster, namespace, topic)
    return EffectivePolicy(
        profile=cluster.profile,
        digest=policy_digest(resolved.policy),
        policy=policy_override(resolved.policy),
        origins=dict(resolved.origins),
        broken=resolved.broken,
    )


def parse_json(body: bytes) -> object:
    """The JSON value of a request's body, None when it is empty; raises `BadRequest`."""
    if not body.strip():
        return None
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise BadRequest(f"the body is not JSON: {error}") from None


def _max_value(field: str) -> int:
    """The largest value that Pulsar's type of a field holds; durations are kept in milliseconds."""
    if field in _INTS:
        return MAX_INT
    return MAX_LONG // 1000 if field.endswith("Seconds") else MAX_LONG
