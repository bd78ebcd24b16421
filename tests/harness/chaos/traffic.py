"""Messages through the segments of a topic in Kafka: written, read by their owners, and counted.

Stage: beside `tests.harness.chaos.consumers`, in threads of its own. A message counts as sent when its writing was
confirmed in a life of the topic that was certain all the while. It counts as received when a consumer that held its
segment has read it; then the consumer commits, as its subscription, what it has read.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout

from confluent_kafka import Consumer as Reader
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from anabranch.controller.segments.base import segment_name
from anabranch.controller.segments.kafka_groups import CommittedOffsets
from anabranch.controller.segments.kafka_names import group_id, kafka_topic
from decisions.topic.layout import HASH_SPACE
from schemas.kafka.connection import KafkaConnection
from schemas.metadata import HashRange
from tests.harness.chaos.clients import FAULTS, PAUSE_S, SUBSCRIPTION, Topic
from tests.harness.chaos.consumers import Consumer
from tests.harness.chaos.history import Delivery, SeenLayout

_WAIT_S = 5.0
_REFRESH_S = 2.0
"""A producer looks at the layout so often even if nothing is refused."""


class Traffic:
    """The messages of one topic."""

    def __init__(self, topic: Topic, bootstrap: str, seed: int) -> None:
        self.topic, self._kafka = topic, KafkaConnection(bootstrap)
        self.sent: dict[int, set[int]] = defaultdict(set)
        self.received: dict[int, set[int]] = defaultdict(set)
        """By life."""
        self.total_sent = self.total_received = 0
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._numbers = 0
        self._stopping = threading.Event()
        self._threads = ThreadPoolExecutor(1 + len(topic.consumers), thread_name_prefix="traffic")
        """One writes, and one reads for each consumer."""

    def missing(self) -> set[int]:
        """Return the messages sent in the present life and not received yet."""
        life = self.topic.last_life
        with self._lock:
            return self.sent[life] - self.received[life]

    def take_delivery(self) -> Delivery:
        """Return what was sent and received in the present life since the last call.

        Drops the records of earlier lives.
        """
        life = self.topic.last_life
        with self._lock:
            found = Delivery(
                self.topic.name, life, frozenset(self.sent[life]), frozenset(self.received[life] & self.sent[life])
            )
            self.sent.clear()
            self.received.clear()
        return found

    async def write_for_ever(self) -> None:
        """Write to the segments of the layout, as fast as they confirm, with a pause between."""
        producer = Producer(
            self._kafka.librdkafka({"acks": "all", "message.timeout.ms": 4000, "log_level": 0, "linger.ms": 0})
        )
        layout: SeenLayout | None = None
        read_at = 0.0
        while True:
            await self.topic.working.wait()
            life = self.topic.life
            if layout is None or layout.life != life or time.monotonic() - read_at > _REFRESH_S:
                try:
                    layout, read_at = await self.topic.read(self._random.choice(self.topic.urls)), time.monotonic()
                except FAULTS:
                    await asyncio.sleep(PAUSE_S)
                    continue
            key = self._random.randrange(HASH_SPACE)
            segment = next(id for id, (start, end) in layout.active.items() if start <= key <= end)
            name = self.name_of(layout, segment)
            self._numbers += 1
            writing = asyncio.get_running_loop().run_in_executor(self._threads, _written, producer, name, self._numbers)
            confirmed = await writing
            if not confirmed:
                layout = None
            elif life is not None and life == self.topic.life == layout.life:
                with self._lock:
                    self.sent[life].add(self._numbers)
                self.total_sent += 1
            await asyncio.sleep(PAUSE_S * self._random.random())

    def name_of(self, layout: SeenLayout, segment: int) -> str:
        """The Kafka topic of a segment."""
        start, end = layout.known[segment]
        name = segment_name(self.topic.name, segment, HashRange(start=start, end=end))
        return kafka_topic(name, self.topic.made_at[layout.life])

    async def read_for_ever(self, consumer: Consumer) -> None:
        """Read what a consumer holds, and commit it, until `stop`."""
        await asyncio.get_running_loop().run_in_executor(self._threads, self._read, consumer)

    def _read(self, consumer: Consumer) -> None:
        admin = AdminClient(self._kafka.librdkafka({"log_level": 0}))
        committed = CommittedOffsets(self._kafka, _WAIT_S)
        reader = Reader(
            self._kafka.librdkafka(
                {
                    "group.id": f"chaos-{consumer.name}",
                    "enable.auto.commit": False,
                    "auto.offset.reset": "earliest",
                    "fetch.wait.max.ms": 50,
                    "log_level": 0,
                }
            )
        )
        reading: tuple[int, dict[int, str]] = (-1, {})
        try:
            while not self._stopping.is_set():
                wanted = consumer.life, consumer.held_now() if consumer.life in self.topic.made_at else {}
                try:
                    if wanted != reading:
                        reader.assign(self._positions(committed, *wanted))
                        reading = wanted
                    found = reader.consume(200, 0.1)
                    taken = self._take(consumer, wanted, [one for one in found if one.error() is None], admin)
                    if not taken or any(one.error() is not None for one in found):
                        reading = (-1, {})
                except (KafkaException, TimeoutError, FutureTimeout):
                    reading = (-1, {})
                    self._stopping.wait(PAUSE_S)
        finally:
            reader.close()

    def stop(self) -> None:
        """End the threads."""
        self._stopping.set()
        self._threads.shutdown(wait=False)

    def _take(
        self, consumer: Consumer, wanted: tuple[int, dict[int, str]], found: list[Message], admin: AdminClient
    ) -> bool:
        """Count and commit; False when they were not the consumer's to read by then."""
        life, held = wanted
        if not found:
            return True
        if (consumer.life, consumer.held_now()) != wanted:
            return False
        ends: dict[str, int] = {}
        with self._lock:
            for one in found:
                self.received[life].add(int(one.value() or b"0"))
                ends[one.topic() or ""] = (one.offset() or 0) + 1
        self.total_received += len(found)
        made_at = self.topic.made_at[life]
        groups = {kafka_topic(name, made_at): group_id(name, SUBSCRIPTION, made_at) for name in held.values()}
        asked = [
            admin.alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(groups[name], [TopicPartition(name, 0, offset)])]
            )
            for name, offset in ends.items()
        ]
        for futures in asked:
            for future in futures.values():
                future.result(_WAIT_S)
        return True

    def _positions(self, committed: CommittedOffsets, life: int, held: dict[int, str]) -> list[TopicPartition]:
        """Return the subscription's position on each segment; 0 where it has none."""
        found = []
        for segment in held.values():
            made_at = self.topic.made_at[life]
            group, name = group_id(segment, SUBSCRIPTION, made_at), kafka_topic(segment, made_at)
            found.append(TopicPartition(name, 0, committed.of([group], name, 0).get(group, 0)))
        return found


def _written(producer: Producer, name: str, number: int) -> bool:
    """Return True if Kafka confirmed the message."""
    told: list[KafkaError | None] = []
    try:
        producer.produce(name, str(number).encode(), partition=0, on_delivery=lambda error, _: told.append(error))
    except KafkaException:
        # The segment is gone.
        return False
    producer.flush(_WAIT_S)
    # KafkaError cannot be compared with None.
    return len(told) == 1 and told[0] is None
