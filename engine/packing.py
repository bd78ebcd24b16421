"""The stateless first stage in Python: raw Kafka rows in, a few packed rows per bucket out.

Stage: before the shuffle (`mapInArrow`). Plain segment samples are decoded here into columns, a third of the size of
their JSON; everything else travels as it came and is parsed after the shuffle. The stateful operator of Spark handles
each of its input rows as a Python object, so few rows with much in them are what makes it fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from engine.autoscale.samples import SCHEMA as SAMPLES
from engine.autoscale.samples import Samples, to_arrow
from engine.records import RAW_SCHEMA, RawRecord
from schemas.bulk import BulkStats, decode_stats
from schemas.ids import EVERY_TOPIC
from schemas.kafka import CONTROL_EVENTS, SEGMENT_STATS
from schemas.messages import MAX_CLOCK_AHEAD_MS

PACKED_DDL = "bucket INT, now BIGINT, kind STRING, body BINARY"
"""One row is many messages of one bucket; `now` is the batch's time, milliseconds."""
_PACKED = pa.schema([
    ("bucket", pa.int32()), ("now", pa.int64()), ("kind", pa.string()), ("body", pa.binary())
])  # fmt: skip
_SAMPLES, _RAW = "samples", "raw"


class BucketPacker:
    """For `mapInArrow`: rows of `streaming.sources.raw_rows` to rows of `PACKED_DDL`."""

    def __init__(self, buckets: int) -> None:
        """`buckets`: how many there are; what concerns every topic goes to all of them."""
        self._buckets = buckets

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Packs each batch by itself."""
        for batch in batches:
            if batch.num_rows:
                yield self.pack(batch)

    def pack(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """One batch of raw rows, packed."""
        batch = batch.take(np.argsort(batch.column("bucket").to_numpy(), kind="stable"))
        now = batch.column("now")[0].as_py()
        decoded = _decoded(batch, now)
        plain = np.fromiter((stats is not None for stats in decoded), np.bool_, len(decoded))
        packed: list[tuple[int, int, str, bytes]] = []
        if plain.any():
            chosen = batch.filter(plain)
            messages = [stats for stats in decoded if stats is not None]
            samples = to_arrow(messages, chosen.column("partition").to_numpy(), chosen.column("offset").to_numpy())
            packed += [(bucket, now, _SAMPLES, body) for bucket, body in _by_bucket(chosen, samples)]
        if not plain.all():
            rest = self._with_home(batch.filter(~plain))
            packed += [(bucket, now, _RAW, body) for bucket, body in _by_bucket(rest, rest.select(RAW_SCHEMA.names))]
        columns = zip(*packed, strict=True)
        return pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, _PACKED, strict=True)], schema=_PACKED
        )

    def _with_home(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """What concerns every topic once for each bucket; it is at home in the bucket of its key, and counted there."""
        everywhere = pc.and_(
            pc.equal(rows.column("source"), CONTROL_EVENTS.name),
            pc.fill_null(pc.equal(rows.column("key"), EVERY_TOPIC.encode()), False),
        ).to_numpy(zero_copy_only=False)
        copies = np.repeat(np.arange(rows.num_rows), np.where(everywhere, self._buckets, 1))
        homes = rows.column("bucket").to_numpy()[copies]
        buckets = homes.copy()
        buckets[everywhere[copies]] = np.tile(np.arange(self._buckets), int(everywhere.sum()))
        order = np.argsort(buckets, kind="stable")
        spread = rows.drop_columns(["bucket"]).take(copies[order])
        spread = spread.append_column("home", pa.array(homes[order] == buckets[order]))
        return spread.append_column("bucket", pa.array(buckets[order], pa.int32()))


def _decoded(batch: pa.RecordBatch, now: int) -> list[BulkStats | None]:
    latest = now + MAX_CLOCK_AHEAD_MS
    found: list[BulkStats | None] = []
    names = ("source", "key", "value", "size")
    for source, key, value, size in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
        stats = decode_stats(key, value, size) if source == SEGMENT_STATS.name else None
        found.append(None if stats is None or stats.sampled_at > latest else stats)
    return found


def _by_bucket(rows: pa.RecordBatch, body: pa.RecordBatch) -> Iterator[tuple[int, bytes]]:
    """`body` cut where the bucket of `rows`, which is sorted by it, changes."""
    buckets = rows.column("bucket").to_numpy()
    starts = np.flatnonzero(np.r_[True, buckets[1:] != buckets[:-1]]).tolist()
    for start, end in zip(starts, [*starts[1:], len(buckets)], strict=True):
        yield int(buckets[start]), body.slice(start, end - start).serialize().to_pybytes()


def unpack_bucket(kinds: list[str], bodies: list[bytes]) -> tuple[list[RawRecord], Samples | None]:
    """All rows of a bucket: its raw records in no order, and its samples in that of partition and offset."""
    raw: list[RawRecord] = []
    samples: list[pa.RecordBatch] = []
    for kind, body in zip(kinds, bodies, strict=True):
        if kind == _SAMPLES:
            samples.append(pa.ipc.read_record_batch(pa.py_buffer(body), SAMPLES))
        else:
            batch = pa.ipc.read_record_batch(pa.py_buffer(body), RAW_SCHEMA)
            columns: list[list[Any]] = [column.to_pylist() for column in batch.columns]
            raw += [RawRecord(*values) for values in zip(*columns, strict=True)]
    return raw, Samples.from_arrow(samples) if samples else None
