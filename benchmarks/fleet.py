"""A fleet of scalable topics as the benchmarks need it: its layouts and its samples, as the bytes of Kafka messages.

Samples are put together from encoded pieces, so that making them takes little of the machine that is measured; each
piece comes from the message models, and the first message of each reporter is held against them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache

import numpy as np
from confluent_kafka import Producer

from decisions.topic.layout import SegmentLayout
from schemas.kafka import CONTROL_EVENTS, SEGMENT_STATS
from schemas.kafka_connection import KafkaConnection
from schemas.messages import LayoutEvent, SegmentSample, SegmentStats

RATES = 5_000
"""Distinct pairs of rates that segments go to and fro between."""
_HOT_RATE = 14_000.0
"""Messages per second; PIP-483 splits above 10,000."""
_HOT = 2 * RATES
"""The code of `_HOT_RATE`, after those of the pairs."""


def sample_of(segment: int, rate: float) -> SegmentSample:
    """A sample whose four rates are in a usual ratio."""
    return SegmentSample(
        id=segment, msg_rate_in=rate, bytes_rate_in=rate * 1e3, msg_rate_out=rate * 2, bytes_rate_out=rate * 2e3
    )


class Fleet:
    """Topics of equally many segments; in each round a share of the segments moves by more than the ±25 % band.

    Every topic's segments are dealt out to `reporters` in turn, each of which reports its own (one broker owns a
    segment, so a topic of ten segments has up to ten reporters).
    """

    def __init__(
        self, topics: int, segments: int, significant: float, prefix: str = "orders", reporters: int = 1
    ) -> None:
        self.names = [f"topic://acme/shop/{prefix}-{number:06d}" for number in range(topics)]
        self.reporters = min(reporters, segments)
        self._segments, self._significant = segments, significant
        self._random = np.random.default_rng(7)
        low = self._random.uniform(2_000, 5_000, RATES)
        self._rates = np.append(np.stack([low, low * 1.9]).ravel(), _HOT_RATE)
        self._pair = self._random.integers(0, RATES, (topics, segments))
        self._side = np.zeros((topics, segments), np.int64)
        self._is_hot = np.zeros(topics, np.bool_)
        self._encoded = cache(self._encode)
        self._check()

    def layouts(self) -> Iterator[tuple[str, bytes]]:
        """Key and value of a layout event for each topic."""
        now = time.time_ns() // 1_000_000
        layout = SegmentLayout.create(self._segments, now - 3_600_000).to_metadata()
        for name in self.names:
            event = LayoutEvent(v=1, type="layout", topic=name, cause="created", layout=layout, at=now)
            yield name, event.to_json().encode()

    def heat(self, topics: int) -> None:
        """From the next round on the first segment of so many topics is hot: each has to be split."""
        self._is_hot[:topics] = True

    def round(self, sampled_at: int) -> Iterator[tuple[str, bytes]]:
        """Key and value of each reporter's report of each topic; `sampled_at` in milliseconds."""
        moved = self._random.random(self._side.shape) < self._significant
        self._side ^= moved
        codes = self._side * RATES + self._pair
        codes[self._is_hot, 0] = _HOT
        for reporter in range(self.reporters):
            yield from self._reports(reporter, codes[:, reporter :: self.reporters].tolist(), sampled_at)

    def _reports(self, reporter: int, codes: list[list[int]], sampled_at: int) -> Iterator[tuple[str, bytes]]:
        encoded = self._encoded
        middle = b'","reporter":"broker-%d","sampledAt":%d,"segments":[' % (reporter, sampled_at)
        for name, row in zip(self.names, codes, strict=True):
            samples = b",".join([encoded(reporter + place * self.reporters, code) for place, code in enumerate(row)])
            yield name, b"".join((b'{"v":1,"topic":"', name.encode(), middle, samples, b"]}"))

    def _encode(self, segment: int, code: int) -> bytes:
        return sample_of(segment, self._rates[code]).to_json().encode()

    def _check(self) -> None:
        codes = self._side * RATES + self._pair
        for reporter in range(self.reporters):
            segments = range(reporter, self._segments, self.reporters)
            mine = codes[:1, reporter :: self.reporters].tolist()
            name, value = next(self._reports(reporter, mine * len(self.names), 5))
            samples = [sample_of(segment, self._rates[codes[0, segment]]) for segment in segments]
            expected = SegmentStats(v=1, topic=name, reporter=f"broker-{reporter}", sampled_at=5, segments=samples)
            assert value.decode() == expected.to_json()


class Sender:
    """Produces as fast as the broker takes it."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({
            **KafkaConnection(bootstrap).librdkafka(), "linger.ms": 50, "compression.type": "lz4",
            "batch.size": 1_000_000, "queue.buffering.max.messages": 200_000,
        })  # fmt: skip

    def layouts(self, fleet: Fleet) -> None:
        """All layouts of a fleet."""
        self.send(CONTROL_EVENTS.name, fleet.layouts())

    def round(self, fleet: Fleet, sampled_at: int) -> None:
        """A report of every topic."""
        self.send(SEGMENT_STATS.name, fleet.round(sampled_at))

    def flush(self) -> None:
        """Returns when the broker has everything."""
        if self._producer.flush(300):
            raise SystemExit("the broker did not take the benchmark's messages")

    def send(self, topic: str, messages: Iterator[tuple[str, bytes]]) -> None:
        """Keys and values, in their order, as fast as there is room for them."""
        for key, value in messages:
            while True:
                try:
                    self._producer.produce(topic, value, key.encode())
                    break
                except BufferError:
                    self._producer.poll(0.1)
        self._producer.poll(0)
