"""`anabranch lake check` on the recorded lake with rows, files or entries of logs that are not as written."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from anabranch.history.check.checking import check_lake
from anabranch.history.check.contents import Digests
from lake.files import table_path
from schemas.tables.rows import TABLES

pytestmark = [pytest.mark.local_run, pytest.mark.spark, pytest.mark.timeout(900)]

Row = dict[str, Any]
Findings = dict[tuple[str, str], int]
KEYS = {
    "decisions": ("decision_id",),
    "holds": ("subject", "seq", "batch_id"),
    "segment_load": ("kafka_partition", "kafka_offset", "topic", "segment_id"),
    "events": ("kafka_topic", "kafka_partition", "kafka_offset"),
    "batches": ("generation", "batch_id"),
    "outcomes": ("decision_id", "status"),
}
"""By table, columns that name one row of the recording, but for repeated intents in `outcomes`."""


@dataclass(frozen=True)
class TamperedLake:
    """A copy of the lake; a table that was touched is put back by `restore`."""

    original: str
    lake: str
    digests: Path
    touched: set[str] = field(default_factory=set)

    def path(self, table: str) -> Path:
        self.touched.add(table)
        return Path(table_path(self.lake, TABLES[table]))

    def files(self, table: str) -> list[Path]:
        return sorted(map(Path, DeltaTable(self.path(table)).file_uris()))

    def newest_entry(self, table: str) -> Path:
        """Return the newest entry of the log with rows; what came after it, and checkpoints of it, are removed."""
        entries = sorted(self.path(table).glob("_delta_log/*.json"))
        newest = next(entry for entry in reversed(entries) if '"dataChange":true' in entry.read_text())
        for path in newest.parent.iterdir():
            if path.name > newest.name or path.name.startswith(f"{newest.stem}.checkpoint"):
                path.unlink()
        return newest

    def rows(self, table: str, is_wanted: Callable[[Row], bool] = lambda row: True) -> list[Row]:
        """Return the wanted rows in the order of their keys."""
        rows = DeltaTable(table_path(self.lake, TABLES[table])).to_pyarrow_table().to_pylist()
        return sorted(filter(is_wanted, rows), key=lambda row: [row[name] for name in KEYS[table]])

    def middle(self, table: str, is_wanted: Callable[[Row], bool] = lambda row: True) -> Row:
        rows = self.rows(table, is_wanted)
        return rows[len(rows) // 2]

    def add(self, table: str, row: Row) -> None:
        schema = pa.schema(DeltaTable(self.path(table)).schema().to_arrow())
        write_deltalake(self.path(table), pa.Table.from_pylist([row], schema=schema), mode="append")

    def remove(self, table: str, row: Row, keys: tuple[str, ...] = ()) -> None:
        """Delete a row, or all that agree in `keys`, in a Delta transaction, as any program with rights can."""
        delta = DeltaTable(self.path(table))
        delta.alter.set_table_properties({"delta.appendOnly": "false"})
        deleted = delta.delete(" AND ".join(f"{name} = {row[name]!r}" for name in keys or KEYS[table]))
        assert (deleted["num_deleted_rows"] == 1) or keys, deleted

    def change(self, table: str, row: Row, **values: Any) -> None:
        self.remove(table, row)
        self.add(table, row | values)

    def restore(self) -> None:
        for table in self.touched:
            path = Path(table_path(self.lake, TABLES[table]))
            shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(table_path(self.original, TABLES[table]), path)
        self.touched.clear()

    def check(self) -> Findings:
        """Return what a deep check finds, as a process of its own would: digests are read anew."""
        found = check_lake(self.lake, Digests(self.digests, self.lake))
        return {(finding.table, finding.kind): finding.count for finding in found}


@pytest.fixture(scope="module")
def copied(real_lake, tmp_path_factory) -> TamperedLake:
    """The copy, after a first deep check that found nothing."""
    folder = tmp_path_factory.mktemp("tampered")
    shutil.copytree(real_lake.lake, folder / "lake")
    copy = TamperedLake(real_lake.lake, str(folder / "lake"), folder / "digests.json")
    digests = Digests(copy.digests, copy.lake)
    assert list(check_lake(copy.lake, digests)) == []
    digests.save()
    return copy


@pytest.fixture
def lake(copied) -> Iterator[TamperedLake]:
    yield copied
    copied.restore()


def is_applied(row: Row) -> bool:
    return row["status"] == "applied"


def unlink_file(lake: TamperedLake, table: str) -> None:
    lake.files(table)[0].unlink()


def truncate_file(lake: TamperedLake, table: str) -> None:
    file = lake.files(table)[0]
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip_byte(lake: TamperedLake, table: str) -> None:
    file = lake.files(table)[0]
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 0xFF
    file.write_bytes(content)


def unlink_log_entry(lake: TamperedLake, table: str) -> None:
    lake.newest_entry(table).unlink()


def break_log_entry(lake: TamperedLake, table: str) -> None:
    entry = lake.newest_entry(table)
    entry.write_text(entry.read_text() + "{bad\n")


def remove_folder(lake: TamperedLake, table: str) -> None:
    shutil.rmtree(lake.path(table))


def remove_row(lake: TamperedLake, table: str) -> None:
    lake.remove(table, lake.middle(table))


def remove_batch(lake: TamperedLake, table: str) -> None:
    """Of a batch in which nothing was news, only its row tells. The row also counts the batch's decisions."""
    lake.remove(table, lake.middle(table, lambda row: row["events"] > 0 and not row["decisions"]))


def remove_batch_and_its_rows(lake: TamperedLake, table: str) -> None:
    """Only the row of the next batch tells."""
    batch = lake.middle(table, lambda row: not row["decisions"] and row["previous"] is not None)
    assert batch["batch_id"] + 1 in {row["batch_id"] for row in lake.rows(table)}
    lake.remove(table, batch)
    for other in ("events", "holds", "segment_load", "dead_letters"):
        lake.remove(other, batch, ("batch_id",))


def repeat_row(lake: TamperedLake, table: str) -> None:
    lake.add(table, lake.middle(table))


def decide_again(lake: TamperedLake, table: str) -> None:
    row = lake.middle(table)
    lake.add(table, row | {"decided_at": row["decided_at"] + timedelta(seconds=1)})


def remove_newest_hold(lake: TamperedLake, table: str) -> None:
    lake.remove(table, max(lake.rows(table), key=lambda row: row["since"]))


def remove_first_hold(lake: TamperedLake, table: str) -> None:
    """Numbers of a topic that was deleted may begin anew: there the lost row is only missing."""
    numbers = {row["subject"]: row["seq"] for row in lake.rows(table)}
    deleted = {row["subject"] for row in lake.rows("events", lambda row: row["cause"] == "deleted")}
    wanted = {subject for subject, number in numbers.items() if number > 1} - deleted
    lake.remove(table, lake.middle(table, lambda row: row["seq"] == 1 and row["subject"] in wanted))


def repeat_outcome(status: str) -> Callable[[TamperedLake, str], None]:
    return lambda lake, table: lake.add(table, lake.middle(table, is_applied) | {"status": status, "attempt": 9})


def change_outcome(**values: Any) -> Callable[[TamperedLake, str], None]:
    return lambda lake, table: lake.change(table, lake.middle(table, is_applied), **values)


def date_outcome_back(lake: TamperedLake, table: str) -> None:
    row = lake.middle(table, is_applied)
    at = row["at"] - timedelta(minutes=30)
    lake.change(table, row, at=at, day=at.date())


def count_one_more(column: str) -> Callable[[TamperedLake, str], None]:
    def change(lake: TamperedLake, table: str) -> None:
        row = lake.middle(table)
        lake.change(table, row, **{column: row[column] + 1})

    return change


def move_to_another_day(lake: TamperedLake, table: str) -> None:
    row = lake.middle(table)
    lake.change(table, row, day=row["day"] - timedelta(days=1))


def wait_for_nobody(lake: TamperedLake, table: str) -> None:
    decision = lake.middle("decisions")
    about = {name: decision[name] for name in ("family", "subject", "day")} | {"at": decision["decided_at"]}
    words = {"decision_id": "e" * 32, "brake": "pause", "reason": "r", "executor": "e"}
    lake.add(table, about | words | {"until": None})


def skip_a_number(lake: TamperedLake, table: str) -> None:
    decision = lake.middle("decisions")
    for number in (1, 3):
        act = {"number": number, "act": "pause", "subject": "*", "reason": "r", "actor": "a"}
        lake.add(table, act | {"at": decision["decided_at"], "day": decision["day"]})


TAMPERINGS = {
    "files": [
        (unlink_file, "decisions", {"missing file"}),
        (unlink_file, "events", {"missing file"}),
        (truncate_file, "holds", {"missing file"}),
        (flip_byte, "segment_load", {"damaged file"}),
    ],
    "file and folders": [
        (flip_byte, "decisions", {"damaged file"}),
        (break_log_entry, "holds", {"unreadable"}),
        (remove_folder, "outcomes", {"missing table"}),
        (remove_folder, "batches", {"missing table"}),
    ],
    "folder and rows": [
        (skip_a_number, "brakes", {"gap"}),
        (remove_folder, "decisions", {"missing table"}),
        (remove_row, "events", {"missing rows"}),
        (remove_row, "segment_load", {"missing rows"}),
        (move_to_another_day, "holds", {"wrong day"}),
    ],
    "log entry and rows": [
        (repeat_outcome("applied"), "outcomes", {"applied twice"}),
        (unlink_log_entry, "decisions", {"missing rows"}),
        (repeat_row, "events", {"duplicate", "too many rows"}),
        (remove_first_hold, "holds", {"gap", "missing rows"}),
    ],
    "decision twice": [
        (repeat_row, "decisions", {"duplicate", "too many rows"}),
        (change_outcome(decision_id="f" * 32), "outcomes", {"orphan"}),
        (remove_batch, "batches", {"lost batch"}),
        (wait_for_nobody, "waits", {"orphan"}),
    ],
    "decision twice at other times": [
        (decide_again, "decisions", {"duplicate"}),
        (change_outcome(subject="topic://acme/bar/none"), "outcomes", {"another subject"}),
        (count_one_more("messages"), "batches", {"unbalanced", "changed"}),
        (remove_newest_hold, "holds", {"missing rows"}),
    ],
    "two ends": [
        (repeat_outcome("failed"), "outcomes", {"ended twice"}),
        (count_one_more("evaluations"), "batches", {"changed"}),
    ],
    "an early end": [
        (date_outcome_back, "outcomes", {"too early"}),
        (remove_batch_and_its_rows, "batches", {"lost batch"}),
    ],
}
"""What is done at once to tables that do not hide it of one another, and what is found in each."""


SOAK = ("file and folders", "folder and rows", "decision twice at other times", "two ends")
"""What is found in them is also found in tests/history/check, in lakes of a few rows."""


@pytest.mark.parametrize(
    "tamperings",
    [pytest.param(what, id=name, marks=[pytest.mark.soak] * (name in SOAK)) for name, what in TAMPERINGS.items()],
)
def test_tampering_is_found(lake, tamperings):
    for tamper, table, _ in tamperings:
        tamper(lake, table)
    found = lake.check()
    assert {(table, kind) for _, table, kinds in tamperings for kind in kinds} <= found.keys(), found
