"""Publish outcome events to Kafka topic `control-events` (design "Kafka messages").

Stage: last in the executor, always after the terminal row is durable. No thread of its own: `loop` calls `poll`.
Without Kafka, events wait here and nothing stops. Delivery to Kafka does not guarantee that the job reads an event, so
`announcer` publishes it again until the job has recorded it: delivery is at least once.
"""

import logging
import time

from confluent_kafka import KafkaError, KafkaException, Message

from runtime.messaging.producer import ORDERED, LastingProducer
from schemas.kafka.connection import KafkaConnection
from schemas.kafka.messages import OutcomeEvent, key_of
from schemas.kafka.topics import CONTROL_EVENTS

log = logging.getLogger(__name__)

RESEND_SECONDS = 1.0
CLOSE_SECONDS = 3.0
"""Longest wait for confirmations at a clean stop; the next start publishes the rest."""

_PRODUCER_CONFIG = {**ORDERED, "client.id": "anabranch-executor", "linger.ms": 0, "message.timeout.ms": 0}


class KafkaPublisher:
    """Publishes to the brokers of `kafka`. Used by one thread."""

    def __init__(self, kafka: KafkaConnection) -> None:
        self._kafka = kafka
        self._producer = LastingProducer(kafka.librdkafka({**_PRODUCER_CONFIG, "error_cb": self._on_error}))
        self._unconfirmed: dict[str, OutcomeEvent] = {}
        self._unsent: dict[str, OutcomeEvent] = {}
        """By decision id."""
        self._send_at = 0.0
        self._trouble: str | None = None

    def publish(self, event: OutcomeEvent) -> None:
        """Accept an event; it replaces an older one of the same decision."""
        self._unconfirmed[event.decision_id] = event
        self._unsent[event.decision_id] = event
        self.poll()

    def poll(self) -> None:
        """Send unsent events and process confirmations; a failed delivery is sent again after a delay."""
        if self._unsent and time.monotonic() >= self._send_at:
            for decision_id, event in list(self._unsent.items()):
                if not self._send(event):
                    break
                del self._unsent[decision_id]
        self._producer.poll()

    def close(self) -> None:
        """Wait for confirmations, at most `CLOSE_SECONDS`; resend events that a broken producer dropped."""
        end = time.monotonic() + CLOSE_SECONDS
        while self._unconfirmed and time.monotonic() < end:
            self._send_at = 0.0
            self.poll()
            if not self._producer.flush(max(0.0, end - time.monotonic())):
                # librdkafka swallows a delivery report that it serves together with a fatal error.
                self._unsent.update(self._unconfirmed)
        if self._unconfirmed:
            log.warning("%d outcome events are not confirmed: the next start repeats them", len(self._unconfirmed))

    def _send(self, event: OutcomeEvent) -> bool:
        def delivered(error: KafkaError | None, _: Message) -> None:
            current = self._unconfirmed.get(event.decision_id) is event
            if error is None:
                if current:
                    del self._unconfirmed[event.decision_id]
                self._note(None)
                return
            if current:
                self._unsent[event.decision_id] = event
            self._again_later(f"outcome events do not reach Kafka at {self._kafka.bootstrap}: {error.str()}")

        try:
            self._producer.produce(CONTROL_EVENTS.name, event.to_json(), key_of(event), delivered)
        except BufferError:
            return False
        except KafkaException as error:
            self._again_later(f"outcome events cannot be sent to Kafka at {self._kafka.bootstrap}: {error}")
            return False
        return True

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN and self._unconfirmed:
            self._note(f"no Kafka broker at {self._kafka.bootstrap} can be reached; outcome events wait")

    def _again_later(self, trouble: str) -> None:
        self._send_at = time.monotonic() + RESEND_SECONDS
        self._note(trouble)

    def _note(self, trouble: str | None) -> None:
        """Log a change of the delivery state."""
        if trouble == self._trouble:
            return
        self._trouble = trouble
        if trouble is None:
            log.info("outcome events reach Kafka at %s", self._kafka.bootstrap)
        else:
            log.warning("%s", trouble)
