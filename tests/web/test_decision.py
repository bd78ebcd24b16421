"""The page of a decision, and what a person may do about it."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from anabranch.auth.callers import Access
from anabranch.auth.tokens import add_token
from anabranch.web.words import observed
from decisions.topic.layout import SegmentLayout
from lake.brakes import BrakeReader
from lake.tables import create_table
from schemas.tables.arrow import to_arrow
from schemas.tables.rows import BATCHES, DECISIONS, EVENTS, HOLDS, SEGMENT_LOAD, WAITS, WaitRow
from tests.engine.records import configured, layout, record, tick
from tests.engine.test_engine import MINUTE, NOW, SECOND
from tests.engine.test_replay import NAMES, RecordedBucket
from tests.local.lake import layout_event, layout_json, outcome, write
from tests.web.pages import page, table_of

RATES = {"msgRateIn": 50_000.0, "bytesRateIn": 4_000_000.0, "msgRateOut": 60.0, "bytesRateOut": 7_000.0}
WHEN = datetime.fromtimestamp((NOW + SECOND) / 1000, timezone.utc)


@pytest.fixture
def lake(tmp_path):
    """A hot topic whose split waits for approval."""
    bucket = RecordedBucket()
    made = SegmentLayout.create(1, NOW - 10 * MINUTE)
    bucket.batch(NOW, configured({"minSegments": 1}), layout(made, topic=NAMES[0]))
    sample = {"v": 1, "topic": NAMES[0], "reporter": "b", "sampledAt": NOW, "segments": [{"id": 0, **RATES}]}
    bucket.batch(NOW + SECOND, record("segment-stats", NAMES[0], sample), tick(1))
    lake = tmp_path / "lake"
    for table in (EVENTS, SEGMENT_LOAD, DECISIONS, HOLDS, BATCHES):
        write_deltalake(create_table(lake, table), bucket.table(table), mode="append")
    waiting = WaitRow(
        decision_id=identity(bucket),
        family="autoscale",
        subject=NAMES[0],
        brake="approval",
        reason="mode is approve",
        until=None,
        at=WHEN,
        executor="e",
        day=WHEN.date(),
    )
    write_deltalake(create_table(lake, WAITS), to_arrow(WAITS, [waiting]), mode="append")
    lake.joinpath("id").write_text(identity(bucket))
    return str(lake)


def identity(bucket):
    return bucket.table(DECISIONS)["decision_id"].to_pylist()[0]


def id_of(lake):
    with open(f"{lake}/id") as file:
        return file.read()


def acts_of(lake):
    reader = BrakeReader(lake)
    reader.read()
    return reader.acts


def test_page_shows_input_gates_and_outcome(lake):
    decided = id_of(lake)
    on = {"subject": NAMES[0], "at": WHEN, "day": WHEN.date()}
    text = page(lake).get(f"/decision?id={decided}").text
    assert "waits for: approval" in text
    assert "Replayed with this release: the same." in text
    [gate] = [row for row in table_of(text, "measured", "limit") if row["gate"].startswith("split-thresholds")]
    assert [gate[name] for name in ("passes", "measured", "limit", "segment")] == ["yes", "5", "1", "0"]
    assert table_of(text, "msg/s in", "B/s out") == [
        {
            "segment": "0",
            "hashes": "0000 to ffff",
            "msg/s in": "50,000",
            "B/s in": "4,000,000",
            "msg/s out": "60",
            "B/s out": "7,000",
            "of split threshold": "500 %",
        }
    ]
    assert "Approve</button>" in text
    assert f"anabranch decisions approve {decided} --reason" in text
    write(lake, outcome(decided, "intent", 0, **on), outcome(decided, "applied", 1, **on))
    text = page(lake).get(f"/decision?id={decided}").text
    assert '<span class="good">applied</span>' in text
    assert "Approve</button>" not in text


def test_decision_on_another_segment_is_another_answer(lake):
    table = DeltaTable(f"{lake}/decisions")
    rows = table.to_pyarrow_table()
    for name, value in (("decision_id", "other"), ("arguments", '{"segments":[7]}')):
        rows = rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), pa.array([value]))
    write_deltalake(table, rows, mode="append")
    assert "Replayed with this release: the same." not in page(lake).get("/decision?id=other").text


def test_timeline_says_what_was_seen_in_words(lake):
    decided = id_of(lake)
    parent = {"state": "SEALED", "range": "0000-ffff", "children": [1, 2]}
    seen = json.dumps({"epoch": 2, "active": 2, "segments": {"0": parent}, "pruned": []})
    row = outcome(decided, "applied", 1, subject=NAMES[0], at=WHEN, day=WHEN.date())
    write(lake, row.model_copy(update={"seen": seen}))
    text = page(lake).get(f"/decision?id={decided}").text
    assert "saw epoch 2, 2 active segments, segment 0 sealed with children 1 and 2" in text
    assert "{&#34;epoch&#34;:2" not in text


def test_timeline_has_the_layouts_of_this_decision_only(lake):
    """Decisions of one evaluation change the topic one after the other."""
    on = {"accepted_at": WHEN, "at": WHEN, "day": WHEN.date()}
    made = layout_event(layout_json((0, 0, 65_535)), 0, topic=NAMES[0]).model_copy(update=on)
    ours, other = ({"epoch": 7, "decision_id": id_of(lake)}, {"epoch": 8, "decision_id": "another"})
    write(lake, made.model_copy(update=ours), made.model_copy(update=other))
    text = page(lake).get(f"/decision?id={id_of(lake)}").text
    assert "layout of epoch 7" in text
    assert "layout of epoch 8" not in text


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ("", ""),
        ("{}", ""),
        ('{"topic":"gone"}', "no such topic"),
        ('{"cluster":"west","owner":null,"bundles":4}', "cluster west, no owner, 4 bundles in the namespace"),
        ('{"pruned":[3],"would":"split segment 3"}', "segment 3 pruned, would split segment 3"),
        ('{"epoch":3,"active":1}', "epoch 3, 1 active segment"),
        ("no json", "no json"),
        ("[1]", "[1]"),
    ],
)
def test_anything_seen_has_words(seen, words):
    assert observed(seen) == words


@pytest.mark.parametrize(("kind", "done"), [("approve", ("good", "approved")), ("reject", ("bad", "rejected"))])
def test_verdict_recorded_once_with_reason_and_name(lake, kind, done):
    decided, found = id_of(lake), page(lake)
    fields = {"id": decided, "kind": kind, "reason": " it  is right ", "proof": found.proof(f"/decision?id={decided}")}
    assert found.post("/decision", fields).headers["location"] == f"/decision?id={decided}"
    act = acts_of(lake).verdict_on(decided)
    assert (act.kind, act.reason, act.subject) == (kind, "it is right", NAMES[0])
    assert '<span class="{}">{}</span>'.format(*done) in found.get(f"/decision?id={decided}").text
    again = found.post("/decision", {**fields, "kind": "reject" if kind == "approve" else "approve"})
    assert (again.status_code, f"it was {done[1]} already" in again.text) == (409, True)


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"reason": " "}, 409),
        ({"kind": "delete"}, 400),
        ({"id": "none"}, 404),
        ({"proof": "0"}, 403),
        ({"reason": "x" * 501}, 409),
    ],
)
def test_a_form_that_is_not_right_changes_nothing(lake, changed, status):
    decided, found = id_of(lake), page(lake)
    fields = {"id": decided, "kind": "approve", "reason": "r", "proof": found.proof(f"/decision?id={decided}")}
    assert found.post("/decision", {**fields, **changed}).status_code == status
    assert acts_of(lake).number == 0


def test_read_token_sees_no_button(lake, tmp_path):
    decided = id_of(lake)
    for role, scope, status in (("read", [], 403), ("operate", ["globex"], 403), ("operate", ["acme/shop"], 303)):
        tokens = tmp_path / f"{role}{len(scope)}{status}"
        token = add_token(tokens, "ann", role, scope)
        found = page(lake, Access(tokens))
        found.post("/sign-in", {"token": token})
        text = found.get(f"/decision?id={decided}").text
        assert ("Approve</button>" in text) == (status == 303)
        proof = found.proof("/")
        fields = {"id": decided, "kind": "approve", "reason": "r", "proof": proof}
        assert found.post("/decision", fields).status_code == status
    assert acts_of(lake).verdict_on(decided).actor == "ann"


def test_another_policy_is_tried_on_what_it_saw(lake):
    decided, found = id_of(lake), page(lake)
    text = found.get(
        f"/decision?id={decided}&policy=splitMsgRateInThreshold%20%3D%20%22900k%22%0AsplitBytesRateInThreshold%3D9e12%0AsplitMsgRateOutThreshold%3D9e12%0AsplitBytesRateOutThreshold%3D9e12"
    ).text
    assert "hold, " in text
    assert "unknown key" in found.get(f"/decision?id={decided}&policy=nonsense%3D1").text


def test_an_unknown_decision_is_said(lake):
    answer = page(lake).get("/decision?id=%3Cscript%3E")
    assert (answer.status_code, "<script>" in answer.text.replace("<script src=", "")) == (404, False)


def test_the_snapshot_is_there_as_json(lake):
    text = page(lake).get(f"/decision?id={id_of(lake)}").text
    assert json.dumps(NAMES[0])[1:-1] in text


@pytest.mark.parametrize(("scope", "status"), [((), 404), (("globex",), 403)])
def test_bound_token_is_not_told_which_decisions_there_are(lake, tmp_path, scope, status):
    token = add_token(tmp_path / "t", "ann", "read", scope)
    found = page(lake, Access(tmp_path / "t"))
    assert found.get("/decision?id=0123", authorization=f"Bearer {token}").status_code == status
