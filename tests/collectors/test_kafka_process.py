"""`anabranch serve collector kafka` on a real broker and controller: figures, deletion, and a broker that dies."""

from __future__ import annotations

import math
import subprocess
import sys
import time
import uuid
from contextlib import closing, contextmanager

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from anabranch.admin.answers import Answered
from anabranch.admin.topics import ScalableTopics
from anabranch.admin.transport import Transport
from anabranch.collectors.kafka.collector import KafkaCollector
from anabranch.collectors.status import read_status
from anabranch.controller.segments.kafka import KafkaSegments
from anabranch.controller.segments.kafka_readings import SegmentReadings
from anabranch.local.broker import EmbeddedBroker, create_topics
from schemas.kafka.connection import KafkaConnection
from schemas.settings.root import load_settings
from tests.client.scalable_topic import ScalableTopic
from tests.collectors.outlets import Listed
from tests.collectors.test_process import Heard
from tests.controller.conftest import run_controller
from tests.waiting import wait_until

pytestmark = pytest.mark.broker

MESSAGE = b"x" * 100


@contextmanager
def topic_of(broker, folder):
    """A topic of two segments with the subscription `billing`."""
    segments = KafkaSegments(KafkaConnection(broker.bootstrap))
    with run_controller(folder / "layouts.db", broker.bootstrap, segments=segments) as controller:
        topic = ScalableTopic(f"topic://acme/{uuid.uuid4().hex[:8]}/orders", controller.client, broker.bootstrap)
        topic.create(2)
        topic.admin.put(f"{topic.path}/subscriptions/billing").raise_for_status()
        yield topic


def namespace_of(topic):
    return topic.name.removeprefix("topic://").rpartition("/")[0]


def write(topic, segment, count):
    """Store messages of `MESSAGE` in a segment."""
    producer, name = Producer({"bootstrap.servers": topic.bootstrap, "linger.ms": 5}), topic.kafka_topics()[segment]
    for _ in range(count):
        producer.produce(name, MESSAGE)
    assert producer.flush(60) == 0


def commit(topic, segment, position):
    name = topic.kafka_topics()[segment]
    with closing(Consumer({"bootstrap.servers": topic.bootstrap, "group.id": f"{name}#billing"})) as consumer:
        consumer.commit(offsets=[TopicPartition(name, 0, position)], asynchronous=False)


class Stepped:
    """A collector whose rounds come when the test says so."""

    def __init__(self, topic, readings):
        settings = load_settings(environment={}).collect.model_copy(
            update={"load_seconds": 1000.0, "calls_per_second": 50.0, "namespaces": [namespace_of(topic)]}
        )
        self.outlet, url = Listed(), str(topic.admin.base_url).rstrip("/")
        self.transport = Transport(url, None, user_agent="test", timeout_seconds=20)
        layout = ScalableTopics(self.transport).layout
        self.collector = KafkaCollector(settings, url, layout, readings, self.outlet)
        # A whole number, whose sums are exact: half an interval later is not a rounding error less.
        self.now = float(math.ceil(time.monotonic()))

    def go(self, seconds):
        """Let time pass, and do all that is due; return the instants between which offsets were read."""
        self.now += seconds
        began = time.monotonic()
        while self.collector.step(self.now):
            pass
        return began, time.monotonic()


def test_rates_match_messages_produced_and_consumed(broker, tmp_path):
    with topic_of(broker, tmp_path) as topic, closing(SegmentReadings(broker.connection)) as readings:
        write(topic, 0, 500)
        stepped = Stepped(topic, readings)
        first = stepped.go(0)
        assert not stepped.outlet.samples
        write(topic, 0, 3_000)
        commit(topic, 0, 2_000)
        positions = stepped.go(500)
        last = stepped.go(500)
        msg_in, bytes_in, msg_out, bytes_out = stepped.outlet.rates()[topic.name, 0]
        # Rounded to a thousandth.
        assert 3_000 / (last[1] - first[0]) - 0.001 <= msg_in <= 3_000 / (last[0] - first[1]) + 0.001
        assert 2_000 / (positions[1] - first[0]) - 0.001 <= msg_out <= 2_000 / (positions[0] - first[1]) + 0.001
        assert bytes_in == pytest.approx(100 * msg_in, rel=1e-3)
        assert bytes_out == pytest.approx(100 * msg_out, rel=1e-3)
        assert stepped.outlet.rates()[topic.name, 1] == (0, 0, 0, 0)
        assert {view.segment: view.lag for view in stepped.collector.segments()} == {
            0: {"billing": 1_500},
            1: {"billing": 0},
        }
        assert ScalableTopics(stepped.transport).backlog(topic.name, "0000-7fff-0", "billing") == Answered(1_500)
        assert stepped.collector.status().is_complete


def test_retention_lowers_no_rate(broker, tmp_path):
    with topic_of(broker, tmp_path) as topic, closing(SegmentReadings(broker.connection)) as readings:
        write(topic, 0, 1_000)
        stepped = Stepped(topic, readings)
        first = stepped.go(0)
        write(topic, 0, 1_000)
        # A temporary client would lose the answer.
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        deleted = admin.delete_records([TopicPartition(topic.kafka_topics()[0], 0, 1_900)])
        assert [future.result(60).low_watermark for future in deleted.values()] == [1_900]
        stepped.go(500)
        last = stepped.go(500)
        msg_in, bytes_in, *_ = stepped.outlet.rates()[topic.name, 0]
        assert 1_000 / (last[1] - first[0]) - 0.001 <= msg_in <= 1_000 / (last[0] - first[1]) + 0.001
        assert bytes_in == pytest.approx(100 * msg_in, rel=1e-3)


@contextmanager
def collecting(topic, folder, *options):
    """The collector as a process; yields a function that reads its status."""
    file = folder / "collect.toml"
    file.write_text(
        f'[kafka]\nbootstrap = "{topic.bootstrap}"\n[controller]\nurl = "{str(topic.admin.base_url).rstrip("/")}"\n'
        f'[collect]\nnamespaces = ["{namespace_of(topic)}"]\nload_seconds = 0.5\ncalls_per_second = 100\n'
        f'folder = "{folder}/collect"\n'
    )
    command = [sys.executable, "-m", "anabranch", "--config", str(file), "serve", "collector", "kafka", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield process, lambda: read_status(folder / "collect" / "status.json")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.soak
def test_broker_dies_comes_back_and_topic_is_deleted(jars, tmp_path):
    broker = EmbeddedBroker(tmp_path / "kafka", jars.kafka)
    broker.start()
    try:
        create_topics(broker.connection)
        with topic_of(broker, tmp_path) as topic, collecting(topic, tmp_path) as (process, status):
            write(topic, 0, 100)
            assert "collector ready: 1 brokers" in process.stdout.readline()
            wait_until(lambda: status().is_complete and status().segments_seen == 2, 120)
            broker.kill()
            wait_until(lambda: status().troubles and status().segments_seen == 0, 120)
            broker.start()
            wait_until(lambda: status().is_complete and status().segments_seen == 2, 120)
            heard = Heard(broker, namespace_of(topic))
            with closing(heard):
                # The rates from before the broker was killed, and those since.
                wait_until(lambda: len(heard.poll().messages) > 2, 120)
            rates = [
                rate for message in heard.messages if hasattr(message, "rates") for r in message.rates for rate in r
            ]
            assert rates
            assert min(rates) >= 0
            # The controller's own client of Kafka may not have found it again.
            wait_until(lambda: topic.admin.delete(topic.path).status_code in (204, 404), 120)
            wait_until(lambda: status().topics == 0 and not status().troubles, 120)
            process.terminate()
            assert process.wait(30) == 0
    finally:
        broker.kill()


@pytest.mark.process
def test_once_reports_all_segments(broker, tmp_path):
    with topic_of(broker, tmp_path) as topic, collecting(topic, tmp_path, "--once", "--output", "json") as (process, _):
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        assert '"segmentsKnown":2,"segmentsSeen":2' in out
