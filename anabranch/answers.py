"""Answers of SQL as text or files: a table for people, JSON lines, CSV, Parquet; a batch at a time.

Stage: under `anabranch sql`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import date, datetime
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from schemas.printable import printable

_WIDEST = 60
"""Characters of a cell of a table; JSON in columns is longer."""


def write_answer(reader: pa.RecordBatchReader, output: str, file: Path | None, limit: int) -> int:
    """Writes an answer to a file, or to standard output, and says how many rows it has. `limit`: of a table.

    Raises `OSError`, and what the reader raises. A file is at its place when it is whole.
    """
    if output == "parquet":
        assert file is not None
        return _parquet(reader, file)
    with _destination(file) as out:
        return {"table": write_table, "json": _json, "csv": _csv}[output](reader, out, limit)


@contextmanager
def _destination(file: Path | None) -> Iterator[IO[str]]:
    if file is None:
        yield sys.stdout
        return
    with _in_place(file) as part, part.open("w", encoding="utf-8", newline="") as out:
        yield out


@contextmanager
def _in_place(file: Path) -> Iterator[Path]:
    """A name beside a file, which takes its place unless something is raised."""
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
            out.write(json.dumps(row, default=_in_json, ensure_ascii=False) + "\n")
        rows += len(batch)
    return rows


def _csv(reader: pa.RecordBatchReader, out: IO[str], _limit: int) -> int:
    import csv

    writer, rows = csv.writer(out), 0
    writer.writerow(reader.schema.names)
    for batch in reader:
        columns = [column.to_pylist() for column in batch.columns]
        writer.writerows([_cell(value) for value in row] for row in zip(*columns, strict=True))
        rows += len(batch)
    return rows


def write_table(reader: pa.RecordBatchReader, out: IO[str], limit: int) -> int:
    """A table for people, cut at a number of rows; says how many rows the answer has."""
    rows, shown = 0, list[list[str]]()
    for batch in reader:
        kept = batch.slice(0, max(0, limit - rows))
        columns = [column.to_pylist() for column in kept.columns]
        shown += [[_short(value) for value in row] for row in zip(*columns, strict=True)]
        rows += len(batch)
    names = reader.schema.names
    widths = [max([len(name), *(len(row[i]) for row in shown)]) for i, name in enumerate(names)]
    numbers = [pa.types.is_integer(one.type) or pa.types.is_floating(one.type) for one in reader.schema]
    lines = [names, ["-" * width for width in widths], *shown]
    for line in lines:
        cells = [
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(line, widths, numbers, strict=True)
        ]
        out.write("  ".join(cells).rstrip() + "\n")
    if rows > limit:
        out.write(f"… and {rows - limit:,} more: --limit, or --output csv\n")
    return rows


def _short(value: Any) -> str:
    text = printable(_cell(value))
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else _text(value)


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(" ", _precision(value))
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, (dict, list, tuple)):
        return json.dumps(value, default=_in_json, ensure_ascii=False)
    return _in_json(value)


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
