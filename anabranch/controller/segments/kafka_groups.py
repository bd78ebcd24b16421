"""Read committed offsets with consumers that join no group.

Stage: below `kafka_positions`. Not with the administration client: its `list_consumer_group_offsets` ends the whole
process with a segmentation fault when the coordinator of a group has just moved (librdkafka issue 5040, open in 2.16).
A consumer finds the new coordinator and asks again by itself.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable

from confluent_kafka import Consumer, KafkaException, TopicPartition

from schemas.kafka.connection import KafkaConnection

AT_ONCE = 32
"""Consumers that connect concurrently."""
SOON_BACK = {"reconnect.backoff.max.ms": 1_000}
"""Longest delay before a client retries an unreachable broker (librdkafka: 10 s)."""
KEPT = 16
"""Cached consumers: a first request takes 60 ms, a later one 1 ms; each has threads and connections."""


class CommittedOffsets:
    """Positions of groups, with a small cache of consumers. Thread-safe."""

    def __init__(self, kafka: KafkaConnection, timeout: float, most_kept: int = KEPT) -> None:
        """`timeout`: of one request, seconds; `most_kept`: limit on the cached consumers."""
        self._kafka, self._timeout, self._most_kept = kafka, timeout, most_kept
        self._kept: OrderedDict[str, Consumer] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, groups: Iterable[str], topic: str, partition: int) -> dict[str, int]:
        """Return the position of each group that has one there. Raises `KafkaException`."""
        names, offsets = list(groups), dict[str, int]()
        deadline = time.monotonic() + self._timeout
        for first in range(0, len(names), AT_ONCE):
            readers = {group: self._take(group) for group in names[first : first + AT_ONCE]}
            answered: dict[str, Consumer] = {}
            try:
                for group, reader in readers.items():
                    left = max(deadline - time.monotonic(), 0.001)
                    (answer,) = reader.committed([TopicPartition(topic, partition)], left)
                    if answer.error is not None:
                        raise KafkaException(answer.error)
                    answered[group] = reader
                    if answer.offset >= 0:
                        offsets[group] = answer.offset
            finally:
                self._give_back(answered)
                # A consumer without an answer may never give one again (see `kafka_admin`).
                end_readers([reader for group, reader in readers.items() if group not in answered])
        return offsets

    def forget(self) -> None:
        """Drop the cached consumers: later requests use new ones."""
        with self._lock:
            old, self._kept = self._kept, OrderedDict()
        end_readers(old.values())

    def _take(self, group: str) -> Consumer:
        """Return a consumer that no other caller has meanwhile."""
        with self._lock:
            consumer = self._kept.pop(group, None)
        return consumer or Consumer(
            self._kafka.librdkafka(
                {
                    "client.id": "anabranch-segments",
                    "group.id": group,
                    "enable.auto.commit": False,
                    "log_level": 0,
                    **SOON_BACK,
                }
            )
        )

    def _give_back(self, readers: dict[str, Consumer]) -> None:
        old: list[Consumer] = []
        with self._lock:
            for group, reader in readers.items():
                old += [self._kept.pop(group)] if group in self._kept else []
                self._kept[group] = reader
            while len(self._kept) > self._most_kept:
                old.append(self._kept.popitem(last=False)[1])
        end_readers(old)


def end_readers(readers: Iterable[Consumer]) -> None:
    """Close consumers, each in a separate thread: one that has lost its brokers may never finish."""
    for reader in readers:
        threading.Thread(target=reader.close, name="end of a reader of positions", daemon=True).start()
