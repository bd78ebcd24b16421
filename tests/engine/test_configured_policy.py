"""The policy that the job is configured with: a message like others, and no decision before it has come."""

from __future__ import annotations

import json

import pytest

from schemas.kafka.messages import PolicyEvent, Rejected, RejectReason, parse_message
from tests.engine.buckets import Bucket, loads_of, topics_of
from tests.engine.records import TOPIC, configured, layout, policy, record, stats, tick
from tests.engine.test_engine import MINUTE, NOW, SECOND, two_segments

HOT = {0: 15_000.0, 1: 1.0}


def unconfigured():
    """A bucket with a hot topic whose job has not said its policy yet."""
    bucket = Bucket(configured=None)
    bucket.batch(NOW, layout(two_segments()), stats(HOT, NOW))
    return bucket


def inputs_of(output):
    (row,) = output.decisions
    return json.loads(row["inputs"])["policy"]


def test_no_decision_before_job_policy_is_known():
    bucket = unconfigured()
    output = bucket.batch(NOW + SECOND, tick(1))
    assert (output.decisions, output.holds, output.counts.evaluations) == ([], [], 0)
    assert bucket.batch(NOW + 2 * SECOND, tick(2), configured()).decisions


def test_cluster_policy_overlays_profile():
    bucket = unconfigured()
    bucket.batch(NOW, policy({"minSegments": 2}, "acme/shop"))
    bucket.batch(NOW, configured({"maxSegments": 7, "minSegments": 1}, "pip-483"))
    found = inputs_of(bucket.batch(NOW + SECOND, tick(1)))
    assert (found["maxSegments"], found["minSegments"], found["retryBackoffSeconds"]) == (7, 2, 0)


def test_foreign_cluster_policy_overrides_until_removed():
    bucket = unconfigured()
    bucket.batch(NOW, configured({"maxSegments": 7}))
    bucket.batch(NOW, policy({"enabled": False}))
    bucket.batch(NOW, configured({"maxSegments": 8}))
    assert not bucket.batch(NOW + SECOND, tick(1)).decisions
    bucket.batch(NOW + MINUTE, policy(None), stats(HOT, NOW + MINUTE))
    assert inputs_of(bucket.batch(NOW + MINUTE, tick(2)))["maxSegments"] == 8


def test_restarted_worker_knows_cluster_policy():
    bucket = unconfigured()
    bucket.batch(NOW, configured({"maxSegments": 7}))
    before = bucket.packed
    bucket.restart()
    bucket.batch(NOW + SECOND, configured({"maxSegments": 7}))
    assert bucket.packed == before
    assert topics_of(bucket.packed).configured == ("default", '{"maxSegments":7}')
    assert inputs_of(bucket.batch(NOW + SECOND, tick(1)))["maxSegments"] == 7


def test_what_is_cold_is_judged_again_when_it_changes():
    bucket = Bucket()
    bucket.batch(NOW, layout(two_segments()), stats({0: 1.0, 1: 1.0}, NOW))
    bucket.batch(NOW + 4 * MINUTE, configured({"mergeMsgRateInThreshold": 0.5}))
    bucket.batch(NOW + 4 * MINUTE, configured({"mergeMsgRateInThreshold": 2.0}))
    later = stats({0: 1.0, 1: 1.0}, NOW + 5 * MINUTE)
    assert bucket.batch(NOW + 5 * MINUTE, later, tick(1)).decisions


def test_cold_time_kept_if_merge_thresholds_stay():
    bucket = Bucket(configured=None)
    bucket.batch(NOW, layout(two_segments()), stats({0: 1.0, 1: 1.0}, NOW))
    bucket.batch(NOW + 4 * MINUTE, stats({0: 2.0, 1: 2.0}, NOW + 4 * MINUTE))
    bucket.batch(NOW + 4 * MINUTE, configured({"maxSegments": 9}))
    assert {load.cold_since for load in loads_of(bucket.packed).loads_of(TOPIC).values()} == {NOW}
    bucket.batch(NOW + 4 * MINUTE, configured({"mergeMsgRateInThreshold": 5_000.0}))
    assert {load.cold_since for load in loads_of(bucket.packed).loads_of(TOPIC).values()} == {NOW + 4 * MINUTE}


@pytest.mark.parametrize(
    ("change", "accepted"),
    [({}, True), ({"scope": "namespace", "name": "acme/shop"}, False), ({"profile": "x"}, False)],
)
def test_only_cluster_has_profile_and_known_one(change, accepted):
    body = {"v": 1, "type": "policy", "scope": "cluster", "profile": "pip-483", "policy": None, "at": 1, **change}
    one = record("control-events", "*", body)
    found = parse_message("control-events", one.key, one.value)
    assert isinstance(found, PolicyEvent if accepted else Rejected)
    assert accepted or found.reason is RejectReason.INVALID
