"""Validation of samples in columns (`SegmentStatsColumns`), sample by sample.

Stage: first of the job, behind `schemas.kafka.messages`, for messages that are not plain. `schemas.codecs.bulk_columns`
is the fast path past both.
"""

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json
from xxhash import xxh64_intdigest

from schemas.base import MAX_SEGMENT_ID, TopicName
from schemas.kafka.messages import RejectReason, SegmentStatsColumns

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MAX_REFUSED_BYTES = 2048
"""Bytes kept of a refused sample; a valid topic name takes at most half of them."""
_RATE_NAMES = ("msgRateIn", "bytesRateIn", "msgRateOut", "bytesRateOut")


@dataclass(frozen=True, eq=False)
class Segments:
    """Segments of a message: m segments of n topics, shared by messages until layouts change."""

    topics: list[str]
    """n topics, each once."""
    hashes: Ints
    """By topic (n): `hash_of` its name; modulo the number of buckets, the topic's bucket."""
    counts: Ints
    """By topic (n): its number of segments."""
    ids: Ints
    """m segment ids, each once in its topic."""

    @classmethod
    def of(cls, topics: list[str], hashes: Ints, counts: Sequence[int], ids: Sequence[int]) -> "Segments":
        """Create an object with arrays of these lists."""
        return cls(topics, hashes, packed_ints(counts, len(counts)), packed_ints(ids, len(ids)))

    def __len__(self) -> int:
        return len(self.ids)

    def each_once(self) -> bool:
        """Return whether every topic has each segment id at most once, as required."""
        topics, ids = np.repeat(np.arange(len(self.counts)), self.counts), self.ids
        if ((ids[1:] > ids[:-1]) | (topics[1:] != topics[:-1])).all():
            return True
        order = np.lexsort((ids, topics))
        topics, ids = topics[order], ids[order]
        return bool(((ids[1:] != ids[:-1]) | (topics[1:] != topics[:-1])).all())


@dataclass(frozen=True)
class BulkColumns:
    """The valid samples of one reporter at one instant."""

    reporter: str
    sampled_at: int
    """Milliseconds."""
    segments: Segments
    """m segments."""
    rates: Floats
    """Rates, 4 x m, per second, in the order of `SegmentSample`."""

    def __len__(self) -> int:
        return len(self.segments)


@dataclass(frozen=True)
class RefusedItem:
    """A refused sample or entry of a message whose others may be accepted."""

    index: int
    """Index in the message's columns, from 0."""
    reason: RejectReason
    detail: str
    """Location and fault, for a person; names the index."""
    raw: bytes
    """The part as JSON, cut at its module's `MAX_REFUSED_BYTES`."""


def hash_of(name: str) -> int:
    """Return Spark's `xxhash64` of the name in UTF-8 (seed 42), -2**63 to 2**63 - 1."""
    unsigned: int = xxh64_intdigest(name.encode(), 42)
    return unsigned - (unsigned >> 63 << 64)


_topic_names = TypeAdapter(TopicName)


def is_topic(name: Any) -> bool:
    """Return whether it is `topic://tenant/namespace/name`, as in `TopicName`."""
    try:
        _topic_names.validate_python(name, strict=True)
    except ValidationError:
        return False
    return True


def packed_ints(values: Iterable[int], n: int) -> Ints:
    """Return n integers as a read-only array."""
    # Twice as fast as `np.fromiter`, three times as fast as `np.array`.
    return np.frombuffer(struct.pack(f"{n}q", *values), np.int64)


def packed_rates(
    msg_in: Sequence[float], bytes_in: Sequence[float], msg_out: Sequence[float], bytes_out: Sequence[float]
) -> Floats:
    """Return four columns of m rates as a read-only array of 4 x m."""
    m = len(msg_in)
    packed = struct.pack(f"{4 * m}d", *msg_in, *bytes_in, *msg_out, *bytes_out)
    return np.frombuffer(packed, np.float64).reshape(4, m)


def split_columns(message: SegmentStatsColumns) -> tuple[BulkColumns, list[RefusedItem]]:
    """Return the valid samples by topic, and the refused ones by index. Total: never raises."""
    if (all_good := _all_good(message)) is not None:
        return all_good, []
    good: dict[str, dict[int, tuple[float, ...]]] = {}
    refused: list[RefusedItem] = []
    names = [name for name, count in zip(message.topics, message.counts, strict=True) for _ in range(count)]
    is_valid: dict[str, bool] = {}
    for index, sample in enumerate(zip(names, message.ids, *message.rates, strict=True)):
        name, segment, *rates = sample
        fault = None
        is_name = isinstance(name, str)
        if not is_name or not (is_valid[name] if name in is_valid else is_valid.setdefault(name, is_topic(name))):
            fault = "topic", "is not topic://tenant/namespace/name"
        elif type(segment) is not int or not 0 <= segment <= MAX_SEGMENT_ID:
            fault = "id", f"is not an integer from 0 to {MAX_SEGMENT_ID}"
        elif bad := next(
            (rate_name for rate_name, rate in zip(_RATE_NAMES, rates, strict=True) if not _is_rate(rate)), None
        ):
            fault = bad, "is not a finite number that is 0 or more"
        elif segment in good.get(name, ()):
            fault = "id", "appears twice in its topic"
        if fault is None:
            good.setdefault(name, {})[segment] = tuple(float(rate) for rate in rates)
        else:
            refused.append(_refuse_sample(index, *fault, sample))
    columns = (
        list(zip(*(rates for by_segment in good.values() for rates in by_segment.values()), strict=True)) or [()] * 4
    )
    segments = Segments.of(
        list(good),
        np.array([hash_of(name) for name in good], np.int64),
        [len(by_segment) for by_segment in good.values()],
        [segment for by_segment in good.values() for segment in by_segment],
    )
    return BulkColumns(message.reporter, message.sampled_at, segments, packed_rates(*columns)), refused


def _all_good(message: SegmentStatsColumns) -> BulkColumns | None:
    """Validate all samples at once, four times as fast; None if one is bad or a topic occurs twice."""
    topics, columns = message.topics, message.rates
    kinds: list[tuple[list[Any], set[type]]] = [(topics, {str}), (message.ids, {int})]
    kinds += [(column, {int, float}) for column in columns]
    if any(set(map(type, column)) - good for column, good in kinds):
        return None
    if len(set(topics)) != len(topics) or not all(map(is_topic, topics)):
        return None
    try:
        hashes = packed_ints(map(hash_of, topics), len(topics))
        segments, rates = Segments.of(topics, hashes, message.counts, message.ids), packed_rates(*columns)
    except (struct.error, OverflowError):
        return None
    if (segments.ids < 0).any() or not (np.isfinite(rates) & (rates >= 0)).all() or not segments.each_once():
        return None
    return BulkColumns(message.reporter, message.sampled_at, segments, rates)


def samples_of(message: SegmentStatsColumns, topic: str) -> BulkColumns:
    """Return the valid samples of one topic, at the cost of these alone."""
    ends = list(accumulate(message.counts))
    parts = [
        range(end - count, end)
        for name, count, end in zip(message.topics, message.counts, ends, strict=True)
        if name == topic
    ]
    indexes = [index for part in parts for index in part]
    columns = ("ids", "msg_rate_in", "bytes_rate_in", "msg_rate_out", "bytes_rate_out")
    chosen = {name: [getattr(message, name)[index] for index in indexes] for name in columns}
    return split_columns(message.model_copy(update={"topics": [topic], "counts": [len(indexes)], **chosen}))[0]


def _is_rate(rate: Any) -> bool:
    try:
        return type(rate) in (int, float) and rate >= 0 and math.isfinite(float(rate))
    except OverflowError:
        return False


def _refuse_sample(index: int, field: str, fault: str, sample: tuple[Any, ...]) -> RefusedItem:
    raw = to_json(dict(zip(("topic", "id", *_RATE_NAMES), sample, strict=True)), inf_nan_mode="constants")[
        :MAX_REFUSED_BYTES
    ]
    return RefusedItem(index, RejectReason.INVALID, f"sample {index}: {field} {fault}", raw)
