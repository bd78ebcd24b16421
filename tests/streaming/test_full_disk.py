"""A full disk ends the job in a line that says so: the error is the operating system's, of `/dev/full`."""

from __future__ import annotations

from pathlib import Path

import pytest

from streaming.job.job import PersonNeeded, failure_of


def test_full_disk_recognized_and_retried():
    with pytest.raises(OSError, match="No space left") as plain:
        Path("/dev/full").write_text("x")
    failure = failure_of(f"[FOREACH_BATCH_USER_FUNCTION_ERROR] Reason: {plain.value}")
    assert str(failure).startswith("the disk is full: make room")
    assert not isinstance(failure, PersonNeeded)
