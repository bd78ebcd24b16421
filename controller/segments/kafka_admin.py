"""Asking Kafka with a bounded wait, and saying what was asked, where, and what to do when it does not answer.

Stage: below `kafka`. One `AdminClient` is kept: with a temporary one its pending answers would be lost. After a
question without an answer another one takes its place: a client that hears of no broker at all, as from one that was
away and is not taken back yet, forgets all that it knew and never asks again (librdkafka issue 5301, open in 2.16).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata  # type: ignore[attr-defined]
from tenacity import Retrying, retry_if_exception, retry_if_result, stop_after_delay, wait_fixed, wait_random
from tenacity.wait import wait_base

from controller.segments.base import SegmentStoreError
from controller.segments.kafka_groups import SOON_BACK, CommittedOffsets
from listener.turns import let_others_go_on
from schemas.kafka_connection import KafkaConnection

T = TypeVar("T")

DELAY_SECONDS = 0.02
JITTER_SECONDS = 0.01
"""Between two questions while the brokers have not got ready."""
MARGIN_SECONDS = 5.0
"""The client gives up by itself; after so much more time it is not waited for."""

UNREACHABLE = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._RESOLVE,
        KafkaError._DESTROY_BROKER,
        KafkaError.REQUEST_TIMED_OUT,
    }
)
FOR_A_MOMENT = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.NOT_CONTROLLER,
        # From a leader that has not heard of its new term yet.
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
    }
)
NO_TOPIC = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
NO_GROUP = frozenset({KafkaError.GROUP_ID_NOT_FOUND})
GROUP_IN_USE = frozenset({KafkaError.NON_EMPTY_GROUP})
GROUP_HAS_MEMBERS = frozenset({KafkaError.UNKNOWN_MEMBER_ID})
"""A position is committed by nobody, while the group has members."""

_WAIT: wait_base = wait_fixed(DELAY_SECONDS) + wait_random(0, JITTER_SECONDS)


def code_of(error: KafkaException) -> int:
    """The code of what Kafka said."""
    return int(error.args[0].code())


class KafkaAdmin:
    """The cluster's administration client; no question takes much longer than `timeout` seconds."""

    def __init__(self, connection: KafkaConnection, timeout: float) -> None:
        self.connection = connection
        self.timeout = timeout
        self.where = f"Kafka at {connection.bootstrap}"
        self.limit = {"request_timeout": timeout}
        """Argument of every call of `admin`."""
        self.committed = CommittedOffsets(connection, timeout)
        self._admin = self._connect()
        self._renewing = threading.Lock()

    @property
    def admin(self) -> AdminClient:
        """The client for the next question."""
        return self._admin

    def had_no_answer(self, used: AdminClient) -> None:
        """Others ask by a new client from now on, and by new readers of positions. Questions under way go on."""
        with self._renewing:
            if used is not self._admin:
                return
            self._admin = self._connect()
        self.committed.forget()
        # In a thread of its own, as the end of a client may take a while.
        kept = threading.Timer(self.timeout + MARGIN_SECONDS, lambda _: None, [used])
        kept.daemon = True
        kept.start()

    def known(self, found: ClusterMetadata) -> ClusterMetadata:
        """What was `found`, unless it is of a cluster without brokers: then they have not taken one another back."""
        if not found.brokers:
            raise KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN))
        return found

    def _connect(self) -> AdminClient:
        return AdminClient(self.connection.librdkafka({"client.id": "anabranch-segments", **SOON_BACK, "log_level": 0}))

    @contextmanager
    def to(self, what: str) -> Iterator[None]:
        """Turns what Kafka says within the block into a `SegmentStoreError`; other calls go on meanwhile."""
        let_others_go_on()
        used = self.admin
        try:
            yield
        except KafkaException as error:
            fault: KafkaError = error.args[0]
            if fault.code() in UNREACHABLE:
                self.had_no_answer(used)
                advice = "check that it runs and can be reached, then do it again"
                said = f"gave no answer within {self.timeout:g} s; {advice}"
            else:
                said = f"says {fault.name()}: {fault.str()}; what is done stays done, do it again"
            raise SegmentStoreError(f"cannot {what}: {self.where} {said}") from error

    def answers(self, futures: Mapping[Any, Future[T]]) -> list[T]:
        """Every answer; raises the first error after all have come."""
        failure: KafkaException | None = None
        answers: list[T] = []
        for future in futures.values():
            try:
                answers.append(self.answer(future))
            except KafkaException as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return answers

    def answer(self, future: Future[T]) -> T:
        """One answer."""
        try:
            return future.result(self.timeout + MARGIN_SECONDS)
        except TimeoutError:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None

    def again(self, ask: Callable[[], T], passing: frozenset[int] = FOR_A_MOMENT) -> T:
        """`ask`, repeated while the brokers have an error of the kind that is soon over."""
        passes = retry_if_exception(lambda error: isinstance(error, KafkaException) and code_of(error) in passing)
        return Retrying(retry=passes, stop=stop_after_delay(self.timeout), wait=_WAIT, reraise=True)(ask)

    def until(self, condition: Callable[[], bool]) -> None:
        """Returns when `condition` is true; it is asked again and again."""
        retrying = Retrying(
            retry=retry_if_result(lambda fulfilled: not fulfilled),
            stop=stop_after_delay(self.timeout),
            wait=_WAIT,
            retry_error_callback=lambda _: False,
        )
        if not retrying(condition):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
