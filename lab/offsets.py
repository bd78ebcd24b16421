"""What Kafka says was sent: its end offsets, to compare with what the lake has counted.

Stage: the end of a local run, under `lab.report` and `lab.local_run`.
"""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaException, TopicPartition

from lake.integrity import counted_messages
from lake.tables import open_table
from schemas.kafka import KAFKA_TOPICS, KafkaTopic
from schemas.kafka_connection import KafkaConnection
from schemas.settings import Settings
from schemas.tables import BATCHES

KAFKA_SECONDS = 5.0


def end_offsets(kafka: KafkaConnection, seconds: float = KAFKA_SECONDS) -> dict[str, int] | None:
    """The sum of the end offsets of each Kafka topic; None when the broker does not answer in `seconds`."""
    consumer = Consumer(kafka.librdkafka({"group.id": "anabranch-report", "log_level": 0}))
    found: dict[str, int] = {}
    try:
        known = consumer.list_topics(timeout=seconds).topics
        for topic in KAFKA_TOPICS:
            partitions = known[topic.name].partitions if topic.name in known else ()
            found[topic.name] = sum(_end_of(consumer, topic, partition, seconds) for partition in partitions)
    except KafkaException:
        return None
    finally:
        consumer.close()
    return found


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
    rows = table.to_pyarrow_table(columns=["generation", "messages", "committed_at"]).to_pylist()
    return sum(offsets.values()) - counted_messages(rows)
