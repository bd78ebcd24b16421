"""Producer of transactions over all segments of a topic, in the style of `confluent_kafka.Producer`.

A transaction uses the layout that is known when it begins. If a segment is sealed meanwhile, Kafka refuses its messages
and the transaction is aborted as a whole: `TransactionAborted`. The application begins it again, with the children.

A sealed segment of a topic with the property `transactions=true` still takes the markers that end transactions.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, Message

from anabranch_client.config import PRODUCER_OPTIONS, ProducerSettings, kafka_client
from anabranch_client.controller import Controller
from anabranch_client.errors import (
    AnabranchError,
    ClientClosed,
    ClientSettingsError,
    ProducerFenced,
    QueueFull,
    TopicRemoved,
    TransactionAborted,
    TransactionUnfinished,
    delivery_error,
)
from anabranch_client.layout import Layout, key_hash
from anabranch_client.messages import Headers, copied_headers
from anabranch_client.names import PARTITION
from anabranch_client.probe import REFUSALS
from anabranch_client.watch import LayoutWatch

TIMEOUT_SECONDS = 60.0
SUCCESSOR_SECONDS = 120.0
"""Longest wait for the layout without a segment that has refused a message; after it, the message is at fault.

Longer than Kafka takes to end what a killed producer has left open, 60 and 10 s: only then is the segment sealed.
"""


class TransactionalProducer:
    """Writes transactions to one scalable topic; for one thread. `close` it, or use it as a context manager.

    Each message is stored exactly once for consumers with `isolation.level=read_committed`, librdkafka's default.
    """

    def __init__(self, config: Mapping[str, Any], topic: str, transactional_id: str, timeout: float = 30.0) -> None:
        """Wait for the layout, and abort what an earlier producer of this id has left open. Raises `AnabranchError`."""
        settings = ProducerSettings.of(config)
        self._watch = LayoutWatch(Controller(settings.controller), topic)
        self.topic = self._watch.topic
        self._layout: Layout | None = None
        """That of the open transaction."""
        self._failure: tuple[str, KafkaError] | None = None
        """Kafka topic and error of its first message that was not stored."""
        self._turn = self._number = 0
        self._is_closed = False
        try:
            if not self._watch.first(timeout).has_transactions:
                raise ClientSettingsError(f"{self.topic} is not for transactions: create it with transactions=true")
            options = {**settings.kafka, **PRODUCER_OPTIONS, **settings.bounds, "transactional.id": transactional_id}
            self._kafka = kafka_client(confluent_kafka.Producer, options)
            self._finish(self._kafka.init_transactions, time.monotonic() + timeout)
        except KafkaException as error:
            self._watch.close()
            raise ClientSettingsError(f"Kafka refuses transactions of {transactional_id}: {error.args[0]}") from error
        except BaseException:
            self._watch.close()
            raise

    def begin_transaction(self) -> None:
        """Begin a transaction. Raises `TopicRemoved`, `ProducerFenced`."""
        if self._is_closed:
            raise ClientClosed(f"the producer of {self.topic} is closed: create another one")
        if (layout := self._watch.layout) is None:
            raise (self._watch.error or TopicRemoved(self.topic)).with_traceback(None)
        try:
            self._kafka.begin_transaction()
        except KafkaException as error:
            raise _fenced(error.args[0]) from error
        self._layout, self._failure = layout, None
        # Late reports of an aborted transaction do not concern this one.
        self._number += 1
        self._on_delivery = partial(self._reported, self._number)

    def produce(
        self,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        timestamp: int = 0,
        headers: Headers = None,
    ) -> None:
        """Add a message to the transaction; messages of a key keep their order.

        Raises `TransactionAborted`, `QueueFull` (call `poll`), `MessageTooLarge`.
        """
        layout = self._open_layout()
        self.poll(0)
        if key is None:
            self._turn += 1
            segment = layout.active[self._turn % len(layout.active)]
        else:
            segment = layout.find(key_hash(key.encode() if isinstance(key, str) else key))
        of_message = copied_headers(headers)
        try:
            self._kafka.produce(
                segment.kafka_topic, value, key, PARTITION, self._on_delivery, timestamp=timestamp, headers=of_message
            )
        except BufferError as error:
            raise QueueFull(f"{len(self._kafka)} messages of {self.topic} are not stored yet: call poll") from error
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE:
                raise delivery_error(error.args[0]) from error
            # Kafka's client knows of a failure whose report is still to come.
            self._kafka.flush(TIMEOUT_SECONDS)
            self._give_up(time.monotonic() + TIMEOUT_SECONDS, error.args[0])

    def poll(self, timeout: float = 0) -> int:
        """Let Kafka's client work. Raises `TransactionAborted`."""
        served = self._kafka.poll(timeout)
        if self._layout is not None and self._failure is not None:
            self._give_up(time.monotonic() + TIMEOUT_SECONDS, self._failure[1])
        return served

    def commit_transaction(self, timeout: float = TIMEOUT_SECONDS) -> None:
        """Make all messages of the transaction visible at once.

        Raises `TransactionAborted`: begin again; `TransactionUnfinished`: call this again; `ProducerFenced`.
        """
        self._open_layout()
        end = time.monotonic() + timeout
        self._kafka.flush(timeout)
        if self._failure is not None:
            self._give_up(end, self._failure[1])
        try:
            self._finish(self._kafka.commit_transaction, end)
        except KafkaException as error:
            self._give_up(end, error.args[0])
        self._layout = None

    def abort_transaction(self, timeout: float = TIMEOUT_SECONDS) -> None:
        """Drop the transaction, if one is open. Raises `TransactionUnfinished`, `ProducerFenced`."""
        if self._layout is not None:
            self._abort(time.monotonic() + timeout)

    def close(self) -> None:
        """Abort what is open, and end. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            with suppress(AnabranchError):
                self.abort_transaction()
            self._watch.close()

    def __enter__(self) -> "TransactionalProducer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_layout(self) -> Layout:
        if self._layout is None:
            raise ClientSettingsError("no transaction is open: call begin_transaction first")
        return self._layout

    def _reported(self, number: int, error: KafkaError | None, message: Message) -> None:
        if error is not None and self._failure is None and number == self._number:
            self._failure = message.topic() or "", error

    def _give_up(self, end: float, cause: KafkaError) -> NoReturn:
        """Abort, and raise why; a refusal is one by a sealed segment if the layout no longer has that."""
        # After it, all reports are here.
        failure = self._abort(end)
        if failure is None or failure[1].code() not in REFUSALS:
            raise TransactionAborted(f"Kafka has aborted the transaction, begin it again: {cause.str()}")
        if not self._is_replaced(failure[0]):
            raise delivery_error(failure[1])
        raise TransactionAborted(f"{failure[0]} was sealed: begin the transaction again")

    def _is_replaced(self, kafka_topic: str) -> bool:
        """Return whether a segment that has refused a message is no longer active, or soon is not."""
        end = time.monotonic() + SUCCESSOR_SECONDS
        while (layout := self._watch.layout) is not None and any(s.kafka_topic == kafka_topic for s in layout.active):
            if (left := end - time.monotonic()) <= 0:
                return False
            self._watch.newer_than(layout, left)
        return True

    def _abort(self, end: float) -> tuple[str, KafkaError] | None:
        """Abort the transaction; return its failure."""
        try:
            self._finish(self._kafka.abort_transaction, end)
        except KafkaException as error:
            raise _fenced(error.args[0]) from error
        failure, self._layout, self._failure = self._failure, None, None
        return failure

    def _finish(self, call: Callable[[float], object], end: float) -> None:
        """Repeat a call of Kafka's client until it is done. Raises what has another cause than time."""
        while True:
            try:
                call(max(end - time.monotonic(), 1.0))
                return
            except KafkaException as error:
                reason = error.args[0]
                if reason.fatal():
                    raise _fenced(reason) from error
                if not reason.retriable():
                    raise
                if time.monotonic() > end:
                    raise TransactionUnfinished(f"{reason.str()}: check Kafka, and call this again") from error


def _fenced(error: KafkaError) -> ProducerFenced:
    return ProducerFenced(f"{error.str()}: close this producer; one of its id may have replaced it")
