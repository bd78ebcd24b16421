"""Consumers counted by what loads show: never fewer than could make a merge wrong, and back to what is there."""

from __future__ import annotations

import json
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from anabranch.admin.transport import Transport
from anabranch.collectors.announced import AnnouncedState
from anabranch.collectors.announcements import LoadRates
from anabranch.collectors.pulsar.attached import GRACE_SECONDS, AttachedConsumers
from anabranch.collectors.pulsar.broker_stats import READERS, BrokerLoad, read_broker_stats
from anabranch.collectors.pulsar.brokers import Brokers, FollowedBroker
from anabranch.collectors.pulsar.reader import BrokerReader
from anabranch.collectors.pulsar.refresh import Refresh
from anabranch.collectors.pulsar.sweep import Budget, Sweep
from decisions.topic.layout import SegmentLayout
from schemas.kafka.messages import ConsumerEvent, parse_message

T = "topic://acme/shop/orders"
READER = BrokerReader.over(Transport("http://127.0.0.1:1", None, user_agent="test", timeout_seconds=1))


class Fleet:
    """Brokers whose loads show what is attached, and what is announced of it."""

    def __init__(self, brokers=2, segments=4, subscriptions=None):
        self.brokers, self.said = Brokers(), AnnouncedState(1, subscriptions=subscriptions or {})
        for number in range(brokers):
            name = f"b{number}:8080"
            self.brokers.known[name] = FollowedBroker(name, READER, Refresh(60), Budget(15), Sweep(1), Sweep(1))
        self.said.layout(T, SegmentLayout.create(segments, 1).to_metadata(), 1)
        self.attached = AttachedConsumers(self.brokers, self.said, self._take)
        self.counts, self.now = {}, 0.0

    def _take(self, records):
        for record in records:
            message = parse_message(record.source, record.key.encode(), record.value)
            assert isinstance(message, ConsumerEvent)
            self.counts[message.subscription] = message.consumers

    def shows(self, broker, attached, seconds=1.0):
        """A broker's new load: by segment, the consumer of `billing` attached to it, or None. None: no answer."""
        self.now += seconds
        name = f"b{broker}:8080"
        names = {one for one in attached.values() if one} if attached is not None else set()
        self.brokers.known[name].load = (
            None
            if attached is None
            else BrokerLoad(
                [LoadRates(T, segment, 1.0, 1.0, 1.0, 1.0) for segment in attached],
                {},
                {},
                set(),
                b"",
                1,
                consumers={T: {("billing", "STREAM"): names}} if names else {},
                segments={T: list(attached)},
            )
        )
        self.attached.take_load(name, self.now, 1)


def test_distinct_consumers_counted_over_brokers():
    fleet = Fleet()
    fleet.shows(0, {0: "a", 1: "b"})
    fleet.shows(1, {2: "c", 3: "a"})
    assert (fleet.counts, fleet.attached.unread) == ({"billing": 3}, 0)


def test_unseen_segments_count_until_brokers_known():
    fleet = Fleet()
    fleet.shows(0, {0: "a", 1: "a"})
    assert (fleet.counts, fleet.attached.unread) == ({"billing": 3}, 1)
    fleet.shows(1, {2: "a", 3: "a"})
    fleet.shows(1, {2: "a", 3: "a"}, GRACE_SECONDS)
    assert fleet.counts == {"billing": 1}


def test_consumers_of_a_silent_broker_are_kept():
    fleet = Fleet()
    fleet.shows(0, {0: "a", 1: "b"})
    fleet.shows(1, {2: "c", 3: "d"})
    fleet.shows(1, None)
    fleet.shows(0, {0: "a", 1: "b"}, 10 * GRACE_SECONDS)
    assert fleet.counts == {"billing": 4}


def test_consumer_counts_through_grace_period():
    fleet = Fleet(brokers=1)
    fleet.shows(0, {0: "a", 1: "b", 2: "a", 3: "b"})
    fleet.shows(0, {0: "a", 1: "a", 2: "a", 3: "a"}, GRACE_SECONDS - 1)
    assert fleet.counts == {"billing": 2}
    fleet.shows(0, {0: "a", 1: "a", 2: "a", 3: "a"}, 2.0)
    assert fleet.counts == {"billing": 1}
    fleet.shows(0, dict.fromkeys(range(4)), GRACE_SECONDS)
    assert fleet.counts == {"billing": 0}


def test_segments_of_departed_broker_still_counted():
    fleet = Fleet()
    fleet.shows(0, {0: "a", 1: "b"})
    fleet.shows(1, {2: "c", 3: "d"})
    del fleet.brokers.known["b1:8080"]
    fleet.shows(0, {0: "a", 1: "b", 2: "a", 3: "b"}, GRACE_SECONDS)
    fleet.shows(0, {0: "a", 1: "b", 2: "a", 3: "b"}, GRACE_SECONDS)
    assert fleet.counts == {"billing": 2}


def test_subscription_ended_between_runs_retracted():
    fleet = Fleet(brokers=1, subscriptions={T: {"old": "STREAM"}})
    fleet.shows(0, {0: "a"})
    assert fleet.counts == {"old": 0, "billing": 1}


def test_inherited_subscription_kept_until_full_scan():
    fleet = Fleet(subscriptions={T: {"old": "STREAM"}})
    fleet.shows(0, {0: "a", 1: "a"})
    assert "old" not in fleet.counts


@given(st.integers(1, 8), st.integers(1, 12), st.integers(0, 2**32))
def test_attached_count_forbids_the_same_merges(segments, consumers, seed):
    """Round robin, as Pulsar assigns; a merge needs one segment more than consumers, whoever counts them."""
    fleet, random = Fleet(brokers=3, segments=segments), Random(seed)
    shown = [{}, {}, {}]
    for segment in range(segments):
        shown[random.randrange(3)][segment] = f"c{segment % consumers}"
    for broker in random.sample(range(3), 3):
        fleet.shows(broker, shown[broker])
        counted = fleet.counts.get("billing")
        if counted is not None and sum(map(len, shown)):
            assert (segments > counted) <= (segments > consumers), "a merge that the true number forbids"
    assert fleet.counts["billing"] == min(consumers, segments)


def test_checkpoint_readers_count_jointly():
    def segment(id, **subscriptions):
        shown = {
            name: {"type": type, "consumers": [{"consumerName": f"{consumer}-seg-{id}"} for consumer in consumers]}
            for name, (type, consumers) in subscriptions.items()
        }
        rates = dict.fromkeys(("msgRateIn", "msgRateOut", "msgThroughputIn", "msgThroughputOut"), 0.0)
        return {f"segment://acme/shop/orders/0000-ffff-{id}": {**rates, "subscriptions": shown}}

    topics = {
        **segment(0, **{"reader-12": ("Exclusive", ["x"]), "jobs": ("Shared", ["q"]), "billing": ("Exclusive", ["a"])}),
        **segment(1, **{"reader-34": ("Exclusive", ["y"]), "billing": ("Exclusive", ["a"])}),
    }
    load = read_broker_stats(json.dumps({"acme/shop": {"0x0_0x1": {"persistent": topics}}}).encode())
    assert load.consumers == {T: {(READERS, "CHECKPOINT"): {"x", "y"}, ("billing", "STREAM"): {"a"}}}
