"""Start-up checks of the query's checkpoint: one job uses it, and it matches the lake.

Stage: start-up. The lock on a local folder is the operating system's and lasts as long as the driver. A checkpoint
is identified by the query id that Spark writes into it. The sink's transactions carry that id, so a new checkpoint
is never mistaken for an old one. An old copy of a checkpoint can be: its next batches would have numbers that the
lake already holds, with other records in them.
"""

import json
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from engine.history import is_rebuilt_generation
from streaming.checkpoint.storage import IDENTITY, CheckpointFiles, is_local

REBUILT = "rebuilt"
"""Folder with the data for the first start on a rebuilt checkpoint."""


class CheckpointInUse(RuntimeError):
    """Another job holds the checkpoint; the message says which."""


class CheckpointUnfit(RuntimeError):
    """A start from this checkpoint would lose or double records; the message says what to do instead."""


@dataclass(frozen=True)
class Place:
    """Progress of a checkpoint."""

    query: str
    """Identity of the query, which `batches.generation` shows."""
    newest_batch: int
    """Number of the newest batch begun; -1: none."""
    newest_ended: int = -1
    """Number of the newest batch completed; -1: none."""


def read_place(files: CheckpointFiles) -> Place | None:
    """Return the progress of a checkpoint; None if it does not exist."""
    begun, ended = (max(files.numbers(folder), default=-1) for folder in ("offsets", "commits"))
    if (metadata := files.text(IDENTITY)) is None:
        # With a log but without an identity it is damaged, which Spark reports.
        return Place("", begun, ended) if begun >= 0 else None
    return Place(json.loads(metadata)["id"], begun, ended)


def check_place(
    checkpoint: str, position: Place | None, lake: str, newest_written: int | None, has_first_start: bool = False
) -> None:
    """Raise `CheckpointUnfit` unless a lake with rows can continue from this place.

    `newest_written` is the newest batch of the place's own query in the lake; None: the lake has none of it.
    `has_first_start`: the state of a rebuilt checkpoint exists (`streaming.checkpoint.first_start`).
    """
    if position is None:
        raise CheckpointUnfit(
            f"there is no checkpoint at {checkpoint}, but the lake {lake} has rows of an earlier one. If its folder is "
            "elsewhere (another setting, a disk that is not mounted), bring it back. If it is lost, `anabranch "
            "lake state "
            "rebuild` makes one from the lake. Or start over with `anabranch serve stream --new-checkpoint`: Kafka "
            "is read "
            "from its earliest record, the lake gets rows of the same records once more under a new generation, and "
            "cooldowns and the numbers of decisions start again"
        )
    if position.newest_ended < 0 and is_rebuilt_generation(position.query) and not has_first_start:
        raise CheckpointUnfit(
            f"the checkpoint {checkpoint} was made by `anabranch lake state rebuild`, and what the first start on "
            "it begins "
            f"with is missing: its folder {REBUILT}. Copy the checkpoint as a whole, or move it away and rebuild again"
        )
    if newest_written is not None and newest_written > position.newest_batch:
        raise CheckpointUnfit(
            f"the checkpoint {checkpoint} is an old copy: it has come to batch {position.newest_batch}, and the lake "
            f"{lake} holds its batch {newest_written}. Bring back the newest one; if that is lost, move this one away, "
            "and `anabranch lake state rebuild` makes one from the lake"
        )


def holder_name() -> str:
    """Return a unique name of this process, for people."""
    return f"process {os.getpid()} on {socket.gethostname()}, {secrets.token_hex(4)}"


@contextmanager
def lock_checkpoint(checkpoint: str, holder: str) -> Iterator[str | None]:
    """Lock a local checkpoint folder; raises `CheckpointInUse` for a second job.

    Yields the previous holder, which is dead; None if there was none, or the checkpoint is on another storage
    without locks. There only the lease on the lake excludes a second job (`lake.job_lease`).
    """
    if not is_local(checkpoint):
        yield None
        return
    path = Path(checkpoint).resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.with_name(path.name + ".lock"), timeout=0)
    # A file of its own: some versions of filelock empty the lock file when they take it.
    name = path.with_name(path.name + ".holder")
    name.touch()
    try:
        lock.acquire()
    except Timeout as error:
        owner = name.read_text().strip() or "unknown"
        raise CheckpointInUse(f"the checkpoint {path} is in use by {owner}; stop that job first") from error
    try:
        before = name.read_text().strip()
        name.write_text(holder)
        yield before or None
    finally:
        lock.release()
