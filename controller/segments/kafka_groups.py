"""Reads committed offsets, with consumers that join no group.

Stage: below `kafka_positions`. Not with the administration client: its `list_consumer_group_offsets` ends the whole
process with a segmentation fault when the coordinator of a group has just moved (librdkafka issue 5040, open in
2.16). A consumer finds the new coordinator and asks again by itself.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable

from confluent_kafka import Consumer, KafkaException, TopicPartition

from schemas.kafka_connection import KafkaConnection

AT_ONCE = 32
"""Consumers that connect side by side."""
KEPT = 16
"""A first question takes some 60 ms, another one to the same consumer 1 ms; each has threads and connections."""


class CommittedOffsets:
    """Positions of groups; a few consumers are kept for who asks again. For many threads."""

    def __init__(self, kafka: KafkaConnection, timeout: float) -> None:
        """`timeout`: of one question, seconds."""
        self._kafka, self._timeout = kafka, timeout
        self._kept: OrderedDict[str, Consumer] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, groups: Iterable[str], topic: str, partition: int) -> dict[str, int]:
        """The position of each group that has one there; raises `KafkaException`."""
        names, found = list(groups), dict[str, int]()
        deadline = time.monotonic() + self._timeout
        for first in range(0, len(names), AT_ONCE):
            readers = {group: self._take(group) for group in names[first : first + AT_ONCE]}
            try:
                for group, reader in readers.items():
                    left = max(deadline - time.monotonic(), 0.001)
                    (answer,) = reader.committed([TopicPartition(topic, partition)], left)
                    if answer.error is not None:
                        raise KafkaException(answer.error)
                    if answer.offset >= 0:
                        found[group] = answer.offset
            finally:
                self._give_back(readers)
        return found

    def _take(self, group: str) -> Consumer:
        """One that nobody else has meanwhile."""
        with self._lock:
            kept = self._kept.pop(group, None)
        return kept or Consumer(
            self._kafka.librdkafka({
                "client.id": "anabranch-segments", "group.id": group, "enable.auto.commit": False, "log_level": 0,
            })
        )  # fmt: skip

    def _give_back(self, readers: dict[str, Consumer]) -> None:
        old: list[Consumer] = []
        with self._lock:
            for group, reader in readers.items():
                old += [self._kept.pop(group)] if group in self._kept else []
                self._kept[group] = reader
            while len(self._kept) > KEPT:
                old.append(self._kept.popitem(last=False)[1])
        for reader in old:
            reader.close()
