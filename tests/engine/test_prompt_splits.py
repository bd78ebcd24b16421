"""The guard `promptSplits`: a topic that comes above a split threshold is decided on in the same batch."""

from __future__ import annotations

import pytest

from decisions.topic.layout import SegmentLayout
from engine.autoscale.topics import ConfiguredPolicy
from tests.engine.buckets import Bucket
from tests.engine.records import layout, policy, stats, tick
from tests.engine.test_engine import MINUTE, NOW, SECOND

HOT, WARM = 12_000.0, 9_000.0
ONE = SegmentLayout.create(1, 0)


@pytest.mark.parametrize(
    ("override", "actions"), [({}, ["split"]), ({"promptSplits": False}, []), ({"thresholdCrossing": False}, [])]
)
def test_sample_above_threshold_splits_early(override, actions):
    bucket = Bucket(configured=ConfiguredPolicy("default", None))
    bucket.batch(NOW, layout(ONE), policy(override, "acme/shop"), stats({0: WARM}, NOW), tick(NOW))
    output = bucket.batch(NOW + 10 * SECOND, stats({0: HOT}, NOW + 10 * SECOND))
    assert [row["action"] for row in output.decisions] == actions
    if not actions:
        (row,) = bucket.batch(NOW + MINUTE, tick(NOW + MINUTE)).decisions
        assert row["action"] == "split"


def test_sample_below_thresholds_waits_for_the_tick():
    bucket = Bucket(configured=ConfiguredPolicy("default", None))
    bucket.batch(NOW, layout(ONE), stats({0: 100.0}, NOW), tick(NOW))
    output = bucket.batch(NOW + 10 * SECOND, stats({0: WARM}, NOW + 10 * SECOND))
    assert (output.counts.evaluations, output.decisions) == (0, [])
