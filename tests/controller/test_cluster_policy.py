"""Overrides are checked by the whole resolution of PIP-483 "Policy resolution": profile, cluster, namespace, topic."""

from __future__ import annotations

import pytest

from decisions.autoscale.policy import ClusterPolicy
from decisions.topic.layout import SegmentLayout
from schemas.metadata import AutoScalePolicyOverride, ScalableTopicMetadata
from tests.controller.conftest import run_controller

pytestmark = pytest.mark.process

CLUSTER = ClusterPolicy("pip-483", AutoScalePolicyOverride(max_segments=8, split_msg_rate_in_threshold=2_000.0))


@pytest.fixture(scope="module")
def strict(tmp_path_factory):
    with run_controller(tmp_path_factory.mktemp("policies") / "layouts.db", policy=CLUSTER) as running:
        assert running.client.put("/admin/v2/scalable/acme/strict/t", params={"numInitialSegments": 1}).is_success
        yield running


@pytest.mark.parametrize(
    "path",
    [
        "/admin/v2/scalable/acme/strict/t/autoScalePolicy",
        "/admin/v2/namespaces/acme/strict/scalableTopicAutoScalePolicy",
    ],
)
@pytest.mark.parametrize(
    ("override", "rule"),
    [
        ({"minSegments": 9}, "maxSegments (8) must not be less than minSegments (9)"),
        ({"mergeMsgRateInThreshold": 2_000.0}, "splitMsgRateInThreshold (2000) must be greater than"),
    ],
)
def test_override_against_cluster_policy_refused(strict, path, override, rule):
    answer = strict.client.post(path, json=override)
    assert answer.status_code == 412
    assert rule in answer.json()["reason"]
    assert not strict.client.get(path).content


def test_new_cluster_policy_applies_to_overrides(tmp_path):
    """The next override of a topic or namespace is checked against it."""
    topic, namespace = (
        "/admin/v2/scalable/a/b/t/autoScalePolicy",
        "/admin/v2/namespaces/a/b/scalableTopicAutoScalePolicy",
    )
    for policy, status in ((ClusterPolicy("pip-483"), 204), (CLUSTER, 412)):
        with run_controller(tmp_path / "layouts.db", policy=policy) as running:
            running.client.put("/admin/v2/scalable/a/b/t")
            found = [running.client.post(path, json={"minSegments": 9}).status_code for path in (namespace, topic)]
            assert found == [status, status]
            # What was set before stays, as in Pulsar; scaling is off where the whole contradicts itself.
            assert running.client.get(topic).json() == {"minSegments": 9}


def test_override_within_cluster_policy_accepted(strict):
    path = "/admin/v2/scalable/acme/strict/t/autoScalePolicy"
    assert strict.client.post(path, json={"minSegments": 8}).status_code == 204
    assert strict.client.get(path).json()["minSegments"] == 8


def test_topics_use_buckets_of_policy(tmp_path):
    policy = ClusterPolicy("pulsar-5.0", AutoScalePolicyOverride(max_entry_buckets_per_segment=6))
    with run_controller(tmp_path / "layouts.db", policy=policy) as running:
        topics = "/admin/v2/scalable/a/b"

        def buckets(topic):
            layout = SegmentLayout.from_metadata(
                ScalableTopicMetadata.model_validate_json(running.client.get(f"{topics}/{topic}").content)
            )
            return [segment.bucket_count for segment in layout.active]

        for topic, segments, expected in (("one", 1, [4]), ("two", 2, [2, 2]), ("many", 8, [1] * 8)):
            running.client.put(f"{topics}/{topic}", params={"numInitialSegments": segments})
            assert buckets(topic) == expected
        assert running.client.post(f"{topics}/two/rebucket/0?bucketCount=7").status_code == 412
        assert running.client.post(f"{topics}/two/rebucket/0?bucketCount=6").status_code == 204
        assert running.client.post(f"{topics}/two/merge/2/1").status_code == 204
        assert buckets("two") == [6]
