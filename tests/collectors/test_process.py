"""`anabranch serve collector pulsar` as people run it: against fake brokers and a real Kafka, killed and started again;
and
against a real Pulsar."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from anabranch.admin.answers import Answered
from anabranch.admin.topics import ScalableTopics
from anabranch.admin.transport import Transport
from schemas.kafka.messages import ConsumerEvent, LayoutEvent, Rejected, SegmentStatsColumns, parse_message
from tests.docs.guides import blocks
from tests.harness.fake_pulsar import serving_cluster
from tests.waiting import wait_until

SOURCES = ["segment-stats", "consumer-events", "control-events"]


class Heard:
    """What is in Kafka of one namespace, parsed as the job parses it; a dead letter fails the test."""

    def __init__(self, broker, namespace):
        self.messages = []
        self._prefix = f"topic://{namespace}/"
        self._consumer = Consumer(
            broker.connection.librdkafka({"group.id": str(uuid.uuid4()), "auto.offset.reset": "earliest"})
        )
        self._consumer.subscribe(SOURCES)

    def poll(self):
        for record in self._consumer.consume(1000, 0.2):
            if record.error():
                continue
            message = parse_message(record.topic(), record.key(), record.value())
            topics = getattr(message, "topics", None) or [getattr(message, "topic", "") or ""]
            if isinstance(message, Rejected):
                assert self._prefix.encode() not in record.value(), message
            elif any(topic.startswith(self._prefix) for topic in topics):
                self.messages.append(message)
        return self

    def of(self, kind):
        return [one for one in self.messages if isinstance(one, kind)]

    def counts(self, topic):
        return {one.subscription: one.consumers for one in self.of(ConsumerEvent) if one.topic == topic}

    def layout(self, topic):
        found = [one for one in self.of(LayoutEvent) if one.topic == topic]
        return found[-1] if found else None

    def close(self):
        self._consumer.close()


@pytest.fixture
def namespace():
    return f"acme/{uuid.uuid4().hex[:8]}"


@pytest.fixture
def heard(broker, namespace):
    found = Heard(broker, namespace)
    yield found
    found.close()


def settings_file(folder, broker, url, namespace, consumers="registered"):
    file = folder / "collect.toml"
    file.write_text(
        f'[kafka]\nbootstrap = "{broker.connection.bootstrap}"\n[controller]\nurl = "{url}"\n'
        f'[collect]\nnamespaces = ["{namespace}"]\ncalls_per_second = 100\n'
        f'folder = "{folder}/collect"\nconsumers = "{consumers}"\n'
    )
    return file


def command(file, *more):
    return [sys.executable, "-m", "anabranch", "--config", str(file), "collect", "pulsar", *more]


@contextmanager
def running(file):
    process = subprocess.Popen(command(file), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.process
@pytest.mark.broker
def test_killed_collector_announces_nothing_wrong(tmp_path, broker, namespace, heard):
    kept, gone = f"topic://{namespace}/kept", f"topic://{namespace}/gone"
    with serving_cluster(brokers=2) as cluster:
        cluster.topic(kept, 2, billing=3).rates = {0: (5.0, 6.0, 7.0, 8.0)}
        cluster.topic(gone, 1)
        file = settings_file(tmp_path, broker, cluster.brokers[0].url, namespace)
        with running(file) as first:
            assert "collector ready: 2 brokers" in first.stdout.readline()
            wait_until(lambda: heard.poll().counts(kept) == {"billing": 3} and heard.layout(gone), 20)
            wait_until(lambda: heard.poll().of(SegmentStatsColumns), 20)
            wait_until((tmp_path / "collect" / "topics.json").exists, 10)
            wait_until(lambda: gone in (tmp_path / "collect" / "topics.json").read_text(), 40)
            first.kill()
            first.wait()
        del cluster.topics[gone]
        cluster.topics[kept].consumers["billing"] = 4
        cluster.topics[kept].layout = cluster.topics[kept].layout.split_segment(0, int(time.time() * 1000))
        with running(file) as second:
            wait_until(
                lambda: heard.poll().counts(kept) == {"billing": 4} and heard.layout(gone).cause == "deleted", 20
            )
            second.terminate()
            assert second.wait(30) == 0
    heard.poll()
    assert heard.layout(kept).layout == cluster.topics[kept].layout.to_metadata()
    assert {one.cause for one in heard.of(LayoutEvent) if one.topic == kept} == {"snapshot"}
    senders = [one.sender for one in heard.of(LayoutEvent)]
    assert senders == sorted(senders)
    assert len(set(senders)) == 2


@pytest.mark.process
@pytest.mark.broker
def test_once_reports_and_fails_on_silent_broker(tmp_path, broker, namespace):
    with serving_cluster(brokers=2) as cluster:
        file = settings_file(tmp_path, broker, cluster.brokers[0].url, namespace, "attached")
        done = subprocess.run(command(file, "--once"), capture_output=True, text=True, timeout=60)
        assert (done.returncode, "no topic was found" in done.stderr) == (1, True)
        cluster.topic(f"topic://{namespace}/orders", 2, billing=3)
        done = subprocess.run(command(file, "--once", "--output", "json"), capture_output=True, text=True, timeout=60)
        status = json.loads(done.stdout)
        assert (done.returncode, status["segmentsKnown"], status["segmentsSeen"]) == (0, 2, 2)
        assert not cluster.controllers
        cluster.brokers[1].fault = lambda handler, _: handler.send(500, b'{"reason":"out of order"}')
        done = subprocess.run(command(file, "--once"), capture_output=True, text=True, timeout=60)
        assert done.returncode == 1
        assert f"broker {cluster.brokers[1].name}: 500 out of order" in done.stdout


@pytest.mark.process
@pytest.mark.broker
def test_first_block_of_deploy_md_runs_as_written(tmp_path, broker, namespace):
    """Put in the reader's own: addresses, token, lake, and one replica."""
    [guide] = [block for block in blocks("docs/deploy.md") if block.run_by == "tests/collectors/test_process.py"]
    script = "\n".join(("set -e", *guide.commands))
    with serving_cluster() as cluster:
        cluster.tenants["acme"] = [namespace]
        cluster.topic(f"topic://{namespace}/orders", 2, billing=3)
        for example, value in {
            "https://broker:8443": cluster.brokers[0].url,
            "TOKEN=…": "TOKEN=secret",
            "kafka:9092": broker.connection.bootstrap,
            "/srv/lake": f"{tmp_path}/lake",
            "kafka create ": "kafka create --replication-factor 1 ",
        }.items():
            assert script.count(example) == 1
            script = script.replace(example, value)
        path = {"ANABRANCH_HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        done = subprocess.run(
            script, shell=True, cwd=tmp_path, env={**os.environ, **path}, capture_output=True, text=True, timeout=120
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 topics, 2 of 2 segments seen" in done.stdout


@pytest.mark.pulsar
@pytest.mark.broker
def test_a_real_pulsar_is_collected(tmp_path, broker, pulsar, heard, namespace):
    transport = Transport(pulsar.admin_url, None, user_agent="test", timeout_seconds=20)
    topics, name, gone = ScalableTopics(transport), f"topic://{namespace}/orders", f"topic://{namespace}/gone"
    try:
        transport.exchange("PUT", "/admin/v2/tenants/acme", body='{"adminRoles":[],"allowedClusters":["standalone"]}')
        assert isinstance(topics.create_namespace(namespace), Answered)
        assert isinstance(topics.create_topic(name, 2, {}), Answered)
        assert isinstance(topics.create_topic(gone, 1, {}), Answered)
        transport.exchange("PUT", f"/admin/v2/scalable/{namespace}/orders/subscriptions/billing", {"type": "STREAM"})
        with running(settings_file(tmp_path, broker, pulsar.admin_url, namespace)):
            wait_until(lambda: heard.poll().counts(name) == {"billing": 0} and heard.layout(name), 30)
            wait_until(lambda: heard.poll().layout(gone), 30)
            # Nothing tells of the end of a topic but its layout, which is read every 30 seconds.
            assert isinstance(topics.delete_topic(gone, force=True), Answered)
            wait_until(lambda: any(sorted(one.ids) == [0, 1] for one in heard.poll().of(SegmentStatsColumns)), 30)
            assert isinstance(topics.split_segment(name, 0), Answered)
            wait_until(lambda: heard.poll().layout(name).cause == "split", 20)
            assert heard.layout(name).layout == topics.layout(name).value.to_metadata()
            wait_until(lambda: any({2, 3} <= set(one.ids) for one in heard.poll().of(SegmentStatsColumns)), 30)
            wait_until(lambda: heard.poll().layout(gone).cause == "deleted", 60)
    finally:
        transport.close()
