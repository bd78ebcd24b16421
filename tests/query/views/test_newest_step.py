"""Error, status and mode of a decision are those of its newest step, whatever their texts sort like."""

from __future__ import annotations

import pytest

from anabranch.query.sql import LakeSql
from schemas.tables.rows import BrakeRow
from tests.local.lake import ORDERS, at, decision, outcome, write

STEPS = [
    ("intent", 1, {"attempt": 0}),
    ("intent", 2, {"attempt": 1, "error": "the call was answered with 503 Service Unavailable"}),
    (
        "failed",
        301,
        {
            "attempt": 2,
            "error": "given up after 300 s: no connection",
            "mode": "observe",
            "seen": '{"owner":"broker-1","length":7}',
        },
    ),
    ("superseded", 302, {"attempt": 2, "mode": "act", "seen": '{"length":9,"owner":"a-broker"}'}),
]


@pytest.mark.parametrize("backwards", [False, True], ids=["in order", "backwards"])
@pytest.mark.parametrize(
    ("view", "family", "expected"),
    [
        ("decision_outcomes", "autoscale", {"mode": "act"}),
        ("bundle_moves", "bundles", {"owner": "a-broker"}),
        ("bookie_steps", "bookies", {"bytes": 9}),
    ],
)
def test_newest_step_is_last_in_time(tmp_path, view, family, expected, backwards):
    lake = str(tmp_path / "lake")
    steps = [outcome("d1", status, seconds, family=family, **more) for status, seconds, more in STEPS]
    write(lake, decision(0, 1, family=family), *(steps[::-1] if backwards else steps))
    [row] = LakeSql(lake).ask(f"SELECT * FROM {view}").read_all().to_pylist()
    newest = {"status": "superseded", "error": "given up after 300 s: no connection", **expected}
    assert {name: row[name] for name in newest} == newest


def test_newest_of_one_instant_is_the_later_attempt(tmp_path):
    lake = str(tmp_path / "lake")
    steps = [outcome("d1", "intent", 1, attempt=number, error=error) for number, error in enumerate("zya")]
    write(lake, decision(0, 1), *steps)
    [row] = LakeSql(lake).ask("SELECT error FROM decision_outcomes").read_all().to_pylist()
    assert row == {"error": "a"}


@pytest.mark.parametrize("ends", [("failed", "superseded"), ("superseded", "failed")])
def test_approved_decision_ended_as_its_newest_end(tmp_path, ends):
    lake = str(tmp_path / "lake")
    approval = BrakeRow(
        number=1,
        act="approve",
        subject=ORDERS,
        decision_id="d1",
        reason="fine",
        until=None,
        actor="ann",
        at=at(0.5),
        day=at(0).date(),
    )
    write(lake, decision(0, 1), approval, *(outcome("d1", end, 1 + number) for number, end in enumerate(ends)))
    [row] = LakeSql(lake).ask("SELECT ended_as, in_force FROM safeguards").read_all().to_pylist()
    assert row == {"ended_as": ends[1], "in_force": False}
