"""Fleet of scalable topics for the benchmarks: its layouts and samples as bytes of Kafka messages.

Samples are put together from encoded pieces, so that making them takes little of the machine that is measured; each
piece comes from the message models, and the first message of each reporter is held against them.
"""

import json
import re
import time
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import zip_longest
from typing import NamedTuple
from zlib import crc32

import numpy as np
from confluent_kafka import Producer

from decisions.topic.layout import SegmentLayout
from schemas.codecs.columns import split_columns
from schemas.kafka.connection import KafkaConnection
from schemas.kafka.messages import (
    LayoutCause,
    LayoutEvent,
    SegmentSample,
    SegmentStats,
    SegmentStatsColumns,
    parse_message,
)
from schemas.kafka.topics import CONTROL_EVENTS, SEGMENT_STATS

_CREATED_AT = 1_763_660_000_000
_CREATED_WITHIN = 1_000_000
"""Milliseconds: topics of a fleet are made one after the other."""
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


def first_layouts(
    names: Sequence[str], segments: int, cause: LayoutCause, announced_at: int
) -> Iterator[tuple[str, bytes]]:
    """Yield the key and value of a layout event for each topic; `announced_at`: its instant.

    Creation times differ between topics but are the same in every process, because a later one would mean another
    topic.
    """
    if not names:
        return
    layout = SegmentLayout.create(segments, _CREATED_AT).to_metadata()
    first = LayoutEvent(v=1, type="layout", topic=names[0], cause=cause, layout=layout, at=announced_at)
    topic, *remainder = re.split(rb'(?<="topic":")[^"]*|(?<="createdAtMs":)\d+', first.to_json().encode())
    for name in names:
        created_at = b"%d" % (_CREATED_AT + crc32(name.encode()) % _CREATED_WITHIN)
        yield name, topic + name.encode() + created_at.join(remainder)


class InColumns(NamedTuple):
    """Samples in columns: of segments dealt out to `brokers`, at most `per_message` in a message."""

    brokers: int = 10
    per_message: int = 1_000


class _Owned(NamedTuple):
    """Fixed part of a broker's message, reused in each round."""

    broker: str
    segments: bytes
    """Its topics, counts and ids, as JSON."""
    places: np.ndarray
    """Of its samples among all of the fleet."""


class BenchmarkFleet:
    """Topics with equally many segments; in each round a share of them moves beyond the ±25 % band.

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
        self._owned, self._texts = cache(self._share_out), cache(self._encode_columns)
        self._check()

    def layouts(self) -> Iterator[tuple[str, bytes]]:
        """Key and value of a layout event for each topic."""
        return first_layouts(self.names, self._segments, "created", time.time_ns() // 1_000_000)

    def heat(self, topics: int) -> None:
        """From the next round on the first segment of so many topics is hot: each has to be split."""
        self._is_hot[:topics] = True

    def round(self, sampled_at: int, form: InColumns | None = None) -> Iterator[tuple[str, bytes]]:
        """Yield the key and value of each message of a round; `sampled_at` in milliseconds.

        The messages of each reporter for each topic, or with `form`, the column messages of all brokers.
        """
        codes = self._moved()
        if form is not None:
            yield from self._columns(self._owned(form), codes.ravel(), sampled_at)
            return
        for reporter in range(self.reporters):
            yield from self._reports(reporter, codes[:, reporter :: self.reporters].tolist(), sampled_at)

    def messages(self, form: InColumns | None = None) -> int:
        """Return the number of messages in a round."""
        return len(self._owned(form)) if form else len(self.names) * self.reporters

    def _moved(self) -> np.ndarray:
        """The codes of the next round's rates (topics x segments)."""
        moved = self._random.random(self._side.shape) < self._significant
        self._side ^= moved
        codes = self._side * RATES + self._pair
        codes[self._is_hot, 0] = _HOT
        return codes

    def _reports(self, reporter: int, codes: list[list[int]], sampled_at: int) -> Iterator[tuple[str, bytes]]:
        encoded = self._encoded
        middle = b'","reporter":"broker-%d","sampledAt":%d,"segments":[' % (reporter, sampled_at)
        for name, row in zip(self.names, codes, strict=True):
            samples = b",".join([encoded(reporter + index * self.reporters, code) for index, code in enumerate(row)])
            yield name, b"".join((b'{"v":1,"topic":"', name.encode(), middle, samples, b"]}"))

    def _columns(self, owned: list[_Owned], codes: np.ndarray, sampled_at: int) -> Iterator[tuple[str, bytes]]:
        msg_in, bytes_in, msg_out, bytes_out = self._texts()
        for broker, segments, rows in owned:
            owned_codes = codes[rows].tolist()
            yield (
                broker,
                b"".join(
                    (
                        b'{"v":2,"reporter":"%s","sampledAt":%d,' % (broker.encode(), sampled_at),
                        segments,
                        b',"msgRateIn":[',
                        b",".join([msg_in[code] for code in owned_codes]),
                        b'],"bytesRateIn":[',
                        b",".join([bytes_in[code] for code in owned_codes]),
                        b'],"msgRateOut":[',
                        b",".join([msg_out[code] for code in owned_codes]),
                        b'],"bytesRateOut":[',
                        b",".join([bytes_out[code] for code in owned_codes]),
                        b"]}",
                    )
                ),
            )

    def _share_out(self, form: InColumns) -> list[_Owned]:
        owner = np.random.default_rng(11).integers(0, form.brokers, self._side.size)
        by_broker = []
        for broker in range(form.brokers):
            mine = np.flatnonzero(owner == broker)
            parts = [mine[start : start + form.per_message] for start in range(0, len(mine), form.per_message)]
            by_broker.append([self._owned_part(f"broker-{broker}", rows) for rows in parts])
        parts_in_turn = [owned for of_all in zip_longest(*by_broker) for owned in of_all if owned is not None]
        self._check_columns(parts_in_turn[0])
        return parts_in_turn

    def _owned_part(self, broker: str, rows: np.ndarray) -> _Owned:
        topics, counts = np.unique(rows // self._segments, return_counts=True)
        segments = {
            "topics": [self.names[topic] for topic in topics.tolist()],
            "counts": counts.tolist(),
            "ids": (rows % self._segments).tolist(),
        }
        return _Owned(broker, json.dumps(segments, separators=(",", ":"))[1:-1].encode(), rows)

    def _encode_columns(self) -> list[list[bytes]]:
        rates = [sample_of(0, rate) for rate in self._rates]
        names = ("msg_rate_in", "bytes_rate_in", "msg_rate_out", "bytes_rate_out")
        return [[json.dumps(getattr(sample, name)).encode() for sample in rates] for name in names]

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

    def _check_columns(self, owned: _Owned) -> None:
        codes = (self._side * RATES + self._pair).ravel()
        ((key, value),) = self._columns([owned], codes, 5)
        message = parse_message(SEGMENT_STATS.name, key.encode(), value)
        assert isinstance(message, SegmentStatsColumns), message
        good, refused = split_columns(message)
        names = [name for name, count in zip(message.topics, message.counts, strict=True) for _ in range(count)]
        assert not refused
        assert names == [self.names[topic] for topic in owned.places // self._segments]
        assert good.segments.ids.tolist() == (owned.places % self._segments).tolist()
        assert good.rates[0].tolist() == self._rates[codes[owned.places]].tolist()


class MessageSender:
    """Produces as fast as the broker takes it."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer(
            {
                **KafkaConnection(bootstrap).librdkafka(),
                "linger.ms": 50,
                "compression.type": "lz4",
                "batch.size": 1_000_000,
                "queue.buffering.max.messages": 200_000,
            }
        )

    def layouts(self, fleet: BenchmarkFleet) -> None:
        """All layouts of a fleet."""
        self.send(CONTROL_EVENTS.name, fleet.layouts())

    def round(self, fleet: BenchmarkFleet, sampled_at: int, form: InColumns | None = None) -> None:
        """A report of every topic; `form`: in columns."""
        self.send(SEGMENT_STATS.name, fleet.round(sampled_at, form))

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
