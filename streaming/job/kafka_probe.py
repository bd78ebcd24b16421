"""Probe of Kafka in a thread of its own: a query that waits for Kafka says nothing.

Stage: beside the query, in the driver, under `streaming.job.watch`.
"""

import logging
import threading
from collections.abc import Callable

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from schemas.kafka.connection import KafkaConnection
from schemas.kafka.topics import CONTROL_EVENTS

log = logging.getLogger(__name__)

ASK_SECONDS = 5.0
"""Pause between two questions."""
ANSWER_SECONDS = 3.0
"""Longest wait for an answer."""


class KafkaProbe(threading.Thread):
    """Asks Kafka for a topic until it is stopped, and reports whether it answered."""

    def __init__(self, kafka: KafkaConnection, report: Callable[[bool], None]) -> None:
        super().__init__(name="kafka-probe", daemon=True)
        self._configuration = kafka.librdkafka({"log_level": 0})
        self._report = report
        self._stop_asking = threading.Event()

    def run(self) -> None:
        """Run the thread."""
        client = None
        while not self._stop_asking.is_set():
            try:
                client = client or AdminClient(self._configuration)
                client.list_topics(CONTROL_EVENTS.name, timeout=ANSWER_SECONDS)
                self._report(True)
            except KafkaException as error:
                # A client that has seen no broker may never ask again (`runtime.messaging.producer`).
                client = None
                log.debug("Kafka does not answer: %s", error)
                self._report(False)
            self._stop_asking.wait(ASK_SECONDS)

    def stop(self) -> None:
        """End the thread, which may still wait for an answer."""
        self._stop_asking.set()
