"""A producer or consumer of `tests.client.proof`, as a process that may be killed at any time.

Its record is a file of JSON lines, each written at once: what a producer has had acknowledged, and what a consumer has
received, before it acknowledges it; both with the last offset of each segment. SIGTERM ends it cleanly.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from anabranch_client import CheckpointConsumer, Producer, QueueConsumer, StreamConsumer
from anabranch_client.errors import AnabranchError, AssignmentLost
from anabranch_client.messages import DeliveryReport
from anabranch_client.received import ReceivedMessage

Client = TypeVar("Client")
KEYS = 40
"""Keys of each life of a producer."""
FLUSH_SECONDS = 300.0


class Worker:
    """One life of a process."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.end = threading.Event()
        self._file = os.open(order["record"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        signal.signal(signal.SIGTERM, lambda *_: self.end.set())

    def write(self, **line: Any) -> None:
        os.write(self._file, json.dumps({"at": time.monotonic_ns(), **line}).encode() + b"\n")

    def received(self, messages: list[Any]) -> None:
        """Record messages as runs of successive numbers of a key."""
        at, runs = time.monotonic_ns(), {}
        read: dict[int, int] = {}
        ended: list[tuple[str, int, int]] = []
        for message in messages:
            read[segment_of(message)] = message.offset()
            key, number = message.key().decode(), int(message.value())
            first, last = runs.get(key, (number, number - 1))
            if number != last + 1:
                ended.append((key, first, last))
                first = number
            runs[key] = first, number
        self.write(at=at, runs=ended + [(key, *run) for key, run in runs.items()], read=read)

    def connected(self, connect: Callable[[], Client]) -> Client:
        """Return a new client, once the controller answers: it may be away for longer than a client waits."""
        while True:
            try:
                return connect()
            except AnabranchError as error:
                if not error.is_retriable or self.end.is_set():
                    raise

    def produce(self) -> None:
        """Write at a rate until the end; each life has keys of its own."""
        keys = [f"{self.order['name']}.{self.order['life']}-{number}" for number in range(KEYS)]
        produced: Counter[str] = Counter()
        acknowledged: Counter[str] = Counter()
        changed: set[str] = set()
        stored: dict[int, int] = {}

        def report(error: AnabranchError | None, delivery: DeliveryReport) -> None:
            key, number = (delivery.key or b"").decode(), int(delivery.value or b"")
            if error is not None or number != acknowledged[key]:
                self.write(fault=f"report of {key} {number}: {error or 'out of order'}")
            acknowledged[key] += 1
            changed.add(key)
            if error is None and delivery.offset is not None:
                stored[delivery.segment] = delivery.offset

        def record() -> None:
            self.write(acknowledged={key: acknowledged[key] for key in changed}, stored=stored)
            changed.clear()
            stored.clear()

        with self.connected(lambda: Producer(self.order["config"], self.order["topic"])) as producer:
            began, count = time.monotonic(), 0
            while not self.end.is_set():
                for _ in range(min(int((time.monotonic() - began) * self.order["rate"]) - count, 1_000)):
                    key = keys[count % KEYS]
                    try:
                        producer.produce(str(produced[key]), key, report)
                    except BufferError:
                        break
                    produced[key] += 1
                    count += 1
                producer.poll(0.01)
                record()
            producer.flush(FLUSH_SECONDS)
            record()
        self.write(produced=produced)

    def read_stream(self) -> None:
        with StreamConsumer(
            self.order["config"], self.order["topic"], self.order["subscription"], self.order["name"]
        ) as consumer:
            while not self.end.is_set():
                if messages := consumer.consume(1_000, 0.2):
                    self.received(messages)
                    with suppress(AssignmentLost):
                        consumer.acknowledge(messages[-1])

    def read_queue(self) -> None:
        with self.connected(
            lambda: QueueConsumer(self.order["config"], self.order["topic"], self.order["subscription"])
        ) as consumer:
            while not self.end.is_set():
                if messages := consumer.consume(1_000, 0.2):
                    self.received(messages)
                    for message in messages:
                        with suppress(AssignmentLost):
                            consumer.acknowledge(message)

    def read_checkpoint(self) -> None:
        file = Path(self.order["record"]).with_suffix(".checkpoint")
        saved = file.read_bytes() if file.exists() else None
        with self.connected(lambda: CheckpointConsumer(self.order["config"], self.order["topic"], saved)) as consumer:
            while not self.end.is_set():
                if messages := consumer.consume(1_000, 0.2):
                    self.received(messages)
                    new = file.with_suffix(".new")
                    new.write_bytes(consumer.checkpoint())
                    new.replace(file)


def segment_of(message: Any) -> int:
    """Return the id of a message's segment; those of a checkpoint consumer are Kafka's own."""
    if isinstance(message, ReceivedMessage):
        return message.segment()
    return int(message.topic().split("..")[4].rpartition("-")[2])


def main(order: str) -> None:
    """Run until SIGTERM; a fault is recorded."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(name)s: %(message)s")
    worker = Worker(json.loads(order))
    work = {
        "producer": worker.produce,
        "stream": worker.read_stream,
        "queue": worker.read_queue,
        "checkpoint": worker.read_checkpoint,
    }
    try:
        work[worker.order["kind"]]()
    except Exception as fault:
        worker.write(fault=repr(fault))
        raise


if __name__ == "__main__":
    main(sys.argv[1])
