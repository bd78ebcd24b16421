"""A full disk ends the job in a line that says so; with room again it goes on and nothing is lost.

The errors are those of the operating system: of `/dev/full` everywhere, and of a small disk of the test's own where
the process may mount one (root, or a container with CAP_SYS_ADMIN).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from decisions.layout import SegmentLayout
from schemas.settings import load_settings
from streaming.job import PersonNeeded, failure_of
from tests.streaming.jobs import TOPICS, Feed, check_nothing_lost_and_nothing_twice, load_round, now_ms, read
from tests.streaming.records import layout, tick
from tests.waiting import wait_until

ROOM = 64 * 1024 * 1024


def test_what_the_system_says_of_a_full_disk_is_understood_and_worth_a_restart():
    with pytest.raises(OSError, match="No space left") as plain:
        Path("/dev/full").write_text("x")
    failure = failure_of(f"[FOREACH_BATCH_USER_FUNCTION_ERROR] Reason: {plain.value}")
    assert str(failure).startswith("the disk is full: make room")
    assert not isinstance(failure, PersonNeeded)


def may_mount() -> bool:
    """Whether this process may mount a file system, asked without mounting one: bit 21 is CAP_SYS_ADMIN."""
    status = Path("/proc/self/status").read_text()
    return bool(int(status.split("CapEff:")[1].split()[0], 16) >> 21 & 1)


if may_mount():

    @pytest.fixture
    def disk(tmp_path) -> Iterator[Path]:
        """A folder on a disk of its own, of `ROOM` bytes."""
        folder = tmp_path / "disk"
        folder.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", str(folder)], check=True)
        try:
            yield folder
        finally:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)

    def fill(disk: Path) -> Path:
        """A file that takes all that is left."""
        file = disk / "somebody else's"
        subprocess.run(["dd", "if=/dev/zero", f"of={file}", "bs=64k"], stderr=subprocess.DEVNULL)
        return file

    @pytest.mark.spark
    @pytest.mark.broker
    @pytest.mark.timeout(400)
    def test_a_full_disk_ends_the_job_with_what_to_do_and_with_room_again_nothing_is_lost(
        disk, start, own_broker, job_settings, tmp_path
    ):
        job_settings.write_text(
            job_settings.read_text()
            .replace(f"{tmp_path}/lake", f"{disk}/lake")
            .replace(f"{tmp_path}/checkpoint", f"{disk}/checkpoint")
        )
        settings, feed = load_settings([job_settings]), Feed(own_broker.bootstrap)
        feed.send(*[layout(SegmentLayout.create(2, now_ms()), topic=topic) for topic in TOPICS], *load_round(0))
        job = start()
        wait_until(lambda: read(settings) == feed.end_offsets(), 90, 0.2)
        filler = fill(disk)
        feed.send(*load_round(6), tick(now_ms()))
        assert job.process.wait(60) == 1
        last_line = (tmp_path / "job.log").read_text().rstrip().rpartition("Error: ")[2]
        assert last_line.startswith("the disk is full: make room")
        refused = start()
        assert refused.process.wait(60) == 1
        last_line = (tmp_path / "job.log").read_text().rstrip().rpartition("Error: ")[2]
        assert last_line.startswith("the disk is full: make room")
        os.unlink(filler)
        job = start()
        wait_until(lambda: read(settings) == feed.end_offsets(), 90, 0.2)
        check_nothing_lost_and_nothing_twice(settings, feed)
        assert job.stop() == 0
