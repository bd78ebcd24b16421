"""The stateless first stage in Python: raw Kafka rows in, a few packed rows per bucket out.

Stage: before the shuffle (`mapInArrow`). Spark's stateful operator handles each input row as a Python object, so a
few large rows are fast. Samples of a family with a columnar path are decoded here and split among their buckets, a
third of the size of their JSON. Messages that are large or no plain samples are parsed here, and refused ones
continue as dead-letter rows with a bounded piece of their bytes, so garbage is small before the shuffle. Events pass
unchanged and are parsed again after the shuffle; one with entries of several topics is split among their buckets.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pydantic_core

from engine.kernel.family import Columns, DecodedRows, Family, RefusedPart
from engine.kernel.parsing import AcceptedMessage, parse_record, readers_of
from engine.kernel.recording import MAX_PIECE_BYTES, dead_letter, dead_letter_of_part
from engine.kernel.records import RAW_SCHEMA, RawRecord, source_rank
from schemas.codecs.known_entries import nothing_of, shared_out
from schemas.ids import EVERY_TOPIC, SEVERAL_TOPICS
from schemas.kafka.messages import LayoutsKnown
from schemas.kafka.topics import CONTROL_EVENTS

PACKED_DDL = "bucket INT, now BIGINT, place BINARY, kind STRING, body BINARY"
"""Schema of a packed row: many messages of one bucket and one Kafka partition.

`now` is the batch's time, milliseconds. Sorting by `place` gives arrival order; rows with equal `place` belong
together.
"""
_PACKED = pa.schema(
    [("bucket", pa.int32()), ("now", pa.int64()), ("place", pa.binary()), ("kind", pa.string()), ("body", pa.binary())]
)
_RAW, _LETTERS, _LETTERS_OF_PARTS = "raw", "letters", "letters of parts"
_PLACE = struct.Struct(">iq")
_CODEC, _SIZE = "lz4_raw", struct.Struct(">I")
_MAX_BATCH_BYTES = 1024 * 1024
_MAX_TAKEN_BYTES = 2 * 1024 * 1024
"""Limit on the bytes of values packed together; a row is at most twice as large."""
_MAX_WHOLE_PARTS = 100
"""Number of refused parts of a message (maybe ten thousand) whose bytes are kept."""
_FOR_SEVERAL = SEVERAL_TOPICS.encode()
_Cells = tuple[int, int, bytes, str, bytes]


class Unpacked(NamedTuple):
    """The unpacked rows of a bucket, or some of them."""

    records: list[RawRecord]
    """Unordered."""
    samples: dict[str, Any]
    """By kind of columns, in the order of partition and offset."""
    letters: list[dict[str, Any]]
    """Dead-letter rows as built by `engine.kernel.recording`, bytes in base64."""
    letters_of_parts: list[dict[str, Any]]
    """Dead-letter rows of refused parts of accepted messages."""


class BucketPacker:
    """Function for `mapInArrow` from rows of `streaming.job.sources.raw_rows` to rows of `PACKED_DDL`."""

    def __init__(self, buckets: int, families: Sequence[Family]) -> None:
        """Create a packer for `buckets` buckets; messages about every topic go to all of them."""
        self._buckets = buckets
        self._columns = [family.columns for family in families if family.columns]
        self._readers = readers_of(families)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pack each batch separately; an output batch has at most `_MAX_BATCH_BYTES`, or one row."""
        for batch in batches:
            packed: list[_Cells] = []
            size = 0
            for rows in _by_partition(batch):
                for cells in self._pack(rows):
                    if packed and size + len(cells[-1]) > _MAX_BATCH_BYTES:
                        yield _batch_of(packed)
                        packed, size = [], 0
                    packed.append(cells)
                    size += len(cells[-1])
            if packed:
                yield _batch_of(packed)

    def _pack(self, batch: pa.RecordBatch) -> Iterator[_Cells]:
        """Pack rows of one Kafka partition, in the order of their offsets."""
        now, position = batch.column("now")[0].as_py(), _place_of(batch)
        source: str = batch.column("source")[0].as_py()
        columns = next((family_columns for family_columns in self._columns if family_columns.source == source), None)
        decoded = _decode_rows(batch, columns, now) if columns else None
        records: dict[int, RawRecord] = {}
        letters: dict[int, list[dict[str, Any]]] = {}
        parts: dict[int, list[dict[str, Any]]] = {}
        shorter: dict[int, bytes] = {}
        several: dict[int, LayoutsKnown] = {}
        unread = _to_look_at(batch) if decoded is None else decoded.missing
        # Parse what the columnar path could not decode, and events that are large or concern several topics.
        # Afterwards `letters` has refused messages, `parts` refused parts, `several` messages to split and `shorter`
        # trimmed values, by row.
        for row, (record, sha256) in zip(unread, _records(batch, unread), strict=True):
            if decoded is not None or len(record.value or b"") > MAX_PIECE_BYTES or record.key == _FOR_SEVERAL:
                parsed = parse_record(record, self._readers, now)
                if not isinstance(parsed, AcceptedMessage):
                    letters[row] = [dead_letter(record, parsed, now, sha256)]
                    continue
                if decoded is not None:
                    parts[row] = _letters_of_parts(record, decoded.put(row, parsed.message), now)
                    continue
                if isinstance(parsed.message, LayoutsKnown):
                    several[row] = parsed.message
                if _is_for_all(record):
                    shorter[row] = parsed.message.known_json().encode()
            records[row] = record
        # From here on by bucket, not by row: each bucket gets few large values instead of many small ones.
        buckets = batch.column("bucket").to_numpy()
        shared: dict[int, list[RawRecord]] = {}
        for row, message in several.items():
            refused = self._share_out(record := records.pop(row), message, int(buckets[row]), shared)
            parts[row] = _letters_of_parts(record, refused, now)
        if columns and decoded is not None:
            offsets, timestamps = (batch.column(name).to_numpy() for name in ("offset", "timestamp"))
            partition = batch.column("partition")[0].as_py()
            for bucket, body in columns.deal(decoded, buckets, self._buckets, partition, offsets, timestamps):
                yield bucket, now, position, columns.kind, body.serialize().to_pybytes()
        for kind, by_row in ((_LETTERS, letters), (_LETTERS_OF_PARTS, parts)):
            for bucket, chosen in _by_bucket(buckets, np.array(sorted(by_row), np.int64)):
                if rows := [letter for row in chosen.tolist() for letter in by_row[row]]:
                    yield bucket, now, position, kind, pydantic_core.to_json(rows, bytes_mode="base64")
        if not columns:
            # Everything else goes as it came. Refused messages went as letters, and divided ones go in their parts.
            raw, is_raw = _raw_columns(batch), np.ones(batch.num_rows, np.bool_)
            is_raw[[*letters, *several]] = False
            for bucket, chosen in _by_bucket(buckets, np.flatnonzero(is_raw)):
                yield bucket, now, position, _RAW, _compress_rows(raw.take(pa.array(chosen)))
            yield from self._for_all(records, shorter, buckets, now, position)
            for bucket, of_bucket in sorted(shared.items()):
                yield bucket, now, position, _RAW, _packed_records(of_bucket)

    def _share_out(
        self, record: RawRecord, message: LayoutsKnown, home: int, shared: dict[int, list[RawRecord]]
    ) -> Sequence[RefusedPart]:
        """Split a message among its topics' buckets, with a copy for its key's; return refused parts."""
        values, refused = shared_out(message, self._buckets)
        for bucket, value in ({home: nothing_of(message)} | values).items():
            part = record._replace(value=value, size=len(value), home=bucket == home)
            shared.setdefault(bucket, []).append(part)
        return refused

    def _for_all(
        self, records: dict[int, RawRecord], shorter: dict[int, bytes], buckets: Any, now: int, position: bytes
    ) -> Iterator[_Cells]:
        """Yield copies of messages about every topic for other buckets, large ones with known fields only."""
        if not (rows := [row for row, record in records.items() if _is_for_all(record)]):
            return
        # They share one key, so one bucket is home to all of them; it has them already.
        home = int(buckets[rows[0]])
        copies = []
        for row in rows:
            value = shorter.get(row, records[row].value) or b""
            copies.append(records[row]._replace(value=value, size=len(value), home=False))
        body = _packed_records(copies)
        for bucket in range(self._buckets):
            if bucket != home:
                yield bucket, now, position, _RAW, body


def _letters_of_parts(record: RawRecord, refused: Sequence[RefusedPart], now: int) -> list[dict[str, Any]]:
    """Return the dead-letter rows of refused parts; only the first of them contain the parts' bytes."""
    return [dead_letter_of_part(record, part, now, number < _MAX_WHOLE_PARTS) for number, part in enumerate(refused)]


def _to_look_at(batch: pa.RecordBatch) -> list[int]:
    """Return the rows of events that need parsing here: large ones, and those about more than one topic."""
    is_large = np.greater(_value_bytes(batch), MAX_PIECE_BYTES)
    is_of_many = pc.is_in(batch.column("key").cast(pa.binary()), pa.array([EVERY_TOPIC.encode(), _FOR_SEVERAL]))
    rows: list[int] = np.flatnonzero(is_large | is_of_many.to_numpy(zero_copy_only=False)).tolist()
    return rows


def _raw_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows in the form of `RAW_SCHEMA`, all at home."""
    columns = {name: batch.column(name) for name in RAW_SCHEMA.names if name != "home"}
    columns["home"] = pa.repeat(True, batch.num_rows)
    return pa.RecordBatch.from_arrays([columns[field.name].cast(field.type) for field in RAW_SCHEMA], schema=RAW_SCHEMA)


def _value_bytes(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the length of each value, 0 for null."""
    sizes: npt.NDArray[np.int64] = pc.fill_null(pc.binary_length(batch.column("value")), 0).to_numpy().astype(np.int64)
    return sizes


def _by_partition(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the rows of each Kafka partition, in offset order; a Spark task mostly has one partition."""
    sources = batch.column("source").dictionary_encode()
    names = sources.dictionary.to_pylist()
    rank = np.argsort(np.argsort(names)) if names else np.zeros(0, np.int64)
    keys = np.column_stack(
        [rank[sources.indices.to_numpy()], batch.column("partition").to_numpy(), batch.column("offset").to_numpy()]
    )
    order = np.lexsort((keys[:, 2], keys[:, 1], keys[:, 0]))
    if (np.diff(order) < 0).any():
        batch, keys = batch.take(pa.array(order)), keys[order]
    starts = [0, *(np.flatnonzero((keys[1:, :2] != keys[:-1, :2]).any(axis=1)) + 1).tolist()] if len(keys) else []
    for start, end in zip(starts, [*starts[1:], batch.num_rows], strict=False):
        yield from _cut_batch(batch.slice(start, end - start))


def _cut_batch(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield slices with at most `_MAX_TAKEN_BYTES` of values."""
    ends = np.cumsum(_value_bytes(batch))
    start = 0
    while start < len(ends):
        before = ends[start - 1] if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + _MAX_TAKEN_BYTES, "right")))
        yield batch.slice(start, end - start)
        start = end


def _place_of(batch: pa.RecordBatch) -> bytes:
    """Return a sort key, consistent with `engine.kernel.records.arrival_key`, of the first record."""
    source: str = batch.column("source")[0].as_py()
    coordinates = (batch.column(name)[0].as_py() for name in ("partition", "offset"))
    return bytes([source_rank(source)]) + source.encode() + b"\0" + _PLACE.pack(*coordinates)


def _decode_rows(batch: pa.RecordBatch, columns: Columns, now: int) -> DecodedRows:
    """Decode the plain messages among the rows."""
    keys, values = (batch.column(name).cast(pa.binary()) for name in ("key", "value"))
    latest = np.maximum(batch.column("timestamp").to_numpy(), now)
    return columns.decode(keys, values, batch.column("size").to_numpy(), latest)


def _records(batch: pa.RecordBatch, rows: Sequence[int]) -> Iterator[tuple[RawRecord, str | None]]:
    """Yield some rows as records, each with the digest of its value if that was truncated."""
    batch = batch if len(rows) == batch.num_rows else batch.take(pa.array(rows, pa.int64()))
    sha256s = batch.column("sha256").to_pylist() if "sha256" in batch.schema.names else [None] * len(rows)
    cells = (batch.column(name).to_pylist() for name in RAW_SCHEMA.names if name != "home")
    for values, sha256 in zip(zip(*cells, [True] * len(rows), strict=True), sha256s, strict=True):
        yield RawRecord(*values), sha256


def _is_for_all(record: RawRecord) -> bool:
    return record.source == CONTROL_EVENTS.name and record.key == EVERY_TOPIC.encode()


def _by_bucket(buckets: Any, rows: Any) -> Iterator[tuple[int, Any]]:
    """Yield rows grouped by bucket, in order."""
    if not len(rows):
        return
    rows = rows[np.argsort(buckets[rows], kind="stable")]
    sorted_buckets = buckets[rows]
    for chosen in np.split(rows, np.flatnonzero(sorted_buckets[1:] != sorted_buckets[:-1]) + 1):
        yield int(buckets[chosen[0]]), chosen


def _packed_records(records: Sequence[RawRecord]) -> bytes:
    cells = zip(*records, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(cells, RAW_SCHEMA, strict=True)]
    return _compress_rows(pa.RecordBatch.from_arrays(arrays, schema=RAW_SCHEMA))


def _compress_rows(batch: pa.RecordBatch) -> bytes:
    """Compress raw rows: layouts of a fleet shrink to a thirtieth."""
    plain = batch.serialize()
    compressed: bytes = pa.compress(plain, _CODEC, asbytes=True)
    return _SIZE.pack(plain.size) + compressed


def _decompress_rows(body: bytes) -> pa.RecordBatch:
    plain = pa.decompress(memoryview(body)[_SIZE.size :], _SIZE.unpack_from(body)[0], _CODEC)
    return pa.ipc.read_record_batch(plain, RAW_SCHEMA)


def unpacked_size(kind: str, body: bytes) -> int:
    """Return the size of a packed row in memory once unpacked, bytes."""
    return int(_SIZE.unpack_from(body)[0]) if kind == _RAW else len(body)


def _batch_of(packed: Sequence[_Cells]) -> pa.RecordBatch:
    columns = zip(*packed, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, _PACKED, strict=True)], schema=_PACKED
    )


def unpack_bucket(kinds: Sequence[str], bodies: Sequence[bytes], families: Sequence[Family]) -> Unpacked:
    """Unpack all rows of a bucket, or those of some places."""
    unpacked = Unpacked([], {}, [], [])
    samples: dict[str, list[pa.RecordBatch]] = {}
    columns_of = {family.columns.kind: family.columns for family in families if family.columns}
    for kind, body in zip(kinds, bodies, strict=True):
        if kind == _RAW:
            cells: list[list[Any]] = [column.to_pylist() for column in _decompress_rows(body).columns]
            unpacked.records.extend(RawRecord(*values) for values in zip(*cells, strict=True))
        elif kind == _LETTERS:
            unpacked.letters.extend(pydantic_core.from_json(body))
        elif kind == _LETTERS_OF_PARTS:
            unpacked.letters_of_parts.extend(pydantic_core.from_json(body))
        else:
            samples.setdefault(kind, []).append(pa.ipc.read_record_batch(pa.py_buffer(body), columns_of[kind].schema))
    unpacked.samples.update({kind: columns_of[kind].from_arrow(batches) for kind, batches in samples.items()})
    return unpacked
