"""Answers about topics that come after the topic is gone: none of them leaves a condition behind."""

from __future__ import annotations

import time

import pytest

from anabranch.admin.answers import Refused, ServerFault
from anabranch.admin.transport import Transport
from anabranch.collectors.announced import AnnouncedState
from anabranch.collectors.pulsar.brokers import Brokers, FollowedBroker
from anabranch.collectors.pulsar.calls import Call, CallAnswer
from anabranch.collectors.pulsar.namespaces import ListedNamespaces
from anabranch.collectors.pulsar.reader import BrokerReader
from anabranch.collectors.pulsar.refresh import Refresh
from anabranch.collectors.pulsar.sweep import Budget, Sweep
from anabranch.collectors.pulsar.topics import CONFIRM_SECONDS, Topics
from anabranch.collectors.status import Troubles
from schemas.settings.root import load_settings

pytestmark = pytest.mark.unit
T = "topic://acme/shop/orders"
MISSING = Refused(404, "Scalable topic not found", from_interface=True)
FAULT = ServerFault(500, "no controller")


class Reading:
    """A topic that is read, and the conditions that its answers leave."""

    def __init__(self):
        self.brokers, self.troubles = Brokers(asks_stats=True), Troubles()
        settings = load_settings(environment={}).collect
        namespaces = ListedNamespaces(settings, self.brokers, lambda *_: None)
        self.topics = Topics(
            self.brokers, namespaces, AnnouncedState(1), self.troubles, lambda _: None, lambda *_: None
        )
        transport = Transport("http://127.0.0.1:1", None, user_agent="test", timeout_seconds=1.0)
        reader, refresh, budget = BrokerReader.over(transport), Refresh(60), Budget(100)
        # Nothing is asked: the answers come from the test.
        self.brokers.known["broker-1"] = FollowedBroker("broker-1", reader, refresh, budget, Sweep(1), Sweep(1))
        self.brokers.add_topic(T)

    def answer(self, kind, reply, seconds=0.0):
        """Have an answer about the topic; `seconds`: when it was asked for."""
        answer = CallAnswer(Call(kind, T, "broker-1"), reply, seconds, seconds, round(time.time() * 1000))
        {"layout": self.topics.take_layout, "leader": self.topics.take_leader, "stats": self.topics.take_stats}[kind](
            answer
        )

    def delete(self):
        """Have two answers that there is no such topic."""
        self.answer("layout", MISSING)
        self.answer("layout", MISSING, CONFIRM_SECONDS)


@pytest.mark.parametrize("kind", ["stats", "leader", "layout"])
def test_condition_ends_with_its_topic(kind):
    reading = Reading()
    reading.answer(kind, FAULT)
    assert (kind, T) in reading.troubles
    reading.delete()
    assert not list(reading.troubles)


@pytest.mark.parametrize("kind", ["stats", "leader", "layout"])
def test_late_answer_about_deleted_topic_is_ignored(kind):
    reading = Reading()
    reading.delete()
    reading.answer(kind, FAULT, CONFIRM_SECONDS)
    assert not list(reading.troubles)
