"""The loads of a history, once through and into a file for each part of the topics.

Stage: under `reading`. Memory holds some hundred thousand rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.tables import open_table, stream_columns
from ledger.backtest.demand import Loads
from ledger.simulate.timeline import Ints
from schemas.printable import printable
from schemas.tables import SEGMENT_LOAD

MOST_TOPICS, MOST_LOADS = 192, 6_000_000
"""Of a part, about: many topics side by side make a simulation fast, and their loads are in memory."""
ROWS = 262_144
RATE_COLUMNS = ("msg_rate_in", "bytes_rate_in", "msg_rate_out", "bytes_rate_out")
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
Progress = Callable[[str, float], None]
"""Told now and then what is under way, and which part of it is done (0 to 1)."""


def part_topics(lake: str, topics: int) -> int:
    """How many topics a part should have, by the rows that the table says it has."""
    table = open_table(lake, SEGMENT_LOAD)
    loads = (
        0 if table is None else sum(one or 0 for one in pa.table(table.get_add_actions())["num_records"].to_pylist())
    )
    return max(1, min(MOST_TOPICS, MOST_LOADS * topics // max(1, loads)))


def spill(
    lake: str, folder: Path, parts: Sequence[Sequence[str]], begin: int, end: int, progress: Progress
) -> int:  # fmt: skip
    """Writes the loads of each part to its file; of those before the beginning, the last of each segment. How many
    there are."""
    places = {name: place for place, name in enumerate(one for part in parts for one in part)}
    names = pa.array(list(places), pa.string())
    part_of = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    schema = pa.schema([("topic", pa.int32()), ("segment", pa.int64()), ("at", pa.int64()), ("offset", pa.int64()),
                        *((name, pa.float64()) for name in RATE_COLUMNS)])  # fmt: skip
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    writers = [
        pa.ipc.new_file(str(folder / f"{number}.arrow"), schema, options=options) for number in range(len(parts))
    ]
    columns = ("topic", "segment_id", "accepted_at", "kafka_offset", *RATE_COLUMNS)
    before: pa.Table | None = None
    counted = read = 0
    try:
        for rows in stream_columns(lake, SEGMENT_LOAD, columns, ROWS, pc.field("accepted_at") < as_arrow(end)):
            read += len(rows)
            progress(f"{read:,} loads read", 0.0)
            topic = pc.index_in(rows["topic"], names).combine_chunks()
            found = pa.table(
                [topic, rows["segment_id"], pa.array(millis(rows["accepted_at"])), rows["kafka_offset"],
                 *(rows[name] for name in RATE_COLUMNS)], schema=schema,
            ).filter(topic.is_valid())  # fmt: skip
            is_old = pc.less(found["at"], begin)
            old, found = found.filter(is_old), found.filter(pc.invert(is_old))
            if len(old):
                before = _newest(old if before is None else pa.concat_tables([before, old]))
            counted += len(found)
            _deal(found, part_of, writers)
        if before is not None:
            counted += len(before)
            _deal(before, part_of, writers)
    finally:
        for writer in writers:
            writer.close()
    return counted


def _deal(rows: pa.Table, part_of: Ints, writers: Sequence[Any]) -> None:
    """Each row into the file of its topic's part."""
    if not len(rows):
        return
    part = part_of[rows["topic"].to_numpy()]
    order = np.argsort(part, kind="stable")
    rows, part = rows.take(pa.array(order)), part[order]
    numbers, starts = np.unique(part, return_index=True)
    for number, start, end in zip(numbers.tolist(), starts.tolist(), [*starts[1:].tolist(), len(part)], strict=True):
        writers[number].write_table(rows.slice(start, end - start))


def _newest(rows: pa.Table) -> pa.Table:
    """The last load of each segment."""
    order = np.lexsort([rows[name].to_numpy() for name in ("offset", "at", "segment", "topic")])
    topic, segment = rows["topic"].to_numpy()[order], rows["segment"].to_numpy()[order]
    is_last = np.r_[(topic[1:] != topic[:-1]) | (segment[1:] != segment[:-1]), True]
    return rows.take(pa.array(order[is_last]))


def loads_of(file: Path, first: int, topics: int) -> list[Loads]:
    """The loads of a part's topics, in their order; `first`: how many topics are in the parts before it."""
    rows = pa.ipc.open_file(pa.memory_map(str(file))).read_all()
    order = np.lexsort([rows[name].to_numpy() for name in ("offset", "at", "topic")])
    place = rows["topic"].to_numpy()[order]
    at, segment = rows["at"].to_numpy()[order], rows["segment"].to_numpy()[order]
    rates = np.stack([rows[name].to_numpy()[order] for name in RATE_COLUMNS], axis=1)
    bounds = np.searchsorted(place, first + np.arange(topics + 1))
    return [
        Loads(at[begin:end], segment[begin:end], rates[begin:end])
        for begin, end in zip(bounds.tolist(), bounds[1:].tolist(), strict=False)
    ]


def millis(instants: pa.ChunkedArray) -> Ints:
    found: Ints = pc.divide(instants.cast(pa.timestamp("us", "UTC")).cast(pa.int64()), 1000).to_numpy()
    return found


def as_arrow(at: int) -> pa.Scalar:
    return pa.scalar(EPOCH + timedelta(milliseconds=at), pa.timestamp("us", "UTC"))


def instant(at: datetime) -> int:
    return (at - EPOCH) // timedelta(milliseconds=1)


def said_of(at: int) -> str:
    return printable(f"{EPOCH + timedelta(milliseconds=at):%F %T} UTC")
