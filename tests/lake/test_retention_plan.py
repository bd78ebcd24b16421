"""What [retention] comes to on a day, and which settings contradict themselves."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone

import pytest
from deltalake import DeltaTable
from pydantic import ValidationError

from lake.files import read_table, table_path
from lake.retention_plan import TABLES, Cut, plan_cuts
from lake.state_snapshots import Horizon, SnapshotPiece, drop_horizons, write_horizon
from schemas.settings.retention import RetentionSettings
from schemas.settings.root import load_settings
from schemas.tables.rows import HORIZONS

pytestmark = pytest.mark.unit

TODAY = date(2026, 11, 24)
WHOLE = {"segment_load": 90, "events": 90, "holds": 0, "decisions": 400, "dead_letters": 30, "batches": 90}


def settings(**more):
    return RetentionSettings.model_validate({**WHOLE, **more})


def day(days):
    return TODAY - timedelta(days=days)


def test_cuts_are_of_the_days_configured():
    chosen = settings(namespaces={"test/load": {"segment_load": 7}, "test/b": {"segment_load": 7, "events": 1}})
    assert plan_cuts(chosen, TODAY) == [
        Cut("events", day(1), ("test/b",)),
        Cut("segment_load", day(7), ("test/b", "test/load")),
        Cut("dead_letters", day(30)),
        Cut("segment_load", day(90)),
        Cut("events", day(90)),
        Cut("decisions", day(400)),
        Cut("batches", day(90)),
    ]


def test_zero_days_keep_everything():
    assert plan_cuts(RetentionSettings.model_validate(dict.fromkeys(WHOLE, 0)), TODAY) == []


@pytest.mark.parametrize(
    ("namespaces", "said"),
    [
        ({"test/load": {"segment_load": 91}}, "91 days are more than segment_load = 90"),
        ({"test": {"segment_load": 7}}, "pattern"),
        ({"test/load": {"batches": 7}}, "Extra inputs"),
        ({"test/load": {"segment_load": 0}}, "greater than or equal to 1"),
    ],
)
def test_contradicting_days_are_refused(namespaces, said):
    with pytest.raises(ValidationError, match=said):
        settings(namespaces=namespaces)


def test_horizons_after_the_needed_days_stay(tmp_path):
    for number in range(4):
        at = datetime(2026, 11, 1 + number, tzinfo=timezone.utc)
        write_horizon(str(tmp_path), Horizon(at, "g", {}, frozenset(), [SnapshotPiece(b"", b"")], b""))
    drop_horizons(str(tmp_path), {date(2026, 11, 1), date(2026, 11, 3)})
    left = read_table(DeltaTable(table_path(str(tmp_path), HORIZONS)), ["day"])["day"].to_pylist()
    assert sorted(day.day for day in left) == [1, 3, 4]


def test_namespace_may_forget_what_all_others_keep():
    assert settings(namespaces={"test/load": {"holds": 30}}).namespaces["test/load"].holds == 30


def test_delivered_settings_bound_every_table(tmp_path):
    cuts = plan_cuts(load_settings(home=tmp_path).retention, TODAY)
    assert {cut.name for cut in cuts} == set(TABLES)
