"""Policies: the PIP's defaults, resolution field by field, the rules, files with human units, digests."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decisions.autoscale.policy import (
    POLICY_FIELDS,
    PROFILES,
    Policy,
    PolicyError,
    policy_digest,
    policy_override,
    policy_violations,
    policy_warnings,
    read_policy,
    resolve_policy,
)
from schemas.metadata import PULSAR_POLICY_FIELDS, AutoScalePolicyOverride

PIP, DEFAULT = PROFILES["pip-483"], PROFILES["default"]


def override(**values):
    return AutoScalePolicyOverride(**values)


def test_the_defaults_are_those_of_the_pip():
    wire = policy_override(PIP).model_dump(by_alias=True)
    assert {name: wire[name] for name in list(wire)[:15]} == {
        "enabled": True,
        "maxSegments": 64,
        "minSegments": 1,
        "maxDagDepth": 10,
        "splitCooldownSeconds": 60,
        "mergeCooldownSeconds": 300,
        "mergeWindowSeconds": 300,
        "splitMsgRateInThreshold": 10_000,
        "splitBytesRateInThreshold": 50_000_000,
        "splitMsgRateOutThreshold": 50_000,
        "splitBytesRateOutThreshold": 250_000_000,
        "mergeMsgRateInThreshold": 1_000,
        "mergeBytesRateInThreshold": 5_000_000,
        "mergeMsgRateOutThreshold": 5_000,
        "mergeBytesRateOutThreshold": 25_000_000,
    }


def test_guards_off_in_pip_483_on_in_default():
    settings = {
        "hot_key_retry_ms",
        "rebucket_cooldown_ms",
        "split_vs_rebucket_min_msg_rate_in_threshold",
        "max_entry_buckets_per_segment",
    }
    """They say nothing where no hot key is looked for and no consumers share a segment."""
    guards = [known.name for known in POLICY_FIELDS.values() if known.attribute not in PULSAR_POLICY_FIELDS]
    assert len(guards) == 23
    assert {name for name in guards if getattr(PIP, name)} == settings
    # The others are of profile `pulsar-5.0`.
    assert {name for name in guards if not getattr(DEFAULT, name)} == {"entry_bucket_budget", "as_shipped"}
    assert replace(DEFAULT, **{name: getattr(PIP, name) for name in guards}) == PIP


def test_most_specific_scope_sets_each_field():
    resolved = resolve_policy(
        "default",
        override(max_segments=1000, min_segments=2, split_cooldown_seconds=7),
        override(max_segments=500, min_segments=3),
        override(max_segments=9),
    )
    policy = resolved.policy
    assert (policy.max_segments, policy.min_segments, policy.split_cooldown_ms) == (9, 3, 7_000)
    assert policy.merge_cooldown_ms == DEFAULT.merge_cooldown_ms
    assert [
        resolved.origins[name]
        for name in ("maxSegments", "minSegments", "splitCooldownSeconds", "mergeCooldownSeconds")
    ] == ["topic", "namespace", "cluster", "profile default"]
    assert set(resolved.origins) == set(POLICY_FIELDS)
    assert resolved.broken is None


@pytest.mark.parametrize("falsy", [{"enabled": False}, {"max_dag_depth": 0}, {"merge_msg_rate_in_threshold": 0.0}])
def test_false_or_zero_setting_still_wins(falsy):
    ((name, value),) = falsy.items()
    assert getattr(resolve_policy("default", None, None, override(**falsy)).policy, name) == value


def test_topic_enables_itself_in_disabled_namespace():
    assert resolve_policy("default", None, override(enabled=False), override(enabled=True)).policy.enabled


BROKEN = {
    "minSegments must be at least 1": {"min_segments": 0},
    "maxSegments (1) must not be less than minSegments (2)": {"max_segments": 1, "min_segments": 2},
    "maxDagDepth must not be negative": {"max_dag_depth": -1},
    "splitCooldownSeconds must not be negative": {"split_cooldown_seconds": -1},
    "mergeCooldownSeconds must not be negative": {"merge_cooldown_seconds": -1},
    "mergeWindowSeconds must not be negative": {"merge_window_seconds": -1},
    "maxLoadAgeSeconds must not be negative": {"max_load_age_seconds": -1},
    "retryBackoffSeconds must not be negative": {"retry_backoff_seconds": -1},
    "splitMsgRateInThreshold must be greater than 0": {"split_msg_rate_in_threshold": 0.0},
    "splitBytesRateInThreshold must be greater than 0": {"split_bytes_rate_in_threshold": 0},
    "splitMsgRateOutThreshold must be greater than 0": {"split_msg_rate_out_threshold": -1.0},
    "splitBytesRateOutThreshold must be greater than 0": {"split_bytes_rate_out_threshold": -5},
    "mergeMsgRateInThreshold must not be negative": {"merge_msg_rate_in_threshold": -1.0},
    "mergeBytesRateOutThreshold must not be negative": {"merge_bytes_rate_out_threshold": -1},
    "splitMsgRateInThreshold (10000) must be greater than mergeMsgRateInThreshold (10000)": {
        "merge_msg_rate_in_threshold": 10_000.0
    },
    "splitBytesRateInThreshold (5e+06) must be greater than mergeBytesRateInThreshold (5e+06)": {
        "split_bytes_rate_in_threshold": 5_000_000
    },
    "maxSegments is larger than Pulsar can hold": {"max_segments": 2**31},
    "splitCooldownSeconds is larger than Pulsar can hold": {"split_cooldown_seconds": 2**63},
    "splitBytesRateInThreshold and mergeBytesRateInThreshold must be finite, got 5e+07 and inf": {
        "merge_bytes_rate_in_threshold": 10**400
    },
}


@pytest.mark.parametrize("rule", BROKEN)
def test_invalid_combination_disables_and_names_rule(rule):
    resolved = resolve_policy("default", override(**BROKEN[rule]))
    assert not resolved.policy.enabled
    assert any(found.startswith(rule) for found in policy_violations(resolved.policy))
    assert resolved.broken is not None
    again = resolve_policy("pip-483", policy_override(resolved.policy))
    assert again.broken == resolved.broken


def test_negative_zero_shown_as_plain_zero():
    resolved = resolve_policy("default", override(split_msg_rate_out_threshold=-0.0))
    assert resolved.broken == "splitMsgRateOutThreshold must be greater than 0, got 0"


@pytest.mark.parametrize(
    "values",
    [
        {"min_segments": 64, "max_segments": 64},
        {"max_dag_depth": 0},
        {"split_cooldown_seconds": 0, "merge_cooldown_seconds": 0, "merge_window_seconds": 0},
        {"merge_msg_rate_in_threshold": 9_999.999},
        {"merge_msg_rate_in_threshold": 0.0, "merge_bytes_rate_in_threshold": 0},
    ],
)
def test_a_combination_on_the_edge_is_valid(values):
    assert resolve_policy("pip-483", override(**values)).broken is None


def test_invalid_field_repaired_by_wider_scope():
    assert resolve_policy("default", override(min_segments=100), None, override(max_segments=200)).broken is None
    assert resolve_policy("default", override(min_segments=100)).broken is not None


def test_thresholds_merging_into_hot_are_warned():
    assert policy_warnings(DEFAULT) == []
    (warning,) = policy_warnings(replace(DEFAULT, merge_msg_rate_in_threshold=5_001.0))
    assert "mergeMsgRateInThreshold" in warning


def test_policy_digest_depends_on_every_field():
    assert policy_digest(Policy()) == policy_digest(PIP)
    changed = {
        field.name: replace(PIP, **{field.name: (not value) if isinstance(value, bool) else value + 1})
        for field in fields(Policy)
        for value in [getattr(PIP, field.name)]
    }
    assert len({policy_digest(policy) for policy in (PIP, *changed.values())}) == len(changed) + 1


def test_integer_and_equal_float_are_one_policy():
    whole = resolve_policy("pip-483", override(split_bytes_rate_in_threshold=50_000_000)).policy
    assert policy_digest(whole) == policy_digest(PIP)
    assert type(whole.split_bytes_rate_in_threshold) is float


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("enabled = false", {"enabled": False}),
        ("maxSegments = 8", {"maxSegments": 8}),
        ("splitCooldownSeconds = 60", {"splitCooldownSeconds": 60}),
        ('splitCooldownSeconds = "60s"', {"splitCooldownSeconds": 60}),
        ('splitCooldownSeconds = "1m"', {"splitCooldownSeconds": 60}),
        ('mergeWindowSeconds = "1.5h"', {"mergeWindowSeconds": 5400}),
        ("mergeWindowSeconds = 90.0", {"mergeWindowSeconds": 90}),
        ('splitBytesRateInThreshold = "50MB"', {"splitBytesRateInThreshold": 50_000_000}),
        ('splitBytesRateInThreshold = "1.1 MB"', {"splitBytesRateInThreshold": 1_100_000}),
        ('splitBytesRateInThreshold = "50 MB/s"', {"splitBytesRateInThreshold": 50_000_000}),
        ("splitBytesRateInThreshold = 50_000_000", {"splitBytesRateInThreshold": 50_000_000}),
        ("splitMsgRateInThreshold = 10000", {"splitMsgRateInThreshold": 10_000.0}),
        ('splitMsgRateInThreshold = "10k"', {"splitMsgRateInThreshold": 10_000.0}),
        ("mergeMsgRateInThreshold = 0.5", {"mergeMsgRateInThreshold": 0.5}),
        ("coldSinceThreshold = true", {"coldSinceThreshold": True}),
        ('maxLoadAgeSeconds = "0s"', {"maxLoadAgeSeconds": 0}),
        ("", {}),
    ],
)
def test_a_policy_file_is_read_with_human_units(line, expected):
    assert json.loads(read_policy(line).to_json()) == expected


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("maxSegment = 8", "maxSegment"),
        ("max_segments = 8", "max_segments"),
        ('maxSegments = "8"', "maxSegments"),
        ("maxSegments = 8.5", "maxSegments"),
        ("maxSegments = true", "maxSegments"),
        ('enabled = "yes"', "enabled"),
        ("enabled = 1", "enabled"),
        ('splitCooldownSeconds = "60x"', "splitCooldownSeconds"),
        ('splitCooldownSeconds = "250ms"', "splitCooldownSeconds"),
        ('splitCooldownSeconds = "50MB"', "splitCooldownSeconds"),
        ("splitCooldownSeconds = true", "splitCooldownSeconds"),
        ("splitCooldownSeconds = nan", "splitCooldownSeconds"),
        ("splitCooldownSeconds = 1979-05-27", "splitCooldownSeconds"),
        ('splitBytesRateInThreshold = "50MiB"', "splitBytesRateInThreshold"),
        ('splitBytesRateInThreshold = "0.5B"', "splitBytesRateInThreshold"),
        ('splitMsgRateInThreshold = "25%"', "splitMsgRateInThreshold"),
        ("splitMsgRateInThreshold = inf", "splitMsgRateInThreshold"),
        ("[maxSegments]", "maxSegments"),
        ("maxSegments = ", "TOML"),
    ],
)
def test_a_value_that_cannot_be_read_names_its_key(line, named):
    with pytest.raises(PolicyError, match=named):
        read_policy(line)


@given(st.text(max_size=60))
def test_no_text_makes_reading_crash(text):
    for attempt in (text, f"splitCooldownSeconds = {text}", f'splitBytesRateInThreshold = "{text}"'):
        try:
            found = read_policy(attempt)
        except PolicyError:
            continue
        assert isinstance(found, AutoScalePolicyOverride)


def test_shipped_policies_valid_without_warning():
    files = sorted((Path(__file__).parents[2] / "conf" / "policies").glob("*.toml"))
    assert len(files) >= 2
    for file in files:
        resolved = resolve_policy("default", read_policy(file.read_text()))
        assert (resolved.broken, policy_warnings(resolved.policy)) == (None, [])
