"""Traffic: what brokers would report, consumers as the demand wants them, and going on through every outage."""

from __future__ import annotations

import json
import socket
import threading

import httpx
import numpy as np
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from lab.demand import KEYS, Demand
from lab.traffic import Counters, Outlet, Reports, Sessions, next_instant, run_traffic, segment_stats
from schemas.messages import Rejected, SegmentStats, parse_message
from schemas.metadata import ScalableTopicMetadata
from tests.lab.demonstration import NOW, local_settings, traffic_settings
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


class Controller:
    """The admin interface as `Sessions` sees it: topics and consumers, and outages on demand."""

    def __init__(self) -> None:
        self.topics: dict[str, int] = {}
        self.consumers: dict[tuple[str, str], dict[str, str]] = {}
        self.calls: list[tuple[str, str]] = []
        self.down = False
        self.status: int | None = None

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if self.down:
            raise httpx.ConnectError("connection refused", request=request)
        if self.status is not None:
            return httpx.Response(self.status, text="no")
        path = request.url.path.removeprefix("/admin/v2/scalable/")
        self.calls.append((request.method, path))
        topic, _, rest = path.partition("/subscriptions/")
        if not rest:
            return self._topic(request, topic)
        if topic not in self.topics:
            return httpx.Response(404)
        subscription, _, consumer = rest.partition("/consumers/")
        sessions = self.consumers.setdefault((topic, subscription), {})
        if request.method == "PUT":
            sessions[consumer] = request.url.params["type"]
            return httpx.Response(204)
        return httpx.Response(204 if sessions.pop(consumer, None) else 404)

    def _topic(self, request: httpx.Request, topic: str) -> httpx.Response:
        if request.method == "PUT":
            if topic in self.topics:
                return httpx.Response(409)
            self.topics[topic] = int(request.url.params["numInitialSegments"])
            return httpx.Response(204)
        if topic not in self.topics:
            return httpx.Response(404)
        return httpx.Response(200, text=(layout((0, KEYS - 1)) if self.topics[topic] == 1 else HALVES).to_json())


def sessions_with(controller: Controller, *topics: Demand) -> Sessions:
    client = httpx.Client(base_url="http://controller", transport=httpx.MockTransport(controller))
    return Sessions(client, topics, 6)


def connected(controller: Controller, demand: Demand) -> dict[str, int]:
    path = demand.topic.removeprefix("topic://")
    return {sub.name: len(controller.consumers.get((path, sub.name), {})) for sub in demand.subscriptions}


def test_samples_cover_the_active_segments_only_each_by_one_owner():
    demand = Demand(traffic_settings(), 0)
    messages = segment_stats(demand, HALVES, NOW)
    samples = [sample for message in messages for sample in message.segments]
    assert sorted(sample.id for sample in samples) == [1, 2]
    assert len({message.reporter for message in messages}) == len(messages)
    np.testing.assert_allclose(
        sum(sample.msg_rate_in for sample in samples), demand.rates(NOW, [0], [KEYS - 1])[0, 0], atol=0.01
    )


def test_a_wide_layout_is_split_over_several_reporters_and_every_message_is_valid():
    width = KEYS // 64
    wide = layout(*((number * width, (number + 1) * width - 1) for number in range(64)))
    messages = segment_stats(Demand(traffic_settings(), 3), wide, NOW)
    assert len(messages) == 3
    for message in messages:
        assert parse_message("segment-stats", message.topic.encode(), message.to_json().encode()) == message


def test_an_owner_keeps_its_segments_from_sample_to_sample():
    demand = Demand(traffic_settings(), 1)
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


def test_first_pass_creates_topics_reads_layouts_and_registers_consumers():
    controller, topics = Controller(), [Demand(traffic_settings(), index) for index in range(6)]
    sessions = sessions_with(controller, *topics)
    sessions.synchronise(NOW)
    assert controller.topics == {demand.topic.removeprefix("topic://"): demand.initial_segments for demand in topics}
    assert set(sessions.layouts) == {demand.topic for demand in topics}
    assert all(connected(controller, demand) == demand.consumers(NOW) for demand in topics)


def test_consumers_follow_the_demand_with_no_call_when_nothing_changed():
    controller, demand = Controller(), Demand(traffic_settings(), 2)
    sessions = sessions_with(controller, demand)
    for step in range(120):
        before = demand.consumers(NOW + step - 1) if step else None
        calls = len(controller.calls)
        sessions.synchronise(NOW + step)
        assert connected(controller, demand) == demand.consumers(NOW + step)
        if demand.consumers(NOW + step) == before:
            assert controller.calls[calls:] == [("GET", demand.topic.removeprefix("topic://"))]


def test_registration_names_the_type_of_the_subscription():
    controller, demand = Controller(), Demand(traffic_settings(), 5)
    sessions = sessions_with(controller, demand)
    for step in range(90):
        sessions.synchronise(NOW + step)
        for subscription in demand.subscriptions:
            path = demand.topic.removeprefix("topic://")
            assert set(controller.consumers.get((path, subscription.name), {}).values()) <= {subscription.type}


def test_restarted_generator_unregisters_consumers_of_its_earlier_life():
    controller, demand = Controller(), Demand(traffic_settings(), 0)
    busy = next(NOW + step for step in range(300) if demand.consumers(NOW + step)["billing"] >= 4)
    calm = next(busy + step for step in range(300) if demand.consumers(busy + step)["billing"] <= 1)
    sessions_with(controller, demand).synchronise(busy)
    sessions_with(controller, demand).synchronise(calm)
    assert connected(controller, demand) == demand.consumers(calm)


def test_layouts_stay_known_while_the_controller_is_down_and_consumers_catch_up_afterwards():
    controller, demand = Controller(), Demand(traffic_settings(), 0)
    sessions = sessions_with(controller, demand)
    sessions.synchronise(NOW)
    known = sessions.layouts[demand.topic]
    controller.down = True
    with pytest.raises(httpx.TransportError):
        sessions.synchronise(NOW + 30)
    assert sessions.layouts[demand.topic] == known
    controller.down = False
    sessions.synchronise(NOW + 60)
    assert connected(controller, demand) == demand.consumers(NOW + 60)


def test_one_topic_that_answers_with_an_error_does_not_stop_the_pass():
    controller, topics = Controller(), [Demand(traffic_settings(), index) for index in range(2)]
    sessions = sessions_with(controller, *topics)
    controller.status = 500
    sessions.synchronise(NOW)
    assert sessions.layouts == {}
    controller.status = None
    sessions.synchronise(NOW)
    assert len(sessions.layouts) == 2


def test_deleted_topic_is_created_again_with_its_consumers():
    controller, demand = Controller(), Demand(traffic_settings(), 0)
    busy = next(NOW + step for step in range(300) if demand.consumers(NOW + step)["billing"] >= 3)
    sessions = sessions_with(controller, demand)
    sessions.synchronise(busy)
    controller.topics.clear()
    controller.consumers.clear()
    sessions.synchronise(busy)
    assert connected(controller, demand) == demand.consumers(busy)


def test_counters_go_on_after_a_restart_and_survive_a_broken_file(tmp_path):
    file = tmp_path / "var" / "traffic.json"
    counters = Counters(file)
    counters.add("sent", 5)
    counters.write()
    again = Counters(file)
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


def test_reports_reach_kafka_keyed_by_topic_and_are_all_counted(kafka, tmp_path):
    settings = local_settings(tmp_path, kafka)
    topics = [Demand(settings.traffic, index) for index in range(3)]
    counters = Counters(tmp_path / "traffic.json")
    outlet = Outlet(kafka, counters)
    sent = Reports(settings, topics, outlet, counters).report(NOW, {demand.topic: HALVES for demand in topics[:2]})
    outlet.close()
    messages = [parse_message("segment-stats", *record) for record in read_all(kafka, "segment-stats")]
    assert len(messages) == sent
    assert all(isinstance(message, SegmentStats) for message in messages)
    assert {message.topic for message in messages} == {demand.topic for demand in topics[:2]}
    assert counters.counts["sent"] == counters.counts["delivered"] == sent


def test_garbage_is_produced_at_its_rate_and_counted(kafka, tmp_path):
    settings = local_settings(tmp_path, kafka)
    counters = Counters(tmp_path / "traffic.json")
    outlet = Outlet(kafka, counters)
    reports = Reports(settings, [Demand(settings.traffic, 0)], outlet, counters)
    sent = sum(reports.litter(NOW + step, 20.0) for step in range(5))
    outlet.close()
    assert 95 <= sent <= 105
    assert counters.counts["garbage"] == counters.counts["delivered"] == sent
    for source in ("consumer-events", "control-events"):
        assert any(isinstance(parse_message(source, *record), Rejected) for record in read_all(kafka, source))


def test_generator_without_a_controller_keeps_running_and_stops_cleanly(kafka, tmp_path, free_url):
    settings = local_settings(tmp_path, kafka)
    settings = settings.model_copy(
        update={
            "controller": settings.controller.model_copy(update={"url": free_url}),
            "traffic": settings.traffic.model_copy(update={"report_seconds": 0.05}),
        }
    )
    stop = threading.Event()
    thread = threading.Thread(target=run_traffic, args=(settings, stop, 40.0))
    thread.start()
    file = tmp_path / "var" / "traffic.json"
    try:
        wait_until(lambda: file.exists() and json.loads(file.read_text())["delivered"] > 3)
    finally:
        stop.set()
        thread.join(20)
    counts = json.loads(file.read_text())
    assert not thread.is_alive()
    assert counts["sent"] == counts["delivered"] + counts["failed"] > 0


@pytest.fixture
def free_url() -> str:
    """A URL where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"
