"""The judgement of a run under kills: each broken rule is seen in the rows that show it."""

from __future__ import annotations

import pytest

from tests.harness.chaos.kills import broken_rules

DECIDED = [{"decision_id": "d1"}, {"decision_id": "d2"}]


def end(decision: str, status: str) -> dict:
    return {"decision_id": decision, "status": status}


def change(decision: str, epoch: int) -> dict:
    return {"type": "layout", "cause": "split", "decision_id": decision, "subject": "t", "epoch": epoch}


ENDS = [end("d1", "intent"), end("d1", "applied"), end("d2", "superseded")]
CHANGES = [change("d1", 1)]


def test_decisions_applied_once_break_no_rule():
    assert broken_rules(DECIDED, ENDS, CHANGES) == []


def test_repeated_announcement_of_one_layout_breaks_no_rule():
    assert broken_rules(DECIDED, ENDS, CHANGES * 2) == []


@pytest.mark.parametrize(
    ("outcomes", "events", "broken"),
    [
        ([*ENDS, end("d1", "applied")], CHANGES, "d1 ended 2 times: ['applied', 'applied']"),
        (ENDS, [*CHANGES, change("d1", 2)], "d1 changed layouts [('t', 1), ('t', 2)]"),
        (ENDS, [], "d1 was applied, and no layout shows it"),
        (ENDS, [*CHANGES, change("d2", 2)], "d2 changed a layout and ended as ['superseded']"),
        ([*ENDS, end("d3", "applied")], [*CHANGES, change("d3", 2)], "d3 changed a layout and was never decided"),
    ],
)
def test_each_fault_breaks_its_rule(outcomes, events, broken):
    assert broken_rules(DECIDED, outcomes, events) == [broken]
