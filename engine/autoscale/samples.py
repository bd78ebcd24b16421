"""Segment samples of many messages in columns, as they pass the shuffle and enter the filter.

Stage: `engine.autoscale.partitioning` builds them before the shuffle, `engine.autoscale.family` ingests them. Beside
the columns by sample there is a small table of their messages; a message of many topics appears in every bucket that
has one of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from decisions.autoscale.clocks import NEVER

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

ELSEWHERE, BY_SAMPLES, AS_A_WHOLE = 0, 1, 2
"""Ways to count a message in a bucket: not at all; accepted if one of its samples is; accepted."""

_BY_MESSAGE = {
    "reporter": pa.int32(),
    "sampled_at": pa.int64(),
    "offset": pa.int64(),
    "timestamp": pa.int64(),
    "counted": pa.int8(),
    "samples": pa.int32(),
}
_BY_SAMPLE = {"topic": pa.int32(), "segment": pa.int64(), "rates": pa.float64()}
_NAMES = {"topics": pa.string(), "reporters": pa.string()}
SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        *((name, pa.list_(kind)) for name, kind in {**_NAMES, **_BY_MESSAGE, **_BY_SAMPLE}.items()),
    ]
)
"""Schema of a row: some messages of one Kafka partition.

Names that the columns refer to by index, columns by message, and columns by sample (`rates` has four entries per
sample). Instants are milliseconds, rates per second.
"""


@dataclass(frozen=True)
class Samples:
    """m samples of n messages, message by message, in the order of partition and offset."""

    topics: pa.StringArray
    """Names, possibly repeated."""
    reporters: pa.StringArray
    topic: npt.NDArray[np.int32]
    """By sample (m): index in `topics`."""
    segment: Ints
    """By sample: segment id."""
    rates: Floats
    """m x 4."""
    reporter: npt.NDArray[np.int32]
    """By message (n): index in `reporters`."""
    sampled_at: Ints
    """By message, as are the following."""
    partition: Ints
    offset: Ints
    timestamp: Ints
    """Kafka's timestamp, milliseconds; `NEVER` if there is none."""
    counted: npt.NDArray[np.int8]
    """`ELSEWHERE`, `BY_SAMPLES` or `AS_A_WHOLE`."""
    counts: Ints
    """Number of samples in this bucket."""

    def __len__(self) -> int:
        return len(self.segment)

    @property
    def message(self) -> Ints:
        """By sample: index of its message."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @classmethod
    def from_arrow(cls, batches: Sequence[pa.RecordBatch]) -> "Samples":
        """Read all messages of some batches of `SCHEMA`."""
        table = pa.Table.from_batches(batches, SCHEMA).combine_chunks()
        lists = {name: table[name].chunk(0) for name in SCHEMA.names[1:]}
        flat = {name: lists[name].flatten() for name in lists}
        columns = {name: flat[name].to_numpy() for name in (*_BY_MESSAGE, *_BY_SAMPLE)}
        samples = cls(
            flat["topics"],
            flat["reporters"],
            _renumber_names(lists["topic"], columns["topic"], lists["topics"]),
            columns["segment"],
            columns["rates"].reshape(-1, 4),
            _renumber_names(lists["reporter"], columns["reporter"], lists["reporters"]),
            columns["sampled_at"],
            np.repeat(table["partition"].to_numpy(), _lengths(lists["offset"])).astype(np.int64),
            columns["offset"],
            np.where(columns["timestamp"] > 0, columns["timestamp"], NEVER),
            columns["counted"],
            columns["samples"].astype(np.int64),
        )
        return samples._in_order()

    def _in_order(self) -> "Samples":
        """Return the samples by message, in the order of partition and offset."""
        partitions, offsets = self.partition, self.offset
        if (
            (partitions[1:] > partitions[:-1]) | ((partitions[1:] == partitions[:-1]) & (offsets[1:] >= offsets[:-1]))
        ).all():
            return self
        order = np.lexsort((offsets, partitions))
        chosen = places_of(np.cumsum(self.counts) - self.counts, self.counts, order)
        return Samples(
            self.topics,
            self.reporters,
            self.topic[chosen],
            self.segment[chosen],
            self.rates[chosen],
            self.reporter[order],
            self.sampled_at[order],
            partitions[order],
            offsets[order],
            self.timestamp[order],
            self.counted[order],
            self.counts[order],
        )


def batch_of(partition: int, columns: dict[str, tuple[Any, Ints]]) -> pa.RecordBatch:
    """Build rows of `SCHEMA` from columns, each with its entries and the start of every row, plus the end."""
    lists = []
    for name in SCHEMA.names[1:]:
        values, begins = columns[name]
        kind = SCHEMA.field(name).type.value_type
        lists.append(pa.ListArray.from_arrays(pa.array(begins, pa.int32()), pa.array(values, kind)))
    return pa.RecordBatch.from_arrays(
        [pa.repeat(pa.scalar(partition, pa.int32()), len(lists[0])), *lists], schema=SCHEMA
    )


def starts_of_runs(*columns: npt.NDArray[Any]) -> Ints:
    """Return the start of each run of equal entries: positions at which one of the columns changes."""
    begins = np.ones(len(columns[0]), np.bool_)
    if len(begins):
        begins[1:] = False
    for column in columns:
        begins[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(begins)


def places_of(starts: Ints, counts: Ints, order: Ints) -> Ints:
    """Return the positions of the entries of runs (`starts`, `counts`), run by run in another order."""
    lengths = counts[order]
    return np.repeat(starts[order] - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())


def _lengths(lists: pa.ListArray) -> Ints:
    lengths: Ints = np.diff(lists.offsets.to_numpy())
    return lengths


def _renumber_names(lists: pa.ListArray, numbers: npt.NDArray[np.int32], names: pa.ListArray) -> npt.NDArray[np.int32]:
    """Turn indexes into the names of each row into indexes into the names of all rows."""
    if len(lists) == 1:
        return numbers
    before = names.offsets.to_numpy()[:-1] - names.offsets.to_numpy()[0]
    renumbered: npt.NDArray[np.int32] = numbers + np.repeat(before, _lengths(lists))
    return renumbered
