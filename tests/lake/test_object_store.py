"""Tables in an object store, through delta-rs: what looking costs, and commits under faults."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

import lake.remote_log
from anabranch.alerts.evaluator import Evaluator
from anabranch.alerts.rules import read_rules
from lake.files import write_file
from lake.job_lease import LEASE, Claim, take_lease
from lake.lease import LeasedTable, LeaseLost
from lake.store_check import check_store
from lake.tables import OpenTable, OpenTables, create_lake, create_table
from lake.tail import Tail
from schemas.tables.arrow import to_arrow
from schemas.tables.rows import DEAD_LETTERS
from tests.lake.object_store import serving
from tests.local.lake import dead_letter

LAKE = "s3://bucket/lake"
LOG = "lake/dead_letters/_delta_log"

pytestmark = pytest.mark.process


@pytest.fixture
def store(monkeypatch):
    yield from serving(monkeypatch)


def append(table: OpenTable, number: int) -> None:
    table.append(to_arrow(DEAD_LETTERS, [dead_letter(f"r{number}", number)]), f"test:{number}", 0)


def reasons(rows) -> list[str]:
    return [row["reason"] for row in rows]


def test_looking_at_unchanged_table_is_one_head(store):
    writer, tail = OpenTable(create_table(LAKE, DEAD_LETTERS)), Tail(LAKE, DEAD_LETTERS)
    append(writer, 1)
    assert reasons(tail.read()) == ["r1"]
    store.requests()
    for _ in range(5):
        assert tail.read() == []
    assert store.requests() == [("HEAD", f"{LOG}/{2:020}.json", 404)] * 5
    append(writer, 2)
    assert reasons(tail.read()) == ["r2"]


def test_open_tables_are_followed_by_one_head(store):
    tables = OpenTables(LAKE)
    assert tables.newest(DEAD_LETTERS) is None
    writer = OpenTable(create_table(LAKE, DEAD_LETTERS))
    versions = []
    for number in range(3):
        opened = tables.newest(DEAD_LETTERS)
        assert opened is not None
        versions.append(opened.version())
        append(writer, number)
    assert versions == [0, 1, 2]
    tables.newest(DEAD_LETTERS)
    store.requests()
    tables.newest(DEAD_LETTERS)
    assert store.requests() == [("HEAD", f"{LOG}/{4:020}.json", 404)]


def test_checking_unchanged_lease_is_one_head(store):
    leased = LeasedTable(LAKE, DEAD_LETTERS, "test", ("reason",), "tester", "writes")
    leased.check()
    leased.last_token("another")
    store.requests()
    for _ in range(3):
        leased.check()
        assert leased.last_token("another") == 0
    assert store.requests() == [("HEAD", f"{LOG}/{2:020}.json", 404)] * 3


def test_commit_costs_no_more_the_longer_the_log(store):
    """Lease and batch are read from the last commit, not from all since the last checkpoint."""
    table, costs = OpenTable(create_table(LAKE, DEAD_LETTERS)), []
    rows = to_arrow(DEAD_LETTERS, [dead_letter("r", 1)])
    for number in range(40):
        table.append(rows, "test", number, {LEASE: 3})
        assert table.newest_transactions("test", LEASE, "another") == [number, 3, None]
        costs.append(len(store.requests()))
    assert max(costs[1:]) <= 12


def test_shipped_alerts_ask_at_most_thirty_times_a_minute(store):
    create_lake(LAKE)
    evaluator = Evaluator(LAKE, read_rules(Path(__file__).parents[2] / "conf" / "alerts.yaml"), {})
    evaluator.round()
    store.requests()
    evaluator.round()
    assert evaluator.faults == {}
    assert len(store.requests()) * 60 / evaluator.interval_seconds <= 30


def test_cleaned_log_is_noticed_in_time(store, monkeypatch):
    writer, tail = OpenTable(create_table(LAKE, DEAD_LETTERS)), Tail(LAKE, DEAD_LETTERS)
    for number in range(12):
        append(writer, number)
        if number == 0:
            assert reasons(tail.read()) == ["r0"]
    DeltaTable(f"{LAKE}/dead_letters").create_checkpoint()
    for version in range(12):
        store.delete(f"{LOG}/{version:020}.json")
    assert tail.read() == []
    monkeypatch.setattr(lake.remote_log, "FULL_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(lake.remote_log, "_clock", lambda: float("inf"))
    assert reasons(tail.read()) == ["r11"]


def test_concurrent_writers_lose_nothing(store):
    create_table(LAKE, DEAD_LETTERS)

    def write(first: int) -> None:
        table = OpenTable(DeltaTable(f"{LAKE}/dead_letters"))
        for number in range(first, first + 5):
            append(table, number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(0, 20, 5)))
    assert 412 in {request.status for request in store.requests()}
    assert sorted(reasons(Tail(LAKE, DEAD_LETTERS).read())) == sorted(f"r{number}" for number in range(20))


def test_thawed_job_commits_nothing_to_a_store(store):
    table, frozen_table = (OpenTable(create_table(LAKE, DEAD_LETTERS)) for _ in range(2))
    since = datetime(2026, 11, 22, tzinfo=timezone.utc)
    frozen = take_lease(LAKE, Claim("process 1", "/first", since), threading.Event(), 3600)
    frozen.shut_out_others({DEAD_LETTERS.name: frozen_table})
    rows = to_arrow(DEAD_LETTERS, [dead_letter("r1", 1)])
    frozen_table.append(rows, "anabranch-stream:a", 1, {LEASE: frozen.token})
    lease = take_lease(LAKE, Claim("process 2", "/second", since, gone="process 1"), threading.Event(), 3600)
    lease.shut_out_others({DEAD_LETTERS.name: table})
    with pytest.raises(CommitFailedError, match="Concurrent transaction"):
        frozen_table.append(rows, "anabranch-stream:a", 2, {LEASE: frozen.token})
    with pytest.raises(LeaseLost):
        frozen.renew()
    append(table, 2)
    assert reasons(Tail(LAKE, DEAD_LETTERS).read()) == ["r1", "r2"]


@pytest.mark.parametrize("fault", ["refused", "answer lost"])
def test_failing_puts_lose_and_double_nothing(store, fault):
    table = OpenTable(create_table(LAKE, DEAD_LETTERS))
    store.fail_puts(fault, every=4)
    for number in range(0, 12, 2):
        append(table, number)
        rows = to_arrow(DEAD_LETTERS, [dead_letter(f"r{number + 1}", number + 1)])
        table.add([write_file(LAKE, DEAD_LETTERS, rows)], f"test:{number + 1}", 0)
    store.fail_puts("")
    answers = Counter(request.status for request in store.requests() if request.method == "PUT")
    assert answers[503] >= 6
    assert (answers[412] > 0) == (fault == "answer lost")
    assert reasons(Tail(LAKE, DEAD_LETTERS).read()) == [f"r{number}" for number in range(12)]


def test_commit_of_another_writer_still_fails(store):
    first = OpenTable(create_table(LAKE, DEAD_LETTERS))
    second = OpenTable(DeltaTable(f"{LAKE}/dead_letters"))
    append(first, 1)
    with pytest.raises(CommitFailedError):
        append(second, 1)
    assert reasons(Tail(LAKE, DEAD_LETTERS).read()) == ["r1"]


def test_fit_store_passes_the_check_and_stays_empty(store):
    assert check_store(LAKE) == ""
    assert "LIST" in {request.method for request in store.requests()}
    assert store.keys() == []


def test_store_without_conditional_puts_is_named(store):
    store.fail_puts("condition ignored")
    assert "If-None-Match" in check_store(LAKE)
    assert store.keys() == []
