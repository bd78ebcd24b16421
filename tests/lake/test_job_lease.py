"""One job at a time writes a lake: who holds it, who waits, who is refused, and what a frozen holder can still do."""

from __future__ import annotations

import threading
from datetime import datetime, timezone

import pytest
from deltalake.exceptions import CommitFailedError

from lake import job_lease
from lake.job_lease import LEASE, Claim, NoLease, hold_lake, take_lease
from lake.lease import LeaseLost
from lake.tables import OpenTable, create_table
from schemas.tables.arrow import to_arrow
from schemas.tables.rows import DEAD_LETTERS
from tests.local.lake import dead_letter
from tests.waiting import wait_until

SHORT, LONG = 0.3, 2.0
"""Seconds that a holder which dies, or lives, has promised."""


def claim(holder: str, gone: str | None = None) -> Claim:
    return Claim(holder, f"/checkpoints/{holder}", datetime(2026, 11, 22, 8, 0, tzinfo=timezone.utc), gone)


@pytest.fixture
def lake(tmp_path):
    return str(tmp_path / "lake")


def test_living_holder_refuses_newcomer_with_advice(lake):
    """The newcomer learns who holds the lease since when, and what to do."""
    with (
        hold_lake(lake, claim("process 1 on a"), seconds=LONG),
        pytest.raises(NoLease) as refused,
        hold_lake(lake, claim("process 2 on b"), seconds=LONG),
    ):
        pass
    told = "in use by the job of process 1 on a with the checkpoint /checkpoints/process 1 on a, since 2026-11-22 08:00"
    assert told in str(refused.value)
    assert "Stop that one first" in str(refused.value)


def test_cleanly_ended_holder_followed_at_once(lake, monkeypatch):
    monkeypatch.setattr(job_lease, "_wait_until_dead", lambda *_: pytest.fail("there is nothing to wait for"))
    for number in range(1, 4):
        with hold_lake(lake, claim(f"process {number}")) as lease:
            assert lease.token == number


def test_dead_holder_followed_after_expiry_and_logged(lake, caplog):
    take_lease(lake, claim("process 1"), threading.Event(), SHORT)
    with hold_lake(lake, claim("process 2")) as lease:
        assert lease.token == 2
    assert "held by process 1: waiting up to 0 s for a sign of life" in caplog.text
    assert "process 1 has not renewed its lease" in caplog.text


def test_known_dead_holder_followed_at_once(lake):
    take_lease(lake, claim("process 1"), threading.Event(), 3600)
    with hold_lake(lake, claim("process 2", gone="process 1")) as lease:
        assert lease.token == 2


def test_a_stop_ends_the_wait(lake):
    take_lease(lake, claim("process 1"), threading.Event(), 3600)
    stop = threading.Event()
    stop.set()
    with pytest.raises(NoLease, match=r"told to stop while the lake .* was held by process 1"):
        take_lease(lake, claim("process 2"), stop)


def test_thawed_holder_writes_nothing_more(lake):
    tables = {DEAD_LETTERS.name: OpenTable(create_table(lake, DEAD_LETTERS))}
    frozen_table = OpenTable(create_table(lake, DEAD_LETTERS))
    frozen = take_lease(lake, claim("process 1"), threading.Event(), SHORT)
    frozen.shut_out_others({DEAD_LETTERS.name: frozen_table})
    rows = to_arrow(DEAD_LETTERS, [dead_letter("late", 1)])
    frozen_table.append(rows, "anabranch-stream:a", 1, {LEASE: frozen.token})
    with hold_lake(lake, claim("process 2"), seconds=LONG) as lease:
        lease.shut_out_others(tables)
        with pytest.raises(CommitFailedError, match="Concurrent transaction"):
            frozen_table.append(rows, "anabranch-stream:a", 2, {LEASE: frozen.token})
        with pytest.raises(LeaseLost, match="another job has taken over this lake: it holds lease 2, this one had 1"):
            job_lease.check_lease(frozen_table, frozen.token)
        with pytest.raises(LeaseLost):
            frozen.renew()
        frozen.release()
        tables[DEAD_LETTERS.name].append(rows, "anabranch-stream:b", 1, {LEASE: lease.token})
        with pytest.raises(NoLease, match="process 2"):
            take_lease(lake, claim("process 3"), threading.Event(), SHORT)
    assert len(tables[DEAD_LETTERS.name].newest().to_pyarrow_table()) == 2


def test_holder_notices_being_overtaken(lake):
    with hold_lake(lake, claim("process 1"), seconds=SHORT) as lease:
        take_lease(lake, claim("process 2", gone="process 1"), threading.Event(), SHORT)
        assert "it holds lease 2" in str(wait_until(lambda: lease.lost))


def test_one_of_concurrent_jobs_gets_lease(lake):
    outcomes: list[object] = []

    def start(number: int) -> None:
        try:
            with hold_lake(lake, claim(f"process {number}"), seconds=LONG) as lease:
                outcomes.append(lease.token)
                wait_until(lambda: len(outcomes) == 4)
        except NoLease as refused:
            outcomes.append(str(refused))

    threads = [threading.Thread(target=start, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one for one in outcomes if isinstance(one, int)] == [1]


def test_lease_survives_checkpoints_without_files(lake):
    """It leaves no files behind."""
    for number in range(1, 4):
        with hold_lake(lake, claim(f"process {number}")) as lease:
            for _ in range(40):
                lease.renew()
    with hold_lake(lake, claim("process 4")) as lease:
        assert lease.token == 4
