"""A scalable topic as tests see it: changed over REST, and read from its segments' Kafka topics without any client."""

from __future__ import annotations

import random
import uuid
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
from confluent_kafka import Consumer, Message, TopicPartition

from anabranch.controller.segments.kafka_names import kafka_topic
from anabranch_client.errors import AnabranchError
from anabranch_client.messages import DeliveryReport
from decisions.topic.hashing import key_hash
from decisions.topic.names import segment_descriptor, segment_topic_name


class ScalableTopic:
    """A topic at a controller, with its messages at a broker."""

    def __init__(self, name: str, admin: httpx.Client, bootstrap: str) -> None:
        self.name, self.admin, self.bootstrap = name, admin, bootstrap
        self.path = f"/admin/v2/scalable/{name.removeprefix('topic://')}"

    def config(self, **kafka: Any) -> dict[str, Any]:
        """Settings of a client; names of librdkafka's with `_` for a dot."""
        return {
            "bootstrap.servers": self.bootstrap,
            "anabranch.controller.url": str(self.admin.base_url).rstrip("/"),
            **{name.replace("_", "."): value for name, value in kafka.items()},
        }

    def create(self, segments: int = 1) -> None:
        """Create it."""
        self._done(self.admin.put(self.path, params={"numInitialSegments": segments}))

    def delete(self) -> None:
        """Delete it with its messages."""
        self._done(self.admin.delete(self.path))

    def layout(self) -> dict[str, Any]:
        """Return the layout record."""
        return dict(self.admin.get(self.path).raise_for_status().json())

    def active(self) -> list[dict[str, Any]]:
        """Return the records of the active segments by their ranges."""
        segments = (segment for segment in self.layout()["segments"].values() if segment["state"] == "ACTIVE")
        return sorted(segments, key=lambda segment: segment["hashRange"]["start"])

    def split(self, segment_id: int) -> None:
        """Split an active segment."""
        self._done(self.admin.post(f"{self.path}/split/{segment_id}"))

    def merge(self, first: int, second: int) -> None:
        """Merge two active neighbours."""
        self._done(self.admin.post(f"{self.path}/merge/{first}/{second}"))

    def change(self, seed: random.Random, most: int = 6) -> str:
        """Split or merge at random; return which."""
        active = self.active()
        ids = [segment["segmentId"] for segment in active]
        if len(ids) == 1 or (len(ids) < most and seed.random() < 0.5):
            self.split(seed.choice(ids))
            return "split"
        left = seed.randrange(len(ids) - 1)
        self.merge(ids[left], ids[left + 1])
        return "merge"

    def kafka_topics(self) -> dict[int, str]:
        """Return the Kafka topic of every segment, sealed ones too."""
        layout = self.layout()
        return {
            int(id): kafka_topic(
                segment_topic_name(
                    self.name, segment_descriptor(segment["hashRange"]["start"], segment["hashRange"]["end"], int(id))
                ),
                layout["createdAtMs"],
            )
            for id, segment in layout["segments"].items()
        }

    def messages(self) -> Iterator[tuple[int, Message]]:
        """Yield all messages, segment by segment in the order of their ids: parents before children."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": uuid.uuid4().hex})
        try:
            for id, name in sorted(self.kafka_topics().items()):
                first, end = consumer.get_watermark_offsets(TopicPartition(name, 0), timeout=120)
                consumer.assign([TopicPartition(name, 0, first)])
                while first < end:
                    messages = consumer.consume(min(end - first, 10_000), timeout=120)
                    assert messages
                    for message in messages:
                        assert message.error() is None
                        yield id, message
                        offset = message.offset()
                        assert offset is not None
                        first = offset + 1
        finally:
            consumer.close()

    def _done(self, answer: httpx.Response) -> None:
        assert answer.status_code == 204, answer.text


@dataclass
class Ledger:
    """Every message that a test has produced, and what was reported of it."""

    produced: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Number of messages of each key; the value is the key and its number."""
    acknowledged: dict[bytes, tuple[int, int | None]] = field(default_factory=dict)
    """Segment and offset by value."""
    failed: list[tuple[bytes | None, AnabranchError]] = field(default_factory=list)

    def next_value(self, key: str) -> str:
        """Return the value of the next message of a key."""
        return f"{key}#{self.produced[key]}"

    def count(self, key: str) -> None:
        """Record that the message was taken."""
        self.produced[key] += 1

    def report(self, error: AnabranchError | None, delivery: DeliveryReport) -> None:
        """Callback of deliveries."""
        if error is not None:
            self.failed.append((delivery.value, error))
            return
        assert delivery.value is not None
        assert delivery.value not in self.acknowledged
        self.acknowledged[delivery.value] = delivery.segment, delivery.offset

    def check(self, topic: ScalableTopic, repeats: bool = False) -> int:
        """Fail unless the segments hold every message, in order per key; return the number of those held twice.

        `repeats` allows them, where acknowledgements may be lost.
        """
        ranges = {int(id): segment["hashRange"] for id, segment in topic.layout()["segments"].items()}
        stored: dict[str, list[int]] = defaultdict(list)
        places: dict[bytes, list[tuple[int, int | None]]] = defaultdict(list)
        written: set[tuple[int, str]] = set()
        for segment, message in topic.messages():
            value, raw_key = message.value(), message.key()
            assert isinstance(value, bytes)
            key, _, number = value.decode().rpartition("#")
            if raw_key is not None:
                assert raw_key == key.encode()
                written.add((segment, key))
            stored[key].append(int(number))
            places[value].append((segment, message.offset()))
        for segment, key in written:
            assert ranges[segment]["start"] <= key_hash(key.encode()) <= ranges[segment]["end"]
        assert not self.failed
        assert len(self.acknowledged) == sum(self.produced.values())
        assert all(place in places[value] for value, place in self.acknowledged.items())
        for key, count in self.produced.items():
            # The first copy of each counts: a repeated one comes after it.
            firsts = list(dict.fromkeys(stored[key]))
            assert firsts == list(range(count)), f"{key}: lost, or out of order"
        twice = sum(len(copies) - 1 for copies in places.values())
        assert repeats or not twice
        return twice
