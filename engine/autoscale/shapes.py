"""Shapes of layouts: layouts that differ only in the creation instant of their topic are parsed once.

Stage: under `engine.autoscale.layouts`. A fleet's topics are created with a few numbers of segments, each at its own
instant, which all segments repeat. So most first layouts, and the records kept of them, equal one seen before except
for these digits.
"""

from struct import Struct
from typing import NamedTuple

import xxhash

_FIELD = b'"createdAtMs":'
_DIGITS = 13
"""Digits of the supported instants: from 2001 to 2286."""
_PACKED = Struct(">BQ")
_U64 = 0xCF
"""Prefix of such an instant in MessagePack (uint 64)."""


class Shape(NamedTuple):
    """A layout's JSON with every occurrence of its first creation instant removed."""

    digest: bytes
    """Digest of the remaining JSON."""
    times: int
    """Number of occurrences of the instant."""


class Shaped(NamedTuple):
    """A layout as a shape with an instant."""

    shape: Shape
    digits: bytes

    @property
    def packed(self) -> bytes:
        """The instant in MessagePack."""
        return _PACKED.pack(_U64, int(self.digits))

    def at_another_instant(self, layout: bytes) -> bytes:
        """Return the JSON of a layout of this shape and instant with another instant."""
        last = b"1" if self.digits[-1:] == b"0" else b"0"
        return layout.replace(_FIELD + self.digits, _FIELD + self.digits[:-1] + last)


def shape_of(layout: bytes) -> Shaped | None:
    """Split the JSON of a layout into shape and instant; None if it names no such instant."""
    start = layout.find(_FIELD) + len(_FIELD)
    digits = layout[start : start + _DIGITS]
    if start < len(_FIELD) or len(digits) < _DIGITS or not digits.isdigit() or digits[:1] == b"0":
        return None
    remainder = layout.replace(_FIELD + digits, _FIELD)
    times = (len(layout) - len(remainder)) // _DIGITS
    return Shaped(Shape(xxhash.xxh3_128_digest(remainder), times), digits)
