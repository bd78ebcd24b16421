"""The lake as a live picture: layouts, load, holds, decisions and their outcomes, from the tables alone."""

from __future__ import annotations

import json

import pytest

from anabranch.history.live import LakeReader
from lake.tables import create_lake
from tests.local.lake import (
    ORDERS,
    at,
    batch,
    consumer_event,
    dead_letter,
    decision,
    hold,
    layout_event,
    layout_json,
    load,
    millis,
    outcome,
    policy_event,
    write,
)

WHOLE = layout_json((0, 0x0000, 0xFFFF))
SPLIT = layout_json((0, 0x0000, 0xFFFF), (1, 0x0000, 0x7FFF), (2, 0x8000, 0xFFFF), epoch=1, sealed=(0,))


@pytest.fixture
def lake(tmp_path):
    return str(tmp_path / "lake")


def test_missing_and_empty_lake_draw_nothing(lake):
    reader = LakeReader(lake)
    assert reader.refresh(at(0)).topics == ()
    create_lake(lake)
    view = reader.refresh(at(1))
    assert (view.topics, view.decisions, dict(view.dead_letters)) == ((), (), {})
    assert view.rates.accepted_share is None


def test_tables_that_are_made_later_are_picked_up(lake):
    reader = LakeReader(lake)
    reader.refresh(at(0))
    write(lake, layout_event(WHOLE, 1))
    assert [topic.name for topic in reader.refresh(at(2)).topics] == [ORDERS]


def test_unchanged_topic_appears_in_picture(lake):
    write(lake, policy_event(0), layout_event(WHOLE, 0), consumer_event("billing", 2, 1), load(0, 20_000, 1))
    for seconds in range(2, 6):
        write(lake, layout_event(SPLIT, seconds, topic="topic://acme/shop/other"))
    reader = LakeReader(lake, backlog=1)
    for now in (6, 7):
        topics = reader.refresh(at(now)).topics
        known = {topic.name: (topic.epoch, topic.consumers) for topic in topics}
        assert known == {ORDERS: (0, (("billing", "STREAM", 2),)), "topic://acme/shop/other": (1, ())}
        assert [segment.overload for topic in topics for segment in topic.segments] == [2.0, None, None]


def test_segments_follow_layout_with_relative_load(lake):
    """Load is relative to the thresholds."""
    write(lake, policy_event(0), layout_event(WHOLE, 0), load(0, 20_000, 1))
    reader = LakeReader(lake)
    [segment] = reader.refresh(at(2)).topics[0].segments
    assert (segment.id, segment.start, segment.end, segment.overload, segment.is_cold) == (0, 0, 0xFFFF, 2.0, False)

    write(lake, layout_event(SPLIT, 3, "split"), load(1, 500, 4))
    topic = reader.refresh(at(5)).topics[0]
    assert topic.epoch == 1
    assert [(segment.id, segment.overload, segment.is_cold) for segment in topic.segments] == [
        (1, 0.05, True),
        (2, None, False),
    ]


def test_load_unrated_while_policy_unknown(lake):
    write(lake, layout_event(WHOLE, 0), load(0, 20_000, 1))
    [segment] = LakeReader(lake).refresh(at(2)).topics[0].segments
    assert (segment.overload, segment.is_cold) == (None, False)


def test_load_rated_by_most_specific_policy(lake):
    """Topic before namespace before cluster."""
    own = {**WHOLE, "autoScalePolicy": {"splitMsgRateInThreshold": 40_000.0, "splitMsgRateOutThreshold": 90_000.0}}
    of_namespace = policy_event(1, "namespace", name="acme/shop", profile=None, policy={"splitMsgRateInThreshold": 5e3})
    write(lake, policy_event(0), layout_event(WHOLE, 0), load(0, 20_000, 1), of_namespace)
    reader = LakeReader(lake)
    assert [one.overload for one in reader.refresh(at(2)).topics[0].segments] == [4.0]
    write(lake, layout_event(own, 3, "policy"))
    assert [one.overload for one in reader.refresh(at(4)).topics[0].segments] == [0.5]
    removed = policy_event(5, "namespace", name="acme/shop", profile=None, policy=None)
    write(lake, removed, layout_event(WHOLE, 6, "policy"))
    assert [one.overload for one in reader.refresh(at(7)).topics[0].segments] == [2.0]


def test_deleted_topics_leave_the_picture(lake):
    write(lake, layout_event(WHOLE, 0))
    reader = LakeReader(lake)
    assert len(reader.refresh(at(1)).topics) == 1
    write(lake, layout_event(WHOLE, 2, "deleted"))
    assert reader.refresh(at(3)).topics == ()


def test_consumers_are_newest_subscription_counts(lake):
    write(
        lake,
        layout_event(WHOLE, 0),
        consumer_event("billing", 1, 1),
        consumer_event("billing", 2, 2),
        consumer_event("search", 1, 3),
        consumer_event("search", 0, 4, "deleted"),
    )
    assert LakeReader(lake).refresh(at(5)).topics[0].consumers == (("billing", "STREAM", 2),)


def test_hold_until_decision_until_outcome(lake):
    reader = LakeReader(lake)
    write(lake, layout_event(WHOLE, 0), hold(1, "merge-cooldown", eligible_at=at(9)))
    assert reader.refresh(at(2)).topics[0].hold.gate == "merge-cooldown"

    write(lake, decision(3))
    topic = reader.refresh(at(4)).topics[0]
    assert (topic.hold, topic.open_decision) == (None, "split 0")
    write(lake, outcome("d1", "intent", 5))
    assert reader.refresh(at(5)).topics[0].open_decision == "split 0"

    write(lake, outcome("d1", "applied", 6))
    view = reader.refresh(at(7))
    assert view.topics[0].open_decision is None
    assert [(row.decision_id, row.status, row.status_at) for row in view.decisions] == [("d1", "applied", at(6))]

    write(lake, hold(8, "split-cooldown", seq=2))
    assert reader.refresh(at(9)).topics[0].hold.gate == "split-cooldown"


def test_hold_of_open_decision_ends_with_it(lake):
    reader = LakeReader(lake)
    write(lake, layout_event(WHOLE, 0), decision(1), hold(2, "in-flight"))
    topic = reader.refresh(at(3)).topics[0]
    assert (topic.hold.gate, topic.open_decision) == ("in-flight", "split 0")
    write(lake, outcome("d1", "applied", 4))
    assert reader.refresh(at(5)).topics[0].hold is None


def test_later_decision_beats_hold_in_one_refresh(lake):
    write(lake, layout_event(WHOLE, 0), decision(3), hold(1))
    assert LakeReader(lake).refresh(at(4)).topics[0].hold is None


def test_applied_actions_counted_once_by_cause(lake):
    write(
        lake,
        decision(1, 1, reason="consumer-count", trigger="consumer"),
        decision(2, 2, reason="bytesRateOut"),
        decision(3, 3, action="merge", arguments='{"segments":[1,2]}', reason="cold"),
        decision(4, 4),
        outcome("d1", "applied", 5),
        outcome("d1", "applied", 5),
        outcome("d2", "applied", 5),
        outcome("d3", "applied", 5),
        outcome("d4", "rejected", 5, error="no"),
    )
    view = LakeReader(lake).refresh(at(6))
    assert view.actions == {"split:consumer-count": 1, "split:load": 1, "merge": 1}
    assert [row.decision_id for row in view.decisions] == ["d4", "d3", "d2", "d1"]
    assert (view.decisions[0].error, view.decisions[1].segments) == ("no", (1, 2))


def test_rates_are_those_of_the_last_ten_seconds(lake):
    write(lake, *(batch(number, number) for number in range(30)))
    rates = LakeReader(lake).refresh(at(30)).rates
    assert (rates.messages, rates.samples, rates.events) == (10.0, 30.0, 2.0)
    assert rates.accepted_share == pytest.approx(0.2)
    assert rates.batch_ms == pytest.approx(250)


def test_dead_letters_are_counted_by_reason(lake):
    reader = LakeReader(lake)
    write(lake, dead_letter("not-json", 1), dead_letter("not-json", 2), dead_letter("invalid", 3))
    reader.refresh(at(4))
    write(lake, dead_letter("invalid", 5))
    assert reader.refresh(at(6)).dead_letters == {"not-json": 2, "invalid": 2}


def test_late_rows_hidden_from_next_incarnation(lake):
    def of_life(event, created_at):
        return event.model_copy(update={"body": json.dumps(json.loads(event.body) | {"topicCreatedAt": created_at})})

    write(
        lake,
        of_life(layout_event(WHOLE, 0.0), 1),
        of_life(consumer_event("billing", 2, 0.1), 1),
        of_life(layout_event(WHOLE, 0.2, cause="deleted"), 1),
        of_life(consumer_event("billing", 3, 0.3), 1),
        of_life(layout_event(WHOLE, 0.4), 2),
        of_life(consumer_event("audit", 1, 0.5), 2),
        of_life(consumer_event("billing", 4, 0.6), 1),
    )
    (topic,) = LakeReader(lake).refresh(at(1.0)).topics
    assert topic.consumers == (("audit", "STREAM", 1),)


def announced(seconds, cause="created", *, life=None, said=None, born=0, epoch=0):
    """A layout that came at `seconds`; `said`: when it was said, `born`: when its segment was made."""
    whole = layout_json((0, 0x0000, 0xFFFF), epoch=epoch)
    whole["segments"]["0"]["createdAtMs"] = born
    said = seconds if said is None else said
    row = layout_event(whole, seconds, cause)
    body = json.loads(row.body) | {"at": millis(said)} | ({} if life is None else {"topicCreatedAt": life})
    columns = {"in_columns": True, "life": life, "epoch": epoch, "active_segments": 1}
    return row.model_copy(update={"body": json.dumps(body), "at": at(said), **columns})


LATE = {
    "layout-of-deleted": ((announced(6, "snapshot", said=1),), None),
    "named-layout-of-deleted": ((announced(6, "snapshot", life=1),), None),
    "layout-of-former": ((announced(6, born=6), announced(7, "snapshot", said=1, epoch=5)), 0),
    "named-layout-of-former": ((announced(6, life=2), announced(7, "snapshot", life=1, epoch=5)), 0),
    "layout-of-older-segments": ((announced(6, born=6), announced(7, "snapshot", born=1, epoch=5)), 0),
    "deletion-of-former": ((announced(6, born=6), announced(7, "deleted", said=5)), 0),
    "named-deletion-of-former": ((announced(6, life=2), announced(7, "deleted", life=1)), 0),
    "older-epoch": ((announced(6, life=2, epoch=3), announced(7, "snapshot", life=2, epoch=2)), 3),
}
"""Announcements after a deletion, and the epoch that is known then; None: the topic is gone."""


READINGS = ("followed", "at-once", "before-the-tail")


@pytest.mark.parametrize(
    ("case", "reading"),
    [
        # Each case in one of the readings, in turn; `make soak` has the others.
        pytest.param(case, reading, marks=[pytest.mark.soak] * ((number - place) % len(READINGS) > 0))
        for number, case in enumerate(LATE)
        for place, reading in enumerate(READINGS)
    ],
)
def test_late_announcement_changes_nothing(lake, case, reading):
    later, epoch = LATE[case]
    life, born = later[0].life and 1, 0 if later[0].life else 1
    reader = LakeReader(lake, backlog=1 if reading == "before-the-tail" else 3_000)
    for row in (announced(1, life=life, born=born), announced(5, "deleted", life=life, born=born), *later):
        write(lake, row)
        if reading == "followed":
            reader.refresh(at(8))
    for seconds in (8, 9):
        write(lake, layout_event(WHOLE, seconds, topic="topic://acme/shop/other"))
    topics = [topic for topic in reader.refresh(at(10)).topics if topic.name == ORDERS]
    assert [topic.epoch for topic in topics] == ([] if epoch is None else [epoch])


def test_former_load_and_hold_hidden_from_next_incarnation(lake):
    reader = LakeReader(lake)
    write(lake, policy_event(0), announced(0, life=1), announced(3, "deleted", life=1), announced(4, life=2))
    write(lake, load(0, 20_000, 1), hold(2), decision(2.5))
    (topic,) = reader.refresh(at(5)).topics
    assert (topic.segments[0].rates, topic.hold, topic.open_decision) == (None, None, None)
    write(lake, load(0, 5_000, 6), hold(6, seq=2))
    (topic,) = reader.refresh(at(7)).topics
    assert (topic.segments[0].overload, topic.hold.since) == (0.5, at(6))
