"""The recorded lake after its day is forgotten: the job has gone on for three days in which nothing happened."""

from __future__ import annotations

import json
from datetime import datetime, time, timedelta, timezone

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from anabranch.history.state_snapshots import make_horizon
from engine.autoscale.regrouping import names_in, regroup_topics
from lake.state_snapshots import has_horizon
from schemas.settings.root import load_settings
from schemas.tables.digests import checksums_of_batches
from streaming.job.policy import configured_policy, engine_settings, stored_policy
from tests.reallake.asking import copied_lake, run_command

pytestmark = [pytest.mark.local_run, pytest.mark.spark, pytest.mark.timeout(900)]

DAY = timedelta(days=1)
COUNTS = ("messages", "messages_accepted", "messages_suppressed", "dead_letters", "samples", "samples_accepted")
COUNTS += ("samples_insignificant", "samples_stale", "samples_refused", "events", "decisions", "holds", "evaluations")


@pytest.fixture
def lake(real_lake, raw, tmp_path, monkeypatch):
    """The options that lead to it, its folder, and the midnight before which all that was recorded goes."""
    last = max(raw.rows("batches"), key=lambda row: row["batch_id"])
    later = [
        {
            **last,
            **dict.fromkeys(COUNTS, 0),
            **{name: last[name] + days * DAY for name in ("batch_at", "committed_at", "day")},
            "batch_id": last["batch_id"] + days,
            "previous": last["batch_id"] + days - 1,
        }
        for days in (1, 2, 3)
    ]
    copy, path = copied_lake(real_lake, tmp_path), f"{tmp_path}/lake/batches"
    rows = pa.Table.from_pylist(later, schema=pa.schema(DeltaTable(path).schema().to_arrow()))
    place = rows.schema.get_field_index("checksum")
    write_deltalake(path, rows.set_column(place, rows.schema.field(place), checksums_of_batches(rows)), mode="append")
    # The last six hours before the days that are kept would stay.
    midnight = datetime.combine(last["day"] + 2 * DAY, time(), timezone.utc)

    class Later(datetime):
        @classmethod
        def now(cls, tz=None):
            return midnight + DAY

    monkeypatch.setattr("anabranch.cli.commands.lake_retain.datetime", Later)
    return copy, f"{tmp_path}/lake", midnight


def test_forgotten_day_leaves_its_horizon_and_bounds_batches(real_lake, raw, lake):
    copy, path, midnight = lake
    settings = load_settings([option for option in real_lake.settings if option != "--config"], None)
    configured = stored_policy(configured_policy(settings))

    def state():
        pieces = make_horizon(path, midnight + DAY, engine_settings(settings), configured).pieces
        # By topic: rows of topics that share a piece are stored in the order in which they came.
        return {name: regroup_topics(pieces, {name}) for name in names_in(pieces)}

    def retain(table):
        return run_command(real_lake, "lake", "retain", table, "--days", "1", "--apply", copy=copy).output

    def findings():
        """What is wrong, but for decisions that the end of the run left open: days later they are told."""
        told = run_command(real_lake, "lake", "check", "--output", "json", copy=copy, exit_code=None).stdout
        return [one for one in json.loads(told)["findings"] if one["kind"] != "open"]

    before = state()
    assert findings() == []
    assert "batches: all are kept" in retain("batches")
    # Once rows of a table are gone nobody can ask for their time: the batches may go.
    for table in ("segment_load", "batches", "events", "holds", "decisions"):
        assert f"before {midnight:%F} in" in retain(table)
    assert has_horizon(path, midnight.date(), is_exact=True)
    left = DeltaTable(f"{path}/batches").to_pyarrow_table()["batch_id"].to_pylist()
    numbers = sorted(row["batch_id"] for row in raw.rows("batches"))
    assert sorted(left) == [numbers[0], *(numbers[-1] + days for days in (1, 2, 3))]
    assert state() == before
    assert findings() == []
    topic, *_ = raw.present()
    early = run_command(real_lake, "explain", topic, "--at", raw.last_batch.isoformat(), copy=copy, exit_code=1)
    assert "are forgotten" in early.output
    run_command(real_lake, "explain", topic, "--at", (midnight + DAY).isoformat(), copy=copy)
