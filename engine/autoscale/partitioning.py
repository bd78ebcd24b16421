"""Partitioning of decoded samples into one set of columns per bucket.

Stage: before the shuffle, driven by `engine.kernel.packing`; `engine.autoscale.samples` defines the columns. A
message of form 1 concerns one topic and goes to the bucket of its Kafka key, the topic's name. A message in columns
concerns many topics: its samples are split among the buckets of those topics, and the message is counted once, in
its home, the bucket of its own key.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
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
from schemas.codecs.bulk import BulkStats, decode_stats
from schemas.codecs.bulk_arrays import BulkArrays, decode_many
from schemas.codecs.bulk_columns import decode_columns
from schemas.codecs.columns import BulkColumns, split_columns
from schemas.kafka.messages import MAX_CLOCK_AHEAD_MS, SegmentStats, SegmentStatsColumns
from schemas.kafka.topics import SEGMENT_STATS

Decoded = BulkStats | SegmentStats | BulkColumns
_ID = attrgetter("id")
_FIELDS = attrgetter("id", "msg_rate_in", "bytes_rate_in", "msg_rate_out", "bytes_rate_out")
"""Fields of a sample, in the order of `schemas.codecs.bulk.BulkSegment`."""
_EXACT_IDS = 2.0**53
"""Ids below this survive a round trip through float64."""


class SampleColumns:
    """Columnar path of segment samples, as the kernel drives it (`engine.kernel.family.Columns`)."""

    kind = "samples"
    source = SEGMENT_STATS.name
    messages = (SegmentStats, SegmentStatsColumns)
    schema = SCHEMA

    def decode(self, keys: pa.BinaryArray, values: pa.BinaryArray, sizes: Ints, now: Ints) -> "Messages":
        """Decode the plain messages of a batch."""
        names: list[bytes | None] = keys.to_pylist()
        together = decode_many(names, values, sizes, now + MAX_CLOCK_AHEAD_MS)
        messages = Messages(keys, together)
        is_left = np.ones(len(names), np.bool_)
        if together is not None:
            is_left[together.rows] = False
        left_rows = np.flatnonzero(is_left)
        few = values if len(left_rows) == len(names) else values.take(pa.array(left_rows))
        for row, value, size, arrived_at in zip(
            left_rows.tolist(), few.to_pylist(), sizes[left_rows].tolist(), now[left_rows].tolist(), strict=True
        ):
            if (message := _decode_plain(names[row], value, size, arrived_at)) is None:
                messages.missing.append(row)
            else:
                messages.others[row] = message
        return messages

    def deal(
        self, messages: "Messages", homes: Ints, buckets: int, partition: int, offsets: Ints, timestamps: Ints
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the messages of one Kafka partition as batches of `schema` by bucket, in order.

        `homes` are the buckets of the message keys; `buckets` is the number of buckets.
        """
        if messages.is_empty:
            return
        entries = _entries_of(messages, homes, buckets)
        order = np.argsort(entries.bucket.astype(np.uint16) if buckets <= 1 << 16 else entries.bucket, kind="stable")
        bucket, message, counts = entries.bucket[order], entries.message[order], entries.counts[order]
        indexes = places_of(np.cumsum(entries.counts) - entries.counts, entries.counts, order)
        rates = np.empty((len(indexes), 4))
        for column, of_all in enumerate(entries.rates):
            rates[:, column] = of_all[indexes]
        # In every column the buckets lie one behind the other; the `of_…` arrays hold the start of each bucket.
        starts, heads = starts_of_runs(bucket), starts_of_runs(bucket, message)
        of_entries = np.append(starts, len(bucket))
        of_heads = np.searchsorted(heads, of_entries)
        of_samples = np.append(0, np.cumsum(counts))[of_entries]
        # No name occurs in two buckets, so the names of each bucket are contiguous too.
        topics = entries.topics.take(pa.array(order)).dictionary_encode()
        topic = topics.indices.to_numpy()
        of_topics = np.append(topic[starts], len(topics.dictionary))
        topic = np.repeat(topic - np.repeat(of_topics[:-1], np.diff(of_entries)), counts)
        message = message[heads]
        rank = np.repeat(np.arange(len(starts)), np.diff(of_heads))
        names, sampled_at, in_columns = messages.by_row(len(homes))
        by = pa.array(names, pa.string()).dictionary_encode()
        reporter, reporters, of_reporters = _shared_out(by.indices.to_numpy()[message], rank, len(by.dictionary))
        at_home = np.where(in_columns, AS_A_WHOLE, BY_SAMPLES)[message]
        batch = batch_of(
            partition,
            {
                "topics": (topics.dictionary, of_topics),
                "reporters": (by.dictionary.take(pa.array(reporters)), of_reporters),
                "reporter": (reporter, of_heads),
                "sampled_at": (sampled_at[message], of_heads),
                "offset": (offsets[message], of_heads),
                "timestamp": (timestamps[message], of_heads),
                "counted": (np.where(homes[message] == bucket[heads], at_home, ELSEWHERE), of_heads),
                "samples": (np.add.reduceat(counts, heads), of_heads),
                "topic": (topic, of_samples),
                "segment": (entries.segments[indexes], of_samples),
                "rates": (rates.ravel(), 4 * of_samples),
            },
        )
        for row, bucket_number in enumerate(bucket[starts].tolist()):
            yield bucket_number, batch.slice(row, 1)

    def from_arrow(self, batches: Sequence[pa.RecordBatch]) -> Samples:
        """Read the messages of some batches, in the order of partition and offset."""
        return Samples.from_arrow(batches)


@dataclass
class Messages:
    """Decoded messages of some rows of a batch."""

    keys: pa.BinaryArray
    """Keys of all rows."""
    together: BulkArrays | None
    """Messages decoded together; disjoint from `others` and `missing`."""
    others: dict[int, Decoded] = field(default_factory=dict)
    """Messages decoded one by one, by row."""
    missing: list[int] = field(default_factory=list)
    """Rows of messages that need the full parser."""

    @property
    def is_empty(self) -> bool:
        return self.together is None and not self.others

    def put(self, row: int, message: Any) -> Sequence[RefusedPart]:
        """Add a parsed message; return the parts of it that are refused."""
        self.others[row], refused = (
            split_columns(message) if isinstance(message, SegmentStatsColumns) else (message, ())
        )
        return refused

    def by_row(self, rows: int) -> tuple[list[str], Ints, npt.NDArray[np.bool_]]:
        """Return by row the reporter, the sampling time, and if it is in columns; unspecified without message."""
        reporters, sampled_at, in_columns = [""] * rows, np.zeros(rows, np.int64), np.zeros(rows, np.bool_)
        if (together := self.together) is not None:
            sampled_at[together.rows] = together.sampled_at
            if len(together.rows) == rows:
                return together.reporters, sampled_at, in_columns
            for row, name in zip(together.rows.tolist(), together.reporters, strict=True):
                reporters[row] = name
        for row, message in self.others.items():
            reporters[row], sampled_at[row], in_columns[row] = (
                message.reporter,
                message.sampled_at,
                isinstance(message, BulkColumns),
            )
        return reporters, sampled_at, in_columns


def _decode_plain(key: bytes | None, value: bytes | None, size: int, now: int) -> Decoded | None:
    """Decode a plain message; None if it needs the full parser."""
    if (stats := decode_stats(key, value, size)) is None:
        return decode_columns(key, value, size, now)
    return None if stats.sampled_at > now + MAX_CLOCK_AHEAD_MS else stats


@dataclass(frozen=True)
class _Entries:
    """One entry per message and topic, with its number of samples."""

    topics: pa.StringArray
    message: Ints
    """Row of the entry's message."""
    bucket: Ints
    counts: Ints
    segments: Ints
    """Segment id by sample."""
    rates: Floats
    """Rates, 4 x samples."""

    @classmethod
    def together(cls, parts: "Sequence[_Entries]") -> "_Entries":
        """Concatenate entries in the order of their messages."""
        if len(parts) == 1:
            return parts[0]
        topics = pa.concat_arrays([part.topics for part in parts])
        message, bucket, counts, segments = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("message", "bucket", "counts", "segments")
        )
        rates = np.concatenate([part.rates for part in parts], axis=1)
        if (message[1:] >= message[:-1]).all():
            return cls(topics, message, bucket, counts, segments, rates)
        order = np.argsort(message, kind="stable")
        indexes = places_of(np.cumsum(counts) - counts, counts, order)
        return cls(
            topics.take(pa.array(order)),
            message[order],
            bucket[order],
            counts[order],
            segments[indexes],
            rates[:, indexes],
        )


def _shared_out(codes: Ints, rank: Ints, number: int) -> tuple[Ints, Ints, Ints]:
    """Renumber codes within each bucket.

    `codes` are below `number`; `rank` is the bucket of each, ascending. Returns the index of each code among the
    codes of its bucket, the codes of each bucket one behind the other, and where those of each bucket begin.
    """
    # One cell per bucket and code: prefix sums over the cells in use number the codes of each bucket without
    # sorting.
    key = rank * number + codes
    seen = np.zeros((int(rank[-1]) + 1) * number, np.bool_)
    seen[key] = True
    begins = np.append(0, np.cumsum(seen.reshape(-1, number).sum(axis=1)))
    return (np.cumsum(seen) - 1)[key] - begins[rank], np.flatnonzero(seen) % number, begins


def _entries_of(messages: Messages, homes: Ints, buckets: int) -> _Entries:
    parts = []
    if (many := messages.together) is not None:
        topics = messages.keys.take(pa.array(many.rows)).cast(pa.string())
        parts.append(_Entries(topics, many.rows, homes[many.rows], many.counts, many.ids, many.rates))
    for in_columns, make in ((True, _of_columns), (False, _of_topics)):
        rows = np.array(
            [row for row, message in messages.others.items() if isinstance(message, BulkColumns) == in_columns],
            np.int64,
        )
        if len(rows):
            rows.sort()
            parts.append(make([messages.others[row] for row in rows.tolist()], rows, homes[rows], buckets))
    return _Entries.together(parts)


def _of_topics(messages: Sequence[Any], rows: Ints, homes: Ints, buckets: int) -> _Entries:
    """Return the entries of messages that concern one topic each."""
    counts = np.fromiter((len(message.segments) for message in messages), np.int64, len(messages))
    segments = [segment for message in messages for segment in message.segments]
    # A single pass over the samples takes a third of the time of one pass per field.
    values = astuple if all(isinstance(message, BulkStats) for message in messages) else _FIELDS
    fields = np.fromiter(chain.from_iterable(map(values, segments)), np.float64, 5 * len(segments)).reshape(-1, 5).T
    if len(segments) and fields[0].max() < _EXACT_IDS:
        ids = fields[0].astype(np.int64)
    else:
        ids = np.fromiter(map(_ID, segments), np.int64, len(segments))
    topics = pa.array([message.topic for message in messages], pa.string())
    return _Entries(topics, rows, homes, counts, ids, fields[1:])


def _of_columns(messages: Sequence[Any], rows: Ints, homes: Ints, buckets: int) -> _Entries:
    """Return the entries of messages in columns; one without topics has an empty entry in its home."""
    which = [part.segments for part in messages]
    lengths = [len(part.topics) for part in which]
    bucket = np.mod(np.concatenate([part.hashes for part in which]), buckets)
    owners = np.repeat(np.arange(len(messages)), lengths)
    is_home = np.zeros(len(messages), np.bool_)
    is_home[owners[bucket == homes[owners]]] = True
    entries = _Entries(
        pa.array(chain.from_iterable(part.topics for part in which), pa.string(), size=sum(lengths)),
        rows[owners],
        bucket,
        np.concatenate([part.counts for part in which]),
        np.concatenate([part.ids for part in which]),
        np.concatenate([part.rates for part in messages], axis=1),
    )
    if is_home.all():
        return entries
    away, nothing = np.flatnonzero(~is_home), np.zeros(0, np.int64)
    without = _Entries(
        pa.array([f"none of bucket {bucket}" for bucket in homes[away].tolist()], pa.string()),
        rows[away],
        homes[away],
        np.zeros(len(away), np.int64),
        nothing,
        np.zeros((4, 0)),
    )
    return _Entries.together([entries, without])
