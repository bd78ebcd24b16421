"""The driver of the program, against small programs that misbehave."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from anabranch.bookkeeper.process import SidecarLost, SidecarProcess
from anabranch.bookkeeper.sidecar import TOO_LATE, BookKeeperAddress, BookKeeperSidecar, LedgerRefused
from tests.bookkeeper.conftest import soon

pytestmark = pytest.mark.process

_PROGRAM = """
import json, os, sys
starts = open(sys.argv[1], "a+")
starts.write("x"); starts.flush(); starts.seek(0)
start = len(starts.read())
for line in sys.stdin:
    request = json.loads(line)
    answer = {"id": request["id"], "ok": True, "ledgers": []}
    if request["op"] != "connect":
        exec(sys.argv[2])
    print(json.dumps(answer), flush=True)
"""


def sidecar(folder: Path, misbehaviour: str, deadline_s: float = 60) -> BookKeeperSidecar:
    """Sidecar over a program that runs `misbehaviour` before each answer; `start` counts its starts from 1."""
    command = [sys.executable, "-c", _PROGRAM, str(folder / "starts"), misbehaviour]
    return BookKeeperSidecar(command, {"old": BookKeeperAddress("zk://nowhere")}, folder / "log", deadline_s=deadline_s)


def test_dead_program_restarted_and_asked_again(tmp_path: Path) -> None:
    with sidecar(tmp_path, "if start < 3: os._exit(1)") as one:
        assert list(one.ledgers("old")) == []
        assert one.starts == 3


def test_a_program_that_always_dies_is_given_up(tmp_path: Path) -> None:
    with sidecar(tmp_path, "os._exit(1)") as one, pytest.raises(SidecarLost, match="died"):
        list(one.ledgers("old"))
    assert one.starts == 3


def test_silent_program_killed_at_deadline(tmp_path: Path) -> None:
    with sidecar(tmp_path, "if start < 2: sys.stdin.read()", deadline_s=10) as one:
        assert list(one.ledgers("old")) == []
        assert one.starts == 2


def test_a_killed_program_is_not_asked_again(tmp_path: Path) -> None:
    """Also before the thread that reads its answers has seen their end, as a pipe that others hold open never ends."""
    command = [sys.executable, "-c", "import subprocess; subprocess.run('cat')"]
    one = SidecarProcess(command, tmp_path / "log")
    one.kill()
    assert not one.lives
    with pytest.raises(SidecarLost, match="has ended"):
        one.ask({"op": "list"}, 60)


def test_half_a_last_line_is_no_answer(tmp_path: Path) -> None:
    with sidecar(tmp_path, "if start < 2: print('{\"id\": 2, \"ok\"', end='', flush=True); os._exit(1)") as one:
        assert list(one.ledgers("old")) == []


def test_refusal_named_and_not_repeated(tmp_path: Path) -> None:
    with sidecar(tmp_path, "answer.update(ok=False, error='LedgerFenced', message='no')") as one:
        with pytest.raises(LedgerRefused, match="LedgerFenced: no") as caught:
            one.delete("old", 3, soon())
        assert (caught.value.name, one.starts) == ("LedgerFenced", 1)


def test_deletion_keeps_its_deadline_when_asked_again(tmp_path: Path) -> None:
    log = f"open({str(tmp_path / 'asked')!r}, 'a').write(f\"{{request['until']}} \"); "
    until = soon()
    with sidecar(tmp_path, f"{log}os._exit(1) if start < 3 else None") as one:
        one.delete("old", 3, until)
        assert one.starts == 3
    assert set((tmp_path / "asked").read_text().split()) == {str(int(until * 1000))}


def test_timed_out_deletion_not_repeated(tmp_path: Path) -> None:
    with sidecar(
        tmp_path,
        "time = __import__('time'); time.sleep(max(request['until'] / 1000 - time.time(), 0) + 0.1); os._exit(1)",
    ) as one:
        # Its start may take longer than the deadline, after which nothing would be asked.
        one._running(["old"])
        with pytest.raises(LedgerRefused) as caught:
            one.delete("old", 3, time.time() + 1)
    assert (caught.value.name, one.starts) == (TOO_LATE, 2)


def test_unreachable_cluster_reported_on_first_call(tmp_path: Path) -> None:
    program = "import json,sys\nfor line in sys.stdin: print(json.dumps({'id': json.loads(line)['id'], 'ok': False, "
    command = [sys.executable, "-c", program + "'error': 'ZK', 'message': 'no such root'}), flush=True)"]
    addresses = {"old": BookKeeperAddress("zk://nowhere")}
    with (
        BookKeeperSidecar(command, addresses, tmp_path / "log") as one,
        pytest.raises(LedgerRefused, match="no such root"),
    ):
        one.open("old", 1)
