"""The auto-scale policy: every knob of PIP-483 and every guard, its profiles, its resolution and its rules.

Stage: before every decision. An override sets some fields; resolution lays cluster, namespace and topic over a profile,
field by field, the most specific wins (PIP-483 "Policy resolution"). Three kinds of fault are kept apart: an unreadable
policy is a `PolicyError`, an invalid combination turns scaling off for the topic and names the rule, anything else is a
bug of ours.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from schemas.ids import digest
from schemas.metadata import AutoScalePolicyOverride

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class PolicyError(ValueError):
    """A policy cannot be read; the message names the key and says what it may be."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The effective policy of a topic. Rates are per second, durations milliseconds; defaults are those of the PIP."""

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
    """0: loads never age."""
    explicit_lineage: bool = False
    retry_backoff_ms: int = 0
    """0: no back-off."""
    threshold_crossing: bool = False
    broken: str | None = None
    """The rule that the combination breaks; scaling is then off."""

    @property
    def split_thresholds(self) -> tuple[float, float, float, float]:
        """The four split thresholds in the order of the rates."""
        return (
            self.split_msg_rate_in_threshold, self.split_bytes_rate_in_threshold,
            self.split_msg_rate_out_threshold, self.split_bytes_rate_out_threshold,
        )  # fmt: skip

    @property
    def merge_thresholds(self) -> tuple[float, float, float, float]:
        """The four merge thresholds in the order of the rates."""
        return (
            self.merge_msg_rate_in_threshold, self.merge_bytes_rate_in_threshold,
            self.merge_msg_rate_out_threshold, self.merge_bytes_rate_out_threshold,
        )  # fmt: skip


PROFILES: Mapping[str, Policy] = MappingProxyType({
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
    ),
})  # fmt: skip
"""`pip-483`: the text of the PIP. `default`: the same with every guard of DESIGN section 6."""


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
    """Lays the overrides over a profile, field by field (PIP-483 "Policy resolution"); `KeyError`: no such profile."""
    values: dict[str, Any] = {}
    origins = dict.fromkeys(_WIRE_NAMES, f"profile {profile}")
    for scope, override in (("cluster", cluster), ("namespace", namespace), ("topic", topic)):
        if override is None:
            continue
        for wire, (field, name, scale) in _WIRE_NAMES.items():
            value = getattr(override, field)
            if value is not None:
                values[name] = value * scale if scale != 1 else value
                origins[wire] = scope
    policy = replace(PROFILES[profile], **values)
    violations = policy_violations(policy)
    if violations:
        policy = replace(policy, enabled=False, broken=violations[0])
    return ResolvedPolicy(policy, MappingProxyType(origins), policy.broken)


def policy_violations(policy: Policy) -> list[str]:
    """The rules that a combination breaks, in words; empty when it is valid (facts of Pulsar, 1.7)."""
    broken = [sentence for holds, sentence in _RULES if not holds(policy)]
    pairs = zip(_RATE_WORDS, policy.split_thresholds, policy.merge_thresholds, strict=True)
    for rate, split, merge in pairs:
        if not split > 0:
            broken.append(f"split{rate}Threshold must be greater than 0, got {split:g}")
        if not merge >= 0:
            broken.append(f"merge{rate}Threshold must not be negative, got {merge:g}")
        if not split > merge:
            broken.append(f"split{rate}Threshold ({split:g}) must be greater than merge{rate}Threshold ({merge:g})")
    return broken


def policy_digest(policy: Policy) -> str:
    """A short digest of the effective policy: equal policies have equal digests, in every process."""
    return digest({field.name: getattr(policy, field.name) for field in fields(policy)}, size=8)


def policy_override(policy: Policy) -> AutoScalePolicyOverride:
    """The effective policy with every field set, as a snapshot carries it."""
    values: dict[str, Any] = {}
    for field, name, scale in _WIRE_NAMES.values():
        value = getattr(policy, name)
        values[field] = value // scale if scale != 1 else int(value) if field in _WHOLE else value
    return AutoScalePolicyOverride(**values)


def read_policy(text: str) -> AutoScalePolicyOverride:
    """An override from TOML with units: `"60s"`, `"5m"`, `"50MB"` (decimal), `"25%"`. Raises `PolicyError`."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PolicyError(f"no TOML: {error}") from error
    values: dict[str, Any] = {}
    for key, value in found.items():
        if key not in _WIRE_NAMES:
            raise PolicyError(f"unknown key {key!r}; known keys: {', '.join(_WIRE_NAMES)}")
        values[key] = _quantity(key, value) if isinstance(value, str) else value
        if key.endswith("Threshold") and "Msg" in key and isinstance(values[key], int):
            values[key] = float(values[key])
    try:
        return AutoScalePolicyOverride.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise PolicyError(f"{first['loc'][0]}: {first['msg']}, got {values[str(first['loc'][0])]!r}") from error


def _quantity(key: str, text: str) -> int | float:
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z%]*)", text.strip())
    units = _DURATIONS if key.endswith("Seconds") else {**_SIZES, "%": 0.01}
    if found is None or found.group(2) not in units:
        raise PolicyError(f"{key}: cannot read {text!r}; units here are {', '.join(unit or 'none' for unit in units)}")
    value = float(found.group(1)) * units[found.group(2)]
    return int(value) if value.is_integer() else value


_DURATIONS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_SIZES = {"": 1, "B": 1, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "k": 1e3}
_RATE_WORDS = ("MsgRateIn", "BytesRateIn", "MsgRateOut", "BytesRateOut")

_RULES: tuple[tuple[Callable[[Policy], bool], str], ...] = (
    (lambda policy: policy.min_segments >= 1, "minSegments must be at least 1"),
    (lambda policy: policy.max_segments >= policy.min_segments, "maxSegments must not be less than minSegments"),
    (lambda policy: policy.max_dag_depth >= 0, "maxDagDepth must not be negative"),
    (lambda policy: policy.split_cooldown_ms >= 0, "splitCooldownSeconds must not be negative"),
    (lambda policy: policy.merge_cooldown_ms >= 0, "mergeCooldownSeconds must not be negative"),
    (lambda policy: policy.merge_window_ms >= 0, "mergeWindowSeconds must not be negative"),
    (lambda policy: policy.max_load_age_ms >= 0, "maxLoadAgeSeconds must not be negative"),
    (lambda policy: policy.retry_backoff_ms >= 0, "retryBackoffSeconds must not be negative"),
)


def _wire_names() -> dict[str, tuple[str, str, int]]:
    """Wire name to (override's field, policy's field, factor): durations are seconds outside, milliseconds inside."""
    found = {}
    for name, field in AutoScalePolicyOverride.model_fields.items():
        seconds = name.endswith("_seconds")
        found[str(field.alias)] = (name, f"{name[:-8]}_ms" if seconds else name, 1000 if seconds else 1)
    return found


_WIRE_NAMES = _wire_names()
_WHOLE = {name for name in AutoScalePolicyOverride.model_fields if "bytes" in name}
