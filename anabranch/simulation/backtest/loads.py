"""Loads of a history: written from the table `segment_load` to a file in one pass, and read by topic.

Stage: called by `reading` and `running`, over `spilling`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.simulation.backtest.demand import Loads
from anabranch.simulation.backtest.spilling import ROWS, TOPIC_INDEX, Spill, as_arrow, read_part
from lake.tables import stream_columns
from schemas.tables.rows import SEGMENT_LOAD

_RATES = ("msg_rate_in", "bytes_rate_in", "msg_rate_out", "bytes_rate_out")
_COLUMNS = ("segment_id", "accepted_at", "kafka_offset", *_RATES)
Progress = Callable[[str, float], None]
"""Called at intervals with the current step and the finished share (0 to 1)."""


def spill_loads(
    lake: str, folder: Path, parts: Sequence[Sequence[str]], begin: int, end: int, progress: Progress
) -> int:
    """Write the loads from `begin` until `end`, and each segment's last one before; return their number."""
    read = 0
    before: pa.Table | None = None
    with Spill(folder, SEGMENT_LOAD, _COLUMNS, parts) as spill:
        where = pc.field("accepted_at") < as_arrow(end)
        for rows in stream_columns(lake, SEGMENT_LOAD, ("topic", *_COLUMNS), ROWS, where):
            read += len(rows)
            progress(f"{read:,} loads read", 0.0)
            placed = spill.to_stored(rows, "topic")
            is_old = pc.less(placed["accepted_at"], begin)
            old = placed.filter(is_old)
            if len(old):
                before = _last_of_each_segment(old if before is None else pa.concat_tables([before, old]))
            spill.add(placed.filter(pc.invert(is_old)))
        if before is not None:
            spill.add(before)
    return spill.counted


def loads_of_part(folder: Path, number: int, first: int, topics: int) -> list[Loads]:
    """Return the loads of a part's topics, in order; `first`: topics in the parts before it."""
    rows = read_part(folder, SEGMENT_LOAD, number)
    order = np.lexsort([rows[name].to_numpy() for name in ("kafka_offset", "accepted_at", TOPIC_INDEX)])
    topic_index = rows[TOPIC_INDEX].to_numpy()[order]
    accepted_at, segment = rows["accepted_at"].to_numpy()[order], rows["segment_id"].to_numpy()[order]
    rates = np.stack([rows[name].to_numpy()[order] for name in _RATES], axis=1)
    bounds = np.searchsorted(topic_index, first + np.arange(topics + 1))
    return [
        Loads(accepted_at[begin:end], segment[begin:end], rates[begin:end])
        for begin, end in zip(bounds.tolist(), bounds[1:].tolist(), strict=False)
    ]


def _last_of_each_segment(rows: pa.Table) -> pa.Table:
    """Return the last load of each segment; `rows` is not empty."""
    order = np.lexsort([rows[name].to_numpy() for name in ("kafka_offset", "accepted_at", "segment_id", TOPIC_INDEX)])
    topic, segment = rows[TOPIC_INDEX].to_numpy()[order], rows["segment_id"].to_numpy()[order]
    return rows.take(pa.array(order[np.r_[(topic[1:] != topic[:-1]) | (segment[1:] != segment[:-1]), True]]))
