"""Lanes on a model of Kafka, at any order of seals, layouts, refusals and probes: nothing lost, order per key."""

from __future__ import annotations

import json
from collections import defaultdict, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch_client.errors import AnabranchError, DeliveryTimeout, MessageTooLarge
from anabranch_client.lanes import Lanes, LaneState
from anabranch_client.layout import Layout, LayoutSegment
from anabranch_client.messages import PendingMessage
from decisions.topic.hashing import key_hash
from decisions.topic.layout import SegmentLayout
from tests.examples import examples

KEYS = [b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h", None]
REFUSED = MessageTooLarge("refused", 10)


class Model:
    """Kafka and a controller of one topic, and the lanes of a producer."""

    def __init__(self) -> None:
        self.layout = SegmentLayout.create(2, now_ms=0)
        self.pending: SegmentLayout | None = None
        """Layout whose parents are sealed, before it is published."""
        self.sealed: set[int] = set()
        self.sent: dict[int, deque[PendingMessage]] = defaultdict(deque)
        """Messages in flight by segment."""
        self.stored: dict[int, list[PendingMessage]] = defaultdict(list)
        self.failed: list[int] = []
        self.oversized: set[int] = set()
        self.number = 0
        self.lanes = Lanes(self.published(), self.send, self.report)

    def published(self) -> Layout:
        return Layout.from_record("topic://acme/shop/orders", json.loads(self.layout.to_metadata().to_json()))

    def send(self, segment: LayoutSegment, record: PendingMessage) -> bool:
        self.sent[segment.id].append(record)
        return True

    def report(self, record: PendingMessage, error: AnabranchError) -> None:
        self.failed.append(record.number)

    def produce(self, choice: int) -> None:
        key = KEYS[choice % len(KEYS)]
        record = PendingMessage()
        record.key, record.number = key, self.number
        self.number += 1
        if choice % 23 == 0:
            self.oversized.add(record.number)
        self.lanes.submit(record)

    def answer(self, choice: int) -> None:
        """Kafka answers the oldest messages of a segment."""
        waiting = [id for id, records in self.sent.items() if records]
        if waiting:
            id = waiting[choice % len(waiting)]
            for _ in range(min(len(self.sent[id]), 1 + choice % 5)):
                record = self.sent[id].popleft()
                if id in self.sealed or record.number in self.oversized:
                    self.lanes.refuse(record, REFUSED)
                else:
                    self.stored[id].append(record)
                    assert record.lane is not None
                    self.lanes.delivered(record.lane)

    def seal(self, choice: int) -> None:
        """Begin a split or a merge; its layout comes later."""
        if self.pending is None:
            active = self.layout.active
            index = choice % len(active)
            if choice % 2 and index:
                parents = [active[index - 1].segment_id, active[index].segment_id]
                self.pending = self.layout.merge_segments(*parents, now_ms=0)
            else:
                parents = [active[index].segment_id]
                self.pending = self.layout.split_segment(*parents, now_ms=0)
            self.sealed.update(parents)

    def publish(self, choice: int = 0) -> None:
        """End the operation; with an odd `choice` the producer does not hear of it."""
        if self.pending is not None:
            self.layout, self.pending = self.pending, None
        if not choice % 2 and self.lanes.layout.epoch != self.layout.epoch:
            self.lanes.follow(self.published())

    def probe(self, choice: int) -> None:
        for lane in tuple(self.lanes.blocked):
            if lane.state is LaneState.SUSPECT and not lane.in_flight:
                self.lanes.resolve(lane, lane.segment.id in self.sealed)

    def finish(self) -> None:
        """Let everything come to its end."""
        self.publish()
        while any(self.sent.values()) or self.lanes.blocked:
            for choice in range(len(self.sent)):
                self.answer(choice)
            self.probe(0)


@given(
    st.lists(st.tuples(st.sampled_from(["produce"] * 4 + ["answer", "seal", "publish", "probe"]), st.integers(0, 999)))
)
@examples(40)
def test_any_interleaving_keeps_order_and_messages(steps: list[tuple[str, int]]) -> None:
    model = Model()
    for step, choice in steps:
        getattr(model, step)(choice)
    model.finish()
    stored = [record for id in sorted(model.stored) for record in model.stored[id]]
    assert sorted([record.number for record in stored] + model.failed) == list(range(model.number))
    assert set(model.failed) <= model.oversized
    for key in KEYS[:-1]:
        numbers = [record.number for record in stored if record.key == key]
        assert numbers == sorted(numbers)


def test_open_segments_are_not_held_up() -> None:
    model = Model()
    model.seal(0)
    for choice in range(len(KEYS) - 1):
        model.produce(choice + 100 * len(KEYS))
    model.answer(0)
    held = model.lanes.blocked[0].segment.id
    before = {id: len(records) for id, records in model.sent.items()}
    for choice in range(len(KEYS) - 1):
        model.produce(choice + 100 * len(KEYS))
    assert len(model.lanes.blocked[0].waiting) > 0
    assert len(model.sent[held]) == before[held]
    assert sum(len(records) for id, records in model.sent.items() if id != held) > sum(
        count for id, count in before.items() if id != held
    )


def test_keyless_messages_take_turns_on_open_segments() -> None:
    model = Model()
    for _ in range(6):
        model.produce(8 + 9 * 100)
    assert {id: len(records) for id, records in model.sent.items()} == {0: 3, 1: 3}
    model.seal(0)
    model.answer(1)
    assert [lane.segment.id for lane in model.lanes.blocked] == [0]
    for _ in range(4):
        model.produce(8 + 9 * 100)
    assert len(model.sent[1]) == 7


def test_given_up_messages_are_reported_once() -> None:
    model = Model()
    model.seal(0)
    for choice in range(16):
        model.produce(choice + 100 * len(KEYS))
    while model.sent[0]:
        model.answer(0)
    model.lanes.give_up(lambda record: record.number < 8, lambda lane: DeliveryTimeout("late"))
    model.finish()
    late = set(model.failed)
    assert late
    assert late < set(range(8))
    stored = {record.number for records in model.stored.values() for record in records}
    assert stored | late == set(range(16))
    assert not stored & late


def test_messages_wait_behind_their_oldest_blocked_segment() -> None:
    """Segment 0 has a message in flight while its successor 2 is asked about a message that was too large."""
    lower, upper = (next(c for c, key in enumerate(KEYS[:-1], 900) if key_hash(key) >> 15 == half) for half in (0, 1))
    model = Model()
    model.produce(lower)
    model.seal(1)
    model.publish()
    model.produce(upper)
    model.lanes.refuse(model.sent[2].popleft(), REFUSED)
    assert [lane.segment.id for lane in model.lanes.blocked] == [0, 2]
    model.produce(lower)
    model.finish()
    assert [record.number for record in model.stored[2]] == [0, 2]
    assert model.failed == [1]


def test_message_that_cannot_be_sent_again_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its headers are of a wrong type, and librdkafka sees them only when the message need not wait any more."""
    model = Model()
    model.seal(0)
    for choice in range(1, 17):
        model.produce(choice + 100 * len(KEYS))
    send, wrong = model.send, []

    def send_unless_wrong(segment: LayoutSegment, record: PendingMessage) -> bool:
        if segment.id > 1 and not wrong:
            wrong.append(record.number)
            raise TypeError("a header is no string")
        return send(segment, record)

    monkeypatch.setattr(model.lanes, "_send", send_unless_wrong)
    model.finish()
    stored = {record.number for records in model.stored.values() for record in records}
    assert len(wrong) == 1
    assert model.failed == wrong
    assert stored == set(range(16)) - set(wrong)


@pytest.mark.parametrize("is_accepted", [True, False])
def test_interrupted_resend_goes_on_in_order(is_accepted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    model.seal(0)
    for choice in range(1, 17):
        model.produce(choice + 100 * len(KEYS))
    send, sent = model.send, []

    def send_until_interrupted(segment: LayoutSegment, record: PendingMessage) -> bool:
        sent.append(record)
        record.is_accepted = len(sent) != 3 or is_accepted
        if record.is_accepted:
            send(segment, record)
        if len(sent) == 3:
            raise KeyboardInterrupt
        return True

    monkeypatch.setattr(model.lanes, "_send", send_until_interrupted)
    while model.sent[0]:
        model.answer(0)
    with pytest.raises(KeyboardInterrupt):
        model.publish()
    model.lanes.advance()
    model.finish()
    assert not model.failed
    stored = [record for segment in sorted(model.stored) for record in model.stored[segment]]
    assert sorted(record.number for record in stored) == list(range(16))
    for key in KEYS[:-1]:
        numbers = [record.number for record in stored if record.key == key]
        assert numbers == sorted(numbers)
