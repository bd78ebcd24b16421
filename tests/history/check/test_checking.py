"""`anabranch lake check` on the recorded lake, and on copies of it in which one thing each is broken."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake

from anabranch.cli.main import cli
from anabranch.history.check import rows as row_checks
from anabranch.history.check.checking import check_lake
from anabranch.history.check.findings import MOST_LISTED, REMEDIES, Findings
from lake.files import table_path
from schemas.tables.arrow import to_arrow
from schemas.tables.rows import BATCHES, DECISIONS, EVENTS, HOLDS, OUTCOMES, SEGMENT_LOAD, WAITS, Table, WaitRow
from tests.query.views.conftest import lake, story

__all__ = ["lake", "story"]


@pytest.fixture
def copy(lake, tmp_path) -> str:
    """A copy that may be broken."""
    return str(shutil.copytree(lake, tmp_path / "lake"))


def rows(lake: str, table: Table) -> pa.Table:
    return DeltaTable(table_path(lake, table)).to_pyarrow_table()


def replace(lake: str, table: Table, content: pa.Table) -> None:
    """The table with other rows, made anew: nothing can be deleted from it."""
    path = table_path(lake, table)
    shutil.rmtree(path)
    write_deltalake(path, content, partition_by=["day"])


def without(content: pa.Table, place: int) -> pa.Table:
    return pa.concat_tables([content.slice(0, place), content.slice(place + 1)])


def found(lake: str, **more: float) -> dict[tuple[str, str], int]:
    return {(one.table, one.kind): one.count for one in check_lake(lake, **more)}


def test_a_lake_that_the_engine_made_is_whole(lake):
    said = check_lake(lake).to_json()
    assert said["findings"] == []
    assert said["ok"]
    assert said["rows"]["decisions"] == len(rows(lake, DECISIONS)) > 0
    assert said["rows"]["segment_load"] == len(rows(lake, SEGMENT_LOAD)) > 0


def test_lost_rows_leave_gaps_and_incomplete_batches(copy):
    for table in (DECISIONS, HOLDS):
        content = rows(copy, table).sort_by([("subject", "ascending"), ("seq", "ascending")])
        first = next(number for number, seq in enumerate(content["seq"].to_pylist()) if seq == 2)
        replace(copy, table, without(content, first))
    said = found(copy)
    for table in (DECISIONS, HOLDS):
        assert (said[table.name, "gap"], said[table.name, "missing rows"]) == (1, 1)


def test_duplicate_rows_found_by_key_and_batch_count(copy, monkeypatch):
    """In one question, and in a large day, whose parts are looked at one by one."""
    tables = (SEGMENT_LOAD, EVENTS)
    for table in tables:
        write_deltalake(table_path(copy, table), rows(copy, table).slice(7, 1), mode="append")
    for large in (row_checks._LARGE_DAY, 1):
        monkeypatch.setattr(row_checks, "_LARGE_DAY", large)
        assert found(copy) == {(table.name, kind): 1 for table in tables for kind in ("duplicate", "too many rows")}


def test_batch_being_written_is_no_fault(copy):
    content = rows(copy, BATCHES).sort_by("batch_at")
    replace(copy, BATCHES, content.slice(0, len(content) - 1))
    assert found(copy) == {}


def test_lost_decisions_leave_orphans_and_open_ones(copy):
    """A decision without an outcome is open."""
    decisions = rows(copy, DECISIONS).sort_by("decided_at")
    lost, never_ended = (decisions["decision_id"][place].as_py() for place in (0, 1))
    outcomes = rows(copy, OUTCOMES)
    replace(copy, DECISIONS, without(decisions, 0))
    is_kept = pc.or_(pc.not_equal(outcomes["decision_id"], never_ended), pc.equal(outcomes["status"], "intent"))
    replace(copy, OUTCOMES, outcomes.filter(is_kept))
    told = {(one.table, one.kind): one for one in check_lake(copy)}
    orphans, still_open = told["outcomes", "orphan"], told["decisions", "open"]
    assert (orphans.count, still_open.count) == (1, 1)
    assert lost in orphans.listed[0]
    assert never_ended in still_open.listed[0]


def test_a_decision_that_waits_past_its_time_is_open(copy):
    decisions, outcomes = rows(copy, DECISIONS).sort_by("decided_at"), rows(copy, OUTCOMES)
    held = decisions.slice(0, 1).to_pylist()[0]
    replace(copy, OUTCOMES, outcomes.filter(pc.not_equal(outcomes["decision_id"], held["decision_id"])))
    wait = WaitRow(
        decision_id=held["decision_id"],
        family="autoscale",
        subject=held["subject"],
        brake="approval",
        reason="r",
        until=None,
        at=held["decided_at"],
        executor="e",
        day=held["day"],
    )
    write_deltalake(table_path(copy, WAITS), to_arrow(WAITS, [wait]), mode="append")
    assert found(copy)["decisions", "open"] == 1
    assert ("decisions", "open") not in found(copy, stuck_seconds=7 * 86_400)


def test_unrecorded_outcome_is_unheard(copy):
    events = rows(copy, EVENTS)
    ends = events.filter(pc.field("type") == "outcome").sort_by("accepted_at")
    lost = ends["decision_id"][0].as_py()
    replace(copy, EVENTS, events.filter(pc.fill_null(pc.not_equal(events["decision_id"], lost), True)))
    told = {one.kind: one.listed for one in check_lake(copy)}
    assert [lost in line for line in told["unheard"]] == [True]


def test_holds_of_unknown_layout_reported(copy):
    events = rows(copy, EVENTS)
    replace(copy, EVENTS, events.filter(pc.invert(pc.equal(events["type"], "layout"))))
    said = found(copy)
    digests = rows(copy, HOLDS).group_by(["subject", "layout_digest"]).aggregate([])
    assert said["holds", "unknown layout"] == len(digests) > 0


def test_missing_or_truncated_file_reported_alone(copy):
    """The rest is checked all the same."""
    files = [Path(uri) for uri in DeltaTable(table_path(copy, HOLDS)).file_uris()]
    files[0].unlink()
    cut = Path(DeltaTable(table_path(copy, OUTCOMES)).file_uris()[0])
    cut.write_bytes(cut.read_bytes()[:-1])
    said = check_lake(copy)
    assert {(one.table, one.kind) for one in said} == {("holds", "missing file"), ("outcomes", "missing file")}
    assert set(said.rows) == {
        "decisions",
        "segment_load",
        "events",
        "dead_letters",
        "batches",
        "brakes",
        "waits",
        "alerts",
    }


def test_a_broken_log_is_told(copy):
    for entry in Path(table_path(copy, HOLDS), "_delta_log").glob("*.json"):
        entry.write_text("{")
    assert found(copy) == {("holds", "unreadable"): 1}


def test_an_empty_folder_is_whole(tmp_path):
    said = check_lake(str(tmp_path)).to_json()
    assert said["ok"]
    assert set(said["rows"].values()) == {0}


def test_all_are_counted_and_the_first_are_told():
    kept = Findings()
    for number in range(MOST_LISTED + 5):
        kept.add("gap", "holds", str(number))
    (one,) = kept
    assert (one.count, len(one.listed)) == (MOST_LISTED + 5, MOST_LISTED)
    assert kept.to_json()["findings"][0]["do"] == REMEDIES["gap"]
    with pytest.raises(ValueError, match="what to do"):
        kept.add("odd", "holds", "")


def test_command_advises_and_exits_1_or_0(copy, tmp_path):
    own = tmp_path / "own.toml"
    own.write_text(f'[lake]\npath = "{copy}"\n')
    asked = ["--config", str(own), "lake", "check"]
    done = CliRunner().invoke(cli, asked)
    assert done.exit_code == 0, done.output
    write_deltalake(table_path(copy, HOLDS), rows(copy, HOLDS).slice(0, 1), mode="append")
    for output in ("text", "json"):
        done = CliRunner().invoke(cli, [*asked, "--output", output])
        assert done.exit_code == 1, done.output
        assert REMEDIES["duplicate"] in done.output
    assert not json.loads(done.output)["ok"]
