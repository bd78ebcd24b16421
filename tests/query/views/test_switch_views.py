"""The views of switches between BookKeeper clusters against a count by hand; the rules that ship on what one left."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pytest

from anabranch.alerts.asking import Asking
from anabranch.alerts.rules import read_rules
from anabranch.bookkeeper.record import read_steps
from anabranch.history.check.findings import Findings
from anabranch.history.check.rows import RowChecks
from anabranch.query.sql import LakeSql
from tests.alerts.test_rules import SHIPPED

pytestmark = pytest.mark.xdist_group("views")

SWITCH = "old-new-1"
START = datetime(2026, 11, 22, 12, 0, tzinfo=timezone.utc)


@pytest.fixture(scope="session")
def ask(lake_of_switch):
    """A question, and its rows."""
    questions = LakeSql(lake_of_switch)
    return lambda sql: questions.rows(sql, is_own=True)


def test_every_step_has_subject_and_outcome(lake_of_switch, ask):
    steps = read_steps(lake_of_switch, f"standalone/{SWITCH}")
    expected = [
        (
            one.seq,
            one.attempt,
            one.step.phase,
            one.step.action,
            one.step.kind,
            one.step.object,
            one.step.ledger,
            one.end.status,
            one.end.error,
            one.end.seen.get("length"),
        )
        for one in steps
    ]
    found = ask(
        "SELECT seq, attempt, phase, action, kind, object, ledger, status, error, bytes FROM bookie_steps ORDER BY seq"
    )
    assert [tuple(row.values()) for row in found] == expected
    assert len(expected) > 20
    ends = {
        (row["cluster"], row["switch"], row["source"], row["target"], row["epoch"])
        for row in ask("SELECT * FROM bookie_steps")
    }
    assert ends == {("standalone", SWITCH, "old", "new", 1)}


def test_a_switch_is_what_its_steps_have_come_to(lake_of_switch, ask):
    steps = read_steps(lake_of_switch, f"standalone/{SWITCH}")
    applied = [one for one in steps if one.end.status == "applied"]
    [row] = ask("SELECT * FROM bookie_switches")
    assert row["copied"] == len({one.step.ledger for one in applied if one.step.action == "copy"})
    assert row["bytes"] == sum(one.end.seen["length"] for one in applied if one.step.action == "copy")
    promotes = ("cas_attribution", "rollover_fallback")
    assert row["promoted"] == len({one.step.object for one in applied if one.step.action in promotes})
    assert row["deleted"] == sum(one.step.action == "delete" for one in applied)
    assert (row["attempts"], row["failed"], row["superseded"], row["rolled_over"], row["phase"]) == (
        2,
        0,
        1,
        1,
        "CLEANUP",
    )
    assert (row["begun_at"], row["last_at"]) == (START + timedelta(seconds=1), max(one.at for one in steps))


@pytest.fixture
def left_in_the_middle(lake_of_switch, tmp_path):
    """The same lake as it was two minutes after the beginning: one ledger has failed."""
    from deltalake import write_deltalake

    from lake.tables import create_lake
    from schemas.tables.rows import DECISIONS, OUTCOMES

    lake = str(tmp_path / "lake")
    made = create_lake(lake)
    for table, at in ((DECISIONS, "decided_at"), (OUTCOMES, "at")):
        rows = LakeSql(lake_of_switch).ask(f"SELECT * FROM {table.name}").read_all()
        early = [row for row in rows.to_pylist() if row[at] < START + timedelta(minutes=2)]
        write_deltalake(made[table.name], type(rows).from_pylist(early, rows.schema), mode="append")
    return lake


def said(lake, rule, at):
    return [(dict(one.labels), one.value) for one in Asking(lake, at).matches(read_rules(SHIPPED).rule(rule))]


def test_failed_ledgers_reported_until_retried(left_in_the_middle, lake_of_switch):
    at = START + timedelta(minutes=5)
    labels = {"cluster": "standalone", "switch": SWITCH}
    assert said(left_in_the_middle, "SwitchLedgersFailed", at) == [(labels, 1.0)]
    assert said(lake_of_switch, "SwitchLedgersFailed", START + timedelta(days=17)) == []


def test_idle_switch_reported_and_done_one_is_not(left_in_the_middle, lake_of_switch):
    from anabranch.bookkeeper.record import SwitchRecord
    from schemas.bookies import BookieSnapshot, Directive

    directive = Directive(source="old", target="new", attempt=3)
    record = SwitchRecord(left_in_the_middle, "standalone", directive, "host:2")
    step = next(one.step for one in record.steps.values())
    at = START + timedelta(minutes=3)
    record.begin([(step, BookieSnapshot(now=1))], at)
    assert said(left_in_the_middle, "SwitchAbandoned", at + timedelta(minutes=9)) == []
    [(labels, value)] = said(left_in_the_middle, "SwitchAbandoned", at + timedelta(minutes=11))
    assert (labels, value) == ({"cluster": "standalone", "switch": SWITCH}, 1.0)
    assert said(lake_of_switch, "SwitchAbandoned", START + timedelta(days=17)) == []


def test_lake_check_accepts_switch_rows(lake_of_switch):
    found = Findings()
    RowChecks(lake_of_switch).look(found)
    assert found.to_json()["findings"] == []


def test_step_inputs_are_a_sufficient_snapshot(ask):
    from decisions.bookkeeper.decide import decide
    from schemas.bookies import BookieSnapshot

    for row in ask("SELECT action, arguments, inputs FROM decisions"):
        arguments = json.loads(row["arguments"])
        steps = decide(BookieSnapshot.model_validate_json(row["inputs"])).steps
        assert (row["action"], arguments["object"], arguments.get("ledger")) in {
            (one.action, one.object, one.ledger) for one in steps
        }
