"""Digests of rows: a number for each, equal for equal rows, computed by column.

Used to compare a repeated batch with its first attempt, and stored as the checksum of a row of `batches`: so the
numbers must not change.
"""

import hashlib
from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from schemas.tables.arrow import arrow_schema
from schemas.tables.rows import BATCHES, Table

Numbers = npt.NDArray[np.uint64]


def checksums_of_batches(rows: pa.Table | pa.RecordBatch) -> pa.Array:
    """Return `checksum` for rows of `batches`, of the other columns but `day`."""
    return pa.array(digests_of_rows(rows, BATCHES, ("checksum", "day")).view(np.int64))


def digests_of_rows(rows: pa.Table | pa.RecordBatch, table: Table, leave_out: Collection[str]) -> Numbers:
    """Return a number for each row.

    Nulls do not count, so optional columns of a later release do not change the numbers of older rows.
    """
    numbers = np.zeros(rows.num_rows, np.uint64)
    for field in arrow_schema(table.row):
        if field.name not in leave_out:
            values = rows[field.name].cast(field.type)
            mixed = _mix_numbers(numbers ^ _mix_numbers(_digests(values) ^ np.uint64(_digest(field.name.encode()))))
            numbers = np.where(pc.is_null(values).to_numpy(zero_copy_only=False), numbers, mixed)
    return numbers


def _digests(values: pa.ChunkedArray | pa.Array) -> Numbers:
    """Return a number for each value of a column, equal for equal values; any for null."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if pa.types.is_floating(values.type):
        return np.asarray(values.fill_null(0.0).to_numpy(zero_copy_only=False).view(np.uint64))
    if pa.types.is_string(values.type) or pa.types.is_binary(values.type):
        named = values.dictionary_encode()
        digests = [_digest(value) for value in named.dictionary.cast(pa.binary()).to_pylist()]
        indices = named.indices.fill_null(len(digests)).to_numpy(zero_copy_only=False)
        return np.asarray(np.array([*digests, 0], np.uint64)[indices])
    whole = values.cast(pa.int32()) if pa.types.is_date(values.type) else values
    numbers = whole.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return np.asarray(numbers.astype(np.int64).view(np.uint64))


def _digest(value: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "big")


_ODD = np.uint64(0x9E3779B97F4A7C15)


def _mix_numbers(numbers: Numbers) -> Numbers:
    """Mix numbers so that every output bit depends on all input bits (the finalizer of splitmix64)."""
    numbers = (numbers + _ODD).astype(np.uint64)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(numbers ^ (numbers >> np.uint64(31)))
