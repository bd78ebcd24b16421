"""Beats on a real register, with a clock that the test moves: who works on what, and who may call when."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone

import pytest
from deltalake.exceptions import DeltaError

from anabranch.cli.brake_report import brake_report, format_report
from anabranch.executor.shards.holding import BEATS, Holding, StopSignal
from anabranch.executor.shards.members import Member, Unlike
from anabranch.executor.shards.register import MemberRegister, read_members
from lake.lease import LeaseLost
from schemas.settings.root import load_settings

SECONDS, CALL_SECONDS = 20.0, 8.0


@dataclass
class Work:
    """Work that ends as soon as it is told to, unless it lingers."""

    token: int
    may_call: Callable[[], bool]
    stopped: bool = False
    lingers: bool = False
    open_decisions: int | None = 0

    def stop(self) -> None:
        self.stopped = True

    @property
    def ended(self) -> bool:
        return self.stopped and not self.lingers


@dataclass
class Process:
    """One executor of the test."""

    holding: Holding
    works: dict[int, list[Work]] = field(default_factory=dict)

    def beat(self) -> None:
        self.holding.beat()

    def at_work(self) -> list[int]:
        return sorted(shard for shard, works in self.works.items() if not works[-1].stopped)


class House:
    """A lake, a clock, and processes."""

    def __init__(self, lake: str, shards: int = 4) -> None:
        self.lake, self.shards, self.now, self.count = lake, shards, 0.0, 0

    def start(self) -> Process:
        """An executor that has beaten for the first time."""
        process = self.make()
        process.holding._join()
        return process

    def make(self) -> Process:
        """An executor that was not there yet."""
        self.count += 1
        since = datetime(2026, 11, 20, 12, 0, self.count, tzinfo=timezone.utc)
        me = Member(f"m{self.count}", "act", self.shards, SECONDS, since)
        works: dict[int, list[Work]] = {}

        def begin(shard: int, token: int, may_call: Callable[[], bool]) -> Work:
            works.setdefault(shard, []).append(Work(token, may_call))
            return works[shard][-1]

        register = MemberRegister(self.lake)
        return Process(Holding(register, me, CALL_SECONDS, begin, lambda: self.now, lambda: self.now), works)


@pytest.fixture
def house(tmp_path):
    return House(str(tmp_path))


def test_second_executor_gets_part_after_first_stops(house: House):
    first = house.start()
    assert first.at_work() == [0, 1, 2, 3]
    second = house.start()
    first.works[2][0].lingers = True
    first.beat()
    first.beat()
    second.beat()
    assert (first.at_work(), second.at_work()) == ([0, 1], [3])
    first.works[2][0].lingers = False
    first.beat()
    second.beat()
    assert second.at_work() == [2, 3]
    assert second.works[2][0].token > first.works[2][0].token


def test_silent_executor_replaced_after_promised_time(house: House):
    house.start()
    second = house.start()
    second.beat()
    for house.now in (SECONDS / 2, SECONDS - 0.1):
        second.beat()
        assert second.at_work() == []
    house.now = SECONDS + 0.1
    second.beat()
    assert second.at_work() == [0, 1, 2, 3]


def test_presumed_dead_executor_stops_calling(house: House):
    first = house.start()
    second = house.start()
    may_call = first.works[0][0].may_call
    for house.now, allowed in ((0.0, True), (SECONDS - CALL_SECONDS, True), (SECONDS - CALL_SECONDS + 0.1, False)):
        assert may_call() == allowed
    second.beat()
    house.now = 2 * SECONDS
    second.beat()
    assert second.at_work() == [0, 1, 2, 3]
    with pytest.raises(LeaseLost, match=r"have taken this one \(m1\) for dead, as it was silent for 20 s"):
        first.beat()
    assert not may_call()


def test_lease_counts_from_before_its_heartbeat(house: House, monkeypatch):
    """Others count its silence from the commit, which may take long; the lease must not end after that."""
    only = house.start()
    register, replace_members = only.holding._register, only.holding._register.replace

    def replace_slowly(members):
        replace_members(members)
        house.now += 5.0

    monkeypatch.setattr(register, "replace", replace_slowly)
    begun = house.now = SECONDS / BEATS
    only.beat()
    for house.now, allowed in ((begun + SECONDS - CALL_SECONDS, True), (begun + SECONDS - CALL_SECONDS + 0.1, False)):
        assert only.holding.may_call() == allowed


def test_frozen_executor_continues_if_not_replaced(house: House):
    only = house.start()
    house.now = 5 * SECONDS
    assert not only.works[0][0].may_call()
    only.beat()
    assert only.works[0][0].may_call()
    assert len(only.works[0]) == 1


def test_calls_end_before_lease_without_lake(house: House, monkeypatch):
    only = house.start()
    may_call, replacing = only.works[0][0].may_call, MemberRegister.replace

    def broken(*_: object) -> int:
        raise DeltaError("no space left on device")

    monkeypatch.setattr(MemberRegister, "replace", broken)
    for house.now in (SECONDS / BEATS, SECONDS / 2, SECONDS - CALL_SECONDS + 0.1):
        only.beat()
    assert not may_call()
    monkeypatch.setattr(MemberRegister, "replace", replacing)
    only.beat()
    assert may_call()


def test_heartbeat_written_despite_error_is_fine(house: House, monkeypatch):
    only, replacing = house.start(), MemberRegister.replace

    def made_and_failed(register: MemberRegister, members: tuple[Member, ...]) -> int:
        replacing(register, members)
        raise OSError("the connection broke")

    with monkeypatch.context() as patched:
        patched.setattr(MemberRegister, "replace", made_and_failed)
        house.now = SECONDS / 2
        only.beat()
    only.beat()
    assert only.works[0][0].may_call()
    assert [one.beat for one in read_members(house.lake)] == [3]


def test_who_leaves_cleanly_is_followed_at_once(house: House):
    first, second = house.start(), house.start()
    stop = StopSignal()
    stop.set()
    first.holding.run(stop)
    second.beat()
    assert second.at_work() == [0, 1, 2, 3]
    assert [one.name for one in read_members(house.lake)] == ["m2"]


def test_simultaneous_heartbeats_share_no_shard(house: House):
    first, second = house.start(), house.start()
    register = MemberRegister(house.lake)
    number, members = register.read()
    house.now = SECONDS / BEATS
    first.beat()
    second.beat()
    with pytest.raises(Exception, match=r"(?i)concurrent|conflict|transaction"):
        register.replace(tuple(replace(one, beat=99) for one in members))
    assert register.read()[0] > number


def test_status_shows_holders_standbys_and_silent(house: House):
    house.shards = 1
    house.start()
    house.start()
    now = datetime.now(timezone.utc)
    first, second = brake_report(house.lake, load_settings(environment={}).executor, now)["executors"]
    assert (first["executor"], first["shards"], first["of"], first["isSilent"]) == ("m1", [0], 1, False)
    assert (second["executor"], second["shards"]) == ("m2", [])
    later = now + timedelta(seconds=2 * SECONDS)
    lines = format_report(brake_report(house.lake, load_settings(environment={}).executor, later)).splitlines()
    assert "executors m1 in mode act, shards 0 of 1, since 2026-11-20T12:00:01Z, last beat " in lines[0]
    assert lines[1].endswith("(silent: others take over)")
    assert "m2 in mode act, stands by, " in lines[1]
    assert lines[-1].startswith("note      the settings read here have mode observe, not act: their windows and limits")
    own = load_settings(environment={}).executor.model_copy(update={"mode": "act"})
    assert "note" not in format_report(brake_report(house.lake, own, later))


@pytest.mark.parametrize("is_alive", [True, False])
def test_other_shard_count_waits_for_sign_of_life(house: House, is_alive):
    """The executor begins when there is none."""
    first = house.start()
    house.shards = 2
    other = house.make()
    other.holding._join()
    house.now = SECONDS
    if is_alive:
        first.beat()
        with pytest.raises(Unlike, match="the executor m1 is at work on this lake with 4 shards in mode act"):
            other.holding._join()
    else:
        other.holding._join()
        assert other.at_work() == [0, 1]


def test_resumed_machine_calls_after_heartbeat_only(house: House, monkeypatch):
    me = replace(house.make().holding._me, name="laptop")
    holding = Holding(MemberRegister(house.lake), me, CALL_SECONDS, lambda *_: Work(0, lambda: True))
    holding._join()
    assert holding.may_call()
    clock = time.clock_gettime
    suspended = {time.CLOCK_BOOTTIME: 3600.0}
    monkeypatch.setattr(time, "clock_gettime", lambda which: clock(which) + suspended.get(which, 0.0))
    assert not holding.may_call()
    holding.beat()
    assert holding.may_call()
