"""Layouts that differ in nothing but the instant at which their topic was made: read once, and then by their bytes.

Stage: under `engine.autoscale.layouts`. The topics of a fleet are made with a few numbers of segments, and each at an
instant of its own, which all of its segments name. So most first layouts are one that was read before with other digits
in some places, and so is the record that is kept of them.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

import xxhash

_FIELD = b'"createdAtMs":'
_DIGITS = 13
"""Of the instants that are looked at: from 2001 to 2286."""
_PACKED = Struct(">BQ")
_U64 = 0xCF
"""Before such an instant in MessagePack."""


class Shape(NamedTuple):
    """A layout's JSON without the first instant at which something was made, wherever that is named so."""

    digest: bytes
    """Of the rest."""
    times: int
    """How often the instant was there."""


class Shaped(NamedTuple):
    """A layout as a shape with an instant."""

    shape: Shape
    digits: bytes

    @property
    def packed(self) -> bytes:
        """The instant in MessagePack."""
        return _PACKED.pack(_U64, int(self.digits))

    def at_another_instant(self, layout: bytes) -> bytes:
        """The JSON of a layout of this shape and this instant, with another instant."""
        last = b"1" if self.digits[-1:] == b"0" else b"0"
        return layout.replace(_FIELD + self.digits, _FIELD + self.digits[:-1] + last)


def shape_of(layout: bytes) -> Shaped | None:
    """The JSON of a layout as a shape with an instant; None where no such instant is named."""
    start = layout.find(_FIELD) + len(_FIELD)
    digits = layout[start : start + _DIGITS]
    if start < len(_FIELD) or len(digits) < _DIGITS or not digits.isdigit() or digits[:1] == b"0":
        return None
    rest = layout.replace(_FIELD + digits, _FIELD)
    times = (len(layout) - len(rest)) // _DIGITS
    return Shaped(Shape(xxhash.xxh3_128_digest(rest), times), digits)
