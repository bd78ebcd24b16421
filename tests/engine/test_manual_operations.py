"""A split or merge by hand starts the same cooldown as one of ours (PIP-483 "Manual operations and cooldown")."""

from __future__ import annotations

import json

from tests.engine.buckets import ONE_AT_A_TIME
from tests.engine.records import layout, stats, tick
from tests.engine.test_engine import MINUTE, NOW, SECOND, started, two_segments


def test_a_manual_split_starts_the_split_cooldown():
    by_hand = two_segments().split_segment(0, NOW)
    bucket = started(layout(by_hand, "split"), stats({1: 50_000.0, 2: 1.0, 3: 1.0}, NOW), configured=ONE_AT_A_TIME)
    held = bucket.batch(NOW + MINUTE - 1, stats({1: 51_000.0}, NOW + SECOND), tick(1))
    assert not held.decisions
    assert [row["gate"] for row in held.holds] == ["split-cooldown"]
    (decision,) = bucket.batch(NOW + MINUTE, tick(2)).decisions
    assert json.loads(decision["arguments"]) == {"segments": [1]}


def test_manual_merge_starts_merge_cooldown_only():
    four = two_segments().split_segment(0, NOW - 9 * MINUTE).split_segment(1, NOW - 9 * MINUTE)
    bucket = started(layout(four, "split"), stats({2: 1.0, 3: 1.0, 4: 1.0, 5: 1.0}, NOW), configured=ONE_AT_A_TIME)
    by_hand = four.merge_segments(2, 3, NOW + MINUTE)
    rates = {4: 1.0, 5: 1.0, 6: 1.0}
    bucket.batch(NOW + MINUTE, layout(by_hand, "merge"), stats(rates, NOW + MINUTE))
    held = bucket.batch(NOW + 6 * MINUTE - 1, stats(rates, NOW + 5 * MINUTE), tick(1))
    assert not held.decisions
    assert [row["gate"] for row in held.holds] == ["merge-cooldown"]
    (merge,) = bucket.batch(NOW + 6 * MINUTE, stats(rates, NOW + 6 * MINUTE), tick(2)).decisions
    assert merge["action"] == "merge"


def test_a_manual_merge_does_not_hold_a_split():
    merged = two_segments().merge_segments(0, 1, NOW)
    bucket = started(layout(merged, "merge"), stats({2: 50_000.0}, NOW))
    (decision,) = bucket.batch(NOW + SECOND, tick(1)).decisions
    assert decision["action"] == "split"
