"""A rebucket is one decision on several segments: each is replaced once, and what was left undone is done next."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.executor.autoscale.decision import SegmentDecision, read_segment_decision
from anabranch.executor.autoscale.judge import judge
from anabranch.executor.kernel.family import Applied, MalformedDecision, StillNeeded, Superseded
from decisions.topic.layout import SegmentLayout
from tests.examples import only_first
from tests.executor import orders
from tests.executor.conftest import House
from tests.executor.gate import HANGS, LOST_AFTER, LOST_BEFORE, answers
from tests.executor.test_crash import started
from tests.waiting import wait_until

NOW = 1_763_660_000_000
FOUR = SegmentLayout.create(4, NOW, bucket_budget=4)
BUCKETS = 8


def rebucket(layout: SegmentLayout, *segments: int, topic: str = "topic://acme/shop/orders") -> SegmentDecision:
    """A rebucket of segments of `layout`."""
    return replace(
        orders.decision(layout, *segments, topic=topic), action="rebucket", segments=segments, bucket_count=BUCKETS
    )


@given(st.permutations([0, 1, 3]))
def test_rebucket_due_until_all_replaced(order: list[int]):
    decided, layout = rebucket(FOUR, 0, 1, 3), FOUR
    for segment in order:
        assert judge(decided, layout, may_have_called=True) == StillNeeded()
        layout = layout.rebucket_segment(segment, BUCKETS, NOW)
    assert judge(decided, layout, may_have_called=True) == Applied((4, 5, 6))
    assert isinstance(judge(decided, layout, may_have_called=False), Superseded)
    for segment in order:
        layout = layout.prune_segment(segment)
        assert judge(decided, layout, may_have_called=True) == Applied((4, 5, 6))


def test_rebucket_leaves_segments_that_others_changed():
    decided = rebucket(FOUR, 0, 1)
    split = FOUR.split_segment(0, NOW)
    assert judge(decided, split, may_have_called=False) == StillNeeded()
    assert judge(decided, split.rebucket_segment(1, BUCKETS, NOW), may_have_called=True) == Applied((6,))
    other = FOUR.rebucket_segment(0, 16, NOW).rebucket_segment(1, 16, NOW)
    verdict = judge(decided, other, may_have_called=True)
    assert verdict == Superseded("the layout has changed since epoch 0: no longer active 0, 1, replaced by 4, 5")


def test_rebucket_is_read_from_its_row():
    decided = rebucket(FOUR, 0, 3)
    row = orders.row(decided).model_dump()
    assert json.loads(row["arguments"]) == {"bucketCount": 8, "segments": [0, 3]}
    assert read_segment_decision(row) == decided
    assert str(decided) == "rebucket 0 and 3 of topic://acme/shop/orders into 8 entry buckets"


@pytest.mark.parametrize(
    "arguments",
    [
        '{"segments":[0]}',
        '{"bucketCount":8,"segments":[]}',
        '{"bucketCount":0,"segments":[0]}',
        '{"bucketCount":true,"segments":[0]}',
        '{"bucketCount":8,"segments":[0,0]}',
    ],
)
def test_malformed_rebucket_is_refused(arguments: str):
    with pytest.raises(MalformedDecision, match="arguments of a rebucket must be like"):
        read_segment_decision(orders.row(rebucket(FOUR, 0), arguments=arguments).model_dump())


def decided_by(house: House) -> SegmentDecision:
    topic = house.create("orders", 4)
    return rebucket(house.layout(topic), 0, 1, 2, 3, topic=topic)


def check_applied(house: House, decided: SegmentDecision) -> None:
    layout = house.layout(decided.subject)
    assert (layout.epoch, [one.bucket_count for one in layout.active]) == (4, [BUCKETS] * 4)
    assert len(house.ends(decided)) == 1


@pytest.mark.parametrize(
    "fault", only_first(2, [LOST_AFTER, answers(409, '{"reason":"other"}'), LOST_BEFORE, answers(503, "busy")])
)
def test_rebucket_goes_on_after_a_fault_in_its_middle(house: House, fault):
    decided = decided_by(house)
    house.gate.on("POST", answers(204, "", reaches=True), answers(204, "", reaches=True), fault)
    with house.running():
        house.commit(decided)
        assert house.end(decided)["status"] == "applied"
    check_applied(house, decided)
    causes = [getattr(event, "cause", None) for event in house.controller.announced(decided.subject)]
    assert causes.count("rebucket") == 4


def test_killed_rebucket_finished_by_next_executor(house: House, tmp_path: Path):
    decided = decided_by(house)
    house.gate.on("POST", answers(204, "", reaches=True), answers(204, "", reaches=True), HANGS)
    house.commit(decided)
    with started(house, tmp_path, "never") as process:
        wait_until(lambda: house.gate.count("POST", "rebucket") == 3, 60)
        process.kill()
    assert house.layout(decided.subject).epoch == 2
    with house.running():
        assert house.end(decided)["status"] == "applied"
    check_applied(house, decided)
    assert house.gate.count("POST", "rebucket") == 5
