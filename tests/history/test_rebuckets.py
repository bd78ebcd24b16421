"""Rebuckets on the read side: a rebucket is told as one, and is neither a split nor a merge."""

from __future__ import annotations

import pytest

from anabranch.cli.drawing import _event
from anabranch.cli.river_text import turn_words
from anabranch.history.explain.checkpoints import NotOnRecord
from anabranch.history.explain.record import check_segment
from anabranch.history.lineage.record import river_of
from anabranch.query.wording import action_kind
from anabranch.simulation.shadow.sides import Done, actions_in, reversals
from decisions.topic.layout import SegmentLayout
from schemas.kafka.messages import LayoutEvent

NOW = 1_763_660_000_000
TOPIC = "topic://acme/shop/orders"
FIRST = SegmentLayout.create(2, NOW, bucket_budget=4)
SECOND = FIRST.rebucket_segment(0, 8, NOW + 1_000)
THIRD = SECOND.split_segment(2, NOW + 2_000)


def event(layout, cause, at, decision=None):
    return LayoutEvent(
        v=1, type="layout", topic=TOPIC, cause=cause, layout=layout.to_metadata(), at=at, decision_id=decision
    )


def test_history_tells_a_rebucket_with_its_reason():
    events = [
        event(FIRST, "created", NOW),
        event(SECOND, "rebucket", NOW + 1_000, "d"),
        event(THIRD, "split", NOW + 2_000),
    ]
    river = river_of(TOPIC, events, NOW + 9_000, {"d": "below-split-rate-floor"}, {})
    assert [turn_words(turn) for turn in river.turns] == [
        "created 0, 1",
        "rebucket 0 -> 2 (below-split-rate-floor)",
        "split 2 -> 3, 4 (not by Anabranch)",
    ]


def test_drawing_of_a_layout_names_its_rebucket():
    assert [_event(THIRD, epoch) for epoch in (0, 1, 2)] == ["created 0, 1", "rebucket 0 -> 2", "split 2 -> 3, 4"]


def test_rebucket_of_another_scaler_is_no_reversal():
    done = [Done(TOPIC, action, segments, at, None) for action, segments, _, at in actions_in(THIRD)]
    assert [(one.action, one.segments) for one in done] == [("rebucket", (0,)), ("split", (2,))]
    assert reversals(done, {(TOPIC, 2): (0,)}, 10**9) == 0


def test_explain_follows_rebucketed_segment():
    with pytest.raises(NotOnRecord, match="segment 0 is no longer active: it was rebucketed into 2"):
        check_segment(SECOND, 0)


def test_decision_kind_knows_pulsar_reasons():
    kinds = [("rebucket", "at-max-segments"), ("split", "byteRateOut"), ("split", "consumer-count")]
    assert [action_kind({"action": action, "reason": reason}) for action, reason in kinds] == [
        "rebucket",
        "split:load",
        "split:consumer-count",
    ]
