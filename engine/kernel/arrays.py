"""Serialization of named numpy arrays, used for the packed loads.

Stage: under `engine.autoscale.loads`. A version byte, the length of a JSON header (big-endian, 4 bytes), the header
(free fields and the length of each array), then the arrays one after the other, little-endian.
"""

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import pydantic_core

_FRAME = struct.Struct(">BI")


class DamagedArrays(ValueError):
    """The bytes are truncated or have another format."""


def pack_arrays(version: int, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """Pack `fields`, which must be JSON, and arrays of plain types."""
    header = pydantic_core.to_json({**fields, "lengths": [len(array) for array in arrays.values()]})
    return b"".join([_FRAME.pack(version, len(header)), header, *(array.tobytes() for array in arrays.values())])


def version_of(packed: bytes) -> int:
    """Return the version byte; raises `DamagedArrays` for empty bytes."""
    if not packed:
        raise DamagedArrays("no bytes at all")
    return packed[0]


def unpack_arrays(packed: bytes, types: Mapping[str, np.dtype]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the fields and the arrays (read-only views); raises `DamagedArrays`."""
    try:
        _, length = _FRAME.unpack_from(packed)
        offset = _FRAME.size + length
        fields = pydantic_core.from_json(packed[_FRAME.size : offset])
        arrays = {}
        for (name, kind), count in zip(types.items(), fields.pop("lengths"), strict=True):
            end = offset + count * kind.itemsize
            arrays[name] = np.frombuffer(packed, kind, count, offset)
            offset = end
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedArrays(f"{len(packed)} bytes: {error}") from error
    if offset != len(packed):
        raise DamagedArrays(f"{len(packed)} bytes, {offset} expected")
    return fields, arrays
