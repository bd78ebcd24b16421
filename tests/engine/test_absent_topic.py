"""Decisions on a topic that the cluster does not know: the job backs off from every action until it is there."""

from __future__ import annotations

from decisions.topic.layout import SegmentLayout
from engine.autoscale.topics import TopicState
from tests.engine.buckets import topics_of
from tests.engine.records import TOPIC, consumers, layout, of_life, outcome, stats, tick
from tests.engine.test_engine import MINUTE, NOW, SECOND, started


def hot(at):
    return stats({0: 50_000.0, 1: 50_000.0}, at)


def absent():
    """A topic both of whose splits have ended, as the cluster does not know it."""
    bucket = started(hot(NOW))
    decisions = bucket.batch(NOW, tick(1)).decisions
    assert len(decisions) == 2
    bucket.batch(NOW + SECOND, *(outcome(row["decision_id"], "absent") for row in decisions))
    return bucket


def known(bucket) -> TopicState:
    return topics_of(bucket.packed).topics[TOPIC]


def test_absence_holds_every_action():
    bucket = absent()
    assert known(bucket).failures == (1, NOW + SECOND, None)
    splits = bucket.batch(NOW + 2 * SECOND, tick(2))
    assert (splits.decisions, [row["gate"] for row in splits.holds]) == ([], ["retry-backoff"])
    demand = bucket.batch(NOW + 3 * SECOND, stats({0: 900.0, 1: 900.0}, NOW + 3 * SECOND), consumers(3), tick(3))
    assert demand.decisions == []


def test_absent_topic_is_tried_again_after_the_pause():
    bucket = absent()
    assert bucket.batch(NOW + 30 * SECOND, tick(2)).decisions == []
    again = bucket.batch(NOW + 31 * SECOND, hot(NOW + 31 * SECOND), tick(3)).decisions
    assert len(again) == 2
    bucket.batch(NOW + 32 * SECOND, *(outcome(row["decision_id"], "absent") for row in again))
    assert known(bucket).failures == (2, NOW + 32 * SECOND, None)
    assert bucket.batch(NOW + 91 * SECOND, tick(4)).decisions == []
    assert len(bucket.batch(NOW + 92 * SECOND, hot(NOW + 92 * SECOND), tick(5)).decisions) == 2


def test_created_topic_is_decided_on_at_once():
    bucket = absent()
    created_at = NOW + 2 * SECOND
    bucket.batch(created_at, of_life(created_at, layout(SegmentLayout.create(2, created_at))))
    assert known(bucket).failures.in_a_row == 0
    at = NOW + 3 * SECOND
    assert len(bucket.batch(at, hot(at), tick(2)).decisions) == 2


def test_applied_decision_ends_the_absence():
    bucket = absent()
    at = NOW + MINUTE
    first, second = bucket.batch(at, hot(at), tick(2)).decisions
    bucket.batch(at + SECOND, outcome(first["decision_id"], "applied"), outcome(second["decision_id"], "applied"))
    assert known(bucket).failures == (0, None, None)
