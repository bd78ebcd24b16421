"""A producer or consumer of `tests.client.proof`, as a process that may be killed at any time.

It records what a producer has had acknowledged, and what a consumer has received, before it acknowledges it. SIGTERM
ends it cleanly.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from anabranch_client import CheckpointConsumer, Producer, QueueConsumer, StreamConsumer
from anabranch_client.errors import AnabranchError, AssignmentLost
from anabranch_client.messages import DeliveryReport
from anabranch_client.received import ReceivedMessage
from tests.client.proof_record import PRODUCED, Recorder, key_of, rows_of, runs_of, runs_of_values

Client = TypeVar("Client")
KEYS = 40
"""Keys of each life of a producer."""
FLUSH_SECONDS = 300.0
BATCH = 5_000
"""Most messages that a consumer takes at once."""
RECORD_MESSAGES = 1_000
"""Reports after which a producer records them, and the most messages of a burst."""
BURST_SECONDS = 0.01


class Worker:
    """One life of a process."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.is_ending = False
        self.record = Recorder(Path(order["record"]))
        signal.signal(signal.SIGTERM, self._end)

    def _end(self, *_: object) -> None:
        # No event: its lock may be held by whoever the signal interrupts.
        self.is_ending = True

    def received(self, messages: list[Any], positions: dict[int, int]) -> None:
        """Record messages, and the last offset of each of their segments."""
        self.record.write(runs_of(messages, time.monotonic_ns()), positions)

    def connected(self, connect: Callable[[], Client]) -> Client:
        """Return a new client, once the controller answers: it may be away for longer than a client waits."""
        while True:
            try:
                return connect()
            except AnabranchError as error:
                if not error.is_retriable or self.is_ending:
                    raise

    def produce(self) -> None:
        """Write at a rate until the end; each life has keys of its own, which take turns."""
        names = [key_of(self.order["number"], self.order["life"], number) for number in range(KEYS)]
        keys = [name.to_bytes(8, "little") for name in names]
        reports: list[DeliveryReport] = []

        def report(error: AnabranchError | None, delivery: DeliveryReport) -> None:
            if error is not None:
                self.record.fault(f"report of {delivery.value!r}: {error}")
            reports.append(delivery)

        def record() -> None:
            if reports:
                stored = {each.segment: each.offset for each in reports if each.offset is not None}
                values = [each.value or b"" for each in reports]
                reports.clear()
                self.record.write(runs_of_values(values, time.monotonic_ns()), stored)

        with self.connected(lambda: Producer(self.order["config"], self.order["topic"])) as producer:
            began, count = time.monotonic(), 0
            while not self.is_ending:
                for _ in range(min(int((time.monotonic() - began) * self.order["rate"]) - count, RECORD_MESSAGES)):
                    key = keys[count % KEYS]
                    try:
                        producer.produce(key + (count // KEYS).to_bytes(8, "little"), key, report)
                    except BufferError:
                        break
                    count += 1
                producer.poll(0)
                # In bursts: whoever waits for the first report has little to send by then.
                time.sleep(BURST_SECONDS)
                if len(reports) >= RECORD_MESSAGES:
                    record()
            producer.flush(FLUSH_SECONDS)
            record()
        last = [(count - 1 - number) // KEYS for number in range(KEYS)]
        self.record.write(rows_of(PRODUCED, time.monotonic_ns(), names, 0, last), {})

    def read_stream(self) -> None:
        with StreamConsumer(
            self.order["config"], self.order["topic"], self.order["subscription"], self.order["name"]
        ) as consumer:
            while not self.is_ending:
                if messages := consumer.consume(BATCH, 0.2):
                    self.received(messages, last_of_batch(messages))
                    with suppress(AssignmentLost):
                        consumer.acknowledge(messages[-1])

    def read_queue(self) -> None:
        with self.connected(
            lambda: QueueConsumer(self.order["config"], self.order["topic"], self.order["subscription"])
        ) as consumer:
            while not self.is_ending:
                if messages := consumer.consume(BATCH, 0.2):
                    self.received(messages, last_of_batch(messages))
                    # All of one lease: none can be acknowledged behind one that cannot.
                    with suppress(AssignmentLost):
                        for message in messages:
                            consumer.acknowledge(message)

    def read_checkpoint(self) -> None:
        file = Path(self.order["record"]).with_suffix(".checkpoint")
        saved = file.read_bytes() if file.exists() else None
        with self.connected(lambda: CheckpointConsumer(self.order["config"], self.order["topic"], saved)) as consumer:
            while not self.is_ending:
                if messages := consumer.consume(BATCH, 0.2):
                    last = {message.topic(): message.offset() for message in messages}
                    self.received(messages, {segment_of(topic): offset for topic, offset in last.items()})
                    new = file.with_suffix(".new")
                    new.write_bytes(consumer.checkpoint())
                    new.replace(file)


def last_of_batch(messages: list[ReceivedMessage]) -> dict[int, int]:
    """Return the last offset of the segment that all of them come from."""
    return {messages[-1].segment(): messages[-1].offset()}


def segment_of(topic: str) -> int:
    """Return the id of the segment that a Kafka topic is."""
    return int(topic.split("..")[4].rpartition("-")[2])


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
        worker.record.fault(repr(fault))
        raise


if __name__ == "__main__":
    main(sys.argv[1])
