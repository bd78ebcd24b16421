"""The stateless first stage in Python: raw Kafka rows in, a few packed rows per bucket out.

Stage: before the shuffle (`mapInArrow`). Plain samples of a family that has columns for them are decoded here, a third
of the size of their JSON; everything else travels as it came and is parsed after the shuffle. The stateful operator of
Spark handles each of its input rows as a Python object, so few rows with much in them are what makes it fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from engine.kernel.family import Columns, Family
from engine.kernel.records import RAW_SCHEMA, RawRecord
from schemas.ids import EVERY_TOPIC
from schemas.kafka import CONTROL_EVENTS

PACKED_DDL = "bucket INT, now BIGINT, kind STRING, body BINARY"
"""One row is many messages of one bucket; `now` is the batch's time, milliseconds."""
_PACKED = pa.schema([
    ("bucket", pa.int32()), ("now", pa.int64()), ("kind", pa.string()), ("body", pa.binary())
])  # fmt: skip
_RAW = "raw"


class BucketPacker:
    """For `mapInArrow`: rows of `streaming.sources.raw_rows` to rows of `PACKED_DDL`."""

    def __init__(self, buckets: int, families: Sequence[Family]) -> None:
        """`buckets`: how many there are; what concerns every topic goes to all of them."""
        self._buckets = buckets
        self._columns = [family.columns for family in families if family.columns]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Packs each batch by itself."""
        for batch in batches:
            if batch.num_rows:
                yield self.pack(batch)

    def pack(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """One batch of raw rows, packed."""
        batch = batch.take(np.argsort(batch.column("bucket").to_numpy(), kind="stable"))
        now = batch.column("now")[0].as_py()
        packed: list[tuple[int, int, str, bytes]] = []
        is_raw = np.ones(batch.num_rows, np.bool_)
        for columns in self._columns:
            decoded = _decoded(batch, columns, now)
            plain = np.fromiter((message is not None for message in decoded), np.bool_, len(decoded))
            is_raw &= ~plain
            if plain.any():
                chosen = batch.filter(plain)
                messages = [message for message in decoded if message is not None]
                samples = columns.to_arrow(
                    messages, chosen.column("partition").to_numpy(), chosen.column("offset").to_numpy()
                )
                packed += [(bucket, now, columns.kind, body) for bucket, body in _by_bucket(chosen, samples)]
        if is_raw.any():
            rest = self._with_home(batch.filter(is_raw))
            packed += [(bucket, now, _RAW, body) for bucket, body in _by_bucket(rest, rest.select(RAW_SCHEMA.names))]
        cells = zip(*packed, strict=True)
        return pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(cells, _PACKED, strict=True)], schema=_PACKED
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


def _decoded(batch: pa.RecordBatch, columns: Columns, now: int) -> list[Any | None]:
    """Row by row the plain message, or None."""
    source, decode = columns.source, columns.decode
    names = ("source", "key", "value", "size")
    return [
        decode(key, value, size, now) if of == source else None
        for of, key, value, size in zip(*(batch.column(name).to_pylist() for name in names), strict=True)
    ]


def _by_bucket(rows: pa.RecordBatch, body: pa.RecordBatch) -> Iterator[tuple[int, bytes]]:
    """`body` cut where the bucket of `rows`, which is sorted by it, changes."""
    buckets = rows.column("bucket").to_numpy()
    starts = np.flatnonzero(np.r_[True, buckets[1:] != buckets[:-1]]).tolist()
    for start, end in zip(starts, [*starts[1:], len(buckets)], strict=True):
        yield int(buckets[start]), body.slice(start, end - start).serialize().to_pybytes()


def unpack_bucket(
    kinds: Sequence[str], bodies: Sequence[bytes], families: Sequence[Family]
) -> tuple[list[RawRecord], dict[str, Any]]:
    """All rows of a bucket: its raw records in no order, and by kind the samples in that of partition and offset."""
    raw: list[RawRecord] = []
    samples: dict[str, list[pa.RecordBatch]] = {}
    columns_of = {family.columns.kind: family.columns for family in families if family.columns}
    for kind, body in zip(kinds, bodies, strict=True):
        if kind == _RAW:
            batch = pa.ipc.read_record_batch(pa.py_buffer(body), RAW_SCHEMA)
            cells: list[list[Any]] = [column.to_pylist() for column in batch.columns]
            raw += [RawRecord(*values) for values in zip(*cells, strict=True)]
        else:
            samples.setdefault(kind, []).append(
                pa.ipc.read_record_batch(pa.py_buffer(body), columns_of[kind].schema)
            )  # fmt: skip
    return raw, {kind: columns_of[kind].from_arrow(batches) for kind, batches in samples.items()}
