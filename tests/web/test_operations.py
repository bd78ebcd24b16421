"""The operations page: brakes as forms, the job's health, dead letters shown safely, alerts."""

from __future__ import annotations

import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from anabranch.alerts.record import standing_alerts
from anabranch.auth.callers import Access
from anabranch.auth.tokens import add_token
from anabranch.web.pages.operations import read_scope, shown_bytes
from lake.brakes import ALL, BrakeReader
from lake.tables import create_table
from schemas.tables.arrow import to_arrow
from schemas.tables.rows import ALERTS, DEAD_LETTERS, AlertRow
from tests.local.lake import ORDERS, at, dead_letter, decision, wait, write
from tests.web.pages import page, table_of

HOSTILE = b"<script>alert(1)</script>\x1b[2J\xff\xe2\x80\xae"


def acts_of(lake):
    reader = BrakeReader(lake)
    reader.read()
    return reader.acts


def form(found, **fields):
    return {
        "kind": "pause",
        "scope": "all",
        "reason": "a test",
        "for": "",
        "proof": found.proof("/operations"),
        **fields,
    }


def test_pause_recorded_and_shown_until_resumed(lake):
    found = page(lake)
    for scope, subject in (("all", ALL), ("acme/shop", "acme/shop"), ("acme/shop/orders", ORDERS)):
        assert found.post("/operations", form(found, scope=scope, **{"for": "3600"})).status_code == 303
        assert subject in acts_of(lake).pauses
        found.app.state.fleet.look()
        assert "a test" in found.get("/operations").text
        assert "paused</span>" in found.get("/?only=paused").text
        assert found.post("/operations", form(found, kind="resume", scope=scope)).status_code == 303
        assert subject not in acts_of(lake).pauses


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"kind": "stop"}, 400),
        ({"for": "7"}, 400),
        ({"scope": "nonsense"}, 409),
        ({"reason": ""}, 409),
        ({"proof": "x"}, 403),
        ({"kind": "resume"}, 409),
    ],
)
def test_a_form_that_is_not_right_changes_nothing(lake, changed, status):
    found = page(lake)
    assert found.post("/operations", form(found, **changed)).status_code == status
    assert acts_of(lake).number == 0


def test_operate_token_acts_within_its_scope(lake, tmp_path):
    for role, scope, allowed in (("read", [], []), ("operate", ["acme/shop"], ["acme/shop", "acme/shop/orders"])):
        tokens = tmp_path / role
        token = add_token(tokens, "ann", role, scope)
        found = page(lake, Access(tokens))
        found.post("/sign-in", {"token": token})
        for asked in ("all", "acme/shop", "acme/shop/orders", "globex/shop"):
            status = found.post("/operations", {**form(found), "proof": found.proof("/"), "scope": asked}).status_code
            assert status == (303 if asked in allowed else 403), (role, asked)
    assert set(acts_of(lake).pauses) == {"acme/shop", ORDERS}


def test_dead_letters_always_shown_as_text(lake):
    row = dead_letter("not-json", 1).model_copy(
        update={"raw": HOSTILE, "key": HOSTILE, "detail": HOSTILE.decode("latin-1")}
    )
    write_deltalake(create_table(lake, DEAD_LETTERS), to_arrow(DEAD_LETTERS, [row]), mode="append")
    text = page(lake).get("/operations").text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[2J\\xff\\u202e" in text
    assert "<script>" not in text
    assert "\x1b" not in text


@given(st.binary(max_size=1500))
def test_any_bytes_become_text_on_one_line(raw):
    assert shown_bytes(raw).isprintable()


def test_an_alert_stands_until_it_is_resolved(lake):
    def row(seconds, status, identity="a1", **changed):
        return AlertRow(
            alert="InputStale",
            subject="*",
            status=status,
            at=at(seconds),
            summary="stale",
            labels="{}",
            day=at(0).date(),
            alert_id=identity,
            since=at(0),
            **changed,
        )

    rows = [row(0, "pending"), row(1, "firing"), row(1, "told", notice="firing"), row(2, "firing", "a2")]
    write_deltalake(create_table(lake, ALERTS), to_arrow(ALERTS, rows), mode="append")
    text = page(lake).get("/operations").text
    assert text.count("tag bad") == 2
    shown = {"alert": "InputStale", "status": "firing", "about": "*", "since": "2026-11-20 12:00:00", "what": "stale"}
    assert table_of(text, "alert", "about") == [shown, shown]
    stored = [one.model_dump() for one in (*rows, row(3, "resolved"))]
    assert [one["alert_id"] for one in standing_alerts(stored)] == ["a2"]


def test_tenant_token_sees_nothing_of_job(lake, tmp_path):
    token = add_token(tmp_path / "t", "ann", "operate", ["acme"])
    found = page(lake, Access(tmp_path / "t"))
    found.post("/sign-in", {"token": token})
    assert "Dead letters" not in found.get("/operations").text
    assert found.get("/operations/health").status_code == 403


@pytest.mark.parametrize(("namespace", "sees"), [("acme/shop", True), ("acme/bills", False)])
def test_token_sees_pauses_and_waiting_decisions_of_its_own(lake, tmp_path, namespace, sees):
    write(lake, decision(2), wait("d1", "approval", 3))
    first = page(lake)
    assert first.post("/operations", form(first, scope="acme/shop")).status_code == 303
    token = add_token(tmp_path / "t", "ann", "read", [namespace])
    text = page(lake, Access(tmp_path / "t")).get("/operations", authorization=f"Bearer {token}").text
    assert ("a test" in text, "The newest that wait" in text) == (sees, sees)


@pytest.mark.parametrize(("role", "may"), [("read", False), ("operate", True)])
def test_only_those_who_may_act_see_the_form_to_pause(lake, tmp_path, role, may):
    token = add_token(tmp_path / "t", "ann", role)
    found = page(lake, Access(tmp_path / "t"))
    found.post("/sign-in", {"token": token})
    assert ('id="pausing"' in found.get("/operations").text) is may


def test_health_is_columns_of_the_batches(lake):
    found = page(lake).get("/operations/health").json()
    assert len(found["at"]) == len(found["series"][0]["values"]) == 1


@given(st.text(max_size=40))
def test_what_is_paused_is_a_topic_a_namespace_or_all(text):
    try:
        scope = read_scope(text)
    except ValueError:
        return
    assert scope == ALL or scope.count("/") == 1 or scope.startswith("topic://")


def test_a_name_on_no_record_is_paused_only_if_forced(lake):
    found = page(lake)
    refused = found.post("/operations", form(found, scope="acme/shpo"))
    assert refused.status_code == 409
    assert "The nearest names are acme/shop" in refused.text
    assert acts_of(lake).pauses == {}
    assert found.post("/operations", form(found, scope="acme/shpo", force="yes")).status_code == 303
    assert "acme/shpo" in acts_of(lake).pauses


def test_near_names_of_others_are_not_told(lake, tmp_path):
    token = add_token(tmp_path / "t", "ann", "operate", ["acme/shpo"])
    found = page(lake, Access(tmp_path / "t"))
    found.post("/sign-in", {"token": token})
    refused = found.post("/operations", {**form(found), "proof": found.proof("/"), "scope": "acme/shpo"})
    assert refused.status_code == 409
    assert "Nothing named acme/shpo" in refused.text
    assert "acme/shop" not in refused.text


@pytest.mark.parametrize(("role", "buttons"), [("read", 0), ("operate", 1)])
def test_pause_is_ended_by_those_who_may(lake, tmp_path, role, buttons):
    first = page(lake)
    assert first.post("/operations", form(first, scope="acme/shop")).status_code == 303
    token = add_token(tmp_path / "t", "ann", role, ["acme/shop"])
    found = page(lake, Access(tmp_path / "t"))
    found.post("/sign-in", {"token": token})
    text = found.get("/operations").text
    assert "a test" in text
    assert text.count("<button>Resume</button>") == buttons
