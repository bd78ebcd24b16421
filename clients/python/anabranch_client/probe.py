"""Asks Kafka whether a segment takes messages, without writing any.

A message whose time stamp no segment allows: an open segment refuses it with INVALID_TIMESTAMP, a sealed one, which
allows no message, with MSG_SIZE_TOO_LARGE before it looks at the time. This needs the right to write only.
"""

import threading
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from anabranch_client.lanes import Lanes, LaneState
from anabranch_client.names import PARTITION

_YEAR_3000_MS = 32_503_680_000_000
_VALUE = bytes(100)
"""More than the end of a transaction, which a sealed segment may allow."""
_OPTIONS = {
    "enable.idempotence": False,
    # A probe of a deleted segment must not create it again.
    "allow.auto.create.topics": False,
    "acks": 1,
    "retries": 0,
    "linger.ms": 0,
    "message.timeout.ms": 3_000,
    "log_level": 0,
}
RETRY_SECONDS = 0.5
"""Time after an unanswered probe before the next one of the segment."""
GONE = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
"""Answers about a Kafka topic that does not exist."""
REFUSALS = GONE | {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_TIMESTAMP, KafkaError.INVALID_RECORD}
"""Kafka's answers of a segment that is sealed, was sealed during the write, or was deleted since."""


class SealProbe:
    """Decides on suspect lanes; all but `poll` needs the producer's lock."""

    def __init__(self, kafka: Mapping[str, Any], lanes: Lanes, lock: threading.RLock) -> None:
        self._kafka, self._lanes, self._lock = kafka, lanes, lock
        self._producer: Producer | None = None
        self._next: dict[str, float] = {}
        """Earliest time of the next question, by Kafka topic: never before the last one is answered."""

    def ask(self) -> None:
        """Begin to ask about suspect lanes without messages in flight; `poll` brings the answers."""
        now = time.monotonic()
        for lane in tuple(self._lanes.blocked):
            name = lane.segment.kafka_topic
            if lane.state is LaneState.SUSPECT and not lane.in_flight and now > self._next.get(name, 0.0):
                # Only now, and one at a time: all refusals come before the answer, so none can be of a later seal.
                self._next[name] = float("inf")
                self._ask_about(name)

    def poll(self) -> None:
        """Serve answers."""
        if self._producer is not None:
            self._producer.poll(0)

    def _ask_about(self, kafka_topic: str) -> None:
        if self._producer is None:
            self._producer = Producer({**self._kafka, **_OPTIONS})
        answered = partial(self._answered, kafka_topic)
        try:
            self._producer.produce(
                kafka_topic, _VALUE, partition=PARTITION, timestamp=_YEAR_3000_MS, on_delivery=answered
            )
        except KafkaException as error:
            self._decide(kafka_topic, True if error.args[0].code() in GONE else None)

    def _answered(self, kafka_topic: str, error: KafkaError | None, _: Message) -> None:
        code = None if error is None else error.code()
        if code == KafkaError.MSG_SIZE_TOO_LARGE or code in GONE:
            self._decide(kafka_topic, True)
        else:
            self._decide(kafka_topic, False if code in (None, KafkaError.INVALID_TIMESTAMP) else None)

    def _decide(self, kafka_topic: str, is_sealed: bool | None) -> None:
        """Take an answer: True if the segment is sealed or gone, None if Kafka did not answer."""
        with self._lock:
            if is_sealed is None:
                self._next[kafka_topic] = time.monotonic() + RETRY_SECONDS
                return
            self._next.pop(kafka_topic, None)
            for lane in tuple(self._lanes.blocked):
                if lane.segment.kafka_topic == kafka_topic and not lane.in_flight:
                    self._lanes.resolve(lane, is_sealed)
