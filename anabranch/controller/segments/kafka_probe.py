"""Ask the leader of a partition whether it is sealed, without writing anything (`kafka`, "Sealing")."""

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from anabranch.controller.segments.kafka_admin import KafkaAdmin
from anabranch.controller.segments.kafka_names import KafkaPartition

_PROBE_TIME_MS = 32_503_680_000_000
"""The year 3000."""


class PartitionProbe:
    """Probe that shows whether the leader of a partition refuses all writes.

    Nothing is written where the topic bounds time stamps, or allows fewer bytes than the probe has.
    """

    def __init__(self, kafka: KafkaAdmin, partition: KafkaPartition, payload_bytes: int = 0) -> None:
        self._partition, self._payload = partition, bytes(payload_bytes)
        self._timeout = kafka.timeout
        self._told: list[KafkaError | None] = []
        self._producer = Producer(
            kafka.connection.librdkafka(
                {
                    "client.id": "anabranch-probe",
                    "log_level": 0,
                    "acks": 1,
                    "retries": 0,
                    "linger.ms": 0,
                    "compression.type": "none",
                    "message.max.bytes": payload_bytes + 1_000_000,
                    "message.timeout.ms": max(int(kafka.timeout * 1000), 1),
                }
            )
        )

    def is_refused(self) -> bool:
        """Probe once; True: too large for the topic. Raises `KafkaException` without an answer."""
        self._told.clear()
        self._producer.produce(
            self._partition.topic,
            self._payload,
            partition=self._partition.partition,
            timestamp=_PROBE_TIME_MS,
            on_delivery=self._delivered,
        )
        self._producer.flush(self._timeout + 1)
        error = self._told[0] if self._told else KafkaError(KafkaError._TIMED_OUT)
        if error is None or error.code() == KafkaError.INVALID_TIMESTAMP:
            return False
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return True
        raise KafkaException(error)

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        self._told.append(error)
