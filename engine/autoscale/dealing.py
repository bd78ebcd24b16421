"""Samples on their way to their buckets: decoded messages of either form in, bodies of columns by bucket out.

Stage: before the shuffle, driven by `engine.kernel.packing`; `engine.autoscale.samples` has the columns. A message of
form 1 is of one topic and goes to the bucket of its Kafka key, which is the topic's name. One in columns is of many and
is dealt out to the buckets of their names; at home, in the bucket of its own key, it is counted, once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec.structs import astuple

from engine.autoscale.samples import (
    AS_A_WHOLE,
    BY_SAMPLES,
    ELSEWHERE,
    SCHEMA,
    Floats,
    Ints,
    Samples,
    batch_of,
    places_of,
    starts_of_runs,
)
from engine.kernel.family import RefusedPart
from schemas.bulk import BulkStats, decode_stats
from schemas.bulk_columns import decode_columns
from schemas.columns import BulkColumns, split_columns
from schemas.kafka import SEGMENT_STATS
from schemas.messages import MAX_CLOCK_AHEAD_MS, SegmentStats, SegmentStatsColumns

Decoded = BulkStats | SegmentStats | BulkColumns
_ID = attrgetter("id")
_FIELDS = attrgetter("id", "msg_rate_in", "bytes_rate_in", "msg_rate_out", "bytes_rate_out")
"""Of a sample, in the order of `schemas.bulk.BulkSegment`."""
_EXACT_IDS = 2.0**53
"""Smaller ids are what they were after having been floats."""


class SampleColumns:
    """The short way of segment samples, as the kernel drives it (`engine.kernel.family.Columns`)."""

    kind = "samples"
    source = SEGMENT_STATS.name
    messages = (SegmentStats, SegmentStatsColumns)
    schema = SCHEMA

    def decode(self, key: bytes | None, value: bytes | None, size: int, now: int) -> Decoded | None:
        """A plain message, or None when it has to be parsed."""
        stats = decode_stats(key, value, size)
        if stats is None:
            return decode_columns(key, value, size, now)
        return None if stats.sampled_at > now + MAX_CLOCK_AHEAD_MS else stats

    def read(self, message: Any) -> tuple[Decoded, Sequence[RefusedPart]]:
        """The good samples of a message that was parsed, and the others."""
        return split_columns(message) if isinstance(message, SegmentStatsColumns) else (message, ())

    def deal(
        self, messages: Sequence[Decoded], homes: Ints, buckets: int, partition: int, offsets: Ints, timestamps: Ints
    ) -> Iterator[tuple[int, pa.RecordBatch]]:  # fmt: skip
        """Messages of one Kafka partition, in its order, as batches of `schema` by bucket; `homes` are the buckets of
        their keys, `buckets` is how many there are."""
        entries = _entries_of(messages, homes, buckets)
        order = np.argsort(entries.bucket.astype(np.uint16) if buckets <= 1 << 16 else entries.bucket, kind="stable")
        bucket, message, counts = entries.bucket[order], entries.message[order], entries.counts[order]
        places = places_of(np.cumsum(entries.counts) - entries.counts, entries.counts, order)
        rates = np.empty((len(places), 4))
        for column, of_all in enumerate(entries.rates):
            rates[:, column] = of_all[places]
        # In all columns the buckets lie one behind the other. `of_…` says where each one's begin.
        starts, heads = starts_of_runs(bucket), starts_of_runs(bucket, message)
        of_entries = np.append(starts, len(bucket))
        of_heads = np.searchsorted(heads, of_entries)
        of_samples = np.append(0, np.cumsum(counts))[of_entries]
        # No two buckets have a name in common, so the names of each lie together too.
        topics = pa.array(entries.topics, pa.string()).take(pa.array(order)).dictionary_encode()
        topic = topics.indices.to_numpy()
        of_topics = np.append(topic[starts], len(topics.dictionary))
        topic = np.repeat(topic - np.repeat(of_topics[:-1], np.diff(of_entries)), counts)
        message = message[heads]
        rank = np.repeat(np.arange(len(starts)), np.diff(of_heads))
        by = pa.array([one.reporter for one in messages], pa.string()).dictionary_encode()
        reporter, reporters, of_reporters = _shared_out(by.indices.to_numpy()[message], rank, len(by.dictionary))
        as_whole = np.fromiter((isinstance(one, BulkColumns) for one in messages), np.bool_, len(messages))
        at_home = np.where(as_whole, AS_A_WHOLE, BY_SAMPLES)[message]
        sampled_at = np.fromiter((one.sampled_at for one in messages), np.int64, len(messages))
        batch = batch_of(partition, {
            "topics": (topics.dictionary, of_topics),
            "reporters": (by.dictionary.take(pa.array(reporters)), of_reporters),
            "reporter": (reporter, of_heads), "sampled_at": (sampled_at[message], of_heads),
            "offset": (offsets[message], of_heads), "timestamp": (timestamps[message], of_heads),
            "counted": (np.where(homes[message] == bucket[heads], at_home, ELSEWHERE), of_heads),
            "samples": (np.add.reduceat(counts, heads), of_heads),
            "topic": (topic, of_samples), "segment": (entries.segments[places], of_samples),
            "rates": (rates.ravel(), 4 * of_samples),
        })  # fmt: skip
        for row, of in enumerate(bucket[starts].tolist()):
            yield of, batch.slice(row, 1)

    def from_arrow(self, batches: Sequence[pa.RecordBatch]) -> Samples:
        """All messages of some batches, in the order of partition and offset."""
        return Samples.from_arrow(batches)


@dataclass(frozen=True)
class _Entries:
    """What messages say of topics: an entry for each message and topic, with that many samples."""

    topics: list[str]
    message: Ints
    """The place of its message."""
    bucket: Ints
    counts: Ints
    segments: Ints
    """By sample."""
    rates: Floats
    """4 x samples."""

    @classmethod
    def together(cls, parts: Sequence[_Entries]) -> _Entries:
        """All entries, in the order of their messages."""
        if len(parts) == 1:
            return parts[0]
        topics = [name for part in parts for name in part.topics]
        message, bucket, counts, segments = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("message", "bucket", "counts", "segments")
        )
        rates = np.concatenate([part.rates for part in parts], axis=1)
        if (message[1:] >= message[:-1]).all():
            return cls(topics, message, bucket, counts, segments, rates)
        order = np.argsort(message, kind="stable")
        places = places_of(np.cumsum(counts) - counts, counts, order)
        topics = [topics[place] for place in order.tolist()]
        return cls(topics, message[order], bucket[order], counts[order], segments[places], rates[:, places])


def _shared_out(codes: Ints, rank: Ints, number: int) -> tuple[Ints, Ints, Ints]:
    """Codes below `number`, each of a bucket (by rank, in order), as places among those that its bucket has; the codes
    that each has, one bucket behind the other; and where those of each begin."""
    key = rank * number + codes
    seen = np.zeros((int(rank[-1]) + 1) * number, np.bool_)
    seen[key] = True
    begins = np.append(0, np.cumsum(seen.reshape(-1, number).sum(axis=1)))
    return (np.cumsum(seen) - 1)[key] - begins[rank], np.flatnonzero(seen) % number, begins


def _entries_of(messages: Sequence[Decoded], homes: Ints, buckets: int) -> _Entries:
    in_columns = [place for place, one in enumerate(messages) if isinstance(one, BulkColumns)]
    if not in_columns:
        return _of_topics(messages, np.arange(len(messages)), homes)
    of_many: list[BulkColumns] = [messages[place] for place in in_columns]  # type: ignore[misc]
    parts = [_of_columns(of_many, np.array(in_columns), homes[in_columns], buckets)]
    if len(in_columns) < len(messages):
        others = np.setdiff1d(np.arange(len(messages)), in_columns)
        parts.append(_of_topics([messages[place] for place in others.tolist()], others, homes[others]))
    return _Entries.together(parts)


def _of_topics(messages: Sequence[Any], places: Ints, homes: Ints) -> _Entries:
    """Messages of one topic each."""
    counts = np.fromiter((len(one.segments) for one in messages), np.int64, len(messages))
    segments = [segment for one in messages for segment in one.segments]
    # One walk over the samples, not one for each of their five fields, takes a third of the time.
    values = astuple if all(isinstance(one, BulkStats) for one in messages) else _FIELDS
    fields = np.fromiter(chain.from_iterable(map(values, segments)), np.float64, 5 * len(segments)).reshape(-1, 5).T
    if len(segments) and fields[0].max() < _EXACT_IDS:
        ids = fields[0].astype(np.int64)
    else:
        ids = np.fromiter(map(_ID, segments), np.int64, len(segments))
    return _Entries([one.topic for one in messages], places, homes, counts, ids, fields[1:])


def _of_columns(messages: Sequence[BulkColumns], places: Ints, homes: Ints, buckets: int) -> _Entries:
    """Messages of many topics. One that has none in its home has an entry there, of no topic and without samples."""
    which = [one.segments for one in messages]
    lengths = [len(one.topics) for one in which]
    bucket = np.mod(np.concatenate([one.hashes for one in which]), buckets)
    of = np.repeat(np.arange(len(messages)), lengths)
    is_home = np.zeros(len(messages), np.bool_)
    is_home[of[bucket == homes[of]]] = True
    entries = _Entries(
        list(chain.from_iterable(one.topics for one in which)),
        places[of],
        bucket,
        np.concatenate([one.counts for one in which]),
        np.concatenate([one.ids for one in which]),
        np.concatenate([one.rates for one in messages], axis=1),
    )
    if is_home.all():
        return entries
    away, nothing = np.flatnonzero(~is_home), np.zeros(0, np.int64)
    without = _Entries(
        [f"none of bucket {bucket}" for bucket in homes[away].tolist()],
        places[away],
        homes[away],
        np.zeros(len(away), np.int64),
        nothing,
        np.zeros((4, 0)),
    )
    return _Entries.together([entries, without])
