"""Check that the files in a table's log exist and have the logged size; no file is read."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileType, PyFileSystem

from lake.files import table_path
from schemas.tables.rows import Table

_AT_ONCE = 1000


def missing_files(lake: str, table: Table, delta: DeltaTable) -> Iterator[str]:
    """Yield a line for each file of the newest version that is missing or has another size.

    Raises `OSError`.
    """
    named = pa.table(delta.get_add_actions(flatten=True)).select(["path", "size_bytes", "num_records"])
    files = PyFileSystem(DeltaStorageHandler(table_path(lake, table)))
    rows = zip(*(column.to_pylist() for column in named.columns), strict=True)
    while some := list(islice(rows, _AT_ONCE)):
        infos = files.get_file_info([unquote(path) for path, *_ in some])
        for (path, size, records), info in zip(some, infos, strict=True):
            if info.type == FileType.NotFound:
                yield f"{path} with {records} rows is not there"
            elif info.size != size:
                yield f"{path} has {info.size} bytes; the log says {size}"
