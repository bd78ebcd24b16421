"""The toy family `bundles` on real parts: from a Kafka message to an applied outcome, and back to the next decision."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from anabranch.executor.kernel.publisher import KafkaPublisher
from anabranch.local.broker import EmbeddedBroker
from engine.families import FAMILIES
from engine.kernel.records import RawRecord
from lake.tables import OpenTable, create_table
from schemas.kafka.connection import KafkaConnection
from schemas.kafka.topics import CONTROL_EVENTS
from schemas.tables.rows import DECISIONS, HOLDS
from streaming.operator.rows import rare_rows
from tests.engine.buckets import Bucket
from tests.engine.bundles import BUNDLES, SOURCE, TARGET
from tests.engine.records import tick
from tests.engine.test_families import HOT, report
from tests.executor.conftest import House
from tests.executor.test_family import Brokers
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker]

NOW, MINUTE = 1_763_660_000_000, 60_000


class Job:
    """The job without Spark: Kafka into the bucket engine with both families, its rows into the lake."""

    def __init__(self, bootstrap: str, lake: str) -> None:
        self.bucket = Bucket(families=(*FAMILIES, BUNDLES))
        self._tables = {table.name: OpenTable(create_table(lake, table)) for table in (DECISIONS, HOLDS)}
        self._reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "toy-job"})
        known = self._reader.list_topics(timeout=60).topics
        self._reader.assign(
            [
                TopicPartition(topic, partition, OFFSET_BEGINNING)
                for topic in (SOURCE, CONTROL_EVENTS.name)
                for partition in known[topic].partitions
            ]
        )
        self._batches = itertools.count()

    def run_batch(self, *more: RawRecord) -> list[dict]:
        """One batch of what Kafka has of the bundle, and of `more`; its decisions and holds."""
        number = next(self._batches)
        output = self.bucket.batch(NOW + number * MINUTE, *self._read(), *more)
        bodies = output.bodies()
        for table in (DECISIONS, HOLDS):
            if table.name in bodies:
                rows = rare_rows(table, [bodies[table.name]], number)
                self._tables[table.name].append(rows, "toy-job", number)
        return [*output.decisions, *output.holds]

    def _read(self) -> Iterator[RawRecord]:
        while (message := self._reader.poll(0.5)) is not None:
            assert message.error() is None
            if message.key() == HOT.encode():
                value = message.value()
                yield RawRecord(
                    message.topic(), message.key(), value, len(value), message.partition(), message.offset(), 0, True
                )

    def close(self) -> None:
        self._reader.close()


def test_hot_bundle_moved_and_outcome_frees_next(house: House, broker: EmbeddedBroker):
    kafka = broker.bootstrap
    admin = AdminClient({"bootstrap.servers": kafka})
    for made in admin.create_topics([NewTopic(SOURCE, 1, 1)]).values():
        made.result(20)
    producer, hot = Producer({"bootstrap.servers": kafka}), report(HOT, 500.0, "broker-1")
    producer.produce(hot.source, hot.value, hot.key)
    assert producer.flush(20) == 0

    brokers, job = Brokers({HOT: "broker-1"}), Job(kafka, house.lake)
    house.published = KafkaPublisher(KafkaConnection(kafka))
    try:
        with house.running(actors={"bundles": brokers}):
            (decision,) = wait_until(lambda: [row for row in job.run_batch(tick(1)) if "decision_id" in row], 20)
            assert (decision["family"], decision["subject"], decision["layout_epoch"]) == ("bundles", HOT, None)
            wait_until(lambda: [row for row in house.outcomes() if row["status"] == "applied"], 20)
            assert brokers.owners == {HOT: TARGET}
            (again,) = wait_until(lambda: [row for row in job.run_batch() if "decision_id" in row], 20)
            assert (again["subject"], again["seq"]) == (HOT, 2)
    finally:
        job.close()
    assert brokers.calls[0] == decision["decision_id"]
    assert {(row["family"], row["status"]) for row in house.outcomes()} >= {
        ("bundles", "intent"),
        ("bundles", "applied"),
    }
