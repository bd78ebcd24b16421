"""`anabranch lake check` on copies of the recorded lake in which one row, or one byte, is not what was written."""

from __future__ import annotations

import json
import shutil
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import CommitProperties, DeltaTable, write_deltalake

from anabranch.cli.main import cli
from anabranch.history.check.agreement import HEARD_WITHIN
from anabranch.history.check.checking import check_lake
from lake.files import table_path
from lake.forgotten import retention_marks
from lake.tables import create_lake
from schemas.tables.arrow import to_arrow
from schemas.tables.rows import (
    ALERTS,
    BATCHES,
    BRAKES,
    DEAD_LETTERS,
    DECISIONS,
    EVENTS,
    HOLDS,
    OUTCOMES,
    SEGMENT_LOAD,
    WAITS,
    BrakeRow,
    WaitRow,
)
from tests.examples import only_first
from tests.history.check.test_checking import copy, found, replace, rows, without
from tests.local.lake import batch, dead_letter, write
from tests.query.views.conftest import lake, story

__all__ = ["copy", "lake", "story"]
MINUTE = timedelta(minutes=1)


def change(lake, table, is_wanted, **changed):
    """One of the rows that are wanted, from their middle, with other values."""
    content = rows(lake, table)
    listed = content.to_pylist()
    places = [place for place, row in enumerate(listed) if is_wanted(row)]
    row = listed[places[len(places) // 2]]
    row.update({name: value(row[name]) if callable(value) else value for name, value in changed.items()})
    replace(lake, table, pa.Table.from_pylist(listed, schema=content.schema))


def add(lake, table, row):
    write_deltalake(
        table_path(lake, table), pa.Table.from_pylist([row], schema=rows(lake, table).schema), mode="append"
    )


def applied(row):
    return row["status"] == "applied"


def test_lost_batch_row_found_by_other_rows(copy):
    content = rows(copy, BATCHES).sort_by("batch_at")
    replace(copy, BATCHES, without(content, len(content) // 2))
    assert ("batches", "lost batch") in found(copy)


@pytest.mark.parametrize(
    ("removed", "is_retained", "named"),
    [
        ([0, 5, 7, 8], False, ["follows batch 0", "follows batch 5", "follows batch 8"]),
        ([0, 6], True, ["follows batch 6"]),
    ],
)
def test_lost_batch_without_rows_is_named_by_the_next(tmp_path, removed, is_retained, named):
    """Batch 4 read only markers of a transaction: it never had a row."""
    numbers = [0, 1, 2, 3, *range(5, 10)]
    followed = zip(numbers, [None, *numbers], strict=False)
    batches = [batch(number, 60 * number, previous=previous) for number, previous in followed]
    lake = str(tmp_path)
    create_lake(lake)
    write(lake, *(row for row in batches if row.batch_id not in removed))
    if is_retained:
        marks = retention_marks(DeltaTable(table_path(lake, BATCHES)), batches[0].day, [])
        properties = CommitProperties(app_transactions=marks)
        nothing = to_arrow(BATCHES, [])
        write_deltalake(table_path(lake, BATCHES), nothing, mode="append", commit_properties=properties)
    lost = [text for finding in check_lake(lake) if finding.kind == "lost batch" for text in finding.listed]
    assert [text[text.index("follows") : text.index(",")] for text in lost] == named


def test_lost_batch_of_dead_letters_alone_found(copy):
    batches = rows(copy, BATCHES).sort_by("batch_at").to_pylist()
    before = batches[len(batches) // 2]
    at = before["batch_at"] + timedelta(milliseconds=1)
    letter = dead_letter("malformed", 0).model_copy(update={"batch_id": 10**6, "rejected_at": at, "day": at.date()})
    write_deltalake(table_path(copy, DEAD_LETTERS), to_arrow(DEAD_LETTERS, [letter]), mode="append")
    assert found(copy) == {("batches", "lost batch"): 1}


def test_rows_cut_by_other_checkpoint_not_lost(copy):
    # The checkpoint was lost in a batch: a new one begins with later batches, numbered anew.
    content = rows(copy, BATCHES).sort_by("batch_at").to_pylist()
    middle = next(place for place, row in enumerate(content) if place > 50 and row["decisions"])
    after = [{**row, "generation": "second"} for row in content[middle + 1 :]]
    replace(copy, BATCHES, pa.Table.from_pylist([*content[:middle], *after], schema=rows(copy, BATCHES).schema))
    assert ("batches", "lost batch") not in found(copy)


@pytest.mark.parametrize(("age", "findings"), [(HEARD_WITHIN / 2, 0), (2 * HEARD_WITHIN, 1)], ids=["new", "old"])
def test_end_of_another_lake_may_be_heard_first(copy, age, findings):
    """Two lakes on one Kafka decide the same: the own end is announced, and the job has not recorded it yet."""
    at = max(row["batch_at"] for row in rows(copy, BATCHES).to_pylist()) - age
    ended = max(filter(applied, rows(copy, OUTCOMES).to_pylist()), key=lambda row: row["at"])["decision_id"]
    change(copy, OUTCOMES, lambda row: applied(row) and row["decision_id"] == ended, at=at, day=at.date())
    change(copy, EVENTS, lambda row: (row["type"], row["decision_id"]) == ("outcome", ended), cause="superseded")
    assert found(copy).get(("outcomes", "ended otherwise"), 0) == findings


def ended_early(copy):
    """A decision that waited for nothing, whose end the job has recorded, with more than a minute of ends after it."""
    heard = {row["decision_id"] for row in rows(copy, EVENTS).to_pylist() if row["type"] == "outcome"}
    waited = {row["decision_id"] for row in rows(copy, WAITS).to_pylist()}
    ends = sorted((row for row in rows(copy, OUTCOMES).to_pylist() if applied(row)), key=lambda row: row["at"])
    return next(row["decision_id"] for row in ends if row["decision_id"] in heard - waited)


@pytest.mark.parametrize("statuses", [("applied",), ("applied", "intent")], ids=["end", "all"])
def test_removed_end_is_found_by_the_jobs_record(copy, statuses):
    content, early = rows(copy, OUTCOMES), ended_early(copy)
    is_lost = [row["decision_id"] == early and row["status"] in statuses for row in content.to_pylist()]
    replace(copy, OUTCOMES, content.filter(pa.array([not lost for lost in is_lost])))
    assert found(copy)["outcomes", "lost end"] == 1


def test_end_of_another_lake_that_waits_here_is_fine(copy):
    """Two lakes on one Kafka decide the same: the other executor may end it while this one waits for approval."""
    content, early = rows(copy, OUTCOMES), ended_early(copy)
    replace(copy, OUTCOMES, content.filter(pa.array([row["decision_id"] != early for row in content.to_pylist()])))
    at = content["at"][0].as_py()
    waits = WaitRow(
        decision_id=early,
        family="autoscale",
        subject="s",
        brake="approval",
        reason="r",
        until=None,
        at=at,
        executor="e",
        day=at.date(),
    )
    write_deltalake(table_path(copy, WAITS), to_arrow(WAITS, [waits]), mode="append")
    assert ("outcomes", "lost end") not in found(copy)


def test_faults_of_outcomes_are_found(copy):
    """Each is in a decision of its own, and found by itself."""
    ends = [row for row in rows(copy, OUTCOMES).to_pylist() if applied(row)]
    changes = [
        {"status": "failed"},
        {"status": "superseded"},
        {"at": lambda at: at - 30 * MINUTE},
        {"subject": "topic://acme/shop/none"},
        # The clock of an executor may be behind.
        {"at": lambda at: at - timedelta(seconds=50)},
    ]
    for end, changed in zip(ends[len(ends) // 2 :], changes, strict=False):
        mine = end["decision_id"]
        change(copy, OUTCOMES, lambda row, mine=mine: applied(row) and row["decision_id"] == mine, **changed)
    assert len(ends) // 2 > len(changes)
    add(copy, OUTCOMES, {**ends[0], "status": "failed", "attempt": 9})
    add(copy, OUTCOMES, {**ends[1], "executor": "e2"})
    faults = {"ended otherwise": 2, "too early": 1, "another subject": 1, "ended twice": 1, "applied twice": 1}
    assert found(copy) == {("outcomes", kind): count for kind, count in faults.items()}


def test_decision_taken_again_later_is_a_duplicate(copy):
    row = rows(copy, DECISIONS).to_pylist()[5]
    add(copy, DECISIONS, {**row, "decided_at": row["decided_at"] + timedelta(seconds=1)})
    assert ("decisions", "duplicate") in found(copy)


@pytest.mark.parametrize("tables", [(BATCHES,), (OUTCOMES, WAITS, BRAKES, ALERTS)], ids=["batches", "others"])
def test_missing_tables_are_found(copy, tables):
    for table in tables:
        shutil.rmtree(table_path(copy, table))
    assert found(copy) == {(table.name, "missing table"): 1 for table in tables}


def test_gap_in_the_numbers_of_brakes_is_found(copy, story):
    at, last = story.outcomes[0]["at"], max(row["number"] for row in rows(copy, BRAKES).to_pylist())
    acts = [
        BrakeRow(
            number=last + number,
            act="pause",
            subject="*",
            decision_id=None,
            reason="r",
            until=None,
            actor="ada",
            at=at,
            day=at.date(),
        )
        for number in (1, 3)
    ]
    write_deltalake(table_path(copy, BRAKES), to_arrow(BRAKES, acts), mode="append")
    assert found(copy) == {("brakes", "gap"): 1}


def test_rows_in_a_wrong_day_are_found(copy):
    tables = (HOLDS, OUTCOMES, BATCHES)
    for table in tables:
        change(copy, table, lambda row: True, day=lambda day: day - timedelta(days=1))
    assert found(copy) == {(table.name, "wrong day"): 1 for table in tables}


def test_unbalanced_counts_of_batches_are_found(copy):
    """Each is in a batch of its own, and found by itself."""
    ticks = {row["batch_id"] for row in rows(copy, EVENTS).to_pylist() if row["type"] == "tick"}
    content = rows(copy, BATCHES).to_pylist()
    evaluating = [row["batch_id"] for row in content if row["evaluations"] > 0]
    of_ticks, of_events = ([one for one in evaluating if (one in ticks) == wanted] for wanted in (True, False))
    changes = [
        (of_ticks[0], "evaluations"),
        (of_events[0], "evaluations"),
        (of_ticks[-1], "messages"),
        (of_ticks[-2], "samples"),
    ]
    for batch_id, name in changes:
        change(copy, BATCHES, lambda row, batch_id=batch_id: row["batch_id"] == batch_id, **{name: count_one_more})
    assert found(copy) == {("batches", "unbalanced"): len(changes), ("batches", "changed"): len(changes)}


def count_one_more(number):
    return number + 1


def test_plausible_changes_of_batches_are_found(copy):
    """Each is in a batch of its own, and found by itself."""
    changes = [
        {"evaluations": lambda number: number - 1},
        {"messages": count_one_more, "messages_accepted": count_one_more},
        {"samples": count_one_more, "samples_stale": count_one_more},
        {"operator_ms": lambda spent: spent + 0.001},
        {"committed_at": lambda at: at + timedelta(milliseconds=1)},
    ]
    evaluating = [row["batch_id"] for row in rows(copy, BATCHES).to_pylist() if row["evaluations"] > 0]
    batches = evaluating[len(evaluating) // 2 :]
    for batch_id, changed in zip(batches, changes, strict=False):
        change(copy, BATCHES, lambda row, batch_id=batch_id: row["batch_id"] == batch_id, **changed)
    assert found(copy) == {("batches", "changed"): len(changes)}


def test_batch_of_an_older_release_has_no_checksum(copy):
    change(copy, BATCHES, lambda row: True, checksum=None, operator_ms=9.0)
    assert found(copy) == {}


def files(lake, table):
    return sorted(Path(table_path(lake, table)).glob("day=*/*.parquet"))


def command(lake, folder, *options):
    settings = folder / "settings.toml"
    settings.write_text(f'[lake]\npath = "{lake}"\n[local]\nfolder = "{folder}"\n')
    return CliRunner().invoke(cli, ["-c", str(settings), "lake", "check", *options], catch_exceptions=False)


@pytest.mark.parametrize(
    ("table", "share"),
    only_first(1, [(DECISIONS, 0.5), (SEGMENT_LOAD, 0.1), (SEGMENT_LOAD, 0.9)]),
    ids=["middle", "begin", "end"],
)
def test_flipped_byte_is_found_by_a_later_deep_check(copy, tmp_path, table, share):
    first = command(copy, tmp_path, "--deep")
    assert (first.exit_code, "the first deep check of this lake" in first.output) == (0, True)
    again = command(copy, tmp_path, "--deep")
    assert (again.exit_code, "the first deep check" in again.output) == (0, False)
    file = files(copy, table)[0]
    content = bytearray(file.read_bytes())
    content[int(len(content) * share)] ^= 1
    file.write_bytes(content)
    for _ in range(2):
        said = json.loads(command(copy, tmp_path, "--deep", "--output", "json").output)
        damaged = [one for one in said["findings"] if one["kind"] == "damaged file"]
        assert [(one["table"], one["count"]) for one in damaged] == [(table.name, 1)]


def test_file_that_cannot_be_decoded_is_found_at_once(copy, tmp_path):
    file = files(copy, HOLDS)[0]
    content = bytearray(file.read_bytes())
    content[4:64] = bytes(60)
    file.write_bytes(content)
    for _ in range(2):
        run = command(copy, tmp_path, "--deep")
        assert run.exit_code == 1
        assert "holds: damaged file (1)" in run.output
        assert "it cannot be decoded" in run.output


def test_new_files_and_new_lakes_are_no_damage(copy, lake, tmp_path):
    assert command(copy, tmp_path, "--deep").exit_code == 0
    DeltaTable(table_path(copy, EVENTS)).optimize.compact()
    other = str(shutil.copytree(lake, tmp_path / "other"))
    assert command(copy, tmp_path, "--deep").exit_code == 0
    assert "the first deep check" in command(other, tmp_path, "--deep").output


def test_digests_that_are_none_are_refused_in_words(copy, tmp_path):
    (tmp_path / "lake-digests.json").write_text("[1]")
    run = command(copy, tmp_path, "--deep")
    assert run.exit_code == 1
    assert "does not hold digests of a lake's files: remove it to begin anew" in run.output
    assert check_lake(copy).to_json()["ok"]
