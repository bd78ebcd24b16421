"""Balance of a run on hand-made rows; every expected figure is worked out by hand."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import pytest

from anabranch.history.balance import balance_lines, build_balance
from anabranch.history.narrative import tell_run
from anabranch.history.summary import summarize
from lake.retention import forget_rows
from lake.rows import WholeTables
from lake.state_snapshots import Horizon, SnapshotPiece, write_horizon
from schemas.tables.rows import DECISIONS, OUTCOMES, WAITS
from tests.local.lake import (
    ORDERS,
    at,
    decision,
    event,
    hold,
    layout_event,
    layout_json,
    load,
    millis,
    outcome,
    policy_event,
    wait,
    write,
)

CLICKS = "topic://acme/shop/clicks"
ONE = {**layout_json((0, 0, 0xFFFF)), "createdAtMs": 5}
SPLIT = {**layout_json((0, 0, 0xFFFF), (1, 0, 0x7FFF), (2, 0x8000, 0xFFFF), epoch=1, sealed=(0,)), "createdAtMs": 5}
HOT = 25_000.0
"""2.5 times the threshold of messages in, 1.67 times that of messages out."""


def ticks(*seconds, topic=None):
    """Ticks, each in a batch 100 ms later."""
    named = {} if topic is None else {"topic": topic}
    return [event("tick", {"v": 1, "type": "tick", **named, "at": millis(second)}, second) for second in seconds]


def balance_of(lake, *rows, since=0, **options):
    write(str(lake), *rows)
    found = build_balance(WholeTables(str(lake)), at(since), at(1_000), **options)
    return json.loads(json.dumps(found))


def over(lake, *rows, **options):
    return balance_of(lake, policy_event(0), *rows, **options)["overThreshold"]


def test_balance_of_an_empty_lake_is_zero(tmp_path):
    found = build_balance(WholeTables(str(tmp_path)), at(0), at(9))
    assert found == {
        "decisions": 0,
        "applied": 0,
        "observed": 0,
        "superseded": {},
        "rejected": {},
        "failed": {},
        "open": [],
        "overThreshold": [],
    }
    assert balance_lines(found) == [
        "balance      0 decisions",
        "over a split threshold at more than two evaluations in a row: no topic",
    ]


def test_ends_are_counted_by_cause(tmp_path):
    found = balance_of(
        tmp_path,
        *(decision(second, seq) for seq, second in enumerate((-5, 1, 2, 3, 4, 5, 6, 7), start=1)),
        outcome("d1", "applied", 1),
        outcome("d2", "intent", 1.1),
        outcome("d2", "applied", 1.2),
        outcome(
            "d3", "superseded", 2.1, error="the layout has changed since epoch 17: no longer active 26, 27, new 29"
        ),
        outcome("d4", "superseded", 3.1, error="the layout has changed since epoch 2: no longer active 4, new 6"),
        outcome("d5", "superseded", 4.1, error=f"{ORDERS}: 0000-7fff is gone"),
        outcome("d6", "failed", 5.1, error="503 after 12.5 s"),
        outcome("d7", "rejected", 6.1),
        outcome("d8", "observed", 7.1),
    )
    assert found["decisions"] == 7
    assert (found["applied"], found["observed"]) == (1, 1)
    assert found["superseded"] == {
        "the layout has changed since epoch N: no longer active N, new N": 2,
        "TOPIC: RANGE is gone": 1,
    }
    assert found["failed"] == {"N after N s": 1}
    assert found["rejected"] == {"no cause on record": 1}
    assert found["open"] == []
    lines = balance_lines(found)
    assert lines[0] == "balance      7 decisions: 1 applied, 1 observed, 3 superseded, 1 rejected, 1 failed"
    assert "  superseded 1 TOPIC: RANGE is gone" in lines


def test_decisions_removed_meanwhile_stay_ended(tmp_path):
    """A run over midnight: retention removes the ended decisions of its first day, and then their outcomes."""
    lake, midnight = str(tmp_path), 12 * 3600
    write(lake, *(decision(seq, seq) for seq in (1, 2)), decision(midnight + 5, 3))
    write(lake, *(outcome(f"d{seq}", "applied", seq + 0.5) for seq in (1, 2)), wait("d1", "pause", 1.2))
    begin = at(midnight)
    write_horizon(lake, Horizon(begin, "g", {}, frozenset(), [SnapshotPiece(b"", b"")], b""))
    removed = [forget_rows(lake, table, begin.date(), is_dry_run=False).rows for table in (DECISIONS, OUTCOMES, WAITS)]
    assert removed == [1, 1, 1]
    rows = WholeTables(lake)
    found = build_balance(rows, at(0), at(midnight + 10))
    assert (found["decisions"], found["applied"]) == (3, 2)
    assert [row["decisionId"] for row in found["open"]] == ["d3"]
    assert summarize(rows, at(0), at(midnight + 10))["outcomes"] == {"applied": 2, "notBegun": 1}
    assert tell_run(rows, at(0), at(midnight + 10)) == ["2 actions, none of them undone by the opposite."]


def test_open_decisions_say_what_they_wait_for(tmp_path):
    rows = (
        *(decision(seq, seq, arguments=f'{{"segments":[{seq}]}}') for seq in (1, 2, 3, 4)),
        wait("d2", "approval", 2.5, "nobody has approved it"),
        outcome("d3", "intent", 3.1),
        wait("d4", "pause", 4.1),
        outcome("d4", "intent", 4.2),
    )
    found = balance_of(tmp_path, *rows)
    assert [(row["action"], row["state"]) for row in found["open"]] == [
        ("split 1", "the executor has not begun"),
        ("split 2", "waits: approval, nobody has approved it"),
        ("split 3", "last step: intent"),
        ("split 4", "last step: intent"),
    ]
    assert found["open"][1]["decidedAt"] == at(2).isoformat()
    assert f"  open       {ORDERS} split 1, decided 12:00:01: the executor has not begun" in balance_lines(found)


def test_late_commits_of_open_decisions_differ(tmp_path):
    before_the_commit = datetime(2020, 1, 1, tzinfo=timezone.utc)
    found = balance_of(tmp_path, decision(1), executor_stopped_at=before_the_commit)
    assert found["open"][0]["state"] == "committed after the executor was told to stop"


def test_topic_over_threshold_has_reasons(tmp_path):
    found = over(
        tmp_path,
        layout_event(ONE, 1),
        load(0, 12_000, 5),
        hold(10.1, "retry-backoff", 1),
        load(0, HOT, 12),
        decision(30.1, 1),
        outcome("d1", "applied", 30.5),
        layout_event(SPLIT, 31, "split"),
        load(1, 8_000, 32),
        *ticks(10, 20, 30, 40),
    )
    assert found == [
        {
            "topic": ORDERS,
            "evaluations": 3,
            "from": at(10.1).isoformat(),
            "until": at(30.1).isoformat(),
            "overload": 2.5,
            "segments": [0],
            "reasons": {"retry-backoff": 2, "split": 1},
            "inFlight": [],
        }
    ]


def test_two_evaluations_over_limit_tolerated(tmp_path):
    assert over(tmp_path, layout_event(ONE, 1), load(0, HOT, 5), load(0, 100, 25), *ticks(10, 20, 30, 40)) == []


def test_interrupted_overload_counts_its_longest_part(tmp_path):
    rates = [load(0, rate, second) for second, rate in ((5, HOT), (45, 100.0), (55, 2 * HOT))]
    found = over(tmp_path, layout_event(ONE, 1), *rates, *ticks(10, 20, 30, 40, 50, 60, 70, 80))
    assert [(row["evaluations"], row["overload"]) for row in found] == [(4, 2.5)]


def test_open_decision_is_named_as_the_reason(tmp_path):
    found = balance_of(
        tmp_path,
        policy_event(0),
        layout_event(ONE, 1),
        load(0, HOT, 5),
        decision(10.1, 1),
        hold(20.1, "in-flight", 1),
        wait("d1", "approval", 10.5),
        *ticks(10, 20, 30),
    )
    row = found["overThreshold"][0]
    assert row["reasons"] == {"in-flight": 2, "split": 1}
    assert row["inFlight"] == ["split 0"]
    assert balance_lines(found)[-1] == (
        f"  {ORDERS}: 3 evaluations from 12:00:10 to 12:00:30, up to 2.5 times, segments 0; 2 in-flight, 1 split; "
        "in flight: split 0"
    )


def test_ticks_of_one_topic_evaluate_it_alone(tmp_path):
    both = [row for topic in (ORDERS, CLICKS) for row in (layout_event(ONE, 1, topic=topic), load(0, HOT, 5, topic))]
    found = over(tmp_path, *both, *ticks(10, 20), *ticks(30, topic=CLICKS))
    assert [(row["topic"], row["evaluations"]) for row in found] == [(CLICKS, 3)]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            [policy_event(8, policy={"splitMsgRateInThreshold": 90_000, "splitMsgRateOutThreshold": 90_000})],
            id="policy-of-the-job",
        ),
        pytest.param(
            [
                policy_event(
                    8,
                    "namespace",
                    name="acme/shop",
                    profile=None,
                    policy={"splitMsgRateInThreshold": 90_000, "splitMsgRateOutThreshold": 90_000},
                )
            ],
            id="policy-of-the-namespace",
        ),
        pytest.param(
            [
                layout_event(
                    {
                        **ONE,
                        "epoch": 1,
                        "autoScalePolicy": {"splitMsgRateInThreshold": 90_000, "splitMsgRateOutThreshold": 90_000},
                    },
                    8,
                    "policy",
                )
            ],
            id="policy-of-the-topic",
        ),
        pytest.param([layout_event(ONE, 8, "deleted")], id="deleted"),
        pytest.param([layout_event({**ONE, "createdAtMs": 9}, 8)], id="created-again"),
        pytest.param([layout_event(SPLIT, 8, "split"), layout_event(ONE, 9)], id="sealed-segment"),
    ],
)
def test_overload_ends_with(tmp_path, change):
    hot = [layout_event(ONE, 1), load(0, HOT, 5)]
    assert len(over(tmp_path / "a", *hot, *ticks(10, 20, 30))) == 1
    assert over(tmp_path / "b", *hot, *change, *ticks(10, 20, 30)) == []


def test_evaluations_before_the_run_do_not_count(tmp_path):
    found = over(tmp_path, layout_event(ONE, 1), load(0, HOT, 5), *ticks(10, 20, 30, 40, 50), since=25)
    assert [row["evaluations"] for row in found] == [3]


def test_nothing_is_over_without_a_policy_on_record(tmp_path):
    assert balance_of(tmp_path, layout_event(ONE, 1), load(0, HOT, 5), *ticks(10, 20, 30))["overThreshold"] == []
