"""Location of a checkpoint and access to its own small files, in a local folder or any Hadoop storage.

Stage: start-up. `file:` URLs mean the local folder, so that both spellings are one checkpoint with one lock. Other
URLs go through Hadoop's `FileSystem`, as in Spark itself.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from schemas.settings.root import Settings, SettingsError

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
IDENTITY = "metadata"
"""File with the query's id; a folder without it is no checkpoint."""


def checkpoint_of(settings: Settings, checkpoint: str | None = None) -> str:
    """Return the checkpoint of the settings, or another one: an absolute folder, or a storage URL."""
    named = settings.stream.checkpoint if checkpoint is None else checkpoint
    if not _URL.match(named):
        return str(settings.path(named))
    if not named.startswith("file:"):
        return named
    path = named.removeprefix("file:")
    # As Hadoop reads it: nothing is unquoted, and a local path has no host.
    return os.path.normpath(f"/{path[2:].partition('/')[2]}" if path.startswith("//") else path)


def is_local(checkpoint: str) -> bool:
    """Return whether a result of `checkpoint_of` is a folder."""
    return not _URL.match(checkpoint)


def spark_location(checkpoint: str) -> str:
    """Return the checkpoint as a location for Spark, independent of its default storage."""
    return f"file://{checkpoint}" if is_local(checkpoint) else checkpoint


class LocalFiles:
    """Files in a local folder."""

    def __init__(self, checkpoint: str) -> None:
        self.checkpoint, self._folder = checkpoint, Path(checkpoint)

    def text(self, name: str) -> str | None:
        """Return a file's text; None if it does not exist."""
        file = self._folder / name
        return file.read_text() if file.exists() else None

    def numbers(self, folder: str) -> list[int]:
        """Return the numbers that name files of a folder; none without the folder."""
        return [int(file.name) for file in (self._folder / folder).glob("[0-9]*") if file.name.isdigit()]

    def is_empty(self) -> bool:
        """Return whether there are no files."""
        return not self._folder.exists() or not any(self._folder.iterdir())

    def write(self, name: str, text: str) -> None:
        """Create or replace a file atomically."""
        file = self._folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        written = file.with_name(f".{file.name}.written")
        written.write_text(text)
        os.replace(written, file)

    @contextmanager
    def make(self) -> Iterator[Path]:
        """Create a folder beside the checkpoint, and rename it at the end."""
        folder = self._folder.with_name(f"{self._folder.name}.rebuilding")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            yield folder
            os.replace(folder, self._folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


class HadoopFiles:
    """Files on a storage that Hadoop knows by a URL."""

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
        """Return a file's text; None if it does not exist."""
        if not self._files.exists(self._path(name)):
            return None
        stream = self._files.open(self._path(name))
        try:
            content: str = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        finally:
            stream.close()
        return content

    def numbers(self, folder: str) -> list[int]:
        """Return the numbers that name files of a folder."""
        listed = self._files.listStatus(self._path(folder)) if self._files.exists(self._path(folder)) else []
        names = (status.getPath().getName() for status in listed)
        return [int(name) for name in names if name.isdigit()]

    def is_empty(self) -> bool:
        """Return whether there are no files."""
        return not self._files.exists(self._root) or not len(self._files.listStatus(self._root))

    def write(self, name: str, text: str) -> None:
        """Create or replace a file, as Spark does on this storage."""
        path = self._path(name)
        manager = self._jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
        self._files.mkdirs(path.getParent())
        out = manager.create(path.getParent(), self._hadoop).createAtomic(path, True)
        out.write(text.encode())
        out.close()

    @contextmanager
    def make(self) -> Iterator[Path]:
        """Copy the new folder at the end, and the file that makes it a checkpoint last."""
        with tempfile.TemporaryDirectory(prefix="anabranch-checkpoint-") as temporary:
            folder = Path(temporary)
            yield folder
            names = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]
            for name in sorted(names, key=lambda name: name == IDENTITY):
                source = self._jvm.org.apache.hadoop.fs.Path(f"file://{folder / name}")
                self._files.copyFromLocalFile(False, True, source, self._path(name))

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, name)


CheckpointFiles: TypeAlias = LocalFiles | HadoopFiles
"""The files of one checkpoint. Names are relative to it."""


def files_of(spark: SparkSession, checkpoint: str) -> CheckpointFiles:
    """Return the files of a checkpoint given by `checkpoint_of`."""
    return LocalFiles(checkpoint) if is_local(checkpoint) else HadoopFiles(spark, checkpoint)
