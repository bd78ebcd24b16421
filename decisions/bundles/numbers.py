"""Numbers as Java has them, where the outcome depends on it, and choices that a seed settles."""

import struct
import zlib
from collections.abc import Sequence
from typing import TypeVar

ItemT = TypeVar("ItemT")

FLOAT_MAX = 3.4028234663852886e38
INT_MAX = 2**31 - 1
MIB = 1_048_576


def to_float32(value: float) -> float:
    """The nearest single-precision number; beyond its range the largest."""
    (rounded,) = struct.unpack("<f", struct.pack("<f", max(-FLOAT_MAX, min(FLOAT_MAX, value))))
    return float(rounded)


def java_int(value: float) -> int:
    """Java's cast of a double to int: towards zero, and saturating."""
    return max(-INT_MAX - 1, min(INT_MAX, int(value)))


def wrapped_sum(value: int) -> int:
    """The sum of two Java ints: it wraps around."""
    return (value + 2**31) % 2**32 - 2**31


def choose_seeded(items: Sequence[ItemT], seed: int, subject: str) -> ItemT:
    """One of several, by a seed and by what is chosen for: the same in every process."""
    return items[zlib.crc32(f"{seed}/{subject}".encode()) % len(items)]
