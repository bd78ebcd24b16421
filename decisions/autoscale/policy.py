"""Auto-scale policy: every setting of PIP-483 and every guard, with profiles, resolution and rules.

Stage: before every decision. An override sets some fields; resolution lays cluster, namespace and topic over a profile,
field by field, the most specific wins. Three kinds of fault are kept apart: an unreadable policy is a `PolicyError`, an
invalid combination turns scaling off for the topic and names the rule, anything else is a bug of ours. Longer than
other modules because every field stands here once, with its bounds and its source.
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic import ValidationError

from decisions.kernel.quantities import QuantityError, parse_duration, parse_rate, parse_size
from schemas.ids import digest
from schemas.metadata import BUCKET_POLICY_FIELDS, MAX_ENTRY_BUCKETS, AutoScalePolicyOverride, Profile

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_INT, MAX_LONG = 2**31 - 1, 2**63 - 1
"""The largest values of Pulsar's fields: counts are 32-bit, seconds 64-bit."""
MAX_HALVINGS = 16
"""Of the hash space, until a range holds a single hash."""
BEYOND_FLOAT = 10**400
"""Stands for a size that is too large for a float, so that a policy broken by one stays broken."""


class PolicyError(ValueError):
    """A policy cannot be read; the message names the key and says what it may be."""


@dataclass(frozen=True)
class Policy:
    """Effective policy of a topic: rates per second, durations in milliseconds, defaults of the PIP.

    The first fifteen fields are those of PIP-483 "Configuration (`broker.conf`)", the rest guards that the PIP does not
    have, off unless set. The last six are of entry buckets, four of them with the defaults of Pulsar 5.0.
    """

    enabled: bool = True
    max_segments: int = 64
    min_segments: int = 1
    max_dag_depth: int = 10
    split_cooldown_ms: int = 60_000
    merge_cooldown_ms: int = 300_000
    merge_window_ms: int = 300_000
    split_msg_rate_in_threshold: float = 10_000.0
    split_bytes_rate_in_threshold: float = 50_000_000.0
    split_msg_rate_out_threshold: float = 50_000.0
    split_bytes_rate_out_threshold: float = 250_000_000.0
    merge_msg_rate_in_threshold: float = 1_000.0
    merge_bytes_rate_in_threshold: float = 5_000_000.0
    merge_msg_rate_out_threshold: float = 5_000.0
    merge_bytes_rate_out_threshold: float = 25_000_000.0
    merge_keeps_consumers: bool = False
    skip_unsplittable: bool = False
    normalized_coldness: bool = False
    cold_since_threshold: bool = False
    max_load_age_ms: int = 0
    """Milliseconds; 0: loads never age."""
    explicit_lineage: bool = False
    retry_backoff_ms: int = 0
    """The first pause, milliseconds; 0: no back-off."""
    threshold_crossing: bool = False
    merge_headroom: float = 0.0
    """Part of the split thresholds that two merged segments stay below; 0: the merge thresholds alone say."""
    settle_ms: int = 0
    """Milliseconds; 0: what was split may be merged at once."""
    regret_window_ms: int = 0
    """Milliseconds; 0: what was regretted is merged like anything else."""
    returns_within_ms: int = 0
    """Milliseconds; 0: no load is expected back."""
    hot_key_splits: int = 0
    """Halvings; 0: no hot key is looked for."""
    hot_key_retry_ms: int = 21_600_000
    parallel_actions: bool = False
    urgent_overload: float = 0.0
    """Times a split threshold; 0: nothing is urgent."""
    prompt_splits: bool = False
    rebucket_cooldown_ms: int = 60_000
    split_vs_rebucket_min_msg_rate_in_threshold: float = 1_000.0
    max_entry_buckets_per_segment: int = 1_024
    entry_bucket_budget: int = 0
    """Entry buckets of a new topic; 0: it has none."""
    rebuckets: bool = False
    as_shipped: bool = False

    @cached_property
    def split_thresholds(self) -> tuple[float, float, float, float]:
        """The four split thresholds in the order of the rates."""
        return (
            self.split_msg_rate_in_threshold,
            self.split_bytes_rate_in_threshold,
            self.split_msg_rate_out_threshold,
            self.split_bytes_rate_out_threshold,
        )

    @cached_property
    def merge_thresholds(self) -> tuple[float, float, float, float]:
        """Return the four merge thresholds, at least half of what the guard `mergeHeadroom` allows."""
        msg_in, bytes_in, msg_out, bytes_out = self.written_merge_thresholds
        if not self.merge_headroom:
            return msg_in, bytes_in, msg_out, bytes_out
        half = self.merge_headroom / 2
        a, b, c, d = self.split_thresholds
        return max(msg_in, a * half), max(bytes_in, b * half), max(msg_out, c * half), max(bytes_out, d * half)

    @property
    def written_merge_thresholds(self) -> tuple[float, float, float, float]:
        """The four merge thresholds as the policy has them."""
        return (
            self.merge_msg_rate_in_threshold,
            self.merge_bytes_rate_in_threshold,
            self.merge_msg_rate_out_threshold,
            self.merge_bytes_rate_out_threshold,
        )

    @cached_property
    def merges_into_hot(self) -> bool:
        """Tell if two cold segments can make one above a split threshold."""
        return any(2 * merge > split for merge, split in zip(self.merge_thresholds, self.split_thresholds, strict=True))

    @property
    def looks_back(self) -> bool:
        """Tell if decisions depend on what made a segment."""
        return self.settles or self.parallel_actions or self.explicit_lineage

    @property
    def evaluates_at_once(self) -> bool:
        """Tell if a sample above a split threshold is followed by an evaluation."""
        return self.prompt_splits and self.threshold_crossing

    @property
    def settles(self) -> bool:
        """Tell if merges wait for as long as a load may come back."""
        return self.settle_ms > 0 or self.regret_window_ms > 0 or self.returns_within_ms > 0

    @cached_property
    def broken(self) -> str | None:
        """The first rule that the combination breaks, or None; nothing is decided by a broken policy."""
        return next(iter(policy_violations(self)), None)


PROFILES: Mapping[str, Policy] = MappingProxyType(
    {
        "pip-483": Policy(),
        "default": Policy(
            merge_keeps_consumers=True,
            skip_unsplittable=True,
            normalized_coldness=True,
            cold_since_threshold=True,
            max_load_age_ms=180_000,
            explicit_lineage=True,
            retry_backoff_ms=30_000,
            threshold_crossing=True,
            merge_headroom=0.75,
            settle_ms=1_800_000,
            regret_window_ms=14_400_000,
            returns_within_ms=3_600_000,
            hot_key_splits=6,
            parallel_actions=True,
            urgent_overload=1.0,
            prompt_splits=True,
            rebuckets=True,
        ),
        "pulsar-5.0": Policy(entry_bucket_budget=4, rebuckets=True, as_shipped=True),
    }
)
"""`pip-483`: the text of the PIP. `default`: the same with every guard. `pulsar-5.0`: the decision of Pulsar 5.0.1."""


@dataclass(frozen=True, slots=True)
class ResolvedPolicy:
    """A policy with where each of its values comes from."""

    policy: Policy
    origins: Mapping[str, str]
    """Wire name of a field to `profile NAME`, `cluster`, `namespace` or `topic`."""
    broken: str | None
    """The rule that the combination breaks; the policy is then disabled."""


def resolve_policy(
    profile: str,
    cluster: AutoScalePolicyOverride | None = None,
    namespace: AutoScalePolicyOverride | None = None,
    topic: AutoScalePolicyOverride | None = None,
) -> ResolvedPolicy:
    """Lays the overrides over a profile, field by field, the most specific wins.

    PIP-483 "Policy resolution (namespace + topic overrides)".

    An invalid combination comes back with `enabled` False and `broken` naming the rule. `KeyError`: no such profile.
    """
    values: dict[str, Any] = {}
    origins = dict.fromkeys(POLICY_FIELDS, f"profile {profile}")
    for scope, override in (("cluster", cluster), ("namespace", namespace), ("topic", topic)):
        if override is None:
            continue
        for wire, field in POLICY_FIELDS.items():
            if (value := getattr(override, field.attribute)) is not None:
                values[field.name] = field.inside(value)
                origins[wire] = scope
    policy = replace(PROFILES[profile], **values)
    if (broken := policy.broken) is not None:
        policy = replace(policy, enabled=False)
    return ResolvedPolicy(policy, MappingProxyType(origins), broken)


def policy_violations(policy: Policy) -> list[str]:
    """The rules that a combination breaks, in words; empty when it is valid.

    The rules of Pulsar for the resolved policy: counts and durations in range, split thresholds above 0, merge
    thresholds not below 0, and each split threshold strictly above its merge threshold: the dead band of
    PIP-483 "Anti-flip-flop: three independent guards".
    """
    broken = []
    if not policy.min_segments >= 1:
        broken.append(f"minSegments must be at least 1, got {policy.min_segments}")
    if not policy.max_segments >= policy.min_segments:
        broken.append(f"maxSegments ({policy.max_segments}) must not be less than minSegments ({policy.min_segments})")
    if not policy.max_dag_depth >= 0:
        broken.append(f"maxDagDepth must not be negative, got {policy.max_dag_depth}")
    for wire, field in POLICY_FIELDS.items():
        value = getattr(policy, field.name)
        if field.factor != 1 and value < 0:
            broken.append(f"{wire} must not be negative, got {value // field.factor}")
        if type(value) is int and value > (MAX_LONG * field.factor if field.factor != 1 else MAX_INT):
            broken.append(f"{wire} is larger than Pulsar can hold")
    if not 0 <= policy.merge_headroom < 1:
        broken.append(f"mergeHeadroom must be at least 0 and less than 1, got {policy.merge_headroom:g}")
    if not (policy.urgent_overload == 0 or 1 <= policy.urgent_overload < math.inf):
        broken.append(f"urgentOverload must be 0 or at least 1, got {policy.urgent_overload:g}")
    if not 1 <= policy.max_entry_buckets_per_segment <= MAX_ENTRY_BUCKETS:
        broken.append(
            f"maxEntryBucketsPerSegment must be from 1 to {MAX_ENTRY_BUCKETS}, got "
            f"{policy.max_entry_buckets_per_segment}"
        )
    if policy.entry_bucket_budget < 0:
        broken.append(f"entryBucketBudget must not be negative, got {policy.entry_bucket_budget}")
    floor = policy.split_vs_rebucket_min_msg_rate_in_threshold
    if not 0 <= floor < math.inf:
        broken.append(f"splitVsRebucketMinMsgRateInThreshold must be finite and not negative, got {floor:g}")
    if not 0 <= policy.hot_key_splits <= MAX_HALVINGS:
        broken.append(f"hotKeySplits must be from 0 to {MAX_HALVINGS}, got {policy.hot_key_splits}")
    for rate, split, merge in zip(RATE_WORDS, policy.split_thresholds, policy.written_merge_thresholds, strict=True):
        if not split > 0:
            broken.append(f"split{rate}Threshold must be greater than 0, got {split:g}")
        if not merge >= 0:
            broken.append(f"merge{rate}Threshold must not be negative, got {merge:g}")
        if math.inf in (split, merge):
            broken.append(f"split{rate}Threshold and merge{rate}Threshold must be finite, got {split:g} and {merge:g}")
        if not split > merge:
            broken.append(f"split{rate}Threshold ({split:g}) must be greater than merge{rate}Threshold ({merge:g})")
    return broken


def policy_warnings(policy: Policy) -> list[str]:
    """Warn about a valid policy whose cold neighbours can merge into a segment that is split at once."""
    if policy_violations(policy):
        return []
    return [
        f"merge{rate}Threshold ({merge:g}) is more than half of split{rate}Threshold ({split:g}): two cold neighbours "
        "can merge into a segment that is split again; only maxDagDepth ends that"
        for rate, split, merge in zip(RATE_WORDS, policy.split_thresholds, policy.written_merge_thresholds, strict=True)
        if merge * 2 > split
    ]


def policy_digest(policy: Policy) -> str:
    """A short digest of the effective policy: equal policies have equal digests, in every process.

    What is said of entry buckets counts where it is not as in the profile `default`, so that this has the digest that
    it had before there were any.
    """
    default = PROFILES["default"]
    return digest(
        {
            field.name: _canonical_value(value)
            for field in fields(policy)
            if (value := getattr(policy, field.name)) != getattr(default, field.name) or field.name not in _OF_BUCKETS
        },
        size=8,
    )


def policy_override(policy: Policy, has_buckets: bool = True) -> AutoScalePolicyOverride:
    """Return the effective policy with every field set, as a snapshot carries it.

    Sub-second parts of durations are cut. For a topic without entry buckets their fields are left out, unless one of
    them breaks a rule.
    """
    has_buckets = has_buckets or policy.broken is not None
    return AutoScalePolicyOverride(
        **{
            field.attribute: field.outside(getattr(policy, field.name))
            for field in POLICY_FIELDS.values()
            if has_buckets or field.name not in _OF_BUCKETS
        }
    )


class ClusterPolicy(NamedTuple):
    """The cluster's policy: a profile, and what is laid over it for every topic."""

    profile: Profile
    override: AutoScalePolicyOverride | None = None


def read_cluster_policy(profile: Profile, text: str) -> ClusterPolicy:
    """The cluster's policy out of the text of its file; raises `PolicyError` as `read_policy` does."""
    return ClusterPolicy(profile, read_policy(text))


def read_policy(text: str) -> AutoScalePolicyOverride:
    """Read an override from TOML with units: `"60s"`, `"5m"`, `"50MB"` (decimal), `"10k"`, plain numbers.

    Raises `PolicyError` naming the key, for text that is no TOML, an unknown key, or a value that does not fit the key.
    """
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # Brackets in brackets, and a number of thousands of digits.
        raise PolicyError(f"no TOML: {error}") from error
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in POLICY_FIELDS:
            nearest = get_close_matches(key, POLICY_FIELDS, 1, 0.7)
            hint = f"did you mean {nearest[0]}?" if nearest else f"known keys: {', '.join(POLICY_FIELDS)}"
            raise PolicyError(f"unknown key {key!r}; {hint}")
        if isinstance(value, int) and value.bit_length() > 63:
            raise PolicyError(f"{key}: the number is larger than any that counts here")
        try:
            values[key] = POLICY_FIELDS[key].read(value)
        except (ValueError, OverflowError) as error:
            raise PolicyError(f"{key}: {error}") from None
    try:
        return AutoScalePolicyOverride.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = str(first["loc"][0])
        raise PolicyError(f"{key}: {first['msg']}, got {_format_value(table[key])}") from None


def _format_value(value: Any) -> str:
    try:
        return repr(value)[:100]
    except ValueError:
        return "a number of too many digits"


RATE_ENDINGS = ("_rate_in_threshold", "_rate_out_threshold")
BYTE_THRESHOLDS = frozenset(
    name for name in AutoScalePolicyOverride.model_fields if name.endswith(RATE_ENDINGS) and "_bytes_" in name
)
RATE_WORDS = ("MsgRateIn", "BytesRateIn", "MsgRateOut", "BytesRateOut")
"""The four rates in the PIP's order, as policy keys spell them."""


@dataclass(frozen=True, slots=True)
class PolicyField:
    """One field on its two sides: in an `AutoScalePolicyOverride` (as Pulsar has it) and in a `Policy`."""

    attribute: str
    """The override's attribute."""
    name: str
    """The policy's attribute."""
    factor: int
    """1000 for durations: seconds outside, milliseconds inside."""

    def inside(self, value: Any) -> Any:
        """The override's value as the policy has it."""
        if self.name.endswith(RATE_ENDINGS):
            return _as_float(value)
        return value * self.factor if self.factor != 1 else value

    def outside(self, value: Any) -> Any:
        """The policy's value as the override has it."""
        if self.attribute in BYTE_THRESHOLDS:
            return int(value) if math.isfinite(value) else int(math.copysign(1, value)) * BEYOND_FLOAT
        return value // self.factor if self.factor != 1 else value

    def read(self, value: Any) -> Any:
        """A value of a TOML file as the override has it; raises `QuantityError`."""
        if self.factor != 1:
            return _whole_amount(parse_duration(value), "a whole number of seconds", value)
        if self.attribute in BYTE_THRESHOLDS:
            return _whole_amount(parse_size(value), "a whole number of bytes", value)
        return float(parse_rate(value)) if self.attribute.endswith(RATE_ENDINGS) else value


def _whole_amount(amount: Any, expected: str, written: Any) -> int:
    if amount.denominator != 1:
        raise QuantityError(f"{written!r} is not {expected}")
    return int(amount)


def _canonical_value(value: Any) -> Any:
    """Return a field's value as canonical JSON can hold it: infinity, which has no number, as text."""
    return str(value) if value in (math.inf, -math.inf) else value


def _as_float(value: float) -> float:
    try:
        # No -0.0: JSON does not keep its sign, and a broken rule is told with the value.
        return float(value) + 0.0
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _policy_fields() -> dict[str, PolicyField]:
    by_wire = {}
    for attribute, field in AutoScalePolicyOverride.model_fields.items():
        seconds = attribute.endswith("_seconds")
        name = f"{attribute.removesuffix('_seconds')}_ms" if seconds else attribute
        by_wire[str(field.alias)] = PolicyField(attribute, name, 1000 if seconds else 1)
    return by_wire


POLICY_FIELDS: Mapping[str, PolicyField] = MappingProxyType(_policy_fields())
"""Every field by its wire name, Pulsar's fifteen first."""
_OF_BUCKETS = frozenset(field.name for field in POLICY_FIELDS.values() if field.attribute in BUCKET_POLICY_FIELDS)
