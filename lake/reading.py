"""Tables as Arrow's readers take them.

Stage: under all of `lake` that reads whole columns or filtered rows. The file system that delta-rs gives to Arrow is
Python, for local files too: a reading thread of Arrow's that still lets go of a file while Python ends aborts the
process then ("terminate called without an active exception"; with pyarrow 26.0 and deltalake 1.6.6 in 3 of 60 programs
that read one small table and ended). Arrow's own file system has no Python in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow.dataset import Dataset
from pyarrow.fs import FileSystem, LocalFileSystem, SubTreeFileSystem


def read_table(delta: DeltaTable, columns: Sequence[str] | None = None, filters: Any = None) -> pa.Table:
    """The rows that pass `filters` (as of pyarrow's Parquet readers), cut to some columns; in no order.

    Raises `DeltaError`, or `OSError` when a file cannot be read.
    """
    chosen = None if columns is None else list(columns)
    return delta.to_pyarrow_table(columns=chosen, filters=filters, filesystem=_filesystem(delta))


def dataset_of(delta: DeltaTable) -> Dataset:
    """The table's files, none of them read yet; paths are within the table's folder."""
    return delta.to_pyarrow_dataset(filesystem=_filesystem(delta))


def _filesystem(delta: DeltaTable) -> FileSystem | None:
    """None: an object store, which delta-rs knows how to reach and Arrow does not."""
    parts = urlsplit(delta.table_uri)
    return SubTreeFileSystem(url2pathname(parts.path), LocalFileSystem()) if parts.scheme in ("", "file") else None
