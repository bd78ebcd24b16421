"""Policy overrides received over REST: strict parsing, and checks of the resolved policy.

Stage: between the app and the service. Pulsar stores an empty override for an unknown field; here that is a 400 that
names the field. `decisions.autoscale.policy` decides what is valid.
"""

from pydantic import ValidationError
from pydantic_core import from_json

from anabranch.controller.errors import BadRequest, PreconditionFailed
from decisions.autoscale.policy import ClusterPolicy, policy_digest, policy_override, resolve_policy
from schemas.base import Wire
from schemas.metadata import AutoScalePolicyOverride, Profile

MAX_LONG = 2**63 - 1
MAX_INT = 2**31 - 1
_INTS = frozenset({"maxSegments", "minSegments", "maxDagDepth"})
_FIELDS = frozenset(field.alias for field in AutoScalePolicyOverride.model_fields.values())


def parse_override(body: bytes) -> AutoScalePolicyOverride | None:
    """Parse the override in a body; None for an empty body or `null`, which removes it as in Pulsar.

    Raises `BadRequest` for anything but a JSON object, an unknown field, or a value of the wrong type.
    """
    if (value := parse_json(body)) is None:
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
    """Raise `PreconditionFailed` if the resolved policy breaks a rule (PIP-483 "Policy resolution")."""
    if (broken := resolve_policy(*cluster, namespace, topic).broken) is not None:
        raise PreconditionFailed(f"Invalid auto split/merge configuration: {broken}")


class EffectivePolicy(Wire):
    """Policy of a topic after PIP-483 "Policy resolution", with the origin of each value."""

    profile: Profile
    digest: str
    """Equal policies have equal digests, also those of the job and of `anabranch policy show`."""
    policy: AutoScalePolicyOverride
    """All fields, including guards."""
    origins: dict[str, str]
    """Field to `profile NAME`, `cluster`, `namespace` or `topic`."""
    broken: str | None = None
    """The rule that the combination breaks; scaling is off then."""


def effective_policy(
    cluster: ClusterPolicy, namespace: AutoScalePolicyOverride | None, topic: AutoScalePolicyOverride | None
) -> EffectivePolicy:
    """Return the policy resolved from overrides, by the same function as in the job."""
    resolved = resolve_policy(*cluster, namespace, topic)
    return EffectivePolicy(
        profile=cluster.profile,
        digest=policy_digest(resolved.policy),
        policy=policy_override(resolved.policy),
        origins=dict(resolved.origins),
        broken=resolved.broken,
    )


def parse_json(body: bytes) -> object:
    """Return the JSON value of a request's body, None if it is empty. Raises `BadRequest`."""
    if not body.strip():
        return None
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise BadRequest(f"the body is not JSON: {error}") from None


def _max_value(field: str) -> int:
    """Return the largest value of Pulsar's type for a field; durations are stored in milliseconds."""
    if field in _INTS:
        return MAX_INT
    return MAX_LONG // 1000 if field.endswith("Seconds") else MAX_LONG
