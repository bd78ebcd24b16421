"""The collector of segments in Kafka, step by step on a clock of its own: budget, order of calls, blind spots."""

from __future__ import annotations

import time
from collections import Counter
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from confluent_kafka import KafkaError, KafkaException

from anabranch.admin.answers import Answered, NotConnected, Refused
from anabranch.collectors.kafka import collector
from anabranch.collectors.kafka.collector import KafkaCollector
from decisions.topic.layout import SegmentLayout
from schemas.settings.root import load_settings
from tests.collectors.outlets import Listed

TOPIC = "topic://acme/shop/orders"
LEADERS = "a:9092", "b:9092"


class Segment(NamedTuple):
    topic: str
    created_at: int | None
    id: int
    kafka_topic: str
    leader: str


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Cluster:
    """Kafka and controller with one topic; segment `id` gets `10 * (id + 1)` messages of 100 bytes a second."""

    def __init__(self, clock: Clock, segments: int = 2) -> None:
        self.clock, self.began_at = clock, clock.now
        self.layout = SegmentLayout.create(segments, 5)
        self.subscriptions = ["billing"]
        self.leaderless: set[int] = set()
        self.unreadable: set[int] = set()
        self.set_back: dict[int, int] = {}
        self.down: set[str] = set()
        self.brokers = list(LEADERS)
        self.has_topic = True
        self.calls: list[tuple[float, str]] = []

    @property
    def segments(self) -> list[Segment]:
        ids = self.layout.segments if self.has_topic else ()
        return [
            Segment(TOPIC, None, id, f"segment-{id}", "" if id in self.leaderless else LEADERS[id % 2]) for id in ids
        ]

    def _call(self, kind: str) -> None:
        self.calls.append((self.clock.now, kind))
        if kind in self.down:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def cluster(self) -> Cluster:
        self._call("cluster")
        return self

    def ends(self, kafka_topics):
        self._call("ends")
        ids = {name: int(name.rpartition("-")[2]) for name in kafka_topics}
        return {name: "not authorized" if id in self.unreadable else self.end_of(id) for name, id in ids.items()}

    def end_of(self, id: int) -> int:
        return round((self.clock.now - self.began_at) * 10 * (id + 1)) - self.set_back.get(id, 0)

    def groups(self):
        self._call("groups")
        return [(f"segment-{id}", name) for id in self.layout.segments for name in self.subscriptions]

    def position(self, kafka_topic, subscription):
        self._call("position")
        return self.end_of(int(kafka_topic.rpartition("-")[2])) // 2

    def message_sizes(self, ends):
        self._call("sizes")
        return {name: 100.0 for name, end in ends.items() if end}

    def read_layout(self, topic):
        self.calls.append((self.clock.now, "layout"))
        if "layout" in self.down:
            return NotConnected("http://controller", "refused")
        return Answered(self.layout) if self.has_topic else Refused(404, "no such topic", True, "Not Found")


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(collector, "time", SimpleNamespace(monotonic=clock, time_ns=time.time_ns))
    return clock


class Run:
    """A collector on a cluster."""

    def __init__(self, clock: Clock, cluster: Cluster, calls_per_second: float = 15, load_seconds: float = 0) -> None:
        settings = load_settings(environment={}).collect.model_copy(
            update={"calls_per_second": calls_per_second, "load_seconds": load_seconds}
        )
        self.clock, self.outlet = clock, Listed()
        self.collector = KafkaCollector(settings, "http://controller", cluster.read_layout, cluster, self.outlet)

    def run(self, seconds: float) -> Run:
        end = self.clock.now + seconds
        while self.clock.now < end:
            if not self.collector.step(self.clock.now):
                self.clock.now += 0.25
        return self

    def rates(self):
        return {id: tuple(round(rate, 1) for rate in rates) for (_, id), rates in self.outlet.rates().items()}


def test_rates_are_those_of_the_offsets(clock):
    run = Run(clock, Cluster(clock)).run(41)
    assert run.rates() == {0: (10, 1_000, 5, 500), 1: (20, 2_000, 10, 1_000)}
    assert {message.reporter for message in run.outlet.samples} == set(LEADERS)
    assert run.collector.status().is_complete
    assert {view.lag["billing"] for view in run.collector.segments()} <= set(range(100, 500))


def test_nothing_is_sent_before_two_readings(clock):
    run = Run(clock, Cluster(clock)).run(9)
    assert run.outlet.samples == []
    assert run.collector.status().unseen == [f"{TOPIC}/0", f"{TOPIC}/1"]
    assert run.run(20).rates()[0] == (10, 1_000, 5, 500)


def test_new_segments_are_reported_soon(clock):
    cluster = Cluster(clock)
    run = Run(clock, cluster).run(31)
    cluster.layout = cluster.layout.split_segment(0, 6)
    run.run(20)
    assert run.rates().keys() == {0, 1, 2, 3}
    assert {id for id, segment in enumerate(run.outlet.samples[-1].ids) if segment == 0} == set()


def test_layout_that_lags_is_asked_again_soon(clock):
    cluster = Cluster(clock)
    run = Run(clock, cluster).run(31)
    old, cluster.layout = cluster.layout, cluster.layout.split_segment(0, 6)
    run.collector._layout = lambda topic: Answered(old)
    run.run(15)
    run.collector._layout = cluster.read_layout
    run.run(15)
    assert {2, 3} <= run.rates().keys()


@pytest.mark.parametrize("calls_per_second", [2, 15])
def test_budget_of_calls_is_obeyed(clock, calls_per_second):
    cluster = Cluster(clock, segments=200)
    cluster.subscriptions = ["billing", "search"]
    Run(clock, cluster, calls_per_second).run(120)
    assert len(cluster.calls) <= calls_per_second * 121
    by_second = Counter(int(at) for at, _ in cluster.calls)
    assert max(by_second.values()) <= 2 * calls_per_second + 4
    assert Counter(kind for _, kind in cluster.calls)["position"] > 100


def test_many_groups_take_longer_but_are_all_read(clock):
    cluster = Cluster(clock, segments=60)
    cluster.subscriptions = ["billing", "search"]
    run = Run(clock, cluster, calls_per_second=2).run(400)
    assert run.rates()[0] == (10, 1_000, 10, 1_000)
    assert run.rates()[59] == (600, 60_000, 600, 60_000)


@pytest.mark.parametrize(("groups", "least", "most"), [(64, 10, 30), (65, 2, 3)])
def test_new_clients_for_positions_are_bounded(clock, groups, least, most):
    cluster = Cluster(clock, segments=1)
    cluster.subscriptions = [f"group-{number}" for number in range(groups)]
    run = Run(clock, cluster).run(200)
    by_second = Counter(int(at) for at, kind in cluster.calls if kind == "position")
    assert least <= max(by_second.values()) <= most
    assert run.rates()[0] == (10, 1_000, 5 * groups, 500 * groups)


def test_segment_without_leader_is_named_and_unknown(clock):
    cluster = Cluster(clock)
    run = Run(clock, cluster).run(31)
    cluster.leaderless = {1}
    sent = len(run.outlet.samples)
    status = run.run(20).collector.status()
    assert all(message.ids == [0] for message in run.outlet.samples[sent:])
    assert f"{TOPIC}/1" in status.unseen
    assert status.troubles == [f"active segments have no leader in Kafka: {TOPIC}/1"]
    cluster.leaderless = set()
    assert run.run(20).collector.status().is_complete


@pytest.mark.parametrize("kind", ["cluster", "ends", "groups", "position", "layout"])
def test_silence_is_a_condition_and_ends(clock, kind):
    cluster = Cluster(clock)
    run = Run(clock, cluster).run(31)
    cluster.down = {kind}
    assert run.run(100).collector.status().troubles
    sent = len(run.outlet.samples)
    run.run(20)
    # Layouts and the list of groups stay as they were; without offsets nothing is known.
    assert (len(run.outlet.samples) > sent) == (kind in ("groups", "layout"))
    cluster.down = set()
    status = run.run(40).collector.status()
    assert not status.troubles
    assert run.rates() == {0: (10, 1_000, 5, 500), 1: (20, 2_000, 10, 1_000)}
    assert all(rate >= 0 for message in run.outlet.samples for rates in message.rates for rate in rates)


def test_end_that_went_back_is_unknown_for_a_round(clock):
    cluster = Cluster(clock)
    run = Run(clock, cluster).run(31)
    cluster.set_back = {1: 300}
    run.run(10)
    assert f"{TOPIC}/1" in run.collector.status().unseen
    run.run(30)
    assert run.rates()[1] == (20, 2_000, 10, 1_000)
    assert all(rate >= 0 for message in run.outlet.samples for rates in message.rates for rate in rates)


def test_deleted_topic_is_forgotten(clock):
    cluster = Cluster(clock)
    run = Run(clock, cluster).run(31)
    cluster.has_topic = False
    status = run.run(20).collector.status()
    assert (status.topics, status.topics_listed, status.segments_known) == (0, 0, 0)
    assert not status.troubles


def test_topic_of_another_controller_is_left_alone(clock):
    cluster = Cluster(clock)
    run = Run(clock, cluster)
    run.collector._layout = lambda topic: Refused(404, "no such topic", True, "Not Found")
    status = run.run(40).collector.status()
    assert (status.topics_listed, status.segments_known, run.outlet.samples) == (0, 0, [])
    assert status.is_complete


def test_new_segment_that_cannot_be_read_takes_few_calls(clock):
    cluster = Cluster(clock)
    cluster.unreadable = {0}
    run = Run(clock, cluster).run(60)
    assert Counter(kind for _, kind in cluster.calls)["ends"] <= 20
    assert run.rates().keys() == {1}
    assert "not authorized" in str(run.collector.status().troubles)


def test_silent_controller_is_not_asked_every_second(clock):
    cluster = Cluster(clock)
    run = Run(clock, cluster).run(31)
    cluster.down, before = {"layout"}, len(cluster.calls)
    run.run(100)
    assert 10 <= Counter(kind for _, kind in cluster.calls[before:])["layout"] <= 21


def test_condition_of_a_deleted_topic_ends(clock):
    cluster = Cluster(clock)
    run = Run(clock, cluster).run(31)
    cluster.down = {"layout"}
    assert run.run(60).collector.status().troubles
    cluster.has_topic = False
    assert not run.run(20).collector.status().troubles


def test_rounds_leave_calls_for_the_others(clock):
    cluster = Cluster(clock)
    run = Run(clock, cluster, calls_per_second=2, load_seconds=1).run(60)
    assert run.rates() == {0: (10, 1_000, 5, 500), 1: (20, 2_000, 10, 1_000)}
    assert len(cluster.calls) <= 2 * 61


def test_all_is_seen_only_once_it_was_sent(clock):
    cluster = Cluster(clock, segments=30)
    cluster.subscriptions = ["billing", "search"]
    run = Run(clock, cluster, calls_per_second=5)
    while not run.collector.has_seen_all:
        run.run(0.25)
    assert run.rates().keys() == set(range(30))
    assert run.collector.status().is_delivered
    run.outlet.samples_waiting = 1
    assert not run.collector.status().is_delivered
