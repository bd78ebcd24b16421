"""Check of a table's files: those in its log exist, and every byte is as the first check read it.

A file of a table never changes, and most carry no checksum of their own: a flipped byte on a disk gives other rows
without an error. So the digest of each file is kept beside the lake, and a new file is decoded once.

Stage: under `checking`; bytes are read by `anabranch lake check --deep` only. Memory: a row group of one file.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileType, PyFileSystem

from lake.files import table_path
from schemas.tables.rows import Table

_CHUNK = 1 << 20
_AT_ONCE = 1000


class Digests:
    """SHA-256 of each file that an earlier check has read, in a JSON file; by lake, table and path."""

    def __init__(self, file: Path, lake: str) -> None:
        """Read the file, if there is one. Raises `ValueError` when it has another format, or `OSError`."""
        self._file, self._lake = file, lake
        try:
            self._all = json.loads(file.read_text()) if file.exists() else {}
            self._of_lake: dict[str, dict[str, str]] = dict(self._all.get(lake, {}))
        except (ValueError, AttributeError, TypeError):
            raise ValueError(f"{file} does not hold digests of a lake's files: remove it to begin anew") from None
        self.is_first = not self._of_lake
        """True if no earlier check has read a file of this lake."""

    def of_table(self, name: str) -> Mapping[str, str]:
        """Return the digests of a table by path."""
        return self._of_lake.get(name, {})

    def keep(self, name: str, digests: Mapping[str, str]) -> None:
        """Replace the digests of a table's files."""
        self._of_lake[name] = dict(digests)

    def save(self) -> None:
        """Write the file. Raises `OSError`."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        part = self._file.with_name(f".{self._file.name}.part")
        part.write_text(json.dumps({**self._all, self._lake: self._of_lake}))
        part.replace(self._file)


def damaged_files(lake: str, table: Table, delta: DeltaTable, digests: Digests) -> Iterator[str]:
    """Yield a line for each file of the newest version with damaged contents. Raises `OSError`."""
    files = PyFileSystem(DeltaStorageHandler(table_path(lake, table)))
    named = pa.table(delta.get_add_actions(flatten=True)).select(["path", "num_records"])
    previous, current = digests.of_table(table.name), dict[str, str]()
    for path, records in zip(*(column.to_pylist() for column in named.columns), strict=True):
        with files.open_input_file(unquote(path)) as source:
            digest = _digest(source)
            fault = None if path in previous else _decoding_fault(source, records)
        if fault is not None:
            yield f"{path} with {records} rows: {fault}"
            continue
        # A file that differs keeps the digest that it had.
        current[path] = previous.get(path, digest)
        if current[path] != digest:
            yield f"{path} with {records} rows is not what it was at an earlier check"
    digests.keep(table.name, current)


def _digest(source: pa.NativeFile) -> str:
    digest = hashlib.sha256()
    while chunk := source.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def _decoding_fault(source: pa.NativeFile, records: int | None) -> str | None:
    """Return the fault of a file that cannot be decoded, or whose row count differs from the log's."""
    source.seek(0)
    try:
        file = pq.ParquetFile(source, page_checksum_verification=True)
        rows = 0
        for batch in file.iter_batches():
            batch.validate(full=True)
            rows += len(batch)
    except (pa.ArrowException, OSError, ValueError) as error:
        return f"it cannot be decoded: {str(error).splitlines()[0]}"
    return None if records in (None, rows) else f"it has {rows} rows"


def missing_files(lake: str, table: Table, delta: DeltaTable) -> Iterator[str]:
    """Yield a line for each newest file that is missing or differs in size. Raises `OSError`."""
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
