"""Topics with entry buckets in a bucket of the engine: decided on, kept through a restart, and closed by the layout."""

from __future__ import annotations

import json

import pytest

from decisions.autoscale.snapshot import snapshot_from_wire
from decisions.topic.layout import SegmentLayout
from engine.autoscale.topics import ConfiguredPolicy
from schemas.snapshot import Snapshot
from tests.engine.buckets import topics_of
from tests.engine.records import consumers, layout, outcome, stats, tick
from tests.engine.test_engine import MINUTE, NOW, SECOND, TOPIC, started

FIRST = SegmentLayout.create(2, NOW - 9 * MINUTE, bucket_budget=4)
QUIET = stats({0: 10.0, 1: 10.0}, NOW)
SHIPPED = ConfiguredPolicy("pulsar-5.0", None)
DEFAULT = ConfiguredPolicy("default", '{"promptSplits":false}')


@pytest.mark.parametrize("configured", [SHIPPED, DEFAULT])
def test_consumer_without_bucket_causes_rebucket(configured):
    bucket = started(layout(FIRST, "created"), QUIET, configured=configured)
    shared = bucket.batch(NOW + SECOND, consumers(4))
    assert (shared.decisions, [row["gate"] for row in shared.holds]) == ([], [])
    (decision,) = bucket.batch(NOW + 2 * SECOND, consumers(5)).decisions
    assert (decision["action"], decision["reason"]) == ("rebucket", "below-split-rate-floor")
    assert json.loads(decision["arguments"]) == {"bucketCount": 4, "segments": [0, 1]}
    seen = snapshot_from_wire(Snapshot.model_validate_json(decision["inputs"]), "pip-483")
    assert (seen.policy.rebuckets, seen.layout.has_buckets) == (True, True)

    bucket.restart()
    between = FIRST.rebucket_segment(0, 4, NOW + 3 * SECOND)
    after = between.rebucket_segment(1, 4, NOW + 4 * SECOND)
    open_still = bucket.batch(NOW + 3 * SECOND, layout(between, "rebucket"), tick(1))
    assert [row["gate"] for row in open_still.holds] == ["in-flight"]
    bucket.batch(NOW + 4 * SECOND, layout(after, "rebucket"), outcome(decision["decision_id"], "applied"))
    topic = topics_of(bucket.packed).topics[TOPIC]
    assert (topic.open_decision, topic.cooldowns) == (None, (None, None, NOW + 4 * SECOND))

    # Nine consumers lack one bucket, after a cooldown of rebuckets.
    waiting = bucket.batch(NOW + 5 * SECOND, consumers(9))
    assert (waiting.decisions, [row["gate"] for row in waiting.holds]) == ([], ["rebucket-cooldown"])
    (again,) = bucket.batch(NOW + 4 * SECOND + MINUTE, tick(2)).decisions
    assert json.loads(again["arguments"]) == {"bucketCount": 8, "segments": [2, 3]}


def test_topic_without_buckets_is_recorded_as_before():
    plain = SegmentLayout.create(2, NOW - 9 * MINUTE)
    bucket = started(layout(plain, "created"), QUIET, configured=DEFAULT)
    (decision,) = bucket.batch(NOW + SECOND, consumers(3)).decisions
    assert decision["action"] == "split"
    assert not {"rebuckets", "asShipped"} & set(json.loads(decision["inputs"])["policy"])
    assert "Rebucket" not in decision["inputs"]
    assert "entryBucket" not in decision["inputs"]
