"""Traffic: what brokers would report, consumers as the demand wants them, and going on through every outage."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from anabranch.admin.answers import NotConnected, Response, Unanswered
from anabranch.admin.topics import ScalableTopics
from anabranch.admin.transport import Transport
from anabranch.local.demand import KEYS, TopicDemand
from anabranch.local.samples import in_columns, segment_stats
from anabranch.local.traffic import Counters, DemandSessions, KafkaOutlet, SampleReports, next_instant, run_traffic
from schemas.codecs.columns import split_columns
from schemas.kafka.connection import KafkaConnection
from schemas.kafka.messages import ConsumerEvent, SegmentStats, SegmentStatsColumns, key_of, parse_message
from schemas.metadata import ScalableTopicMetadata
from schemas.settings.root import Settings
from tests.controller.conftest import RunningController, run_controller
from tests.local.demonstration import HOME, NOW, local_settings, traffic_settings
from tests.waiting import wait_until


def layout(*bounds: tuple[int, int], sealed: int = 0, epoch: int = 0) -> ScalableTopicMetadata:
    """Segments 0, 1, … over the given ranges; the first `sealed` of them are sealed."""
    segments = {
        str(number): {
            "segmentId": number,
            "hashRange": {"start": start, "end": end},
            "state": "SEALED" if number < sealed else "ACTIVE",
        }
        for number, (start, end) in enumerate(bounds)
    }
    return ScalableTopicMetadata.model_validate_json(
        json.dumps({"epoch": epoch, "nextSegmentId": len(bounds), "segments": segments})
    )


HALVES = layout((0, KEYS - 1), (0, 0x7FFF), (0x8000, KEYS - 1), sealed=1)


class Outages(Transport):
    """The way to a real controller, with the faults that it would not show when asked: no connection, an error."""

    def __init__(self, url: str) -> None:
        super().__init__(url, None, user_agent="test", timeout_seconds=30)
        self.down = False
        self.status: int | None = None
        self.calls: list[str] = []

    def exchange(self, method: str, path: str, *more: Any) -> Response | Unanswered:
        if self.down:
            return NotConnected(f"{method} {path}", "connection refused")
        if self.status is not None:
            return Response(self.status, "", b"no", path)
        self.calls.append(method)
        return super().exchange(method, path, *more)


@pytest.fixture(scope="module")
def controller(tmp_path_factory) -> Iterator[RunningController]:
    """A real controller; every test takes a namespace of its own."""
    with run_controller(tmp_path_factory.mktemp("controller") / "layouts.db") as running:
        yield running


class Local:
    """The demand for a few topics in a namespace of their own, at a real controller."""

    def __init__(self, controller: RunningController, number: int = 1, first: int = 0) -> None:
        self.controller = controller
        self.settings = traffic_settings(namespace=controller.new_namespace())
        self.topics = [TopicDemand(self.settings, index) for index in range(first, first + number)]
        self.way = Outages(controller.url)

    @property
    def demand(self) -> TopicDemand:
        return self.topics[0]

    def sessions(self) -> DemandSessions:
        return DemandSessions(ScalableTopics(self.way), self.topics, 6)

    def connected(self, demand: TopicDemand | None = None) -> dict[str, int]:
        """What the controller says: consumers by subscription, those without any left out."""
        found = self.controller.service.stats((demand or self.demand).topic)["subscriptions"]
        return {name: stats["consumerCount"] for name, stats in found.items() if stats["consumerCount"]}

    def wanted(self, t: float, demand: TopicDemand | None = None) -> dict[str, int]:
        return {name: count for name, count in (demand or self.demand).consumers(t).items() if count}

    def instant_with(self, least: int, most: int, after: float = NOW) -> float:
        """An instant at which the first subscription has that many consumers."""
        name = self.demand.subscriptions[0].name
        return next(after + step for step in range(600) if least <= self.demand.consumers(after + step)[name] <= most)


def test_samples_cover_active_segments_once():
    demand = TopicDemand(traffic_settings(), 0)
    messages = segment_stats(demand, HALVES, NOW)
    samples = [sample for message in messages for sample in message.segments]
    assert sorted(sample.id for sample in samples) == [1, 2]
    assert len({message.reporter for message in messages}) == len(messages)
    np.testing.assert_allclose(
        sum(sample.msg_rate_in for sample in samples), demand.rates(NOW, [0], [KEYS - 1])[0, 0], atol=0.01
    )


def test_wide_layout_split_into_valid_messages():
    width = KEYS // 64
    wide = layout(*((number * width, (number + 1) * width - 1) for number in range(64)))
    messages = segment_stats(TopicDemand(traffic_settings(), 3), wide, NOW)
    assert len(messages) == 3
    for message in messages:
        assert parse_message("segment-stats", message.topic.encode(), message.to_json().encode()) == message


def test_columns_carry_same_samples_in_bounded_size():
    demands = [TopicDemand(traffic_settings(), index) for index in range(5)]
    plain = [message for demand in demands for message in segment_stats(demand, HALVES, NOW)]
    expected = {
        (message.reporter, message.topic, sample.id): sample.model_dump(exclude={"id"})
        for message in plain
        for sample in message.segments
    }
    names, found = list(next(iter(expected.values()))), {}
    for message in in_columns(plain, most=3):
        value = message.to_json().encode()
        assert parse_message("segment-stats", key_of(message).encode(), value) == message
        good, refused = split_columns(message)
        assert refused == []
        assert 0 < len(good) <= 3
        of = good.segments
        topics = [topic for topic, count in zip(of.topics, of.counts, strict=True) for _ in range(count)]
        for topic, segment, rates in zip(topics, of.ids.tolist(), good.rates.T.tolist(), strict=True):
            assert (message.reporter, topic, segment) not in found
            found[message.reporter, topic, segment] = dict(zip(names, rates, strict=True))
    assert found == expected


def test_owner_keeps_segments_between_samples():
    demand = TopicDemand(traffic_settings(), 1)
    owners = [
        {
            sample.id: message.reporter
            for message in segment_stats(demand, HALVES, NOW + step)
            for sample in message.segments
        }
        for step in range(5)
    ]
    assert all(owner == owners[0] for owner in owners)


@pytest.mark.parametrize(("now", "expected"), [(100.0, 110.0), (100.1, 110.0), (109.999, 110.0), (110.0, 120.0)])
def test_samples_fall_on_multiples_of_the_interval(now, expected):
    assert next_instant(now, 10.0) == expected


def test_first_pass_creates_topics_and_consumers(controller):
    local = Local(controller, 6)
    sessions = local.sessions()
    sessions.synchronise(NOW)
    active = {
        topic: sum(s.state == "ACTIVE" for s in found.segments.values()) for topic, found in sessions.layouts.items()
    }
    assert active == {demand.topic: demand.initial_segments for demand in local.topics}
    assert all(local.connected(demand) == local.wanted(NOW, demand) for demand in local.topics)


def test_layouts_are_those_after_a_split(controller):
    local = Local(controller)
    sessions = local.sessions()
    sessions.synchronise(NOW)
    controller.service.split_segment(local.demand.topic, 0)
    sessions.synchronise(NOW)
    samples = segment_stats(local.demand, sessions.layouts[local.demand.topic], NOW)
    assert sorted(sample.id for message in samples for sample in message.segments) == [1, 2]


def test_consumers_follow_demand_without_extra_calls(controller):
    local = Local(controller, first=2)
    sessions = local.sessions()
    for step in range(100):
        calls = len(local.way.calls)
        sessions.synchronise(NOW + step)
        assert local.connected() == local.wanted(NOW + step)
        if step and local.wanted(NOW + step) == local.wanted(NOW + step - 1):
            assert local.way.calls[calls:] == ["GET"]


def test_registration_names_subscription_type(controller):
    local = Local(controller, 6)
    local.sessions().synchronise(NOW)
    announced = {
        (event.topic, event.subscription, event.type)
        for demand in local.topics
        for event in controller.announced(demand.topic)
        if isinstance(event, ConsumerEvent)
    }
    assert announced == {
        (demand.topic, subscription.name, subscription.type)
        for demand in local.topics
        for subscription in demand.subscriptions
        if demand.consumers(NOW)[subscription.name]
    }


def test_restarted_generator_unregisters_old_consumers(controller):
    local = Local(controller)
    busy = local.instant_with(4, 6)
    calm = local.instant_with(0, 1, after=busy)
    local.sessions().synchronise(busy)
    local.sessions().synchronise(calm)
    assert local.connected() == local.wanted(calm)


def test_layouts_kept_during_controller_outage(controller):
    """Consumers catch up afterwards."""
    local = Local(controller)
    sessions = local.sessions()
    sessions.synchronise(NOW)
    known = sessions.layouts[local.demand.topic]
    local.way.down = True
    assert isinstance(sessions.synchronise(NOW + 30), NotConnected)
    assert sessions.layouts[local.demand.topic] == known
    local.way.down = False
    assert sessions.synchronise(NOW + 60) is None
    assert local.connected() == local.wanted(NOW + 60)


def test_failing_topics_do_not_stop_the_pass(controller):
    local = Local(controller, 2)
    sessions = local.sessions()
    local.way.status = 500
    sessions.synchronise(NOW)
    assert sessions.layouts == {}
    local.way.status = None
    sessions.synchronise(NOW)
    assert len(sessions.layouts) == 2


def test_deleted_topic_recreated_with_consumers(controller):
    local = Local(controller)
    busy = local.instant_with(3, 6)
    sessions = local.sessions()
    sessions.synchronise(busy)
    controller.service.delete_topic(local.demand.topic)
    sessions.synchronise(busy)
    assert local.connected() == local.wanted(busy)


def test_counters_survive_restart_and_broken_file(tmp_path):
    file = tmp_path / "var" / "traffic.json"
    counters = Counters(file)
    counters.add("sent", 5)
    counters.origin = 1_763_660_010.0
    counters.write()
    again = Counters(file)
    assert again.origin == 1_763_660_010.0
    assert again.counts["sent"] == 5
    assert again.counts["starts"] == 2
    file.write_text('{"sent": ')
    assert Counters(file).counts["sent"] == 0


def read_all(bootstrap: str, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    """Every record of a topic."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "test", "enable.partition.eof": True})
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
    found, ended = [], set()

    def at_the_end() -> bool:
        message = consumer.poll(0.1)
        if message is not None and message.error():
            ended.add(message.partition())
        elif message is not None:
            found.append((message.key(), message.value()))
        return len(ended) == len(partitions)

    try:
        wait_until(at_the_end, deadline_s=20, every_s=0)
    finally:
        consumer.close()
    return found


def test_reports_reach_kafka_in_both_forms(kafka, tmp_path):
    settings = local_settings(tmp_path, kafka)
    topics = [TopicDemand(settings.traffic, index) for index in range(7)]
    counters = Counters(tmp_path / "traffic.json")
    outlet = KafkaOutlet(KafkaConnection(kafka), counters)
    sent = SampleReports(topics, outlet).report(NOW, {demand.topic: HALVES for demand in topics[1:]})
    outlet.close()
    messages = [parse_message("segment-stats", *record) for record in read_all(kafka, "segment-stats")]
    assert len(messages) == sent
    by_hand = {message.topic for message in messages if isinstance(message, SegmentStats)}
    in_columns = {topic for message in messages if isinstance(message, SegmentStatsColumns) for topic in message.topics}
    assert by_hand == {topics[5].topic}
    assert in_columns == {demand.topic for demand in (*topics[1:5], topics[6])}
    assert counters.counts["sent"] == counters.counts["delivered"] == sent


@contextmanager
def generating(settings: Settings) -> Iterator[Callable[[], dict[str, int]]]:
    """The generator at work in a thread during the block; returns its counters as it has written them last."""
    file, stop = settings.path(settings.local.folder) / "traffic.json", threading.Event()
    thread = threading.Thread(target=run_traffic, args=(settings, stop))
    thread.start()
    try:
        yield lambda: json.loads(file.read_text()) if file.exists() else Counter()
    finally:
        stop.set()
        thread.join(20)
    assert not thread.is_alive()


def quick(settings: Settings, url: str) -> Settings:
    """Settings with this controller and many samples."""
    return settings.model_copy(
        update={
            "controller": settings.controller.model_copy(update={"url": url}),
            "traffic": settings.traffic.model_copy(update={"report_seconds": 0.05}),
        }
    )


def test_generator_runs_without_controller(kafka, tmp_path, free_url):
    with generating(quick(local_settings(tmp_path, kafka), free_url)) as counts:
        begun = wait_until(lambda: counts()["at"])
        wait_until(lambda: counts()["at"] > begun + 150)
    assert counts()["sent"] == counts()["delivered"] == counts()["failed"] == 0


def test_generator_outlives_its_controller(kafka, tmp_path):
    with ExitStack() as stack:
        with run_controller(tmp_path / "layouts.db") as running:
            counts = stack.enter_context(generating(quick(local_settings(tmp_path, kafka), running.url)))
            wait_until(lambda: counts()["delivered"] > 3)
        before = counts()["delivered"]
        wait_until(lambda: counts()["delivered"] > before + 20)
    assert counts()["sent"] == counts()["delivered"]
    assert counts()["failed"] == 0


def test_sigterm_delivers_everything_first(kafka, tmp_path, controller):
    shutil.copytree(HOME / "conf", tmp_path / "conf")
    places = {"ANABRANCH_KAFKA_BOOTSTRAP": kafka, "ANABRANCH_CONTROLLER_URL": controller.url}
    process = subprocess.Popen(
        [sys.executable, "-m", "anabranch", "--home", str(tmp_path), "-c", "conf/demonstration.toml", "traffic"],
        cwd=HOME,
        env={**os.environ, **places},
        stderr=subprocess.PIPE,
        text=True,
    )
    file = tmp_path / "var" / "traffic.json"
    try:
        wait_until(lambda: file.exists() and json.loads(file.read_text())["delivered"] > 10, deadline_s=60)
        process.terminate()
        said = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    counts = json.loads(file.read_text())
    assert process.returncode == 0, said
    assert counts["sent"] == counts["delivered"] > 10
    assert f"delivered {counts['delivered']}, failed 0" in said


@pytest.fixture
def free_url() -> str:
    """A URL without a server."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"
