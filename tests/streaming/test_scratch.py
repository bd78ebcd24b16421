"""The job's own temporary files: there while it runs, and gone afterwards, however it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.settings.root import SettingsError
from streaming.job import scratch
from streaming.job.scratch import scratch_folder, socket_folder

HOLD = """
import sys
from pathlib import Path
from streaming.job.scratch import scratch_folder
with scratch_folder(Path(sys.argv[1])) as own:
    (own / "state").mkdir()
    (own / "state" / "1.sst").write_text("x")
    print(own, flush=True)
    sys.stdin.read()
"""


def holder(root: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process with a scratch folder, and the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_folder_exists_only_while_used(tmp_path):
    with scratch_folder(tmp_path / "var" / "scratch") as own:
        (own / "file").write_text("x")
        assert own.parent == tmp_path / "var" / "scratch"
    assert not own.exists()


@pytest.mark.process
def test_next_start_removes_dead_process_folders(tmp_path):
    living, its_folder = holder(tmp_path)
    killed, left = holder(tmp_path)
    killed.send_signal(signal.SIGKILL)
    killed.wait(10)
    assert (left / "state" / "1.sst").exists()
    with scratch_folder(tmp_path) as own:
        assert not left.exists()
        assert {path.name for path in tmp_path.glob("job-*")} == {own.name, its_folder.name}
        assert (its_folder / "state" / "1.sst").exists()
    living.communicate("", timeout=10)
    assert living.returncode == 0
    assert not list(tmp_path.glob("job-*"))


def test_unwritable_folder_is_a_settings_error(tmp_path):
    (tmp_path / "file").write_text("")
    said = r"no temporary files can be made in .*/file/scratch \(\[local\] folder\)"
    with pytest.raises(SettingsError, match=said), scratch_folder(tmp_path / "file" / "scratch"):
        pass


def test_sockets_share_job_folder_or_short_one(tmp_path, monkeypatch):
    """A long path leads to a short private folder."""
    monkeypatch.setattr(scratch, "gettempdir", lambda: str(tmp_path))
    short, long = Path("/" + "x" * 62), Path("/" + "x" * 63)
    with socket_folder(short) as own:
        assert own == short
    with socket_folder(long) as own:
        assert own.parent.parent == tmp_path
        assert own.parent.stat().st_mode & 0o777 == own.stat().st_mode & 0o777 == 0o700
    assert not own.exists()


def test_redirected_socket_folder_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(scratch, "gettempdir", lambda: str(tmp_path))
    (tmp_path / f"anabranch-{os.getuid()}").symlink_to(tmp_path)
    with pytest.raises(SettingsError, match="belongs to somebody else"):
        socket_folder(Path("/" + "x" * 64))


def test_sockets_avoid_upper_case_paths(tmp_path, monkeypatch):
    """PySpark 4.2 connects to the lower-case form of the state socket's path."""
    monkeypatch.setattr(scratch, "gettempdir", lambda: str(tmp_path))
    with socket_folder(Path("/home/Alice/var/scratch")) as own:
        assert own.parent.parent == tmp_path
        assert str(own) == str(own).lower()


def test_sockets_need_a_lower_case_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(scratch, "gettempdir", lambda: "/Temp")
    monkeypatch.setattr(scratch, "Path", lambda text: Path("/Private") if text == "/tmp" else Path(text))
    with pytest.raises(SettingsError, match="upper-case letters"), socket_folder(Path("/home/Alice")):
        pass
