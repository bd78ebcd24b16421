"""Which old loads stay when the others are forgotten: of each segment the newest, and all of other namespaces.

Stage: under `lake.retention`. Memory: a line for each segment that ever was, and a part of a file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lake.files import rows_of
from schemas.arrow import arrow_schema
from schemas.tables import SEGMENT_LOAD

_SEGMENT = ["topic", "segment_id"]
_KEYS = [*_SEGMENT, "accepted_at"]
_MANY = 1_000_000


def newest_loads(lake: str, paths: Sequence[str]) -> pa.Table:
    """When the newest load of each segment in these files was accepted (`newest`). Raises `OSError`."""
    found, waiting = [_newest(arrow_schema(SEGMENT_LOAD.row).empty_table())], 0
    for path in paths:
        for rows in rows_of(lake, SEGMENT_LOAD, path, _KEYS):
            found.append(_newest(rows))
            waiting += len(found[-1])
            if waiting > _MANY:
                found, waiting = [_newest(pa.concat_tables(found))], 0
    return _newest(pa.concat_tables(found)).rename_columns([*_SEGMENT, "newest"])


def loads_that_stay(
    lake: str, path: str, newest: pa.Table, namespaces: Collection[str]
) -> Iterator[pa.Table]:  # fmt: skip
    """The rows of a file that are to stay, some at a time. Raises `OSError`."""
    for rows in rows_of(lake, SEGMENT_LOAD, path):
        places = pa.array(range(len(rows)), pa.int64())
        joined = rows.select(_SEGMENT).append_column("place", places).join(newest, _SEGMENT, join_type="left outer")
        stays = pc.equal(rows["accepted_at"], joined.sort_by("place")["newest"])
        if namespaces:
            elsewhere = pc.invert(_is_of(rows["topic"], namespaces))
            stays = pc.or_(stays, elsewhere)
        kept = rows.filter(stays)
        if len(kept):
            yield kept


def _is_of(topics: pa.ChunkedArray, namespaces: Collection[str]) -> pa.ChunkedArray:
    found = pa.chunked_array([pa.repeat(False, len(topics))])
    for namespace in namespaces:
        found = pc.or_(found, pc.starts_with(topics, f"topic://{namespace}/"))
    return found


def _newest(rows: pa.Table) -> pa.Table:
    best = rows.group_by(_SEGMENT).aggregate([("accepted_at", "max")]).select([*_SEGMENT, "accepted_at_max"])
    return best.rename_columns(_KEYS)
