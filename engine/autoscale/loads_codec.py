"""Byte format of the stored part `loads`.

Stage: between `engine.autoscale.loads` and the store. The part is a base and a log, to which each batch appends its
changes. Sampled and seen instants of neighbouring rows are mostly equal and stored as runs. Entries are compressed,
because passing a value from Spark's store to a worker costs the worker 5 ms per megabyte and its JVM several times
that. Entries up to version 3 were not compressed.
"""

import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pydantic_core

from engine.autoscale.loads import INSTANTS, LoadTable
from engine.autoscale.rows import RowIndex
from engine.kernel.arrays import DamagedArrays, pack_arrays, unpack_arrays, version_of
from engine.kernel.packed import StateError, StoredPart

LOADS_VERSION = 5
_FIRST_COMPRESSED = 4
"""Earlier entries were not compressed and start with the version of their arrays."""
_PLAIN_VERSION = 4
"""Version of the arrays inside."""
_CODEC = "zstd"
_COMPRESSED = struct.Struct(">BI")
"""Version, and size uncompressed."""

Ints = npt.NDArray[np.int64]
_I4, _U4, _I8, _F8 = np.dtype("<i4"), np.dtype("<u4"), np.dtype("<i8"), np.dtype("<f8")
_BASE: dict[str, np.dtype[Any]] = {
    "topic": _I4,
    "segment": _I8,
    "rates": _F8,
    **dict.fromkeys(INSTANTS, _I8),
    "reporter": _U4,
    "returned_after": _I8,
}
_LOG: dict[str, np.dtype[Any]] = {
    "new_topic": _I4,
    "new_segment": _I8,
    "removed": _I4,
    "accepted": _I4,
    "rates": _F8,
    "modified_at": _I8,
    "cold_since": _I8,
    "run_start": _I4,
    "run_length": _I4,
    "sampled_at": _I8,
    "seen_at": _I8,
    "moved": _I4,
    "reporter": _U4,
    "returned_after": _I8,
}


class LoadsPart:
    """Stored part as the kernel handles it."""

    def __init__(self, table: LoadTable) -> None:
        self._table = table

    @property
    def is_changed(self) -> bool:
        """True if the stored form lacks some changes."""
        return self._table.is_changed

    def pack(self) -> bytes:
        """Pack everything as a base."""
        return pack_loads(self._table)

    def pack_changes(self) -> bytes:
        """Pack the changes since the last call of this or of `pack` as a log entry."""
        return pack_load_changes(self._table)


def pack_loads(table: LoadTable) -> bytes:
    """Pack the whole table as a base; compacts rows."""
    table.compact()
    index = table.index
    rows = slice(index.count)
    arrays = {
        "topic": index.topic[rows],
        "segment": index.segment[rows],
        "rates": table.rates[rows].ravel(),
        **{name: getattr(table, name)[rows] for name in INSTANTS},
        "reporter": table.reporter[rows].astype(_U4),
        "returned_after": table.returned_after[rows],
    }
    packed = _compress_entry(pack_arrays(_PLAIN_VERSION, {"names": index.names}, arrays))
    table.forget_changes()
    return packed


def pack_load_changes(table: LoadTable) -> bytes:
    """Pack the changes since the last call of this or of `pack_loads` as a log entry."""
    index = table.index
    fresh, accepted = _distinct_rows(table.fresh), _distinct_rows(table.accepted)
    sampled, seen, moved = table.sampled_at[fresh], table.seen_at[fresh], _distinct_rows(table.moved)
    # Consecutive rows with equal instants form a run, which is stored once with its length.
    breaks = (np.diff(fresh) != 1) | (np.diff(sampled) != 0) | (np.diff(seen) != 0)
    starts = np.flatnonzero(np.r_[True, breaks]) if len(fresh) else fresh
    arrays = {
        "new_topic": index.new_topics,
        "new_segment": index.segment[index.packed_rows : index.count],
        "removed": np.array(index.removed, np.int32),
        "accepted": accepted.astype(np.int32),
        "rates": table.rates[accepted].ravel(),
        "modified_at": table.modified_at[accepted],
        "cold_since": table.cold_since[accepted],
        "run_start": fresh[starts].astype(np.int32),
        "run_length": np.diff(np.r_[starts, len(fresh)]).astype(np.int32),
        "sampled_at": sampled[starts],
        "seen_at": seen[starts],
        "moved": moved.astype(np.int32),
        "reporter": table.reporter[moved].astype(_U4),
        "returned_after": table.returned_after[accepted],
    }
    packed = _compress_entry(pack_arrays(_PLAIN_VERSION, {"names": index.names[index.packed_names :]}, arrays))
    table.forget_changes()
    return packed


def unpack_loads(part: StoredPart) -> LoadTable:
    """Unpack a stored part; raises `StateError` for a newer version or damaged bytes."""
    try:
        table = _unpack_base(part.base) if part.base else LoadTable()
        for entry in part.log:
            _apply_entry(table, entry)
    except (DamagedArrays, IndexError) as error:
        raise StateError(f"the packed loads are damaged: {error}") from error
    table.forget_changes()
    return table


def _compress_entry(plain: bytes) -> bytes:
    compressed: bytes = pa.compress(plain, _CODEC, asbytes=True)
    return _COMPRESSED.pack(LOADS_VERSION, len(plain)) + compressed


def _decompress_entry(packed: bytes) -> bytes:
    """Decompress an entry. Raises `DamagedArrays`."""
    if not _FIRST_COMPRESSED <= version_of(packed) <= LOADS_VERSION:
        return packed
    try:
        size = _COMPRESSED.unpack_from(packed)[1]
        plain: bytes = pa.decompress(memoryview(packed)[_COMPRESSED.size :], size, _CODEC, asbytes=True)
    except (struct.error, OSError, ValueError) as error:
        raise DamagedArrays(f"{len(packed)} bytes: {error}") from error
    return plain


def _unpack_base(packed: bytes) -> LoadTable:
    packed = _decompress_entry(packed)
    if version_of(packed) == 1:
        names, arrays = _unpack_v1(packed)
    else:
        fields, arrays = unpack_arrays(packed, _types(packed, _BASE))
        names = fields["names"]
    table = LoadTable(RowIndex(names, arrays["topic"], arrays["segment"]))
    table.rates = arrays["rates"].reshape(-1, 4).copy()
    for name in INSTANTS:
        setattr(table, name, arrays[name].copy())
    if "reporter" in arrays:
        table.reporter = arrays["reporter"].astype(np.int64)
    if "returned_after" in arrays:
        table.returned_after = arrays["returned_after"].copy()
    return table


def _apply_entry(table: LoadTable, entry: bytes) -> None:
    entry = _decompress_entry(entry)
    fields, arrays = unpack_arrays(entry, _types(entry, _LOG))
    for name in fields["names"]:
        table.index.add_name(name)
    table.index.add_rows(arrays["new_topic"], arrays["new_segment"])
    table.fit()
    accepted = arrays["accepted"]
    table.rates[accepted] = arrays["rates"].reshape(-1, 4)
    table.modified_at[accepted], table.cold_since[accepted] = arrays["modified_at"], arrays["cold_since"]
    if "returned_after" in arrays:
        table.returned_after[accepted] = arrays["returned_after"]
    lengths = arrays["run_length"]
    # Expand each run to start, start + 1, …
    fresh = np.repeat(arrays["run_start"] - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
    table.sampled_at[fresh] = np.repeat(arrays["sampled_at"], lengths)
    table.seen_at[fresh] = np.repeat(arrays["seen_at"], lengths)
    if "moved" in arrays:
        table.reporter[arrays["moved"]] = arrays["reporter"]
    table.index.remove(arrays["removed"].tolist())


def _types(packed: bytes, types: dict[str, np.dtype[Any]]) -> dict[str, np.dtype[Any]]:
    """Return the types of an entry's arrays; version 2 lacked reporters, version 3 the load-return pauses."""
    version = version_of(packed)
    if not 2 <= version <= _PLAIN_VERSION:
        raise StateError(
            f"loads version {version}, this code reads up to {LOADS_VERSION}: run the release that wrote it"
        )
    later = {"moved": 3, "reporter": 3, "returned_after": 4}
    return {name: kind for name, kind in types.items() if version >= later.get(name, 0)}


def _distinct_rows(rows: list[Ints]) -> Ints:
    """Return the distinct rows, sorted."""
    if not rows:
        return np.zeros(0, np.int64)
    together = np.concatenate(rows)
    together.sort()
    return together[np.r_[True, together[1:] != together[:-1]]] if len(together) else together


_RECORD_V1 = np.dtype(
    [
        ("topic", "<i4"),
        ("segment", "<i8"),
        ("rates", "<f8", (4,)),
        ("modified_at", "<i8"),
        ("seen_at", "<i8"),
        ("cold_since", "<i8"),
        ("sampled_at", "<i8"),
    ]
)
_HEADER_V1 = struct.Struct(">BI")


def _unpack_v1(packed: bytes) -> tuple[list[str], dict[str, npt.NDArray[Any]]]:
    """Return topic names and columns packed by version 1; raises `StateError` for damaged bytes."""
    if len(packed) < _HEADER_V1.size:
        raise StateError(f"the packed loads are cut short: {len(packed)} bytes")
    start = _HEADER_V1.size + _HEADER_V1.unpack_from(packed)[1]
    if len(packed) < start or (len(packed) - start) % _RECORD_V1.itemsize:
        raise StateError("the packed loads are cut short")
    records = np.frombuffer(packed, _RECORD_V1, offset=start)
    names: list[str] = pydantic_core.from_json(packed[_HEADER_V1.size : start])
    return names, {name: records[name] for name in _RECORD_V1.names or ()}
