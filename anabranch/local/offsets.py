"""Kafka's end offsets: the number of sent messages, to compare with the lake's counts."""

import json
from collections.abc import Iterable

from confluent_kafka import Consumer, KafkaException, TopicPartition

from lake.files import read_table
from lake.integrity import counted_messages
from lake.tables import open_table
from lake.tail import StoredRow
from schemas.kafka.connection import KafkaConnection
from schemas.kafka.topics import CONTROL_EVENTS, KAFKA_TOPICS, KafkaTopic
from schemas.settings.root import Settings
from schemas.tables.rows import BATCHES

KAFKA_SECONDS = 5.0


def end_offsets(kafka: KafkaConnection, seconds: float = KAFKA_SECONDS) -> dict[str, int] | None:
    """The sum of the end offsets of each Kafka topic; None when the broker does not answer in `seconds`."""
    consumer = Consumer(kafka.librdkafka({"group.id": "anabranch-report", "log_level": 0}))
    offsets: dict[str, int] = {}
    try:
        topics = consumer.list_topics(timeout=seconds).topics
        for topic in KAFKA_TOPICS:
            partitions = topics[topic.name].partitions if topic.name in topics else ()
            offsets[topic.name] = sum(_end_of(consumer, topic, partition, seconds) for partition in partitions)
    except KafkaException:
        return None
    finally:
        consumer.close()
    return offsets


def partition_ends(kafka: KafkaConnection, topic: KafkaTopic, seconds: float = KAFKA_SECONDS) -> dict[int, int]:
    """The end offset of each partition of a topic; raises `KafkaException`."""
    consumer = Consumer(kafka.librdkafka({"group.id": "anabranch-report", "log_level": 0}))
    try:
        return {number: _end_of(consumer, topic, number, seconds) for number in range(topic.partitions)}
    finally:
        consumer.close()


def _end_of(consumer: Consumer, topic: KafkaTopic, partition: int, seconds: float) -> int:
    _, end = consumer.get_watermark_offsets(TopicPartition(topic.name, partition), timeout=seconds)
    return int(end)


def unread_messages(settings: Settings) -> int | None:
    """Kafka records that the job has not accounted for yet; None when the broker does not answer."""
    offsets = end_offsets(settings.kafka_connection())
    table = open_table(settings.lake_path, BATCHES)
    if offsets is None or table is None:
        return None
    rows = read_table(table, ["generation", "messages", "committed_at"]).to_pylist()
    return sum(offsets.values()) - counted_messages(rows)


def unread_ticks(kafka: KafkaConnection, recorded: Iterable[StoredRow], seconds: float = KAFKA_SECONDS) -> int:
    """Return the number of the job's own ticks that it has not read: it writes some until it stops.

    `recorded`: the rows of `events` and `dead_letters`. Each tick that was read is one of them, whatever was wrong with
    it, so an unread one stands behind all that are. Raises `KafkaException`.
    """
    last: dict[int, int] = {}
    for row in recorded:
        if row["kafka_topic"] == CONTROL_EVENTS.name:
            last[row["kafka_partition"]] = max(row["kafka_offset"], last.get(row["kafka_partition"], -1))
    consumer = Consumer(kafka.librdkafka({"group.id": "anabranch-report", "enable.auto.commit": False, "log_level": 0}))
    ticks = 0
    try:
        for partition in consumer.list_topics(CONTROL_EVENTS.name, seconds).topics[CONTROL_EVENTS.name].partitions:
            offset, end = last.get(partition, -1) + 1, _end_of(consumer, CONTROL_EVENTS, partition, seconds)
            consumer.assign([TopicPartition(CONTROL_EVENTS.name, partition, offset)])
            while offset < end:
                if not (messages := consumer.consume(end - offset, seconds)):
                    raise KafkaException(f"{CONTROL_EVENTS.name}-{partition} did not answer up to {end}")
                for message in messages:
                    offset = (message.offset() or 0) + 1
                    ticks += offset <= end and _is_tick(message.value())
    finally:
        consumer.close()
    return ticks


def _is_tick(value: bytes | None) -> bool:
    try:
        event = json.loads(value or b"")
    except ValueError:
        return False
    return isinstance(event, dict) and event.get("type") == "tick"
