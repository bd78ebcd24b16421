"""Asks Kafka whether a segment takes messages, without writing any.

A message whose time stamp no segment allows: an open segment refuses it with INVALID_TIMESTAMP, a sealed one, which
allows no message of any size, with MSG_SIZE_TOO_LARGE before it looks at the time. This needs the right to write only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from anabranch_client.names import PARTITION

_YEAR_3000_MS = 32_503_680_000_000
_TIMEOUT_MS = 3_000
GONE = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
"""Answers about a Kafka topic that does not exist."""
REFUSALS = GONE | {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_TIMESTAMP, KafkaError.INVALID_RECORD}
"""Kafka's answers of a segment that is sealed, was sealed during the write, or was deleted since."""


class SealProbe:
    """Probes of a producer; `poll` calls back."""

    def __init__(self, kafka: Mapping[str, Any], answer: Callable[[str, bool | None], None]) -> None:
        """`answer` is called with a Kafka topic, and True if it is sealed or gone; None: Kafka did not answer."""
        self._answer = answer
        self._producer = Producer(
            {
                **kafka,
                "enable.idempotence": False,
                # A probe of a deleted segment must not create it again.
                "allow.auto.create.topics": False,
                "acks": 1,
                "retries": 0,
                "linger.ms": 0,
                "message.timeout.ms": _TIMEOUT_MS,
                "log_level": 0,
            }
        )

    def ask(self, kafka_topic: str) -> None:
        """Begin to ask; `poll` brings the answer."""
        answered = partial(self._answered, kafka_topic)
        try:
            self._producer.produce(kafka_topic, b"", partition=PARTITION, timestamp=_YEAR_3000_MS, on_delivery=answered)
        except KafkaException as error:
            self._answer(kafka_topic, True if error.args[0].code() in GONE else None)

    def poll(self, timeout: float = 0) -> None:
        """Serve answers."""
        self._producer.poll(timeout)

    def _answered(self, kafka_topic: str, error: KafkaError | None, _: Message) -> None:
        code = None if error is None else error.code()
        if code == KafkaError.MSG_SIZE_TOO_LARGE or code in GONE:
            self._answer(kafka_topic, True)
        else:
            self._answer(kafka_topic, False if code in (None, KafkaError.INVALID_TIMESTAMP) else None)
