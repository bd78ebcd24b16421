"""The checkpoint folder of the query: one job at a time, and an identity that its sink is fenced by.

Stage: start-up. The lock is the operating system's, held as long as the driver lives; the identity is the query id
that Spark writes into the checkpoint, so a new checkpoint can never be mistaken for an old one.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class CheckpointInUse(RuntimeError):
    """Another job holds the checkpoint; the message says which."""


@contextmanager
def hold_checkpoint(checkpoint: str) -> Iterator[None]:
    """Holds a local checkpoint folder against a second job; raises `CheckpointInUse`. A remote one is not locked."""
    if "://" in checkpoint:
        yield
        return
    path = Path(checkpoint)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(path.name + ".lock"), "a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            raise CheckpointInUse(f"the checkpoint {path} is in use by {holder}; stop that job first") from error
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {socket.gethostname()}")
        lock.flush()
        yield
