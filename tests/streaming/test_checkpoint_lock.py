"""One job at a time has a checkpoint."""

from __future__ import annotations

import os

import pytest

from streaming.checkpoint import CheckpointInUse, lock_checkpoint


def test_a_second_holder_is_told_who_has_it_and_a_later_one_gets_it(tmp_path):
    checkpoint = str(tmp_path / "checkpoints" / "stream")
    with lock_checkpoint(checkpoint):
        with pytest.raises(CheckpointInUse, match=f"in use by process {os.getpid()} on "), lock_checkpoint(checkpoint):
            pass
        with pytest.raises(CheckpointInUse, match=f"in use by process {os.getpid()} on "), lock_checkpoint(checkpoint):
            pass
    with lock_checkpoint(checkpoint):
        pass


def test_a_remote_checkpoint_is_not_locked():
    with lock_checkpoint("s3a://bucket/stream"), lock_checkpoint("s3a://bucket/stream"):
        pass
