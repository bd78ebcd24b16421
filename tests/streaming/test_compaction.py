"""OPTIMIZE on a live lake: the job and an executor's ledger append while delta-spark or delta-rs compacts."""

from __future__ import annotations

import os
import threading
import time
from datetime import date, datetime, timedelta, timezone
from functools import partial

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake

from anabranch.cli.main import cli
from anabranch.executor.kernel.outcomes import OutcomeLedger
from decisions.topic.layout import SegmentLayout
from lake.files import table_path
from lake.maintenance import Compacted, cluster_column, compact_by_delta_rs, compact_by_delta_spark, delete_unused
from lake.tables import OpenTable, create_lake
from schemas.settings.root import load_settings
from schemas.tables.arrow import to_arrow
from schemas.tables.rows import DEAD_LETTERS, OUTCOMES, SEGMENT_LOAD, TABLES, DeadLetterRow
from tests.engine.records import layout
from tests.streaming.jobs import (
    TOPICS,
    Feed,
    check_nothing_lost_and_nothing_twice,
    fed_all_along,
    load_round,
    now_ms,
    read,
    rows,
    stop_when_all_is_read,
)
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


class LedgerWriter(threading.Thread):
    """What an executor puts on record, a commit a step, until it is told to stop."""

    def __init__(self, lake: str) -> None:
        super().__init__()
        self.ledger = OutcomeLedger(lake, "act")
        self.written: list[tuple[str, str]] = []
        self.fault: Exception | None = None
        self.stop = threading.Event()

    def run(self) -> None:
        try:
            while not self.stop.wait(0.5):
                for status in ("intent", "applied"):
                    decision = f"d{len(self.written) // 2}"
                    row = self.ledger.row(
                        decision_id=decision,
                        family="autoscale",
                        subject=TOPICS[0],
                        attempt=0,
                        status=status,
                        at=datetime.now(timezone.utc),
                    )
                    self.ledger.append([row])
                    self.written.append((decision, status))
        except Exception as fault:
            self.fault = fault


@pytest.mark.broker
def test_concurrent_compaction_loses_no_commit(spark, start, job_settings, own_broker):
    """Commits of the job and of an executor survive while both engines compact."""
    settings, feed = load_settings([job_settings]), Feed(own_broker.bootstrap)
    lake = settings.lake_path
    executor = LedgerWriter(lake)
    feed.send(*[layout(SegmentLayout.create(2, now_ms()), topic=topic) for topic in TOPICS], *load_round(0))
    job = start()
    wait_until(lambda: read(settings) == feed.end_offsets(), 180, 0.2)
    executor.start()
    by_spark, by_rs = partial(compact_by_delta_spark, spark, lake), partial(compact_by_delta_rs, lake)
    rounds = [(compact, table) for compact in (by_spark, by_rs) for table in (SEGMENT_LOAD, OUTCOMES)]
    try:
        with fed_all_along(feed, every_s=1):
            for compact, table in rounds:
                wait_until(lambda table=table: len(DeltaTable(table_path(lake, table)).file_uris()) > 2, 120, 0.1)
                assert compact(table, None).files_removed > 2
    finally:
        executor.stop.set()
        executor.join()
    stop_when_all_is_read(job, start, settings, feed)
    assert executor.fault is None
    check_nothing_lost_and_nothing_twice(settings, feed)
    assert sorted((row["decision_id"], row["status"]) for row in rows(settings, OUTCOMES)) == sorted(executor.written)
    executor.ledger.check_lease()


def dead_letter(number: int, day: date) -> DeadLetterRow:
    at = datetime(day.year, day.month, day.day, tzinfo=timezone.utc)
    return DeadLetterRow(
        reason="not-json",
        detail="",
        key=None,
        raw=None,
        raw_size=-1,
        raw_sha256=None,
        kafka_topic="segment-stats",
        kafka_partition=0,
        kafka_offset=number,
        kafka_timestamp=at,
        rejected_at=at,
        batch_id=number,
        day=day,
    )


@pytest.mark.parametrize("compactor", ["delta-spark", "delta-rs"])
def test_sorting_leaves_current_day_alone(spark, tmp_path, compactor):
    lake = str(tmp_path / "lake")
    table, today = create_lake(lake)["dead_letters"], date(2026, 11, 20)
    for number in range(3):
        for day in (today - timedelta(days=1), today):
            write_deltalake(table, to_arrow(DEAD_LETTERS, [dead_letter(number, day)]), mode="append")
    if compactor == "delta-rs":
        done = compact_by_delta_rs(lake, DEAD_LETTERS, today)
    else:
        done = compact_by_delta_spark(spark, lake, DEAD_LETTERS, today)
    assert done == Compacted(files_removed=3, files_added=1)
    assert DeltaTable(table_path(lake, DEAD_LETTERS)).to_pyarrow_table().num_rows == 6


def test_every_table_has_a_column_to_sort_by():
    assert {name: cluster_column(table) for name, table in TABLES.items()} == {
        "decisions": "subject",
        "holds": "subject",
        "segment_load": "topic",
        "events": "subject",
        "dead_letters": "kafka_topic",
        "batches": "batch_id",
        "outcomes": "subject",
        "brakes": "subject",
        "waits": "subject",
        "alerts": "subject",
    }


def test_compaction_removes_garbage_keeps_changes(tmp_path):
    """Replaced files and leftovers of a killed writer go; followers still see changes."""
    lake, day = str(tmp_path / "lake"), date(2026, 11, 20)
    table = create_lake(lake)["dead_letters"]
    for number in range(3):
        write_deltalake(table, to_arrow(DEAD_LETTERS, [dead_letter(number, day)]), mode="append")
    newest = OpenTable(table).newest().version()
    left = tmp_path / "lake" / "dead_letters" / f"day={day}" / "part-of-nobody.parquet"
    left.write_bytes(b"x")
    compact_by_delta_rs(lake, DEAD_LETTERS, None)
    assert delete_unused(lake, DEAD_LETTERS, dry_run=False) == [], "seven days have not passed"
    named = delete_unused(lake, DEAD_LETTERS, dry_run=True, keep_hours=0)
    assert left.exists()
    assert sorted(delete_unused(lake, DEAD_LETTERS, dry_run=False, keep_hours=0)) == sorted(named)
    assert len(named) == 4
    assert [file.name for file in left.parent.glob("*.parquet")] == [
        uri.rpartition("/")[2] for uri in DeltaTable(table_path(lake, DEAD_LETTERS)).file_uris()
    ]
    write_deltalake(table_path(lake, DEAD_LETTERS), to_arrow(DEAD_LETTERS, [dead_letter(3, day)]), mode="append")
    opened = DeltaTable(table_path(lake, DEAD_LETTERS))
    assert opened.to_pyarrow_table().num_rows == 4
    changes = pa.table(opened.load_cdf(starting_version=newest + 1, ending_version=opened.version()))
    assert changes["kafka_offset"].to_pylist() == [3]


def test_command_deletes_old_files_and_counts(tmp_path):
    create_lake(tmp_path / "lake")
    (tmp_path / "settings.toml").write_text(f'[lake]\npath = "{tmp_path}/lake"\n')
    left = tmp_path / "lake" / "alerts" / "part-of-nobody.parquet"
    left.write_bytes(b"x")
    eight_days_ago = time.time() - 8 * 86_400
    os.utime(left, (eight_days_ago, eight_days_ago))
    command = ["--config", str(tmp_path / "settings.toml"), "lake", "vacuum", "--table", "alerts"]
    for option, said, there in (("--dry-run", "1 files would go", True), (None, "1 files deleted", False)):
        ran = CliRunner().invoke(cli, [*command, *([option] if option else [])])
        assert (ran.exit_code, ran.output) == (0, f"alerts: {said}\n")
        assert left.exists() == there


def test_command_compacts_the_given_table(tmp_path):
    table = create_lake(tmp_path / "lake")["dead_letters"]
    for number in range(3):
        write_deltalake(table, to_arrow(DEAD_LETTERS, [dead_letter(number, date(2026, 11, 20))]), mode="append")
    (tmp_path / "settings.toml").write_text(f'[lake]\npath = "{tmp_path}/lake"\n')
    ran = CliRunner().invoke(
        cli, ["--config", str(tmp_path / "settings.toml"), "lake", "optimize", "--table", "dead_letters"]
    )
    assert (ran.exit_code, ran.output) == (0, "dead_letters: 3 files became 1\n")
