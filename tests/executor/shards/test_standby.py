"""Several executors as processes: killed, frozen beyond their lease and woken up, stopped."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from anabranch.executor.shards.members import Members, excess, shard_of
from anabranch.executor.shards.register import read_members
from tests.executor.conftest import House
from tests.executor.test_crash import started
from tests.waiting import wait_until

pytestmark = pytest.mark.process

LEASE_SECONDS = 8.0
DEADLINE = 60.0
POLL_SECONDS = 0.2


@contextmanager
def executors(house: House, folder: Path, count: int, shards: int) -> Iterator[list[subprocess.Popen[str]]]:
    """So many executors, each ready."""
    more = f"shards = {shards}\nlease_seconds = {LEASE_SECONDS}\nrequest_timeout_seconds = 1.5\n"
    with ExitStack() as stack:
        processes = []
        for number in range(count):
            (folder / str(number)).mkdir()
            processes.append(stack.enter_context(started(house, folder / str(number), "never", more)))
        for process in processes:
            assert process.stdout is not None
            assert "executor ready" in process.stdout.readline()
        yield processes


def held_by(members: Members, process: subprocess.Popen[str]) -> tuple[int, ...]:
    """The shards of a process; none if it is no member."""
    return next((one.shards for one in members if f":{process.pid}-" in one.name), ())


def the_one_at_work(house: House, processes: list[subprocess.Popen[str]]) -> subprocess.Popen[str]:
    """Who has the only shard, once it is with whom it is due to: while they come, it may be handed on."""

    def found() -> list[subprocess.Popen[str]]:
        members = read_members(house.lake)
        if any(excess(members, one.name) for one in members):
            return []
        return [one for one in processes if held_by(members, one)]

    return wait_until(found, DEADLINE, POLL_SECONDS)[0]


def test_killed_executors_shards_taken_over(house: House, tmp_path: Path):
    """Three executors share four shards; one is killed."""
    topics = [house.create(f"t{number}") for number in range(8)]
    assert {shard_of(topic, 4) for topic in topics} == {0, 1, 2, 3}
    with executors(house, tmp_path, 3, 4) as processes:
        wait_until(
            lambda: sorted(len(held_by(read_members(house.lake), one)) for one in processes) == [1, 1, 2],
            DEADLINE,
            POLL_SECONDS,
        )
        first = [house.decide(topic, 0) for topic in topics]
        house.commit(*first)
        assert {house.end(one, DEADLINE)["status"] for one in first} == {"applied"}
        assert len({row["executor"].partition("#")[0] for row in house.ends()}) == 3

        victim = max(processes, key=lambda one: len(held_by(read_members(house.lake), one)))
        victim.kill()
        killed_at = time.monotonic()
        second = [house.decide(topic, 1) for topic in topics]
        house.commit(*second)
        wait_until(lambda: not held_by(read_members(house.lake), victim), DEADLINE, POLL_SECONDS)
        silence = time.monotonic() - killed_at
        assert {house.end(one, DEADLINE)["status"] for one in second} == {"applied"}
        assert {shard for one in read_members(house.lake) for shard in one.shards} == {0, 1, 2, 3}
    assert silence > LEASE_SECONDS / 2
    assert [house.layout(topic).epoch for topic in topics] == [2] * 8
    assert house.gate.count("POST") == 16


def test_frozen_executors_inactive_after_lease(house: House, tmp_path: Path):
    """One is frozen during the look before its call, the next while its call is out: the third finishes that, once."""
    topic = house.create("orders", 2)
    with executors(house, tmp_path, 3, 1) as processes:
        for number, method in enumerate(["GET", "POST"]):
            active = the_one_at_work(house, processes)
            split = house.decide(topic, number)
            house.gate.before_next(method, partial(active.send_signal, signal.SIGSTOP))
            house.commit(split)
            assert house.end(split, DEADLINE)["status"] == "applied"
            begun, *_, ended = house.outcomes(split)
            assert f":{active.pid}#" in begun["executor"]
            assert begun["executor"] != ended["executor"]
            assert house.gate.count("POST") == number + 1
            active.send_signal(signal.SIGCONT)
            assert active.wait(DEADLINE) != 0
            assert house.gate.count("POST") == number + 1
        last = house.decide(topic, 2)
        house.commit(last)
        assert house.end(last, DEADLINE)["status"] == "applied"
    assert (house.gate.count("POST"), len(house.ends()), house.layout(topic).epoch) == (3, 3, 3)
