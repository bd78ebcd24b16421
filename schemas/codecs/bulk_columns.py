"""Fast decoder of messages in columns (form 2), for messages in which everything is plain.

Stage: first of the job, where `schemas.kafka.messages` and `schemas.codecs.columns` take 5 µs per sample and this 0.2.
They accept every message accepted here without refusing a sample, with equal values, whatever was decoded before
(property test over raw bytes); other messages are left to them. A reporter's repeated topics and segment ids are
decoded once.
"""

import sys
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from schemas.base import MAX_MILLIS, MAX_NAME_BYTES, MAX_SEGMENT_ID
from schemas.codecs.columns import BulkColumns, Ints, Segments, hash_of, is_topic, packed_ints, packed_rates
from schemas.kafka.messages import MAX_CLOCK_AHEAD_MS, MAX_SAMPLES_PER_MESSAGE, MAX_VALUE_BYTES


class TopicDirectory:
    """Cache of hashes of valid topic names: most messages concern topics seen before."""

    def __init__(self, most: int = 1_000_000) -> None:
        """Create a cache of `most` names, which is cleared when full."""
        self._most = most
        self._known: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._known)

    def hashes(self, names: list[str]) -> Ints | None:
        """Return `hash_of` each name; None if one is no topic name."""
        cache = self._known
        try:
            return packed_ints(map(cache.__getitem__, names), len(names))
        except KeyError:
            pass
        results = []
        for name in names:
            if (cached := cache.get(name)) is None:
                if not is_topic(name):
                    return None
                if len(cache) >= self._most:
                    cache.clear()
                cached = cache[name] = hash_of(name)
            results.append(cached)
        return packed_ints(results, len(results))


_Column = Meta(max_length=MAX_SAMPLES_PER_MESSAGE)
_Rates = Annotated[list[Annotated[float, Meta(ge=0)]], _Column]
_decode_topics = msgspec.json.Decoder(Annotated[list[str], _Column]).decode
_decode_counts = msgspec.json.Decoder(
    Annotated[list[Annotated[int, Meta(ge=0, le=MAX_SAMPLES_PER_MESSAGE)]], _Column]
).decode
_decode_ids = msgspec.json.Decoder(Annotated[list[Annotated[int, Meta(ge=0, le=MAX_SEGMENT_ID)]], _Column]).decode


class _Plain(msgspec.Struct, rename="camel", gc=False, forbid_unknown_fields=True):
    """A plain message; see `SegmentStatsColumns`."""

    v: Literal[2]
    reporter: Annotated[str, Meta(min_length=1, max_length=MAX_NAME_BYTES)]
    sampled_at: Annotated[int, Meta(ge=0, le=MAX_MILLIS)]
    topics: msgspec.Raw
    counts: msgspec.Raw
    ids: msgspec.Raw
    msg_rate_in: _Rates
    bytes_rate_in: _Rates
    msg_rate_out: _Rates
    bytes_rate_out: _Rates


_decode = msgspec.json.Decoder(_Plain).decode


class SegmentsDirectory:
    """Cache of messages' segments by their bytes, so that equal bytes are decoded and checked once."""

    def __init__(self, most: int = 4_000_000) -> None:
        """Create a cache that is cleared above `most` samples and topics in total.

        A fleet of a million segments, each of another topic, has two million.
        """
        self._most, self._size = most, 0
        self._names = TopicDirectory()
        self._known: dict[tuple[bytes, bytes, bytes], Segments] = {}

    def __len__(self) -> int:
        return self._size

    def topic_hashes(self, names: list[str]) -> Ints | None:
        """Return the hashes as `TopicDirectory.hashes`."""
        return self._names.hashes(names)

    def segments(self, topics: bytes, counts: bytes, ids: bytes) -> Segments | None:
        """Return the segments of three JSON arrays as in `SegmentStatsColumns`; None if not plain."""
        key = topics, counts, ids
        if (cached := self._known.get(key)) is None:
            cached = self._decoded(*key)
            if cached is not None:
                size = len(cached.topics) + len(cached)
                if self._size + size > self._most:
                    self._known.clear()
                    self._size = 0
                self._known[key] = cached
                self._size += size
        return cached

    def _decoded(self, topics: bytes, counts: bytes, ids: bytes) -> Segments | None:
        try:
            names, of_each, segments = _decode_topics(topics), _decode_counts(counts), _decode_ids(ids)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        if len(of_each) != len(names) or sum(of_each) != len(segments) or len(set(names)) != len(names):
            return None
        if (hashes := self._names.hashes(names)) is None:
            return None
        # Share one string per name among all messages.
        decoded = Segments.of(list(map(sys.intern, names)), hashes, of_each, segments)
        return decoded if decoded.each_once() else None


_directory = SegmentsDirectory()
topic_hashes = _directory.topic_hashes
"""Return `schemas.codecs.columns.hash_of` each name; None if one is no topic name."""


def decode_columns(key: bytes | None, value: bytes | None, size: int, now: int) -> BulkColumns | None:
    """Decode the samples; None if they need `parse_message` and `split_columns`. Total: never raises.

    `size` is the length of the whole value in bytes, as in `parse_message`; `now` in milliseconds, the later of
    Kafka's time and the job's.
    """
    if key is None or value is None or max(size, len(value)) > MAX_VALUE_BYTES:
        return None
    try:
        plain = _decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if plain.reporter.encode() != key or plain.sampled_at > now + MAX_CLOCK_AHEAD_MS:
        return None
    segments = _directory.segments(bytes(plain.topics), bytes(plain.counts), bytes(plain.ids))
    rates = plain.msg_rate_in, plain.bytes_rate_in, plain.msg_rate_out, plain.bytes_rate_out
    if segments is None or {*map(len, rates)} != {len(segments)}:
        return None
    return BulkColumns(plain.reporter, plain.sampled_at, segments, packed_rates(*rates))
