"""Everything behind TLS and passwords at once: job, controller, executor and lab on a broker that lets nobody else in.

The rights are those of docs/deploy.md, as the commands stand there.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from anabranch.admin.answers import NotConnected
from anabranch.controller.segments.kafka import KafkaSegments
from anabranch.controller.segments.kafka_names import group_id, kafka_topic
from anabranch.history.rebuild import kafka_bounds
from anabranch.local.broker import create_topics, free_ports, is_serving
from anabranch.local.offsets import end_offsets
from anabranch.local.traffic import controller_topics, run_traffic
from lake.tables import create_lake
from schemas.kafka.connection import PASSWORD_VARIABLE, KafkaConnection
from schemas.kafka.topics import BUNDLE_TOPICS, CONSUMER_EVENTS, CONTROL_EVENTS, KAFKA_TOPICS, SEGMENT_STATS
from schemas.metadata import HashRange
from schemas.settings.root import Settings, load_settings
from schemas.tables.rows import EVENTS, OUTCOMES
from tests import tls
from tests.engine.balancers import skewed
from tests.kafka_acls import grant
from tests.secured_broker import MECHANISM, USERS, SecuredBroker, password_of
from tests.streaming.jobs import SessionJob, now_ms, rows
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

TOPIC = "topic://acme/shop/orders"


@pytest.fixture(scope="module")
def secured(jars, tmp_path_factory) -> Iterator[SecuredBroker]:
    """A broker with all topics, where each user may do what the page says."""
    broker = SecuredBroker(tmp_path_factory.mktemp("secured"), jars)
    broker.start()
    create_topics(broker.connection, (*KAFKA_TOPICS, *BUNDLE_TOPICS))
    grant(broker.connection)
    yield broker
    broker.stop()


class House:
    """Settings for every part, in a folder."""

    def __init__(self, folder: Path, broker: SecuredBroker) -> None:
        self.folder, self.port = folder, free_ports(1)[0]
        self._common = folder / "common.toml"
        self._common.write_text(
            f'[kafka]\nbootstrap = "{broker.bootstrap}"\nsecurity_protocol = "SASL_SSL"\n'
            f'sasl_mechanism = "{MECHANISM}"\nca = "{tls.CA}"\ncertificate = "{tls.certificate("client")}"\n'
            f'key = "{tls.key("client")}"\n[lake]\npath = "{folder}/lake"\n'
            f'[local]\nfolder = "{folder}/var"\n[stream]\ncheckpoint = "{folder}/checkpoint"\nbuckets = 2\n'
            f'tick_seconds = 1\n[traffic]\ntopics = 1\nnamespace = "acme/shop"\nreport_seconds = 0.5\n'
            # Hot at every time of the day.
            "peak_msg_rate_in = 10000000\n"
            f'[controller]\nport = {self.port}\nurl = "https://localhost:{self.port}"\nurl_ca = "{tls.CA}"\n'
            f'certificate = "{tls.certificate("server")}"\nkey = "{tls.key("server")}"\nsegments = "kafka"\n'
            f'database = "{folder}/layouts.db"\nsnapshot_seconds = 1\n[executor]\nmode = "act"\n'
        )

    def enable_bundles(self) -> None:
        self._common.write_text(f"{self._common.read_text()}[bundles]\nenabled = true\n")

    def files(self, user: str) -> list[Path]:
        """Of a part that logs in as `user`, with its password in a file."""
        own, password = self.folder / f"{user}.toml", self.folder / f"{user}.password"
        password.write_text(password_of(user))
        own.write_text(f'[kafka]\nusername = "{user}"\npassword_file = "{password}"\n')
        return [self._common, own]

    def settings(self, user: str) -> Settings:
        return load_settings(self.files(user), environment={})

    def by_environment(self, user: str) -> Settings:
        """Of one whose password is in the environment."""
        given = {"ANABRANCH_KAFKA_USERNAME": user, PASSWORD_VARIABLE: password_of(user)}
        return load_settings([self._common], environment=given)

    def command(self, part: str) -> list[str]:
        options = [word for file in self.files(part) for word in ("--config", str(file))]
        return [sys.executable, "-m", "anabranch", *options, part]


def test_secured_split_leaves_no_password(spark, secured, tmp_path, run):
    """Every part logs in."""
    house = House(tmp_path, secured)
    create_lake(f"{tmp_path}/lake")
    parts = [run(house.command(name)) for name in ("controller", "executor")]
    job = SessionJob(spark, house.by_environment("job"))
    stop, traffic = threading.Event(), house.settings("reporter")
    served = controller_topics(traffic)
    wait_until(lambda: not isinstance(served.list_topics("acme/shop"), NotConnected), 60)
    sending = threading.Thread(target=run_traffic, args=(traffic, stop), daemon=True)
    sending.start()
    try:
        applied = wait_until(
            lambda: job.failure or [row for row in rows(traffic, OUTCOMES) if row["status"] == "applied"], 200, 0.2
        )
        assert job.failure is None, job.failure
        told = {message["decisionId"] for message in control_events(secured, "outcome")}
        assert applied[0]["decision_id"] in told
        assert control_events(secured, "layout")[-1]["layout"]["epoch"] >= 1
        plans = [spark.sparkContext._jsc.sc().getConf().toDebugString()]
        for query in spark.streams.active:
            plans += [query._jsq.explainInternal(True), json.dumps(query.recentProgress, default=str)]
        lines = list(argument_lists())
    finally:
        stop.set()
        sending.join(30)
        job.stop()
        codes = [part.stop() for part in parts]
    assert codes == [0, 0]
    written = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file() and file.suffix != ".password"]
    for secret in map(password_of, USERS):
        assert not [text for text in (*plans, *lines) if secret in text]
        assert not [text for text in written if secret.encode() in text]


def test_secured_job_reads_bundles_of_permitted_reporters(spark, secured, tmp_path):
    house = House(tmp_path, secured)
    house.enable_bundles()
    create_lake(f"{tmp_path}/lake")
    settings, told = house.by_environment("job"), []
    sender = Producer(secured.connection_of("reporter").librdkafka())
    for message in skewed(now_ms()):
        sender.produce(message.source, message.value, message.key, on_delivery=lambda error, _: told.append(error))
    sender.flush(30)
    assert set(told) == {None}
    job = SessionJob(spark, settings)
    try:
        wanted = {topic.name for topic in BUNDLE_TOPICS}
        wait_until(lambda: job.failure or wanted <= {row["kafka_topic"] for row in rows(settings, EVENTS)}, 120)
    finally:
        job.stop()


def argument_lists() -> Iterator[str]:
    """Of all processes below this one; those that have just ended have none."""
    for part in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            yield " ".join(part.cmdline())


def control_events(broker: SecuredBroker, kind: str) -> list[dict]:
    """The messages of that type, as an administrator reads them."""
    reader = Consumer(broker.connection.librdkafka({"group.id": "test"}))
    try:
        found = []
        for partition in range(CONTROL_EVENTS.partitions):
            first, end = reader.get_watermark_offsets(TopicPartition(CONTROL_EVENTS.name, partition), timeout=10)
            reader.assign([TopicPartition(CONTROL_EVENTS.name, partition, first)])
            while first < end:
                record = reader.poll(10)
                assert record is not None
                assert record.error() is None, record.error()
                found.append(json.loads(record.value()))
                first = record.offset() + 1
        return [message for message in found if message["type"] == kind]
    finally:
        reader.close()


def write(kafka: KafkaConnection, topic: str) -> KafkaError | None:
    """What Kafka says to one message; None: it has it."""
    told: list[KafkaError | None] = []
    producer = Producer(kafka.librdkafka({"message.timeout.ms": 10_000, "log_level": 0, "linger.ms": 0}))
    producer.produce(topic, b"{}", on_delivery=lambda error, _: told.append(error))
    producer.flush(15)
    return told[0]


def test_only_permitted_clients_write_topics(secured):
    """Applies to loads, layouts and outcomes."""
    stats, consumers, control = SEGMENT_STATS.name, CONSUMER_EVENTS.name, CONTROL_EVENTS.name
    bundles = {topic.name for topic in BUNDLE_TOPICS}
    may = {
        "reporter": {stats, consumers, *bundles},
        "job": {control},
        "executor": {control},
        "controller": {consumers, control},
        "client": set(),
        "report": set(),
        "stranger": set(),
    }
    for user, own in may.items():
        for topic in (stats, consumers, control, *bundles):
            error = write(secured.connection_of(user), topic)
            assert (error is None) == (topic in own), (user, topic, error)
            assert error is None or error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    # What was written here is no message: nobody reads it afterwards but the job of another test, as dead letters.
    assert sum(end_offsets(secured.connection_of("report")).values()) > 0
    read_by_the_job = (*KAFKA_TOPICS, *BUNDLE_TOPICS)
    bounds = kafka_bounds(secured.connection_of("job"), read_by_the_job)
    assert bounds.keys() == {topic.name for topic in read_by_the_job}
    assert is_serving(secured.connection_of("report"))
    stranger = AdminClient(secured.connection_of("stranger").librdkafka({"log_level": 0}))
    for topic in (stats, consumers, control, *bundles):
        known = stranger.list_topics(topic, timeout=10).topics[topic]
        assert known.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_password_and_tls_are_both_required(secured):
    right = secured.connection_of("job")
    wrong = {
        "password": replace(right, password=secured.connection_of("executor").password),
        "no certificate": replace(right, certificate=None, key=None),
        "strange certificate": replace(right, certificate=tls.certificate("stranger"), key=tls.key("stranger")),
        "strange broker": replace(right, ca=None),
        "no TLS": KafkaConnection(secured.bootstrap),
    }
    # A client whose handshake fails has been seen to take its whole process along when it was freed (librdkafka 2.x).
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        got_in = process.submit(get_in, right, [*wrong.values()]).result(60)
    assert dict(zip(["right", *wrong], got_in, strict=True)) == {"right": True, **dict.fromkeys(wrong, False)}


def get_in(right: KafkaConnection, wrong: list[KafkaConnection]) -> list[bool]:
    """Whether the broker lets each client in: the first within 30 seconds, then the others, at once, within two."""
    with ThreadPoolExecutor(len(wrong)) as threads:
        return [_answers(right, 30), *threads.map(_answers, wrong, [2] * len(wrong))]


def _answers(kafka: KafkaConnection, seconds: float) -> bool:
    admin = AdminClient(kafka.librdkafka({"log_level": 0}))
    _never_freed.append(admin)
    try:
        return bool(admin.list_topics(timeout=seconds).brokers)
    except KafkaException:
        return False


_never_freed: list[AdminClient] = []


def test_segments_owned_by_controller_or_namespace(secured):
    """The controller has all; an application those of its namespace."""
    segments = KafkaSegments(secured.connection_of("controller"))
    whole = HashRange(start=0, end=65_535)
    own, other = (segments.create(f"topic://{ns}/t", 0, whole, ["s"]) for ns in ("acme/shop", "acme/bank"))
    client = secured.connection_of("client")
    assert write(client, kafka_topic(own)) is None
    refused = write(client, kafka_topic(other))
    assert refused is not None
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    segments.create_subscription(own, "late", "latest")
    reader = Consumer(client.librdkafka({"group.id": group_id(own, "s"), "enable.auto.commit": False}))
    reader.assign([TopicPartition(kafka_topic(own), 0, 0)])
    record = reader.poll(15)
    assert record is not None
    assert record.error() is None
    reader.commit(record, asynchronous=False)
    reader.close()
    assert segments.backlog(own, "s") == 0
    segments.seek(own, "s", 0)
    assert segments.terminate(own) == 1
    assert segments.stats(own).backlog == {"s": 1, "late": 0}
    assert segments.complaints() is not None
    for segment in (own, other):
        segments.delete(segment)
