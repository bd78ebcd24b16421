"""The supervisor with small scripts as parts: restarts with back-off, and nothing left behind, however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from anabranch.local import supervisor as module
from anabranch.local.processes import TOKEN_VARIABLE, PartSpec, carries_token, session_members
from anabranch.local.supervisor import Supervisor, end_leftovers, leftovers, lock_folder, lock_owner
from runtime.java_home import SetupError
from tests.waiting import wait_until

pytestmark = pytest.mark.process

FOREVER = "import threading; threading.Event().wait()"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {FOREVER}"
STUBBORN_CHILD = f"""
import os, subprocess, sys
subprocess.Popen([sys.executable, "-c", {STUBBORN!r}], preexec_fn=lambda: os.setpgid(0, 0))
{FOREVER}
"""


def part(name: str, script: str, rank: int = 0, **more) -> PartSpec:
    return PartSpec(name, lambda: [sys.executable, "-c", script], rank, **more)


@pytest.fixture
def supervisor(tmp_path):
    one = Supervisor(tmp_path, restart_delay_s=0.01, restart_max_delay_s=0.04)
    yield one
    at_once = threading.Event()
    at_once.set()
    one.stop(at_once=at_once)


def state(supervisor, name):
    return next(one for one in supervisor.states() if one.name == name)


def looking(supervisor, condition):
    """The condition, with a look at the parts before."""

    def look():
        supervisor.look()
        return condition()

    return look


def test_dead_part_restarted_with_growing_pauses(supervisor):
    supervisor.start(part("brief", FOREVER), 10)
    pauses = []
    for _ in range(4):
        os.kill(state(supervisor, "brief").pid, signal.SIGKILL)
        wait_until(looking(supervisor, lambda: state(supervisor, "brief").state == "restarting"))
        pauses.append(state(supervisor, "brief").detail)
        wait_until(looking(supervisor, lambda: state(supervisor, "brief").state == "up"))
    assert pauses == [f"signal 9; again in {pause} s" for pause in ("0.01", "0.02", "0.04", "0.04")]
    assert state(supervisor, "brief").restarts == 4


def test_steady_part_restarts_with_first_pause(supervisor, monkeypatch):
    supervisor.start(part("steady", FOREVER), 10)
    os.kill(state(supervisor, "steady").pid, signal.SIGKILL)
    wait_until(looking(supervisor, lambda: state(supervisor, "steady").restarts == 1))
    wait_until(looking(supervisor, lambda: state(supervisor, "steady").state == "up"))
    monkeypatch.setattr(module, "_STEADY_SECONDS", 0.0)
    supervisor.look()
    os.kill(state(supervisor, "steady").pid, signal.SIGKILL)
    wait_until(looking(supervisor, lambda: state(supervisor, "steady").state == "restarting"))
    assert state(supervisor, "steady").detail == "signal 9; again in 0.01 s"


def test_dead_parts_session_ended_before_restart(supervisor):
    supervisor.start(part("orphaning", STUBBORN_CHILD), 10)
    session = state(supervisor, "orphaning").pid
    wait_until(lambda: len(session_members(session)) == 2)
    os.kill(session, signal.SIGKILL)
    wait_until(looking(supervisor, lambda: state(supervisor, "orphaning").state == "restarting"))
    assert session_members(session) == []


def test_stop_ends_highest_rank_first(supervisor):
    for name, rank in (("low", 0), ("middle", 1), ("high", 2)):
        supervisor.start(part(name, FOREVER, rank), 10)
    sessions = [one.pid for one in supervisor.states()]
    supervisor.stop()
    assert [event["part"] for event in supervisor.events if event["what"] == "stopped"] == ["high", "middle", "low"]
    assert [pid for session in sessions for pid in session_members(session)] == []


def test_part_ignoring_stop_is_killed(supervisor):
    supervisor.start(part("stubborn", STUBBORN, stop_seconds=0.2), 10)
    session = state(supervisor, "stubborn").pid
    supervisor.stop()
    assert session_members(session) == []


def test_part_never_serving_fails_with_last_words(supervisor, tmp_path):
    log = tmp_path / "log" / "mute.log"

    def serves() -> bool:
        wait_until(lambda: log.read_text().endswith("\n"))
        return False

    spec = part("mute", f"print('no such port', flush=True); {FOREVER}", is_ready=serves)
    with pytest.raises(SetupError, match="no such port"):
        supervisor.start(spec, 0.1)


def test_parts_die_with_killed_supervisor(tmp_path):
    script = textwrap.dedent(f"""
        import sys, threading
        from pathlib import Path
        from anabranch.local.processes import PartSpec
        from anabranch.local.supervisor import Supervisor
        one = Supervisor(Path({str(tmp_path)!r}), 1, 1)
        for name in ("a", "b"):
            one.start(PartSpec(name, lambda: [sys.executable, "-c", {FOREVER!r}], 0), 10)
        print("ready", flush=True)
        one.run(threading.Event())
    """)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=Path.cwd()) as running:
        assert running.stdout.readline() == b"ready\n"
        sessions = [entry["session"] for entry in json.loads((tmp_path / "processes.json").read_text())]
        running.kill()
    assert len(sessions) == 2
    wait_until(lambda: not any(session_members(session) for session in sessions))


def test_next_supervisor_ends_only_orphans(tmp_path):
    left, other = (
        subprocess.Popen(
            [sys.executable, "-c", FOREVER],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, TOKEN_VARIABLE: token},
        )
        for token in ("this run's", "another's")
    )
    try:
        record = tmp_path / "processes.json"
        record.write_text(
            json.dumps(
                [
                    {"part": "left", "session": left.pid, "token": "this run's"},
                    {"part": "reused", "session": other.pid, "token": "this run's"},
                    {
                        "part": "of an older release",
                        "session": other.pid,
                        "mark": "1",
                        "boot": "before",
                        "token": "this run's",
                    },
                ]
            )
        )
        # For a moment after its exec began, the kernel shows the environment of a process as empty.
        wait_until(lambda: carries_token(left.pid, "this run's") and carries_token(other.pid, "another's"))
        assert end_leftovers(record) == [left.pid]
        assert left.wait(10) == -signal.SIGKILL
        assert other.poll() is None
        assert not record.exists()
    finally:
        for process in (left, other):
            process.kill()
            process.wait()


@pytest.mark.parametrize(("carried", "ended"), [("this run's", True), ("another's", False)])
def test_orphans_ended_only_with_run_token(tmp_path, carried, ended):
    session, orphan = orphaned_session(carried)
    try:
        record = tmp_path / "processes.json"
        entry = {"part": "gone", "session": session, "token": "this run's"}
        record.write_text(json.dumps([entry]))
        assert leftovers(record) == ([session] if ended else [])
        assert end_leftovers(record) == ([session] if ended else [])
        assert session_members(session) == ([] if ended else [orphan])
    finally:
        if session_members(session):
            os.kill(orphan, signal.SIGKILL)


def orphaned_session(token: str) -> tuple[int, int]:
    """A session whose first process has ended and was collected, with one process left: ids of both."""
    # The orphan speaks for itself: for a moment after its exec began, the kernel shows its environment as empty.
    child = f"import os; print(os.getpid(), flush=True); {FOREVER}"
    script = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", script],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env={**os.environ, TOKEN_VARIABLE: token},
    ) as first:
        orphan = int(first.stdout.readline())
    return first.pid, orphan


def test_a_record_that_is_damaged_is_no_record(tmp_path):
    for text in ("", "[{}]", "null", '{"part": 1}'):
        (tmp_path / "processes.json").write_text(text)
        assert end_leftovers(tmp_path / "processes.json") == []


def test_failed_restart_is_tried_again(supervisor):
    commands = iter([[sys.executable, "-c", FOREVER], SetupError("no room"), [sys.executable, "-c", FOREVER]])

    def command():
        one = next(commands)
        if isinstance(one, SetupError):
            raise one
        return one

    supervisor.start(PartSpec("unlucky", command, 0), 10)
    os.kill(state(supervisor, "unlucky").pid, signal.SIGKILL)
    wait_until(looking(supervisor, lambda: "cannot be started: no room" in state(supervisor, "unlucky").detail))
    wait_until(looking(supervisor, lambda: state(supervisor, "unlucky").state == "up"))
    assert state(supervisor, "unlucky").restarts == 2


def test_unwritable_record_stops_nothing(supervisor, tmp_path):
    (tmp_path / "processes.part").mkdir()
    supervisor.start(part("unrecorded", FOREVER), 10)
    session = state(supervisor, "unrecorded").pid
    supervisor.stop()
    assert session_members(session) == []


def test_second_folder_holder_told_the_first(tmp_path):
    assert lock_owner(tmp_path) is None
    with lock_folder(tmp_path):
        assert lock_owner(tmp_path) == str(os.getpid())
        with pytest.raises(SetupError, match=f"process {os.getpid()}"), lock_folder(tmp_path):
            pass
    assert lock_owner(tmp_path) is None
    with lock_folder(tmp_path):
        pass


def test_impossible_folder_reported_with_advice(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SetupError, match="set \\[local\\] folder to another"), lock_folder(tmp_path / "file" / "var"):
        pass


def test_a_large_log_is_set_aside_at_the_next_start(supervisor, tmp_path, monkeypatch):
    monkeypatch.setattr("anabranch.local.processes._LOG_BYTES", 10)
    log = tmp_path / "log" / "talker.log"
    log.write_text("x" * 100)
    supervisor.start(part("talker", FOREVER), 10)
    assert log.with_suffix(".log.1").read_text() == "x" * 100
