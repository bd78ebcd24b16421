"""Calls under way: a load waits for no other call."""

from __future__ import annotations

import threading

import pytest

from anabranch.admin.answers import Answered, Lost
from anabranch.collectors.announced import AnnouncedState
from anabranch.collectors.pulsar.calls import Call, Calls
from anabranch.collectors.pulsar.collector import PulsarCollector
from schemas.settings.root import load_settings
from tests.collectors.outlets import Listed

pytestmark = pytest.mark.unit


def test_a_load_is_read_although_all_other_calls_hang():
    calls, end = Calls(2), threading.Event()
    try:
        for topic in ("a", "b"):
            assert calls.make(Call("stats", topic, "silent"), lambda: Answered(end.wait(10)))
        assert not calls.has_room
        assert calls.make(Call("load", "well", "well"), lambda: Answered("rates"))
        [answer] = calls.answers(5)
        assert answer.reply == Answered("rates")
        assert not calls.has_room
    finally:
        end.set()
        calls.close()


def test_returned_broker_has_no_calls_of_before():
    """Answers to calls that were made before it left free no slots of its new entry."""
    topic, may_end = "topic://acme/shop/orders", threading.Event()
    collector = PulsarCollector(load_settings(environment={}).collect, "", None, AnnouncedState(1), Listed(), 1)

    def lost():
        may_end.wait(60)
        return Lost(topic, "the broker has gone", False)

    try:
        collector._add_broker("b", None)
        collector._ask(Call("layout", topic, "b"), lost)
        before = collector._brokers.known.pop("b")
        collector._add_broker("b", None)
        may_end.set()
        for answer in collector._calls.answers(60):
            collector._take(answer)
        assert (before.in_flight, collector._brokers.known["b"].in_flight) == (0, 0)
    finally:
        collector.close()
