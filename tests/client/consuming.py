"""A topic of real segments, numbered messages by key, and a checker that knows every one of them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
from confluent_kafka import Consumer, Producer, TopicPartition

from anabranch_client.config import split_settings
from anabranch_client.controller import Controller
from anabranch_client.errors import AssignmentLost
from anabranch_client.layout import Layout, key_hash
from anabranch_client.names import group_id
from anabranch_client.stream_consumer import StreamConsumer

ROOT = Path(__file__).resolve().parents[2]
KEYS = 24
"""Keys of a topic: their hashes lie all over the hash space."""


class NumberedTopic:
    """A topic that is written key by key with the numbers 0, 1, 2, …"""

    def __init__(self, topic: str, kafka: str, client: httpx.Client) -> None:
        self.topic, self.kafka, self.client = topic, kafka, client
        self.path = f"/admin/v2/scalable/{topic.removeprefix('topic://')}"
        self.sent: Counter[bytes] = Counter()
        self._producer = Producer({"bootstrap.servers": kafka, "linger.ms": 5})

    @property
    def config(self) -> dict[str, str]:
        return {"bootstrap.servers": self.kafka, "anabranch.controller.url": str(self.client.base_url).rstrip("/")}

    def consumer(self, name: str, **more: Any) -> StreamConsumer:
        return StreamConsumer(self.config, self.topic, "s", name, **more)

    def create(self, segments: int) -> None:
        self.call("PUT", f"?numInitialSegments={segments}")
        self.call("PUT", "/subscriptions/s")

    def split(self, segment: int) -> None:
        self.call("POST", f"/split/{segment}")

    def merge(self, first: int, second: int) -> None:
        self.call("POST", f"/merge/{first}/{second}")

    def call(self, method: str, path: str) -> None:
        answer = self.client.request(method, self.path + path)
        assert answer.is_success, answer.text

    def layout(self) -> Layout:
        settings, _ = split_settings(self.config)
        return Controller(settings).layout(self.topic)

    def write(self, rounds: int, layout: Layout | None = None) -> None:
        """Write `rounds` messages of every key to the active segments; they are stored at the return."""
        self._send(self._producer, rounds, layout or self.layout())

    def write_transaction(self, rounds: int) -> None:
        """Do the same in one transaction."""
        producer = Producer({"bootstrap.servers": self.kafka, "transactional.id": self.topic})
        producer.init_transactions(120)
        producer.begin_transaction()
        self._send(producer, rounds, self.layout())
        producer.commit_transaction(120)

    def _send(self, producer: Producer, rounds: int, layout: Layout) -> None:
        for _ in range(rounds):
            for number in range(KEYS):
                key = b"key-%d" % number
                segment = layout.find(key_hash(key))
                producer.produce(segment.kafka_topic, b"%d" % self.sent[key], key, partition=0)
                self.sent[key] += 1
        assert producer.flush(120) == 0

    def committed(self, subscription: str = "s") -> dict[int, int]:
        """Positions of a subscription by segment."""
        positions = {}
        for id, segment in self.layout().segments.items():
            reader = Consumer(
                {"bootstrap.servers": self.kafka, "group.id": group_id(segment.kafka_topic, subscription)}
            )
            (position,) = reader.committed([TopicPartition(segment.kafka_topic, 0)], 60)
            positions[id] = position.offset
            reader.close()
        return positions


class Checker:
    """Record of what was received: complete, and in order per key with redeliveries but no gaps."""

    def __init__(self, topic: NumberedTopic) -> None:
        self._topic = topic
        self._lock = threading.Lock()
        self.newest: dict[bytes, int] = defaultdict(lambda: -1)
        self.gaps: list[tuple[bytes, int, int]] = []
        self.redelivered = 0

    def receive(self, key: bytes, number: int) -> None:
        with self._lock:
            newest = self.newest[key]
            if number > newest + 1:
                self.gaps.append((key, newest, number))
            if number <= newest:
                self.redelivered += 1
            self.newest[key] = max(newest, number)

    def is_complete(self) -> bool:
        with self._lock:
            assert not self.gaps
            return {key: number + 1 for key, number in self.newest.items()} == self._topic.sent


@contextmanager
def repeating(step: Callable[[], None]) -> Iterator[None]:
    """Call `step` again and again in a thread during the block."""
    end = threading.Event()

    def run() -> None:
        while not end.is_set():
            step()

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(run)
        try:
            yield
        finally:
            end.set()
            running.result()


@contextmanager
def reading(consumer: StreamConsumer, checker: Checker) -> Iterator[None]:
    """Receive, check and acknowledge in a thread during the block."""

    def read() -> None:
        messages = consumer.consume(100, 0.1)
        for message in messages:
            checker.receive(message.key() or b"", int(message.value() or b""))
        if messages:
            with suppress(AssignmentLost):
                consumer.acknowledge(messages[-1])

    with repeating(read):
        yield


class ConsumerProcess:
    """A stream consumer in a process of its own: it prints what it receives, and obeys the lines that it is sent."""

    def __init__(self, topic: NumberedTopic, name: str, acknowledges: bool, **kafka: str) -> None:
        """`kafka`: settings of the client, with `_` for a dot."""
        config = topic.config | {setting.replace("_", "."): value for setting, value in kafka.items()}
        order = {"config": config, "topic": topic.topic, "name": name, "acknowledges": acknowledges}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.client.consumer_process", json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def lines(self) -> Iterator[Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            yield json.loads(line)

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.send("end")
        assert self.process.stdin is not None
        self.process.stdin.close()

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
