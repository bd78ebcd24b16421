"""Rules for tables in an object store, tried on local ones: looks at the log, and commits whose answer was lost."""

from __future__ import annotations

import threading
import time
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from anabranch.safeguards.record import WaitTable
from anabranch.safeguards.rules import HeldBySafeguard, PendingDecision
from lake import job_lease, register, remote_log, store_check, tables
from lake.job_lease import Claim, take_lease
from lake.register import TableRegister
from lake.tables import OpenTable, create_table, read_columns, table_path
from schemas.tables.arrow import arrow_schema, to_arrow
from schemas.tables.rows import DEAD_LETTERS, WAITS
from tests.local.lake import dead_letter

NOW = datetime(2026, 11, 22, 8, 0, tzinfo=timezone.utc)


@pytest.fixture(autouse=True)
def remote(monkeypatch):
    """Every folder is treated as one in an object store."""
    monkeypatch.setattr(remote_log, "is_remote", lambda folder: True)


def answer_lost(error: type[Exception]):
    """Return a `write_deltalake` that commits behind the table's back, and fails."""

    def write(table, rows, **more):
        write_deltalake(table.table_uri, rows, **more)
        raise error("the answer was lost")

    return write


def commit(lake: Path) -> None:
    write_deltalake(table_path(lake, DEAD_LETTERS), arrow_schema(DEAD_LETTERS.row).empty_table(), mode="append")


def clean_log(lake: Path) -> None:
    """Leave the checkpoint of the newest version and its commit only."""
    DeltaTable(table_path(lake, DEAD_LETTERS)).create_checkpoint()
    for file in sorted(Path(table_path(lake, DEAD_LETTERS), "_delta_log").glob("*.json"))[:-1]:
        file.unlink()


@pytest.mark.parametrize("error", [PermissionError("403"), OSError("503"), TimeoutError()])
def test_head_that_fails_is_no_unchanged_table(tmp_path, monkeypatch, error):
    def fail(path):
        raise error

    monkeypatch.setattr(remote_log, "DeltaStorageHandler", lambda uri: SimpleNamespace(open_input_file=fail))
    opened = OpenTable(create_table(tmp_path, DEAD_LETTERS))
    commit(tmp_path)
    assert opened.newest().version() == 1


def test_look_at_cleaned_log_is_repeated_after_fault(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(remote_log, "_clock", lambda: now[0])
    opened = OpenTable(create_table(tmp_path, DEAD_LETTERS))
    for _ in range(3):
        commit(tmp_path)
    clean_log(tmp_path)
    assert opened.newest().version() == 0
    now[0] = remote_log.FULL_LOOK_SECONDS
    with monkeypatch.context() as faulty:
        faulty.setattr(DeltaTable, "update_incremental", lambda table: (_ for _ in ()).throw(OSError("503")))
        with pytest.raises(OSError, match="503"):
            opened.newest()
    assert opened.newest().version() == 3


def test_look_after_suspension_is_by_delta_rs(tmp_path, monkeypatch):
    clocks = {time.CLOCK_BOOTTIME: 0.0, time.CLOCK_MONOTONIC: 0.0}
    own_time = SimpleNamespace(
        clock_gettime=clocks.__getitem__, CLOCK_BOOTTIME=time.CLOCK_BOOTTIME, CLOCK_MONOTONIC=time.CLOCK_MONOTONIC
    )
    monkeypatch.setattr(remote_log, "time", own_time)
    opened = OpenTable(create_table(tmp_path, DEAD_LETTERS))
    for _ in range(3):
        commit(tmp_path)
    clean_log(tmp_path)
    clocks[time.CLOCK_BOOTTIME] = 3600.0
    assert opened.newest().version() == 3


@pytest.mark.parametrize("error", [CommitFailedError, OSError])
def test_commit_in_the_log_has_not_failed(tmp_path, monkeypatch, error):
    opened = OpenTable(create_table(tmp_path, DEAD_LETTERS))
    monkeypatch.setattr(tables, "write_deltalake", answer_lost(error))
    opened.append(to_arrow(DEAD_LETTERS, [dead_letter("r1", 1)]), "test", 7)
    commit(tmp_path)
    assert opened.newest_transaction("test") == 7
    assert read_columns(tmp_path, DEAD_LETTERS, ["reason"])["reason"].to_pylist() == ["r1"]


@pytest.mark.parametrize("error", [CommitFailedError, OSError])
def test_commit_of_another_is_not_taken_for_own(tmp_path, monkeypatch, error):
    opened = OpenTable(create_table(tmp_path, DEAD_LETTERS))

    def refuse(table, rows, **more):
        commit(tmp_path)
        raise error("refused")

    monkeypatch.setattr(tables, "write_deltalake", refuse)
    with pytest.raises(error, match="refused"):
        opened.append(to_arrow(DEAD_LETTERS, [dead_letter("r1", 1)]), "test", 7)


def test_register_knows_replacement_with_lost_answer(tmp_path, monkeypatch):
    opened = TableRegister(str(tmp_path), "members", pa.schema([("name", pa.string())]))
    opened.read()
    with monkeypatch.context() as faulty:
        faulty.setattr(register, "write_deltalake", answer_lost(OSError))
        assert opened.replace([{"name": "a"}]) == 1
    assert opened.read() == (1, [{"name": "a"}])
    assert opened.replace([{"name": "b"}]) == 2


def test_job_lease_with_lost_answer_is_held(tmp_path, monkeypatch):
    monkeypatch.setattr(job_lease, "write_deltalake", answer_lost(CommitFailedError))
    monkeypatch.setattr(job_lease, "_wait_until_dead", lambda *_: pytest.fail("it waits for itself"))
    lease = take_lease(str(tmp_path), Claim("process 1", "/checkpoint", NOW), threading.Event())
    assert lease.token == 1
    lease.renew()


def test_waits_with_lost_answer_are_written_once(tmp_path, monkeypatch):
    waits = WaitTable(str(tmp_path), "host:1#1", 3)
    decision = PendingDecision("d1", "autoscale", "topic://acme/shop/orders", "acme/shop", NOW)
    waits.note(decision, HeldBySafeguard("pause", "why", None), NOW)
    with monkeypatch.context() as faulty:
        faulty.setattr(tables, "write_deltalake", answer_lost(OSError))
        waits.write(0.0)
    waits.write(60.0)
    assert read_columns(tmp_path, WAITS, ["decision_id"])["decision_id"].to_pylist() == ["d1"]


def test_twice_committed_rows_are_no_lost_commits(tmp_path, monkeypatch):
    def write_twice(table, rows, mode):
        for _ in range(2):
            write_deltalake(table, rows, mode=mode)

    monkeypatch.setattr(store_check, "WRITERS", 2)
    monkeypatch.setattr(store_check, "write_deltalake", write_twice)
    assert store_check._lost_commits(str(tmp_path / "table")) == 0


def test_transactions_of_others_are_followed(tmp_path):
    """Also where commits cannot be read one by one, as they are too many or their log is cleaned."""
    opened, other = (OpenTable(create_table(tmp_path, DEAD_LETTERS)) for _ in range(2))
    rows = arrow_schema(DEAD_LETTERS.row).empty_table()
    other.append(rows, "test", 1, {"lease": 1})
    assert opened.newest_transactions("test", "lease", "another") == [1, 1, None]
    other.append(rows, "test", 2)
    other.append(rows, "another", 1, {"lease": 2})
    assert opened.newest_transactions("test", "lease", "another") == [2, 2, 1]
    for number in range(3, 3 + remote_log.FOLLOWED + 1):
        other.append(rows, "test", number)
    assert opened.newest_transactions("test", "lease") == [number, 2]
    clean_log(tmp_path)
    assert remote_log.RemoteLog(opened.table).transactions_of(1, 2) is None
