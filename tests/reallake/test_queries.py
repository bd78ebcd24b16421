"""Every view and every question of the cookbook on a real lake; what they count is counted again from the raw rows."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from anabranch.query.views.catalogue import views
from tests.query.views.cookbook import questions
from tests.reallake.asking import rows, run_command

pytestmark = [pytest.mark.local_run, pytest.mark.spark, pytest.mark.timeout(900)]


NOT_ASKED = [
    view for view in views().values() if not re.search(rf"\b(FROM|JOIN) {view.name}\b", Path(__file__).read_text())
]
"""Views that no test below asks."""


@pytest.mark.parametrize(
    "view",
    # All that it does is in the view of the present, which is asked below.
    [pytest.param(one, id=one.name, marks=[pytest.mark.soak] * (one.name == "fleet_health_at")) for one in NOT_ASKED],
)
def test_view_can_be_asked(real_lake, raw, view):
    arguments = ", ".join(f"TIMESTAMP '{raw.last_batch:%Y-%m-%d %H:%M:%S}'" for _ in view.parameters)
    run_command(real_lake, "sql", f"SELECT * FROM {view.name}" + (f"({arguments})" if arguments else ""))


@pytest.mark.soak
@pytest.mark.parametrize("sql", [pytest.param(sql, id=title[:40]) for title, sql, _ in questions()])
def test_question_of_the_cookbook_can_be_asked(real_lake, sql):
    run_command(real_lake, "sql", sql)


def test_decision_outcomes_have_one_row_a_decision(real_lake, raw):
    found = rows(real_lake, "SELECT decision_id, status, calls FROM decision_outcomes")
    statuses = raw.statuses() - Counter(open=len(raw.begun)) + Counter(intent=len(raw.begun))
    assert Counter(row["status"] for row in found) == statuses
    assert {row["decision_id"] for row in found} == {row["decision_id"] for row in raw.rows("decisions")}
    calls = defaultdict(int)
    for row in raw.rows("outcomes"):
        calls[row["decision_id"]] = max(calls[row["decision_id"]], row["attempt"])
    assert {row["decision_id"]: row["calls"] or 0 for row in found} == {
        row["decision_id"]: calls[row["decision_id"]] for row in raw.rows("decisions")
    }


def test_layouts_are_those_that_were_announced(real_lake, raw):
    found = rows(real_lake, "SELECT topic, life, epoch, active_segments, valid_to IS NULL AS present FROM layout_spans")
    told = Counter((row["topic"], row["life"], row["epoch"], row["active_segments"], row["present"]) for row in found)
    expected = Counter(
        (one.topic, one.life, one.epoch, len(one.active), one.ends is None) for one in raw.every_layout()
    )
    assert told == expected


def test_segment_hours_are_those_of_the_layouts(real_lake, raw):
    found = rows(real_lake, "SELECT topic, sum(segment_hours) AS hours FROM segment_hours GROUP BY topic")
    assert {row["topic"]: row["hours"] for row in found} == pytest.approx(raw.segment_hours(), rel=1e-6)


def test_holds_now_are_the_newest(real_lake, raw):
    found = rows(real_lake, "SELECT subject, gate FROM holds_now")
    assert {row["subject"]: row["gate"] for row in found} == raw.holds_now()


def test_hold_intervals_are_the_holds_on_record(real_lake, raw):
    found = rows(real_lake, "SELECT subject, gate, count(*) AS n FROM hold_intervals GROUP BY subject, gate")
    expected = Counter((row["subject"], row["gate"]) for row in raw.rows("holds"))
    assert {(row["subject"], row["gate"]): row["n"] for row in found} == expected


def test_load_intervals_end_with_the_newest_load(real_lake, raw):
    found = rows(
        real_lake,
        "SELECT topic, segment_id, msg_rate_in, bytes_rate_in, msg_rate_out, bytes_rate_out FROM load_intervals "
        "WHERE valid_to IS NULL",
    )
    told = {(row.pop("topic"), row.pop("segment_id")): tuple(row.values()) for row in found}
    for topic, layout in raw.present().items():
        for segment, rates in raw.loads(topic).items():
            if segment in layout.active:
                assert told[topic, segment] == rates


def test_consumers_beyond_segments_are_waiting(real_lake, raw):
    found = rows(real_lake, "SELECT topic, subscription, waiting FROM consumers_waiting WHERE waiting_to IS NULL")
    expected = {}
    types = {(row["subject"], row["subscription"]): row["subscription_type"] for row in raw.events("consumer")}
    for topic, subscriptions in raw.consumers().items():
        segments = len(raw.present()[topic].active)
        for name, count in subscriptions.items():
            if types[topic, name] in ("STREAM", "CHECKPOINT") and count > segments:
                expected[topic, name] = count - segments
    assert {(row["topic"], row["subscription"]): row["waiting"] for row in found} == expected


def test_fleet_health_counts_what_is_there(real_lake, raw):
    (found,) = rows(real_lake, "SELECT * FROM fleet_health")
    present = raw.present()
    assert found["topics"] == len(present)
    assert found["active_segments"] == sum(len(one.active) for one in present.values())
    assert found["dead_letters_last_hour"] == len(raw.rows("dead_letters"))
    assert found["messages_last_hour"] == sum(row["messages"] for row in raw.rows("batches"))
    assert found["decisions_last_hour"] == len(raw.rows("decisions"))
    assert found["applied_last_hour"] == raw.statuses()["applied"]
    assert found["decisions_open"] == raw.statuses()["open"]
