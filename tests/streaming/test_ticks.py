"""Ticks come in their intervals, whatever the wall clock is set to and whatever becomes of the producer."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from schemas.kafka.connection import KafkaConnection
from schemas.kafka.topics import CONTROL_EVENTS
from streaming.job.ticks import Cadence, TickWriter, wall_ms
from tests.runtime.messaging.fatal import fail_for_good
from tests.waiting import wait_until

HOUR = 3_600_000
NOON = 1_763_640_000_000


class Clocks:
    """A wall clock that can be set, and a steady one."""

    def __init__(self, wall=NOON):
        self.wall, self.steady = wall, 0

    def pass_ms(self, ms):
        self.wall += ms
        self.steady += ms

    def cadence(self, tick_ms=60_000):
        return Cadence(tick_ms, lambda: self.wall, lambda: self.steady)


def test_ticks_fall_on_wall_clock_boundaries():
    clocks = Clocks(NOON + 7)
    cadence, taken = clocks.cadence(), []
    for _ in range(12):
        clocks.pass_ms(cadence.due - clocks.steady)
        taken.append(cadence.take())
    assert taken == [NOON + number * 60_000 for number in range(1, 13)]


@pytest.mark.parametrize("set_by", [-HOUR, HOUR, -HOUR - 31_000, 86_400_000, -1_000, 20_000])
def test_next_tick_within_interval_after_clock_set(set_by):
    clocks = Clocks(NOON + 7)
    cadence = clocks.cadence()
    clocks.pass_ms(1_000)
    clocks.wall += set_by
    for _ in range(3):
        before = clocks.steady
        clocks.pass_ms(cadence.due - clocks.steady)
        at = cadence.take()
        assert clocks.steady - before <= 90_000
        assert abs(at - clocks.wall) <= 60_000
    assert at == clocks.wall


@given(st.lists(st.tuples(st.integers(1, 200_000), st.integers(-2 * HOUR, 2 * HOUR) | st.just(0)), max_size=20))
def test_interval_bounded_for_any_clock_change(steps):
    clocks = Clocks()
    cadence, last = clocks.cadence(), 0
    for ms, set_by in steps:
        while cadence.due - clocks.steady <= ms:
            ms -= max(0, cadence.due - clocks.steady)
            clocks.pass_ms(max(0, cadence.due - clocks.steady))
            assert cadence.take() is not None
            assert clocks.steady - last <= 90_000
            last = clocks.steady
        clocks.pass_ms(ms)
        clocks.wall += set_by


def test_ticks_go_on_without_new_producer():
    ticks = TickWriter(KafkaConnection("127.0.0.1:1"), 0.05)
    producer, polls = ticks._producer, []
    poll = producer.poll
    producer.poll = lambda: polls.append(1) or poll()
    producer._configuration["no.such.property"] = "1"
    producer._is_broken = True
    ticks.start()
    try:
        wait_until(lambda: len(polls) >= 3)
    finally:
        ticks.stop()


@pytest.mark.broker
def test_ticks_survive_clock_and_failed_producer(broker):
    shift, began = [0], wall_ms()
    topic = f"topic://acme/ticks/{began}"
    writer = TickWriter(KafkaConnection(broker.bootstrap), 0.2, lambda: wall_ms() + shift[0])
    reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "ticks"})
    reader.assign(
        [TopicPartition(CONTROL_EVENTS.name, one, OFFSET_BEGINNING) for one in range(CONTROL_EVENTS.partitions)]
    )
    read = []

    def has_come(wanted):
        # Many at once: the broker is shared, and other tests have left thousands of ticks.
        read.extend(json.loads(one.value()) for one in reader.consume(1_000, 0.1) if one.error() is None)
        return any(wanted(body) for body in read if body["type"] == "tick")

    writer.start()
    try:
        wait_until(lambda: has_come(lambda tick: "topic" not in tick and tick["at"] >= began - 200), 20)
        writer.ask(topic, wall_ms() + 600)
        shift[0] = -HOUR
        wait_until(lambda: has_come(lambda tick: abs(tick["at"] - wall_ms() + HOUR) < 60_000), 20)
        wait_until(lambda: has_come(lambda tick: tick.get("topic") == topic), 20)
        fail_for_good(writer._producer._producer)
        failed_at = wall_ms() - HOUR
        wait_until(lambda: has_come(lambda tick: failed_at + 200 < tick["at"] < failed_at + 60_000), 20)
    finally:
        writer.stop()
        reader.close()
