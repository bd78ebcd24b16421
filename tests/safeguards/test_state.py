"""What people ask in an emergency: of open decisions, and of one decision, on tables with a history."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from deltalake import write_deltalake

from anabranch.safeguards import commands as acting
from anabranch.safeguards import state
from anabranch.safeguards.state import OPEN_DAYS, find_decisions, find_replacement, read_safeguards
from lake.brakes import ALL, BrakeLog, SafeguardAct
from lake.files import table_path
from lake.tables import create_lake, read_columns
from schemas.tables.arrow import to_arrow
from schemas.tables.rows import DECISIONS, OUTCOMES, WAITS, DecisionRow, OutcomeRow, WaitRow

NOW = datetime.now(timezone.utc)
TOPIC = "topic://acme/shop/orders"


def decision(name, age, segments=(3,), action="split"):
    at = NOW - age
    return DecisionRow(
        decision_id=name,
        family="autoscale",
        subject=TOPIC,
        action=action,
        reason="msgRateIn",
        trigger="tick",
        arguments=f'{{"segments":[{",".join(map(str, segments))}]}}',
        layout_epoch=1,
        policy_digest="p",
        decided_at=at,
        inputs="{}",
        gates="[]",
        engine_version="4",
        batch_id=1,
        seq=1,
        day=at.date(),
    )


def step(name, status, age, attempt=0):
    at = NOW - age
    return OutcomeRow(
        decision_id=name,
        family="autoscale",
        subject=TOPIC,
        status=status,
        attempt=attempt,
        at=at,
        layout_epoch=1,
        seen="{}",
        error=None,
        executor="e",
        mode="act",
        day=at.date(),
    )


def wait(name, age):
    at = NOW - age
    return WaitRow(
        decision_id=name,
        family="autoscale",
        subject=TOPIC,
        brake="pause",
        reason="r",
        until=None,
        at=at,
        executor="e",
        day=at.date(),
    )


MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)


@pytest.fixture
def lake(tmp_path):
    made = create_lake(tmp_path / "lake")
    rows = {
        DECISIONS: [
            decision("ended", 3 * DAY),
            decision("old", (OPEN_DAYS + 2) * DAY),
            decision("begun", 30 * MINUTE),
            decision("waits", 20 * MINUTE),
            decision("other", 10 * MINUTE, (4, 5), "merge"),
        ],
        OUTCOMES: [
            step("ended", "intent", 3 * DAY),
            step("ended", "failed", 3 * DAY, 1),
            step("begun", "intent", 29 * MINUTE),
            step("begun", "intent", MINUTE / 2, 1),
        ],
        WAITS: [wait("old", 9 * DAY), wait("begun", 29.5 * MINUTE), wait("waits", 19 * MINUTE)],
    }
    for table, some in rows.items():
        write_deltalake(made[table.name], to_arrow(table, some), mode="append")
    return str(tmp_path / "lake")


def test_open_decisions_are_those_of_the_last_days(lake):
    found = read_safeguards(lake, NOW - 10 * DAY, NOW - MINUTE, NOW)
    assert (found.open, found.begun) == (3, 1)
    assert [row["decision_id"] for row in found.waiting] == ["waits"]
    assert [row["decision_id"] for row in found.calls] == ["begun"]
    assert len(found.failures) == 1


def test_an_empty_lake_has_nothing_open(tmp_path):
    create_lake(tmp_path)
    found = read_safeguards(str(tmp_path), NOW - DAY, NOW - MINUTE, NOW)
    assert (found.open, found.begun, found.waiting, found.calls) == (0, 0, (), ())
    assert find_decisions(str(tmp_path), ["none"]) == {}


def test_a_decision_is_known_with_its_steps(lake):
    known = find_decisions(lake, ["begun", "ended", "none"])
    assert {one: (each.begun_at is not None, each.end and each.end["status"]) for one, each in known.items()} == {
        "begun": (True, None),
        "ended": (True, "failed"),
    }
    assert find_replacement(lake, known["ended"]) == "waits"


def test_a_race_reads_the_brakes_alone_again(lake, monkeypatch):
    reads, races = [], []

    def known(*asked):
        reads.append(asked)
        return find_decisions(*asked)

    def now():
        races.append(NOW)
        if len(races) == 1:
            BrakeLog(lake).write(lambda _: [SafeguardAct("pause", ALL, "first", "bob", NOW)])
        return NOW

    monkeypatch.setattr(acting, "find_decisions", known)
    monkeypatch.setattr(acting, "utc_now", now)
    judged = acting.judge(lake, "approve", ["waits"], "fine", "ann", 3600)
    assert ([act.number for act in judged.written], len(races), len(reads)) == ([2], 2, 1)


def test_old_ended_decisions_are_not_read(lake, monkeypatch):
    """An emergency command costs as much after a year as after a day: rows are counted, not time."""
    ended = [(f"ended-{number}", (20 + number % 9) * DAY) for number in range(300)]
    history = {
        DECISIONS: [decision(name, age) for name, age in ended],
        OUTCOMES: [step(name, status, age) for name, age in ended for status in ("intent", "applied")],
        WAITS: [wait(name, age) for name, age in ended],
    }
    for table, some in history.items():
        write_deltalake(table_path(lake, table), to_arrow(table, some), mode="append")
    read = []

    def counting(*asked):
        rows = read_columns(*asked)
        read.append(len(rows))
        assert "inputs" not in rows.column_names
        return rows

    monkeypatch.setattr(state, "read_columns", counting)
    assert read_safeguards(lake, NOW - 10 * DAY, NOW - MINUTE, NOW).open == 3
    assert find_replacement(lake, find_decisions(lake, ["begun"])["begun"]) == "waits"
    assert 0 < sum(read) < 40, read
