"""The guard `promptSplits`: a topic that comes above a split threshold is decided on in the same batch."""

from __future__ import annotations

import pytest

from decisions.topic.layout import SegmentLayout
from engine.autoscale import evaluation
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


def test_hot_key_is_looked_for_while_a_merge_is_in_flight_but_no_split(monkeypatch):
    asked = []
    monkeypatch.setattr(evaluation, "news_of_hot_keys", lambda snapshot: asked.append(snapshot.topic))
    names = merging, splitting = "topic://acme/shop/m", "topic://acme/shop/s"
    bucket = Bucket(configured=ConfiguredPolicy("default", '{"mergeWindowSeconds":0,"mergeCooldownSeconds":0}'))
    for name in names:
        bucket.batch(NOW, layout(SegmentLayout.create(3, NOW - 20 * MINUTE), topic=name))
    begun = bucket.batch(
        NOW,
        stats({0: 0.0, 1: 0.0, 2: WARM}, NOW, merging),
        stats(dict.fromkeys(range(3), HOT), NOW, splitting),
        tick(NOW),
    ).decisions
    assert [(row["subject"], row["action"]) for row in begun][:2] == [(merging, "merge"), (splitting, "split")]
    asked.clear()
    now = NOW + MINUTE
    bucket.batch(now, *(stats({0: 0.0, 1: 0.0, 2: 3 * HOT}, now, name) for name in names), tick(now))
    assert merging in asked
    assert splitting not in asked
