"""Decisions that nobody is to act on: an executor in mode observe has only looked."""

from __future__ import annotations

import json

from engine.autoscale.topics import OBSERVED_AGAIN_MS
from tests.engine.buckets import topics_of
from tests.engine.records import TOPIC, layout, outcome, stats, tick
from tests.engine.test_engine import MINUTE, NOW, SECOND, started, two_segments


def hot(at, rate=50_000.0):
    return stats({0: rate, 1: 3_000.0}, at)


def observed():
    """A topic whose first decision has ended as observed."""
    bucket = started(hot(NOW))
    (decision,) = bucket.batch(NOW, tick(1)).decisions
    bucket.batch(NOW + SECOND, outcome(decision["decision_id"], "observed"))
    return bucket, decision


def test_observed_decision_causes_no_back_off():
    bucket, _ = observed()
    known = topics_of(bucket.packed).topics[TOPIC]
    assert (known.failures.in_a_row, known.open_decision) == (0, None)
    assert not bucket.batch(NOW + MINUTE, tick(2)).holds


def test_observed_decision_repeated_after_interval():
    bucket, first = observed()
    decisions = []
    for minute in range(1, 32):
        at = NOW + minute * MINUTE
        output = bucket.batch(at, hot(at, 50_000.0 + minute), tick(minute))
        assert not output.holds
        decisions += output.decisions
        for row in output.decisions:
            bucket.batch(at + SECOND, outcome(row["decision_id"], "observed"))
    assert [row["decided_at"] - NOW for row in decisions] == [16 * MINUTE, 32 * MINUTE][: len(decisions)]
    assert OBSERVED_AGAIN_MS == 15 * MINUTE
    assert decisions[0]["arguments"] == first["arguments"]
    assert decisions[0]["decision_id"] != first["decision_id"]


def test_different_decision_taken_at_once():
    bucket, _ = observed()
    at = NOW + MINUTE
    output = bucket.batch(at, stats({0: 1.0, 1: 80_000.0}, at), tick(2))
    assert [json.loads(row["arguments"]) for row in output.decisions] == [{"segments": [1]}]


def test_same_decision_taken_after_hold_or_new_layout():
    for between in (stats({0: 3_000.0, 1: 3_000.0}, NOW + 2 * MINUTE), layout(two_segments().split_segment(1, NOW))):
        bucket, _ = observed()
        at = NOW + 4 * MINUTE
        before = bucket.batch(at - MINUTE, between, tick(2))
        output = bucket.batch(at, stats({0: 60_000.0, 1: 3_000.0, 2: 1.0, 3: 1.0}, at), tick(3))
        taken = [json.loads(row["arguments"]) for row in before.decisions + output.decisions]
        assert taken == [{"segments": [0]}]
