"""Answers of SQL as text or files: a table for people, JSON lines, CSV, Parquet; a batch at a time.

Stage: under `anabranch.cli.commands.sql`; other commands format their answers themselves.
"""

import json
import math
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import date, datetime
from decimal import Decimal
from io import TextIOWrapper
from itertools import accumulate
from pathlib import Path
from typing import IO, Any
from unicodedata import combining, east_asian_width

import pyarrow as pa

from schemas.printable import printable

_WIDEST = 60
"""Width of a cell of a table; JSON in columns is longer."""
_QUOTED = re.compile(r'[",\r\n]')
"""In CSV."""
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20", "\t", "\r", "'")
"""Beginnings that a spreadsheet reads as a formula, and the mark that keeps it from doing so."""


def write_answer(reader: pa.RecordBatchReader, output: str, file: Path | None, limit: int) -> int:
    """Write an answer to a file or standard output, and return the number of its rows.

    `limit`: most rows of a table.

    Raises `OSError`, and what the reader raises. A file appears under its name when it is complete.
    """
    if output == "parquet":
        assert file is not None
        return _parquet(reader, file)
    with _destination(file, output) as out:
        return {"table": write_table, "json": _json, "csv": _csv}[output](reader, out, limit)


@contextmanager
def _destination(file: Path | None, output: str) -> Iterator[IO[str]]:
    if file is None:
        yield sys.stdout if output == "table" else _in_utf8(sys.stdout)
        return
    with _in_place(file) as part, part.open("w", encoding="utf-8", newline="") as out:
        yield out


def _in_utf8(out: IO[str]) -> IO[str]:
    """Return standard output for programs: in UTF-8, whatever the locale."""
    if isinstance(out, TextIOWrapper):
        out.reconfigure(encoding="utf-8")
    return out


@contextmanager
def _in_place(file: Path) -> Iterator[Path]:
    """Yield a name beside a file; what was written there replaces the file unless something is raised."""
    part = file.with_name(f".{file.name}.part")
    try:
        yield part
        part.replace(file)
    finally:
        with suppress(OSError):
            part.unlink()


def _parquet(reader: pa.RecordBatchReader, file: Path) -> int:
    import pyarrow.parquet as pq

    rows = 0
    with _in_place(file) as part, pq.ParquetWriter(str(part), reader.schema, compression="zstd") as writer:
        for batch in reader:
            writer.write_batch(batch)
            rows += len(batch)
    return rows


def _json(reader: pa.RecordBatchReader, out: IO[str], _limit: int) -> int:
    rows = 0
    for batch in reader:
        for row in batch.to_pylist():
            out.write((_shown_json(_dump_json(row)) if out.isatty() else _dump_json(row)) + "\n")
        rows += len(batch)
    return rows


def _csv(reader: pa.RecordBatchReader, out: IO[str], _limit: int) -> int:
    rows = 0
    end, show = "\r\n", printable if out.isatty() else str
    out.write(show(_csv_line(reader.schema.names)) + end)
    for batch in reader:
        columns = [column.to_pylist() for column in batch.columns]
        out.writelines(show(_csv_line(row)) + end for row in zip(*columns, strict=True))
        rows += len(batch)
    return rows


def _csv_line(row: Iterable[Any]) -> str:
    """Return a line as of RFC 4180, without its end; null is nothing at all, and an empty text is quoted."""
    return ",".join(_csv_cell(value) for value in row)


def _csv_cell(value: Any) -> str:
    if value is None:
        return ""
    text = repr(value) if isinstance(value, float) else _cell(value)
    if not isinstance(value, int | float | Decimal) and text.startswith(_FORMULA):
        text = f"'{text}"
    if text and not _QUOTED.search(text):
        return text
    return '"' + text.replace('"', '""') + '"'


def write_table(reader: pa.RecordBatchReader, out: IO[str], limit: int) -> int:
    """Write a table for people, cut at a number of rows; it says how many rows the answer has."""
    rows, shown = 0, list[list[str]]()
    for batch in reader:
        columns = [column.to_pylist() for column in batch.slice(0, max(0, limit - rows)).columns]
        shown += [[_short(value) for value in row] for row in zip(*columns, strict=True)]
        rows += len(batch)
    encoding = getattr(out, "encoding", None) or "utf-8"
    names, *shown = (
        [cell.encode(encoding, "backslashreplace").decode(encoding) for cell in row]
        for row in ([printable(name) for name in reader.schema.names], *shown)
    )
    widths = [max(_width(row[i]) for row in (names, *shown)) for i in range(len(names))]
    numbers = [pa.types.is_integer(field.type) or pa.types.is_floating(field.type) for field in reader.schema]
    for line in [names, ["-" * width for width in widths], *shown]:
        cells = [
            _padding(cell, width) + cell if is_number else cell + _padding(cell, width)
            for cell, width, is_number in zip(line, widths, numbers, strict=True)
        ]
        out.write("  ".join(cells).rstrip() + "\n")
    if rows > limit:
        out.write(f"and {rows - limit:,} more: --limit, or --output csv\n")
    return rows


def _short(value: Any) -> str:
    text = printable(_cell(value))
    if _width(text) <= _WIDEST:
        return text
    ends = accumulate(map(_width, text))
    return "".join(character for character, end in zip(text, ends, strict=True) if end < _WIDEST) + "…"


def _width(text: str) -> int:
    """Columns of a terminal that a text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(character) else 2 if east_asian_width(character) in "WF" else 1 for character in text)


def _padding(cell: str, width: int) -> str:
    return " " * (width - _width(cell))


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else _text(value)


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(" ", _precision(value))
    if isinstance(value, float):
        return f"{value:.10g}"
    return _dump_json(value) if isinstance(value, (dict, list, tuple)) else _in_json(value)


def _dump_json(value: Any) -> str:
    """JSON, in which a number that is none is null."""
    try:
        return json.dumps(value, default=_in_json, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(_finite_value(value), default=_in_json, ensure_ascii=False, allow_nan=False)


def _shown_json(text: str) -> str:
    """Return the same JSON for a terminal, which would obey control characters and directions of writing."""
    return text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _finite_value(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite_value(item) for name, item in value.items()}
    return [_finite_value(item) for item in value] if isinstance(value, (list, tuple)) else value


def _in_json(value: Any) -> str:
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat("T", _precision(value)) + "Z"
    if isinstance(value, date):
        return value.isoformat()
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _precision(instant: datetime) -> str:
    if not instant.microsecond:
        return "seconds"
    return "microseconds" if instant.microsecond % 1000 else "milliseconds"
