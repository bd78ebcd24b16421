"""Samples in columns: from a message of one reporter (`SegmentStatsColumns`) to arrays, and what of it is refused.

Stage: first of the job, beside `schemas.bulk`. `decode_columns` is the short way, for messages in which everything is
plain; `split_columns` takes any message that `parse_message` accepts and judges each sample by itself. Where the short
way answers, both answer the same (a property test over raw bytes says so).
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json
from xxhash import xxh64_intdigest

from schemas.base import MAX_MILLIS, MAX_NAME_BYTES, MAX_SEGMENT_ID, TopicName
from schemas.messages import (
    MAX_CLOCK_AHEAD_MS,
    MAX_SAMPLES_PER_MESSAGE,
    MAX_VALUE_BYTES,
    RejectReason,
    SegmentStatsColumns,
)

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MAX_REFUSED_BYTES = 2048
"""What is kept of a refused sample; a good topic's name may have half of that."""
_RATE_NAMES = ("msgRateIn", "bytesRateIn", "msgRateOut", "bytesRateOut")


@dataclass(frozen=True)
class BulkColumns:
    """n topics with m samples of one reporter at one instant; all of them are valid."""

    reporter: str
    sampled_at: int
    """Milliseconds."""
    topics: list[str]
    """n, each once."""
    hashes: Ints
    """n; `hash_of` each topic's name."""
    counts: Ints
    """n; how many samples each topic has. The samples are in the order of the topics."""
    ids: Ints
    """m segment ids, each once in its topic."""
    rates: Floats
    """4 x m, per second, in the order of `SegmentSample`."""

    def __len__(self) -> int:
        return len(self.ids)

    def buckets(self, number: int) -> Ints:
        """The bucket of each topic (n), as `streaming.sources.bucket_of` answers for the topic's name as a key."""
        found: Ints = np.mod(self.hashes, number)
        return found


@dataclass(frozen=True)
class RefusedSample:
    """A sample that is not accepted, of a message whose others may be."""

    index: int
    """Its place in the message's columns, from 0."""
    reason: RejectReason
    detail: str
    """Where and what was wrong, for a person; names the index."""
    raw: bytes
    """The sample as JSON, cut at `MAX_REFUSED_BYTES`."""


def hash_of(name: str) -> int:
    """What Spark's `xxhash64` answers for the name as UTF-8 (seed 42), -2**63 to 2**63 - 1."""
    found: int = xxh64_intdigest(name.encode(), 42)
    return found - (found >> 63 << 64)


class TopicDirectory:
    """The hashes of names that are known to be of topics: most messages are of topics that were seen before."""

    _names = TypeAdapter(TopicName)

    def __init__(self, most: int = 1_000_000) -> None:
        """`most`: so many names are kept; then it begins again."""
        self._most = most
        self._known: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._known)

    def hashes(self, names: list[str]) -> Ints | None:
        """`hash_of` each name; None when one of them is no topic's."""
        known = self._known
        try:
            return np.frombuffer(struct.pack(f"{len(names)}q", *map(known.__getitem__, names)), np.int64)
        except KeyError:
            pass
        found = np.empty(len(names), np.int64)
        for place, name in enumerate(names):
            one = known.get(name)
            if one is None:
                if not self.is_topic(name):
                    return None
                if len(known) >= self._most:
                    known.clear()
                one = known[name] = hash_of(name)
            found[place] = one
        return found

    def is_topic(self, name: Any) -> bool:
        """Whether it is `topic://tenant/namespace/name`, as `TopicName` says."""
        try:
            self._names.validate_python(name, strict=True)
        except ValidationError:
            return False
        return True


_directory = TopicDirectory()
_Column = Meta(max_length=MAX_SAMPLES_PER_MESSAGE)
_Rates = Annotated[list[Annotated[float, Meta(ge=0)]], _Column]


class _Plain(msgspec.Struct, rename="camel", gc=False, forbid_unknown_fields=True):
    """A message in which everything is as it should be; see `SegmentStatsColumns`."""

    v: Literal[2]
    reporter: Annotated[str, Meta(min_length=1, max_length=MAX_NAME_BYTES)]
    sampled_at: Annotated[int, Meta(ge=0, le=MAX_MILLIS)]
    topics: Annotated[list[str], _Column]
    counts: Annotated[list[Annotated[int, Meta(ge=0, le=MAX_SAMPLES_PER_MESSAGE)]], _Column]
    ids: Annotated[list[Annotated[int, Meta(ge=0, le=MAX_SEGMENT_ID)]], _Column]
    msg_rate_in: _Rates
    bytes_rate_in: _Rates
    msg_rate_out: _Rates
    bytes_rate_out: _Rates


_decode = msgspec.json.Decoder(_Plain).decode


def decode_columns(key: bytes | None, value: bytes | None, size: int, now: int) -> BulkColumns | None:
    """The samples, or None when `parse_message` and `split_columns` have to look at it. Total: raises for no input.

    `size` is the length of the whole value in bytes, as in `parse_message`; `now` milliseconds, the later of Kafka's
    time and the job's.
    """
    if key is None or value is None or max(size, len(value)) > MAX_VALUE_BYTES:
        return None
    try:
        plain = _decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    topics, ids = plain.topics, plain.ids
    m = len(ids)
    rates = plain.msg_rate_in, plain.bytes_rate_in, plain.msg_rate_out, plain.bytes_rate_out
    if (
        plain.reporter.encode() != key
        or plain.sampled_at > now + MAX_CLOCK_AHEAD_MS
        or len(plain.counts) != len(topics)
        or sum(plain.counts) != m
        or any(len(column) != m for column in rates)
        or len(set(topics)) != len(topics)
    ):
        return None
    hashes = _directory.hashes(topics)
    if hashes is None:
        return None
    found = _columns(plain.reporter, plain.sampled_at, topics, hashes, plain.counts, ids, rates)
    return found if _each_once(found.counts, found.ids) else None


def _columns(
    reporter: str, sampled_at: int, topics: list[str], hashes: Ints, counts: list[int], ids: list[int],
    rates: tuple[list[float], ...],
) -> BulkColumns:  # fmt: skip
    # Four times as fast as `np.array` of the lists.
    n, m = len(topics), len(ids)
    a, b, c, d = rates
    return BulkColumns(
        reporter,
        sampled_at,
        topics,
        hashes,
        np.frombuffer(struct.pack(f"{n}q", *counts), np.int64),
        np.frombuffer(struct.pack(f"{m}q", *ids), np.int64),
        np.frombuffer(struct.pack(f"{4 * m}d", *a, *b, *c, *d), np.float64).reshape(4, m),
    )


def _each_once(counts: Ints, ids: Ints) -> bool:
    """Whether no topic has a segment id twice."""
    if len(counts) == len(ids) and (counts == 1).all():
        return True
    of = np.repeat(np.arange(len(counts)), counts)
    if ((ids[1:] > ids[:-1]) | (of[1:] != of[:-1])).all():
        return True
    order = np.lexsort((ids, of))
    of, ids = of[order], ids[order]
    return bool(((ids[1:] != ids[:-1]) | (of[1:] != of[:-1])).all())


def split_columns(message: SegmentStatsColumns) -> tuple[BulkColumns, list[RefusedSample]]:
    """The good samples, topic by topic, and those that are refused, by their index. Total: raises for no message."""
    good: dict[str, dict[int, tuple[float, ...]]] = {}
    refused: list[RefusedSample] = []
    names = [name for name, count in zip(message.topics, message.counts, strict=True) for _ in range(count)]
    known: dict[str, bool] = {}
    for index, sample in enumerate(zip(names, message.ids, *message.rates, strict=True)):
        name, segment, *rates = sample
        fault = None
        is_name = isinstance(name, str)
        if not is_name or not (known[name] if name in known else known.setdefault(name, _directory.is_topic(name))):
            fault = "topic", "is not topic://tenant/namespace/name"
        elif type(segment) is not int or not 0 <= segment <= MAX_SEGMENT_ID:
            fault = "id", f"is not an integer from 0 to {MAX_SEGMENT_ID}"
        elif bad := next((one for one, rate in zip(_RATE_NAMES, rates, strict=True) if not _is_rate(rate)), None):
            fault = bad, "is not a finite number that is 0 or more"
        elif segment in good.get(name, ()):
            fault = "id", "appears twice in its topic"
        if fault is None:
            good.setdefault(name, {})[segment] = tuple(float(rate) for rate in rates)
        else:
            refused.append(_refused(index, *fault, sample))
    columns = list(zip(*(rates for of in good.values() for rates in of.values()), strict=True)) or [()] * 4
    topics = list(good)
    return _columns(
        message.reporter,
        message.sampled_at,
        topics,
        np.array([hash_of(name) for name in topics], np.int64),
        [len(of) for of in good.values()],
        [segment for of in good.values() for segment in of],
        tuple(map(list, columns)),
    ), refused


def _is_rate(rate: Any) -> bool:
    try:
        return type(rate) in (int, float) and rate >= 0 and math.isfinite(float(rate))
    except OverflowError:
        return False


def _refused(index: int, field: str, fault: str, sample: tuple[Any, ...]) -> RefusedSample:
    raw = to_json(dict(zip(("topic", "id", *_RATE_NAMES), sample, strict=True)), inf_nan_mode="constants")[
        :MAX_REFUSED_BYTES
    ]
    return RefusedSample(index, RejectReason.INVALID, f"sample {index}: {field} {fault}", raw)
