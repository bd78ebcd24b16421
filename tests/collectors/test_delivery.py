"""Slow segments are read off brokers' loads and reported once, while they last, and when they are not slow any more."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.admin.transport import Transport
from anabranch.collectors.announced import AnnouncedState
from anabranch.collectors.pulsar.broker_stats import read_broker_stats
from anabranch.collectors.pulsar.brokers import Brokers, FollowedBroker
from anabranch.collectors.pulsar.delivery import CLEAR_REPEAT_SECONDS, DeliveryReports
from anabranch.collectors.pulsar.reader import BrokerReader
from anabranch.collectors.pulsar.refresh import Refresh
from anabranch.collectors.pulsar.segment_stats import read_segment_stats
from anabranch.collectors.pulsar.sweep import Budget, Sweep
from decisions.topic.layout import SegmentLayout
from schemas.kafka.messages import DeliveryEvent
from tests.collectors.outlets import parsed

T = "topic://public/default/orders"
SEGMENTS = ("segment://public/default/orders/0000-7fff-0", "segment://public/default/orders/8000-ffff-1")
RATES = {"msgRateIn": 542.597, "msgThroughputIn": 128025.304, "msgRateOut": 542.397, "msgThroughputOut": 127976.924}
CONSUMER = {
    "address": "/127.0.0.1:60932",
    "consumerName": "c0-seg-0",
    "availablePermits": 528,
    "msgRateOut": 542.397,
    "msgThroughputOut": 127976.924,
    "msgRateRedeliver": 0.0,
    "avgMessagesPerEntry": 1,
    "messageAckRate": 9.799,
}
SUBSCRIPTION = {
    "consumers": [CONSUMER],
    "msgBacklog": 35,
    "msgRateExpired": 0.0,
    "msgRateOut": 542.397,
    "type": "Exclusive",
    "numberOfEntriesSinceFirstNotAckedMessage": 34,
}
"""As a broker of Pulsar 5.0.0-M1 answered under load."""


def body(*subscriptions):
    """A broker's load: a segment for each mapping of subscriptions."""
    topics = {name: {**RATES, "subscriptions": one} for name, one in zip(SEGMENTS, subscriptions, strict=False)}
    return json.dumps({"public/default": {"0x00000000_0xffffffff": {"persistent": topics}}}).encode()


def behind(permits=0, backlog=60_000, rate=100.0, **more):
    return {
        "s": {
            **SUBSCRIPTION,
            "msgBacklog": backlog,
            "msgRateOut": rate,
            "consumers": [{**CONSUMER, "availablePermits": permits}],
            **more,
        }
    }


KEEPS_UP = {"s": SUBSCRIPTION}


class Cluster:
    """A broker whose loads are taken in, and the reports that come of it."""

    def __init__(self):
        self.brokers, self.said, self.reports, self.now = Brokers(), AnnouncedState(7), [], 0.0
        reader = BrokerReader.over(Transport("http://127.0.0.1:1", None, user_agent="test", timeout_seconds=1))
        self.broker = FollowedBroker("b:8080", reader, Refresh(60), Budget(15), Sweep(1), Sweep(1))
        self.brokers.known["b:8080"] = self.broker
        self.said.layout(T, SegmentLayout.create(2, 1).to_metadata(), 1)
        self.delivery = DeliveryReports(self.brokers, self.said, self._take)

    def _take(self, records):
        self.reports += map(parsed, records)

    def shows(self, *subscriptions, seconds=60.0):
        """The reports that a load leads to."""
        self.now += seconds
        self.broker.load = read_broker_stats(body(*subscriptions))
        before = len(self.reports)
        self.delivery.take_load(self.broker.load.segments, self.now, int(self.now * 1000))
        return self.reports[before:]


def test_lasting_backlog_reported_with_figures():
    cluster = Cluster()
    cluster.shows(KEEPS_UP, KEEPS_UP)
    assert cluster.shows(KEEPS_UP, behind()) == []
    [event] = cluster.shows(KEEPS_UP, behind())
    assert isinstance(event, DeliveryEvent)
    assert (event.topic, event.reported, event.sender, event.at) == (T, 2, 7, 180_000)
    [slow] = event.segments
    assert (slow.id, slow.subscription, slow.backlog, slow.msg_rate_out) == (1, "s", 60_000, 100.0)
    assert (slow.consumers, slow.ready_consumers, slow.blocked_consumers) == (1, 0, 0)
    assert (slow.backlog_age_seconds, slow.waiting_publishers, slow.unacked_messages) == (None, None, None)


def test_slow_topic_reported_each_minute_until_ok():
    cluster = Cluster()
    assert [len(one.segments) for one in cluster.shows(behind(), KEEPS_UP)] == [0]
    assert [len(one.segments) for one in cluster.shows(behind(), KEEPS_UP)] == [1]
    assert cluster.shows(behind(), KEEPS_UP, seconds=30) == []
    assert [len(one.segments) for one in cluster.shows(behind(), KEEPS_UP, seconds=30)] == [1]
    assert [len(one.segments) for one in cluster.shows(KEEPS_UP, KEEPS_UP)] == [0]


def test_healthy_topic_reported_hourly():
    cluster = Cluster()
    assert [(one.reported, one.segments) for one in cluster.shows(KEEPS_UP)] == [(1, [])]
    assert [(one.reported, one.segments) for one in cluster.shows(KEEPS_UP, KEEPS_UP)] == [(2, [])]
    assert cluster.shows(KEEPS_UP, KEEPS_UP, seconds=CLEAR_REPEAT_SECONDS - 1) == []
    assert len(cluster.shows(KEEPS_UP, KEEPS_UP, seconds=1)) == 1


def test_attached_subscription_comes_first():
    abandoned = {"old": {**SUBSCRIPTION, "consumers": [], "msgBacklog": 10**6, "msgRateOut": 0.0}}
    [slow] = read_broker_stats(body({**abandoned, **behind()})).behind[T]
    assert slow.subscription == "s"
    [slow] = read_broker_stats(body(abandoned)).behind[T]
    assert (slow.subscription, slow.consumers) == ("old", 0)


def test_blocked_consumers_are_not_ready():
    stuck = {**CONSUMER, "blockedConsumerOnUnackedMsgs": True, "availablePermits": 100}
    [slow] = read_broker_stats(body(behind(consumers=[stuck, CONSUMER], unackedMessages=50_000))).behind[T]
    assert (slow.consumers, slow.ready_consumers, slow.blocked_consumers) == (2, 1, 1)
    [slow] = read_broker_stats(body(behind(blockedSubscriptionOnUnackedMsgs=True, unackedMessages=9))).behind[T]
    assert (slow.ready_consumers, slow.blocked_consumers, slow.unacked_messages) == (0, 1, 9)


def test_segment_stats_give_age_and_publishers():
    """The body as Pulsar 5.0 builds it, by its fields."""
    stats = {
        "ownerBroker": "b:8080",
        "msgRateIn": 542.597,
        "byteRateIn": 128025.304,
        "msgRateOut": 1.0,
        "byteRateOut": 1.0,
        "averageMsgSize": 235.9,
        "storageSize": 1,
        "backlogSize": 1,
        "oldestBacklogMessageAgeSeconds": 900,
        "waitingPublishers": 2,
        "producers": [],
        "subscriptions": behind(oldestBacklogMessageAgeSeconds=840, unackedMessages=12),
    }
    slow = read_segment_stats(json.dumps(stats).encode(), 5)
    assert (slow.id, slow.backlog_age_seconds, slow.waiting_publishers, slow.unacked_messages) == (5, 840, 2, 12)
    stats["subscriptions"]["s"]["oldestBacklogMessageAgeSeconds"] = -1
    assert read_segment_stats(json.dumps(stats).encode(), 5).backlog_age_seconds is None
    stats["subscriptions"]["s"]["oldestBacklogMessageAgeSeconds"] = 3
    assert read_segment_stats(json.dumps(stats).encode(), 5) is None


JSON = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["NaN", "-Infinity", ""])
)
"""Pulsar writes what is no number as text."""


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "msgBacklog",
                "msgRateOut",
                "unackedMessages",
                "availablePermits",
                "blockedSubscriptionOnUnackedMsgs",
                "oldestBacklogMessageAgeSeconds",
            ]
        ),
        JSON,
    )
)
def test_strange_figures_cost_a_segment_no_rates(strange):
    one = {**SUBSCRIPTION, **strange, "consumers": [{**CONSUMER, **strange}]}
    found = read_broker_stats(body({"s": one}))
    assert [load.msg_rate_in for load in found.loads] == [RATES["msgRateIn"]]


@pytest.mark.parametrize("wrong", [b"", b"[]", b'{"subscriptions": 1}', b"\xff"])
def test_stats_that_are_none_are_refused(wrong):
    with pytest.raises(ValueError, match="no segment's stats"):
        read_segment_stats(wrong, 1)
