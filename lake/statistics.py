"""File statistics in commits, which let readers skip files: row count, bounds and nulls.

Stage: under `lake.files`. Every column of text, numbers or instants has bounds unless all values are null. Without
bounds, a filtered read by delta-rs (1.6) would skip the file.
"""

import json
import math
import sys
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

MAX_TEXT = 64
"""Longest bound, in characters."""
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_FIRST, _LAST = (
    (datetime(*instant, tzinfo=timezone.utc) - _EPOCH) // timedelta(milliseconds=1)
    for instant in ((1, 1, 1), (9999, 12, 31))
)
"""Representable instants, milliseconds."""


class Statistics:
    """Statistics of the rows added so far."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema, self._rows = schema, 0
        self._nulls = dict.fromkeys(schema.names, 0)
        self._bounds: dict[str, tuple[Any, Any]] = {}

    def add_rows(self, rows: pa.Table) -> None:
        """Add rows of the schema."""
        self._rows += len(rows)
        for field in self._schema:
            column = rows[field.name]
            self._nulls[field.name] += column.null_count
            if pa.types.is_timestamp(field.type):
                column = column.cast(pa.int64())
            elif pa.types.is_binary(field.type):
                continue
            bounds = pc.min_max(column).as_py()
            if bounds["min"] is not None:
                low, high = self._bounds.get(field.name, (bounds["min"], bounds["max"]))
                self._bounds[field.name] = min(low, bounds["min"]), max(high, bounds["max"])

    def to_json(self) -> str:
        """Return `numRecords`, `minValues`, `maxValues` and `nullCount` in the form of the Delta protocol."""
        least, greatest = {}, {}
        for name, (low, high) in self._bounds.items():
            if pa.types.is_timestamp(self._schema.field(name).type):
                low, high = _instant(low // 1000), _instant(-(-high // 1000))
            elif isinstance(low, str):
                low, high = low[:MAX_TEXT], text_above(high)
            elif isinstance(low, float):
                low, high = _finite_number(low), _finite_number(high)
            least[name], greatest[name] = low, high
        statistics = {"numRecords": self._rows, "minValues": least, "maxValues": greatest, "nullCount": self._nulls}
        return json.dumps(statistics, allow_nan=False)


def text_above(text: str) -> str:
    """Return an upper bound of a text in at most `MAX_TEXT` characters, or the text if there is none."""
    if len(text) <= MAX_TEXT:
        return text
    for index in reversed(range(MAX_TEXT)):
        following = ord(text[index]) + 1
        if following <= sys.maxunicode:
            return text[:index] + chr(0xE000 if 0xD800 <= following < 0xE000 else following)
    return text


def _instant(millis: int) -> str:
    instant = _EPOCH + timedelta(milliseconds=min(max(millis, _FIRST), _LAST))
    return f"{instant.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


def _finite_number(number: float) -> float:
    return number if math.isfinite(number) else math.copysign(sys.float_info.max, number)
