"""A collector's records to Kafka, in order; what did not get there is said again.

Stage: last. Samples and announcements have a producer each, so that neither waits for the other. A sample that Kafka
has not taken after `SAMPLE_SECONDS` is given up: a newer one follows. An announcement is never given up by time; if it
fails for good, or there is no room, the collector is told and says the truth of that moment instead.
"""

import logging
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException, Message

from anabranch.collectors.announcements import KafkaRecord
from runtime.messaging.producer import ORDERED, LastingProducer
from schemas.kafka.connection import KafkaConnection
from schemas.kafka.messages import MAX_VALUE_BYTES

log = logging.getLogger(__name__)

SAMPLE_SECONDS = 20
MAX_WAITING = 20_000
"""Announcements that Kafka has not confirmed; with more, nothing new is said until some are."""
_CONFIG = {**ORDERED, "compression.type": "lz4", "message.max.bytes": MAX_VALUE_BYTES + 65_536}


class RecordPublisher:
    """Publishes to the brokers of `kafka`. One thread uses it."""

    def __init__(self, kafka: KafkaConnection, retract: Callable[[KafkaRecord], None]) -> None:
        """`retract` is called with each announcement that did not reach Kafka."""
        self._kafka, self._retract = kafka, retract
        common = {**_CONFIG, "error_cb": self._on_error}
        self._samples = LastingProducer(
            kafka.librdkafka(
                {
                    **common,
                    "client.id": "anabranch-collect-load",
                    "linger.ms": 0,
                    "message.timeout.ms": SAMPLE_SECONDS * 1_000,
                    "queue.buffering.max.kbytes": 131_072,
                }
            )
        )
        self._events = LastingProducer(
            kafka.librdkafka(
                {
                    **common,
                    "client.id": "anabranch-collect",
                    "linger.ms": 5,
                    "message.timeout.ms": 0,
                    "queue.buffering.max.messages": 2 * MAX_WAITING,
                }
            )
        )
        self.waiting = 0
        """Announcements that are not confirmed."""
        self.samples_waiting = 0
        """Records with samples that are not confirmed."""
        self.lost = 0
        """Records with samples that were given up."""
        self.sent = 0
        """Announcements that were handed over."""
        self.trouble: str | None = None
        """What keeps records from Kafka."""

    @property
    def has_room(self) -> bool:
        """Return whether announcements are accepted."""
        return self.waiting < MAX_WAITING

    def announce(self, record: KafkaRecord) -> None:
        """Hand over an announcement; `retract` is called if that fails, now or later."""

        def delivered(error: KafkaError | None, _: Message) -> None:
            self.waiting -= 1
            if error is None:
                self._note(None)
            else:
                self._retract(record)
                self._note(f"announcements do not reach Kafka at {self._kafka.bootstrap}: {error.str()}")

        try:
            self._events.produce(record.source, record.value, record.key, delivered)
        except BufferError:
            self._retract(record)
        except KafkaException as error:
            self._retract(record)
            self._note(f"announcements cannot be sent to Kafka at {self._kafka.bootstrap}: {error}")
        else:
            self.waiting += 1
            self.sent += 1

    def report(self, record: KafkaRecord) -> None:
        """Hands over a record with samples; one that Kafka does not take in time is given up."""

        def delivered(error: KafkaError | None, _: Message) -> None:
            self.samples_waiting -= 1
            if error is None:
                self._note(None)
            else:
                self.lost += 1
                self._note(f"samples do not reach Kafka at {self._kafka.bootstrap}: {error.str()}")

        try:
            self._samples.produce(record.source, record.value, record.key, delivered)
        except (BufferError, KafkaException) as error:
            self.lost += 1
            self._note(f"samples cannot be sent to Kafka at {self._kafka.bootstrap}: {error}")
        else:
            self.samples_waiting += 1

    def poll(self) -> None:
        """Process delivery confirmations; returns at once."""
        self._samples.poll()
        self._events.poll()

    def close(self, seconds: float) -> int:
        """Waits for confirmations, at most so long; answers how many are missing."""
        return self._events.flush(seconds) + self._samples.flush(min(seconds, 3.0))

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._note(f"no Kafka broker at {self._kafka.bootstrap} can be reached")

    def _note(self, trouble: str | None) -> None:
        """Only a change is worth a line in the log."""
        if trouble == self.trouble:
            return
        self.trouble = trouble
        if trouble is None:
            log.info("records reach Kafka at %s", self._kafka.bootstrap)
        else:
            log.warning("%s", trouble)
