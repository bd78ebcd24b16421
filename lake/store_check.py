"""Check of what Delta needs of an object store: put, refuse a second put of a name, list, delete.

Stage: beside `lake.tables`; `anabranch doctor` runs it. A store that ignores the condition of a put (older MinIO,
gateways) lets one writer's commit overwrite another's, and nobody notices.
"""

from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileSelector, FileType, PyFileSystem

from lake.files import is_remote

WRITERS = 8
"""Commits at once: enough that some want the same name."""


def check_store(lake: str) -> str:
    """Return what is wrong with the store of a lake, or nothing; a local folder needs no check.

    Makes a table of its own and deletes it. Raises `DeltaError` or `OSError` when the store refuses.
    """
    if not is_remote(lake):
        return ""
    path = f"{lake.rstrip('/')}/doctor-{uuid4().hex}"
    files = PyFileSystem(DeltaStorageHandler(path))
    try:
        if lost := _lost_commits(path):
            return f"{lost} of {WRITERS} concurrent commits were overwritten: puts ignore If-None-Match"
    finally:
        for file in _files(files):
            files.delete_file(file)
    return f"files of {path} are listed after they were deleted" if _files(files) else ""


def _lost_commits(path: str) -> int:
    rows = pa.table({"number": [1]})
    tables = [DeltaTable.create(path, schema=rows.schema), *(DeltaTable(path) for _ in range(WRITERS - 1))]
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda table: write_deltalake(table, rows, mode="append"), tables))
    commits: int = DeltaTable(path).version()
    # A commit whose answer is lost may exist twice.
    return max(WRITERS - commits, 0)


def _files(files: PyFileSystem) -> list[str]:
    entries = files.get_file_info(FileSelector("", allow_not_found=True, recursive=True))
    return [entry.path for entry in entries if entry.type == FileType.File]
