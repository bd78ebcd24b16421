"""Where a checkpoint is, and its own few files there: the same for a local folder and for any storage of Hadoop.

Stage: start-up. `file:` URLs mean the local folder, so that both spellings are one checkpoint with one lock. Any other
URL goes through Hadoop's `FileSystem`, as Spark itself reads the checkpoint.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from schemas.settings import Settings, SettingsError

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
IDENTITY = "metadata"
"""The file in which Spark keeps the query's id: a folder without it is no checkpoint."""


def checkpoint_of(settings: Settings, checkpoint: str | None = None) -> str:
    """The checkpoint of the settings, or another one: an absolute folder, or the URL of another storage."""
    named = settings.stream.checkpoint if checkpoint is None else checkpoint
    if not _URL.match(named):
        return str(settings.path(named))
    if not named.startswith("file:"):
        return named
    path = named.removeprefix("file:")
    # As Hadoop reads it: nothing is unquoted, and a local path has no host.
    return os.path.normpath(f"/{path[2:].partition('/')[2]}" if path.startswith("//") else path)


def is_local(checkpoint: str) -> bool:
    """Whether `checkpoint_of` has answered a folder."""
    return not _URL.match(checkpoint)


def spark_location(checkpoint: str) -> str:
    """The checkpoint as Spark has to be told, whatever its default storage is."""
    return f"file://{checkpoint}" if is_local(checkpoint) else checkpoint


class CheckpointFiles(Protocol):
    """The files of one checkpoint. Names are relative to it."""

    checkpoint: str

    def text(self, name: str) -> str | None:
        """A file's text; None: there is no such file."""

    def numbers(self, folder: str) -> list[int]:
        """The numbers that files of a folder are named by; none when there is no folder."""

    def is_empty(self) -> bool:
        """Whether nothing is there."""

    def write(self, name: str, text: str) -> None:
        """Makes or replaces a file, as a whole or not at all."""

    def make(self) -> Any:
        """A context with an empty local folder, which becomes the checkpoint at its end, as a whole or not at all."""


class LocalFiles:
    """In a local folder."""

    def __init__(self, checkpoint: str) -> None:
        self.checkpoint, self._folder = checkpoint, Path(checkpoint)

    def text(self, name: str) -> str | None:
        """A file's text; None: there is no such file."""
        file = self._folder / name
        return file.read_text() if file.exists() else None

    def numbers(self, folder: str) -> list[int]:
        """The numbers that files of a folder are named by."""
        return [int(file.name) for file in (self._folder / folder).glob("[0-9]*") if file.name.isdigit()]

    def is_empty(self) -> bool:
        """Whether nothing is there."""
        return not self._folder.exists() or not any(self._folder.iterdir())

    def write(self, name: str, text: str) -> None:
        """Makes or replaces a file."""
        file = self._folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        written = file.with_name(f".{file.name}.written")
        written.write_text(text)
        os.replace(written, file)

    @contextmanager
    def make(self) -> Iterator[Path]:
        """The folder is made beside the checkpoint, and renamed."""
        folder = self._folder.with_name(f"{self._folder.name}.rebuilding")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            yield folder
            os.replace(folder, self._folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


class HadoopFiles:
    """On a storage that Hadoop knows by a URL."""

    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        self.checkpoint = checkpoint
        self._jvm, self._hadoop = spark.sparkContext._gateway.jvm, spark._jsc.hadoopConfiguration()
        self._root = self._jvm.org.apache.hadoop.fs.Path(checkpoint)
        try:
            self._files = self._root.getFileSystem(self._hadoop)
        except Py4JJavaError as error:
            raise SettingsError(
                f"the checkpoint {checkpoint} is on a storage that Spark does not reach: {error.java_exception}; "
                "see [stream] checkpoint, and conf/spark.conf for the storage's jars and keys"
            ) from error

    def text(self, name: str) -> str | None:
        """A file's text; None: there is no such file."""
        if not self._files.exists(self._path(name)):
            return None
        stream = self._files.open(self._path(name))
        try:
            found: str = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        finally:
            stream.close()
        return found

    def numbers(self, folder: str) -> list[int]:
        """The numbers that files of a folder are named by."""
        listed = self._files.listStatus(self._path(folder)) if self._files.exists(self._path(folder)) else []
        names = (status.getPath().getName() for status in listed)
        return [int(name) for name in names if name.isdigit()]

    def is_empty(self) -> bool:
        """Whether nothing is there."""
        return not self._files.exists(self._root) or not len(self._files.listStatus(self._root))

    def write(self, name: str, text: str) -> None:
        """Makes or replaces a file, as Spark does it on this storage."""
        path = self._path(name)
        manager = self._jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
        self._files.mkdirs(path.getParent())
        out = manager.create(path.getParent(), self._hadoop).createAtomic(path, True)
        out.write(text.encode())
        out.close()

    @contextmanager
    def make(self) -> Iterator[Path]:
        """What was made is copied; last the file without which it is no checkpoint."""
        with tempfile.TemporaryDirectory(prefix="anabranch-checkpoint-") as made:
            folder = Path(made)
            yield folder
            found = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]
            for name in sorted(found, key=lambda name: name == IDENTITY):
                source = self._jvm.org.apache.hadoop.fs.Path(f"file://{folder / name}")
                self._files.copyFromLocalFile(False, True, source, self._path(name))

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, name)


def files_of(spark: SparkSession, checkpoint: str) -> CheckpointFiles:
    """The files of a checkpoint as `checkpoint_of` answers it."""
    return LocalFiles(checkpoint) if is_local(checkpoint) else HadoopFiles(spark, checkpoint)
