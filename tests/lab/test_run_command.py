"""`anabranch run`: what is wrong is one line, and a start that is interrupted leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lab.processes import session_members
from lab.supervisor import only_one
from tests.waiting import wait_until

HOME = Path(__file__).resolve().parents[2]


def settings_file(tmp_path: Path, **local) -> Path:
    text = f'[lake]\npath = "{tmp_path}/lake"\n[stream]\ncheckpoint = "{tmp_path}/checkpoints/stream"\n'
    text += f'[controller]\nport = 0\ndatabase = "{tmp_path}/controller.db"\n[local]\nfolder = "{tmp_path}/var"\n'
    text += "".join(f"{key} = {value}\n" for key, value in local.items())
    file = tmp_path / "run.toml"
    file.write_text(text)
    return file


def command(*arguments: str, file: Path | None = None) -> list[str]:
    config = [] if file is None else ["--config", str(file)]
    return [sys.executable, "-m", "anabranch.cli", *config, "run", *arguments]


def run(*arguments: str, file: Path | None = None) -> subprocess.CompletedProcess:
    return subprocess.run(
        command(*arguments, file=file), cwd=HOME, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
    )


def test_without_local_it_says_how_to_run_on_a_cluster():
    done = run()
    assert done.returncode == 2
    assert "--local" in done.stderr


def test_a_duration_that_cannot_be_read_is_refused():
    done = run("--local", "--for", "soon")
    assert done.returncode == 2
    assert "'soon' is no duration" in done.stderr


def test_too_little_disk_is_one_line_with_what_to_do(tmp_path, jars):
    done = run("--local", "--no-screen", file=settings_file(tmp_path, free_disk_mb=10**9))
    assert done.returncode == 1
    assert done.stderr.strip().count("\n") == 0
    assert "make room" in done.stderr


def test_a_second_run_on_the_same_folder_names_the_first(tmp_path, jars):
    with only_one(tmp_path / "var"):
        done = run("--local", "--no-screen", file=settings_file(tmp_path))
    assert done.returncode == 1
    assert f"process {os.getpid()}" in done.stderr


def test_a_checkpoint_whose_broker_is_gone_is_one_line_with_what_to_do(tmp_path, jars):
    (tmp_path / "checkpoints" / "stream" / "offsets").mkdir(parents=True)
    done = run("--local", "--no-screen", file=settings_file(tmp_path))
    assert done.returncode == 1
    assert "make reset" in done.stderr


@pytest.mark.broker
@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_start_ends_it_and_leaves_nothing(tmp_path, jars, name):
    record = tmp_path / "var" / "processes.json"
    log = tmp_path / "out.log"
    with open(log, "wb") as output:
        running = subprocess.Popen(
            command("--local", "--no-screen", file=settings_file(tmp_path)), cwd=HOME, stdout=output, stderr=output,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        wait_until(lambda: record.exists() and json.loads(record.read_text()), 60)
        sessions = [entry["session"] for entry in json.loads(record.read_text())]
        running.send_signal(name)
        running.wait(60)
    finally:
        running.kill()
        running.wait()
    assert sessions
    assert [pid for session in sessions for pid in session_members(session)] == []
    assert "Traceback" not in log.read_text()
