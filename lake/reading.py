"""Arrow reads of tables, with Arrow's own file system.

Stage: under everything in `lake` that reads whole columns or filtered rows. The file system that delta-rs provides
is Python, even for local files. If an Arrow reading thread still releases a file while Python exits, the process
aborts ("terminate called without an active exception"; with pyarrow 26.0 and deltalake 1.6.6 in 3 of 60 programs
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
    """Return the rows that pass `filters` (as of pyarrow's Parquet readers), unordered.

    Raises `DeltaError`, or `OSError` when a file cannot be read.
    """
    chosen = None if columns is None else list(columns)
    return delta.to_pyarrow_table(columns=chosen, filters=filters, filesystem=_filesystem(delta))


def dataset_of(delta: DeltaTable) -> Dataset:
    """Return a dataset of the table's files, none of them read yet; paths are within the table's folder."""
    return delta.to_pyarrow_dataset(filesystem=_filesystem(delta))


def _filesystem(delta: DeltaTable) -> FileSystem | None:
    """Return Arrow's file system; None for an object store, which only delta-rs can reach."""
    parts = urlsplit(delta.table_uri)
    return SubTreeFileSystem(url2pathname(parts.path), LocalFileSystem()) if parts.scheme in ("", "file") else None
