"""Chunks of the operator's output that are too much for the driver at once, as files in the lake until it reads them.

Stage: between the operator and the sink. Small batches, nearly all, travel through Spark. What a task says beyond
`MAX_INLINE_BYTES` it writes to a folder that both sides reach, and says only where it is. The sink removes the files of
a batch that it has committed, and the job at its start those that a killed one left.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from schemas.ids import digest

MAX_INLINE_BYTES = 8 * 1024 * 1024
"""What one task of the operator sends through Spark; with 128 of them that is all of `spark.driver.maxResultSize`."""
SPOOLED = "spooled:"
"""Before the kind of a chunk whose body is the path of its file."""


def spool_folder(lake: str, checkpoint: str) -> str:
    """Where the job of a checkpoint keeps its chunks: in the lake, which workers and driver reach alike."""
    return f"{lake.rstrip('/')}/_spool/{digest(checkpoint, size=8)}"


@dataclass
class Outbox:
    """What a task says, in chunks; one for each task."""

    folder: str
    _rows: list[tuple[str, bytes]] = field(default_factory=list)
    _inline: int = 0

    def give(self, bodies: dict[str, bytes]) -> None:
        """More chunks, by kind. Raises `OSError` when a file cannot be written."""
        for kind, body in bodies.items():
            if self._inline + len(body) <= MAX_INLINE_BYTES:
                self._inline += len(body)
                self._rows.append((kind, body))
            else:
                path = f"{self.folder}/{uuid4().hex}"
                _write(path, body)
                self._rows.append((SPOOLED + kind, path.encode()))

    def fetch(self) -> list[tuple[str, bytes]]:
        """Kind and body of what was given since the last call, or `SPOOLED` and kind, and path."""
        rows, self._rows = self._rows, []
        return rows


def read_chunk(kind: str, body: bytes) -> bytes:
    """The body of a row of the operator's output, wherever it is. Raises `OSError`."""
    if not kind.startswith(SPOOLED):
        return body
    path = body.decode()
    if (local := _local(path)) is not None:
        return local.read_bytes()
    folder, _, name = path.rpartition("/")
    with _storage(folder).open_input_stream(name) as stream:
        found: bytes = stream.read()
        return found


def remove_chunk(kind: str, body: bytes) -> None:
    """Removes the file of a row, if it has one; the next start of the job removes what cannot be removed now."""
    if not kind.startswith(SPOOLED):
        return
    path = body.decode()
    with suppress(OSError):
        if (local := _local(path)) is not None:
            local.unlink(missing_ok=True)
        else:
            folder, _, name = path.rpartition("/")
            _storage(folder).delete_file(name)


def empty_spool(folder: str) -> None:
    """Removes what a killed job left; raises `OSError`."""
    if (local := _local(folder)) is not None:
        shutil.rmtree(local, ignore_errors=True)
        return
    from pyarrow.fs import FileSelector, FileType

    storage = _storage(folder)
    for found in storage.get_file_info(FileSelector("", allow_not_found=True)):
        if found.type == FileType.File:
            storage.delete_file(found.path)


def _write(path: str, body: bytes) -> None:
    if (local := _local(path)) is not None:
        local.parent.mkdir(parents=True, exist_ok=True)
        local.write_bytes(body)
        return
    folder, _, name = path.rpartition("/")
    from deltalake.fs import DeltaStorageHandler

    # Its stream takes bytes only, and pyarrow would give it buffers of its own.
    stream = DeltaStorageHandler(folder)._handler.open_output_stream(name, None)
    stream.write(body)
    stream.close()


def _local(path: str) -> Path | None:
    if path.startswith("file://"):
        return Path(path.removeprefix("file://"))
    return None if "://" in path else Path(path)


def _storage(folder: str) -> Any:
    # Not at the top: a process that has it must not be forked, and few ever need it.
    from deltalake.fs import DeltaStorageHandler
    from pyarrow.fs import PyFileSystem

    return PyFileSystem(DeltaStorageHandler(folder))
