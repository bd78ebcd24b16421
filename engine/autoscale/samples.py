"""Segment samples of many messages in columns: from the first stage of the job, through the shuffle, to the filter.

Stage: `engine.kernel.packing` makes them, `engine.autoscale.family` takes them in. One Arrow record batch holds one row
per message; its segments are lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
import pyarrow as pa

from decisions.autoscale.clocks import NEVER
from schemas.bulk import BulkStats, decode_stats
from schemas.kafka import SEGMENT_STATS
from schemas.messages import MAX_CLOCK_AHEAD_MS, SegmentStats

_LIST_OF_RATES = pa.list_(pa.float64())
SCHEMA = pa.schema([
    ("topic", pa.string()), ("reporter", pa.string()), ("sampled_at", pa.int64()),
    ("partition", pa.int32()), ("offset", pa.int64()), ("timestamp", pa.int64()), ("segment", pa.list_(pa.int64())),
    ("msg_rate_in", _LIST_OF_RATES), ("bytes_rate_in", _LIST_OF_RATES),
    ("msg_rate_out", _LIST_OF_RATES), ("bytes_rate_out", _LIST_OF_RATES),
])  # fmt: skip
"""Instants are milliseconds, rates per second."""
_RATE_NAMES = SCHEMA.names[-4:]
_ID = attrgetter("id")
_RATES = tuple(attrgetter(name) for name in _RATE_NAMES)


@dataclass(frozen=True)
class Samples:
    """n messages with m segment samples, message by message."""

    topics: Sequence[str]
    reporters: Sequence[str]
    sampled_at: np.ndarray
    partitions: np.ndarray
    offsets: np.ndarray
    timestamps: np.ndarray
    """Kafka's, milliseconds; `NEVER` where there is none."""
    counts: np.ndarray
    """Segments of each message."""
    segments: np.ndarray
    rates: np.ndarray
    """m x 4."""

    def __len__(self) -> int:
        return len(self.topics)

    @classmethod
    def from_arrow(cls, batches: Sequence[pa.RecordBatch]) -> Samples:
        """All messages of some batches of `SCHEMA`, in the order of partition and offset."""
        table = pa.Table.from_batches(batches, SCHEMA)
        order = np.lexsort((table["offset"].to_numpy(), table["partition"].to_numpy()))
        if (order[1:] < order[:-1]).any():
            table = table.take(order)
        (batch,) = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], SCHEMA)]
        lists = batch.column("segment")
        rates = np.empty((len(lists.flatten()), 4))
        for column, name in enumerate(_RATE_NAMES):
            rates[:, column] = batch.column(name).flatten().to_numpy()
        return cls(
            batch.column("topic").to_pylist(),
            batch.column("reporter").to_pylist(),
            batch.column("sampled_at").to_numpy(),
            batch.column("partition").to_numpy(),
            batch.column("offset").to_numpy(),
            np.where((at := batch.column("timestamp").to_numpy()) > 0, at, NEVER),
            np.diff(lists.offsets.to_numpy()),
            lists.flatten().to_numpy(),
            rates,
        )

    def to_arrow(self) -> pa.RecordBatch:
        """The inverse of `from_arrow`."""
        bounds = pa.array(np.concatenate([[0], np.cumsum(self.counts)]), pa.int32())
        columns = [self.segments, *self.rates.T]
        return pa.RecordBatch.from_arrays(
            [
                pa.array(self.topics, pa.string()),
                pa.array(self.reporters, pa.string()),
                *(pa.array(one) for one in (self.sampled_at, self.partitions, self.offsets, self.timestamps)),
                *(pa.ListArray.from_arrays(bounds, np.ascontiguousarray(column)) for column in columns),
            ],
            schema=SCHEMA,
        )


def to_arrow(
    messages: Sequence[BulkStats | SegmentStats], partitions: Iterable[int], offsets: Iterable[int],
    timestamps: Iterable[int],
) -> pa.RecordBatch:  # fmt: skip
    """The messages as one batch of `SCHEMA`."""
    counts = [len(message.segments) for message in messages]
    bounds = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    segments = [segment for message in messages for segment in message.segments]
    total = len(segments)
    ids = np.fromiter(map(_ID, segments), np.int64, total)
    lists = [pa.ListArray.from_arrays(bounds, ids)]
    lists += [pa.ListArray.from_arrays(bounds, np.fromiter(map(get, segments), np.float64, total)) for get in _RATES]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([message.topic for message in messages], pa.string()),
            pa.array([message.reporter for message in messages], pa.string()),
            pa.array([message.sampled_at for message in messages], pa.int64()),
            pa.array(partitions, pa.int32()),
            pa.array(offsets, pa.int64()),
            pa.array(timestamps, pa.int64()),
            *lists,
        ],
        schema=SCHEMA,
    )


class SampleColumns:
    """The short way of segment samples, as the kernel drives it (`engine.kernel.family.Columns`)."""

    kind = "samples"
    source = SEGMENT_STATS.name
    message = SegmentStats
    schema = SCHEMA

    def decode(self, key: bytes | None, value: bytes | None, size: int, now: int) -> BulkStats | None:
        """A plain sample, or None when it has to be parsed."""
        stats = decode_stats(key, value, size)
        return None if stats is None or stats.sampled_at > now + MAX_CLOCK_AHEAD_MS else stats

    def to_arrow(
        self, messages: Sequence[BulkStats | SegmentStats], partitions: Iterable[int], offsets: Iterable[int],
        timestamps: Iterable[int],
    ) -> pa.RecordBatch:  # fmt: skip
        """The messages as one batch of `schema`."""
        return to_arrow(messages, partitions, offsets, timestamps)

    def from_arrow(self, batches: Sequence[pa.RecordBatch]) -> Samples:
        """All messages of some batches, in the order of partition and offset."""
        return Samples.from_arrow(batches)

    def with_parsed(self, samples: Samples | None, parsed: pa.RecordBatch) -> Samples:
        """The samples and those that were parsed, in the order of arrival."""
        return Samples.from_arrow([parsed] if samples is None else [samples.to_arrow(), parsed])
