"""The checkpoint folder of the query: one job at a time, and the one that the lake's newest rows came from.

Stage: start-up. The lock is the operating system's, held as long as the driver lives. The identity of a checkpoint is
the query id that Spark writes into it. The sink's transactions carry it, so a new checkpoint is never mistaken for an
old one. An old copy of a checkpoint can: its next batches would have numbers that the lake already holds, with other
records in them.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from pyspark.sql import SparkSession


class CheckpointInUse(RuntimeError):
    """Another job holds the checkpoint; the message says which."""


class CheckpointUnfit(RuntimeError):
    """To start from this checkpoint would lose records or count them twice; the message says what to do instead."""


@dataclass(frozen=True)
class Place:
    """How far a checkpoint has come."""

    query: str
    """Identity of the query, which `batches.generation` shows."""
    newest_batch: int
    """Number of the newest batch that was begun; -1: none."""


def read_place(spark: SparkSession, checkpoint: str) -> Place | None:
    """How far the checkpoint has come, on any storage; None: there is none yet."""
    jvm = spark.sparkContext._gateway.jvm
    folder = jvm.org.apache.hadoop.fs.Path(checkpoint)
    files = folder.getFileSystem(spark._jsc.hadoopConfiguration())
    metadata = jvm.org.apache.hadoop.fs.Path(folder, "metadata")
    offsets = jvm.org.apache.hadoop.fs.Path(folder, "offsets")
    listed = files.listStatus(offsets) if files.exists(offsets) else []
    numbers = [int(name) for name in (status.getPath().getName() for status in listed) if name.isdigit()]
    if not files.exists(metadata):
        # With a log and no identity it is damaged, which Spark finds and says.
        return Place("", max(numbers)) if numbers else None
    stream = files.open(metadata)
    try:
        query = json.loads(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))["id"]
    finally:
        stream.close()
    return Place(query, max(numbers, default=-1))


def check_place(checkpoint: str, place: Place | None, lake: str, newest_written: int | None) -> None:
    """Raises `CheckpointUnfit` unless a lake that holds rows can go on from this place.

    `newest_written` is the newest batch of the place's own query in the lake; None: the lake has none of it.
    """
    if place is None:
        raise CheckpointUnfit(
            f"there is no checkpoint at {checkpoint}, but the lake {lake} has rows of an earlier one. If its folder is "
            "elsewhere (another setting, a disk that is not mounted), bring it back. If it is lost, `anabranch state "
            "rebuild` makes one from the lake. Or start over with `anabranch stream --new-checkpoint`: Kafka is read "
            "from its earliest record, the lake gets rows of the same records once more under a new generation, and "
            "cooldowns and the numbers of decisions start again"
        )
    if newest_written is not None and newest_written > place.newest_batch:
        raise CheckpointUnfit(
            f"the checkpoint {checkpoint} is an old copy: it has come to batch {place.newest_batch}, and the lake "
            f"{lake} holds its batch {newest_written}. Bring back the newest one; if that is lost, move this one away, "
            "and `anabranch state rebuild` makes one from the lake"
        )


@contextmanager
def lock_checkpoint(checkpoint: str) -> Iterator[None]:
    """Locks a local checkpoint folder; raises `CheckpointInUse` for a second job. A remote one is not locked."""
    if "://" in checkpoint:
        yield
        return
    path = Path(checkpoint)
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.with_name(path.name + ".lock")
    lock = FileLock(file, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        holder = file.read_text().strip() or "unknown"
        raise CheckpointInUse(f"the checkpoint {path} is in use by {holder}; stop that job first") from error
    try:
        file.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        yield
    finally:
        lock.release()
