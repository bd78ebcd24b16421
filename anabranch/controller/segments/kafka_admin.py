"""Requests to Kafka with bounded waits, and errors that say what was asked, where, and what to do.

Stage: below `kafka`. One `AdminClient` is kept: a temporary one would lose its pending answers. After a request without
an answer another one replaces it: a client that sees no broker at all, as from one that has not rejoined the cluster
yet, forgets all it knew and never asks again (librdkafka issue 5301, open in 2.16).
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ClusterMetadata,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from tenacity import Retrying, retry_if_exception, retry_if_result, stop_after_delay, wait_fixed, wait_random
from tenacity.wait import wait_base

from anabranch.controller.segments.base import SegmentStoreError
from anabranch.controller.segments.kafka_groups import SOON_BACK, CommittedOffsets
from runtime.listener.fair_queue import let_others_go_on
from schemas.kafka.connection import KafkaConnection

T = TypeVar("T")

DELAY_SECONDS = 0.02
JITTER_SECONDS = 0.01
"""Delay between two requests while the brokers are not ready."""
MARGIN_SECONDS = 5.0
"""Additional wait after the client's own time-out."""

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
        # From a leader that has not learned of its new term yet.
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
        # From a new leader whose followers have not confirmed yet what it holds.
        KafkaError.OFFSET_NOT_AVAILABLE,
    }
)
NO_TOPIC = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
NO_GROUP = frozenset({KafkaError.GROUP_ID_NOT_FOUND})
GROUP_IN_USE = frozenset({KafkaError.NON_EMPTY_GROUP})
GROUP_HAS_MEMBERS = frozenset({KafkaError.UNKNOWN_MEMBER_ID})
"""Nobody else may commit a position while the group has members."""

_WAIT: wait_base = wait_fixed(DELAY_SECONDS) + wait_random(0, JITTER_SECONDS)


def code_of(error: KafkaException) -> int:
    """Return Kafka's error code."""
    return int(error.args[0].code())


class KafkaAdmin:
    """Administration client of the cluster; no request takes much longer than `timeout` seconds."""

    def __init__(self, connection: KafkaConnection, timeout: float) -> None:
        self.connection, self.timeout = connection, timeout
        self.where = f"Kafka at {connection.bootstrap}"
        self.limit = {"request_timeout": timeout}
        """Argument of every call of `admin`."""
        self.committed = CommittedOffsets(connection, timeout)
        self._admin = self._connect()
        self._renewing = threading.Lock()

    @property
    def admin(self) -> AdminClient:
        """Client for the next request."""
        return self._admin

    def had_no_answer(self, used: AdminClient) -> None:
        """Replace the client, and the readers of positions, for later requests. Running requests continue."""
        with self._renewing:
            if used is not self._admin:
                return
            self._admin = self._connect()
        self.committed.forget()
        # Keep the old client alive in a separate thread: closing it may block.
        keeper = threading.Timer(self.timeout + MARGIN_SECONDS, lambda _: None, [used])
        keeper.daemon = True
        keeper.start()

    def known(self, metadata: ClusterMetadata) -> ClusterMetadata:
        """Return `metadata`, or raise if it is of a cluster without brokers: then none has rejoined it yet."""
        if not metadata.brokers:
            raise KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN))
        return metadata

    def _connect(self) -> AdminClient:
        return AdminClient(self.connection.librdkafka({"client.id": "anabranch-segments", **SOON_BACK, "log_level": 0}))

    @contextmanager
    def to(self, action: str) -> Iterator[None]:
        """Turn Kafka's errors in the block into a `SegmentStoreError`; yields the caller's turn meanwhile."""
        let_others_go_on()
        used = self.admin
        try:
            yield
        except KafkaException as error:
            fault: KafkaError = error.args[0]
            if fault.code() in UNREACHABLE:
                self.had_no_answer(used)
                advice = "check that it runs and can be reached, then do it again"
                cause = f"gave no answer within {self.timeout:g} s; {advice}"
            else:
                cause = f"says {fault.name()}: {fault.str()}; what is done stays done, do it again"
            raise SegmentStoreError(f"cannot {action}: {self.where} {cause}") from error

    def answers(self, futures: Mapping[Any, Future[T]]) -> list[T]:
        """Return all answers; raise the first error after all have arrived."""
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
        """Return one answer."""
        try:
            return future.result(self.timeout + MARGIN_SECONDS)
        except TimeoutError:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None

    def again(self, ask: Callable[[], T], passing: frozenset[int] = FOR_A_MOMENT) -> T:
        """Repeat `ask` while the brokers have a transient error."""
        passes = retry_if_exception(lambda error: isinstance(error, KafkaException) and code_of(error) in passing)
        return Retrying(retry=passes, stop=stop_after_delay(self.timeout), wait=_WAIT, reraise=True)(ask)

    def until(self, condition: Callable[[], bool]) -> None:
        """Poll until `condition` is true."""
        retrying = Retrying(
            retry=retry_if_result(lambda fulfilled: not fulfilled),
            stop=stop_after_delay(self.timeout),
            wait=_WAIT,
            retry_error_callback=lambda _: False,
        )
        if not retrying(condition):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def groups(self) -> list[str]:
        """Return the ids of all consumer groups."""
        listed = self.answer(self.admin.list_consumer_groups(**self.limit))
        for error in listed.errors or []:
            raise error if isinstance(error, KafkaException) else KafkaException(error)
        return [group.group_id for group in listed.valid or []]

    def settings(self, topic: str) -> dict[str, str]:
        """Return the settings of a topic."""
        (settings,) = self.answers(
            self.admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)], **self.limit)
        )
        return {name: entry.value for name, entry in settings.items()}

    def change_settings(self, topic: str, settings: Mapping[str, str]) -> None:
        """Set some settings of a topic."""
        changes = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=changes)
        self.answers(self.admin.incremental_alter_configs([resource], **self.limit))
