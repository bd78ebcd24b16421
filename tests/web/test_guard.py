"""Who may see and do what: tokens and roles, sessions, pages of strangers."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import pytest

from anabranch.auth.callers import Access, Caller
from anabranch.auth.tokens import add_token, remove_token
from anabranch.web.app import MAX_LIVE_PER_TOKEN
from anabranch.web.sessions import MAX_SESSIONS, MAX_SESSIONS_PER_TOKEN, BrowserSessions
from tests.local.lake import ORDERS, decision, layout_event, layout_json, write
from tests.web.pages import page

WHOLE = layout_json((0, 0x0000, 0xFFFF))
HALF_A_DAY = 12 * 3600.0


@pytest.fixture
def lake(tmp_path):
    lake = str(tmp_path / "lake")
    write(lake, layout_event(WHOLE, 0), layout_event(WHOLE, 0, topic="topic://globex/shop/bills"))
    return lake


@pytest.fixture
def tokens(tmp_path):
    return tmp_path / "tokens"


def signed_in(lake, tokens, *scope, role="read"):
    token = add_token(tokens, "ann", role, scope)
    found = page(lake, Access(tokens))
    assert found.post("/sign-in?next=/", {"token": token}).headers["location"] == "/"
    return found


def test_on_loopback_nobody_needs_a_token(lake):
    assert page(lake).get("/").status_code == 200


def test_every_answer_has_content_policy(lake):
    found = page(lake)
    for path in ("/", "/nothing", "/static/page.css", "/healthz"):
        headers = found.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_tokens_require_sign_in(lake, tokens):
    """A person is led to sign in, a program is refused."""
    add_token(tokens, "ann", "read")
    found = page(lake, Access(tokens))
    asked = found.get("/?only=hot")
    assert (asked.status_code, asked.headers["location"]) == (303, "/sign-in?next=%2F%3Fonly%3Dhot")
    assert found.get("/", accept="application/json").status_code == 401
    assert found.get("/", authorization="Bearer nonsense").status_code == 303


def test_a_wrong_token_opens_nothing_and_says_so(lake, tokens):
    add_token(tokens, "ann", "read")
    found = page(lake, Access(tokens))
    answer = found.post("/sign-in", {"token": "nonsense"})
    assert (answer.status_code, "No such token" in answer.text, found.cookies) == (401, True, {})


def test_sign_in_lasts_until_sign_out_or_revocation(lake, tokens):
    found = signed_in(lake, tokens)
    assert "orders" in found.get("/").text
    left = found.post("/sign-out", {"proof": found.proof()})
    assert left.headers["location"] == "/sign-in"
    assert found.get("/").status_code == 303

    again = signed_in(lake, tokens.with_name("others"))
    remove_token(tokens.with_name("others"), "ann")
    assert again.get("/").status_code == 303


def test_cookie_is_no_token_and_hidden_from_script(lake, tokens):
    token = add_token(tokens, "ann", "read")
    answer = page(lake, Access(tokens), is_secure=True).post("/sign-in", {"token": token})
    cookie = answer.headers["set-cookie"]
    assert token not in cookie
    assert {"HttpOnly", "Secure", "SameSite=lax"} <= {part.strip() for part in cookie.split(";")}


@pytest.mark.parametrize(
    "onward", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "/\tevil"]
)
def test_signing_in_leads_to_this_page_only(lake, tokens, onward):
    token = add_token(tokens, "ann", "read")
    found = page(lake, Access(tokens))
    from urllib.parse import quote

    answer = found.post(f"/sign-in?next={quote(onward, safe='')}", {"token": token})
    assert answer.headers["location"] == "/"


def test_tenant_token_sees_its_topics_only(lake, tokens):
    text = signed_in(lake, tokens, "acme").get("/").text
    assert "orders" in text
    assert "bills" not in text


def test_a_strangers_name_for_this_page_is_refused(lake):
    assert page(lake).get("/", host="evil.example").status_code == 403


def test_cross_site_form_refused_and_link_allowed(lake, tokens):
    found = signed_in(lake, tokens)
    proof = found.proof()
    for headers in ({"origin": "https://evil.example"}, {"origin": "null"}, {"sec_fetch_site": "cross-site"}):
        assert found.post("/sign-out", {"proof": proof}, **headers).status_code == 403
    followed = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
    assert found.get("/", **followed, sec_fetch_dest="document").status_code == 200
    assert found.get("/", **followed, sec_fetch_dest="iframe").status_code == 403
    assert found.get("/live", sec_fetch_site="cross-site", sec_fetch_mode="cors").status_code == 403


def test_a_form_without_the_sessions_proof_is_refused(lake, tokens):
    found = signed_in(lake, tokens)
    for proof in ("", "0" * 64, "é"):
        assert found.post("/sign-out", {"proof": proof}).status_code == 403
    assert found.get("/").status_code == 200


def test_large_and_foreign_bodies_are_refused(lake):
    found = page(lake)
    assert found.post("/sign-out", {"proof": "x" * 70_000}).status_code == 400
    assert found.post("/sign-out", {"proof": "x"}, content_type="text/plain").status_code == 400


def test_filter_hides_other_tenants_topics(lake, tokens):
    text = signed_in(lake, tokens, "globex").get(f"/?q={ORDERS}").text
    assert "No topic is so" in text


@pytest.mark.parametrize("text", ["\\", '"', ";", "=", "; ", "anabranch=", '"\\073'])
def test_hostile_header_costs_no_time(lake, tokens, text):
    add_token(tokens, "ann", "read")
    found = page(lake, Access(tokens))
    for header in ("cookie", "accept", "x-other", "content-type"):
        began = time.process_time()
        found.get("/healthz", **{header: f'anabranch="{text * (60_000 // len(text))}"'})
        assert time.process_time() - began < 0.5, header


def test_session_is_found_among_other_cookies(lake, tokens):
    number = signed_in(lake, tokens).cookies["anabranch"]
    add_token(tokens.with_name("more"), "bob", "read")
    again = page(lake, Access(tokens))
    token = add_token(tokens, "eve", "read")
    number = again.post("/sign-in", {"token": token}).cookies["anabranch"]
    for cookies, status in (
        (f"a=b; anabranch={number}; c=d", 200),
        (f"anabranch={number}", 200),
        (f"xanabranch={number}", 303),
        (f"anabranch={number}x", 303),
        (f"__Host-anabranch={number}", 303),
    ):
        again.cookies.clear()
        assert again.get("/", cookie=cookies).status_code == status


def test_secure_cookie_is_bound_to_the_host(lake, tokens):
    token = add_token(tokens, "ann", "read")
    found = page(lake, Access(tokens), is_secure=True)
    answer = found.post("/sign-in", {"token": token})
    assert answer.headers["set-cookie"].startswith("__Host-anabranch=")
    assert answer.headers["strict-transport-security"] == "max-age=31536000"
    number = answer.cookies["__Host-anabranch"]
    found.cookies.clear()
    assert found.get("/", cookie=f"__Host-anabranch={number}").status_code == 200
    assert found.get("/", cookie=f"anabranch={number}").status_code == 303


def test_session_ends_when_it_is_not_used():
    now = 0.0
    sessions, ann = BrowserSessions(lambda: now), Caller("ann", "read", b"a")
    used, left = sessions.begin(ann), sessions.begin(ann)
    now = HALF_A_DAY - 1
    assert sessions.caller(used) == ann
    now = HALF_A_DAY + 1
    assert (sessions.caller(used), sessions.caller(left)) == (ann, None)


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/", {"hx_request": "true"}),
        ("/standing", {"hx_request": "true"}),
        ("/fleet/trend", {"accept": "*/*"}),
        ("/topic/loads?name=" + ORDERS, {"accept": "*/*"}),
    ],
)
def test_page_left_open_keeps_no_session_alive(lake, tokens, monkeypatch, path, headers):
    now = 0.0
    monkeypatch.setattr("anabranch.web.app.BrowserSessions", partial(BrowserSessions, lambda: now))
    found = signed_in(lake, tokens)
    now = HALF_A_DAY - 1
    assert found.get(path, **headers).status_code == 200
    now = HALF_A_DAY + 1
    refused = found.get(path, **headers)
    assert (refused.status_code, refused.headers["hx-refresh"]) == (401, "true")
    assert found.get("/").status_code == 303


def test_loaded_page_keeps_its_session_alive(lake, tokens, monkeypatch):
    now = 0.0
    monkeypatch.setattr("anabranch.web.app.BrowserSessions", partial(BrowserSessions, lambda: now))
    found = signed_in(lake, tokens)
    for _ in range(3):
        now += HALF_A_DAY - 1
        assert found.get("/").status_code == 200


def test_signing_in_ends_no_session_of_others():
    sessions = BrowserSessions()
    ann = sessions.begin(Caller("ann", "read", b"a"))
    numbers = [sessions.begin(Caller("eve", "read", b"e")) for _ in range(MAX_SESSIONS + 1)]
    assert sessions.caller(ann) is not None
    assert sum(sessions.caller(number) is not None for number in numbers) == MAX_SESSIONS_PER_TOKEN


@pytest.mark.parametrize(
    ("family", "subject", "scope"),
    [("bundles", "prod", "prod"), ("bookies", "prod/a-b-1", "prod"), ("bookies", "prod/a-b-1", "prod/a-b-1")],
)
def test_tenants_token_opens_no_cluster_of_that_name(tmp_path, tokens, family, subject, scope):
    lake = str(tmp_path / "clusters")
    write(lake, decision(0, family=family, subject=subject, action="unload", layout_epoch=None, arguments="{}"))
    bound = {"authorization": f"Bearer {add_token(tokens, 'shop', 'operate', [scope])}"}
    found = page(lake, Access(tokens))
    free = {"authorization": f"Bearer {add_token(tokens, 'all', 'operate')}"}
    assert found.get("/decision?id=d1", **bound).status_code == 403
    assert found.post("/decision", {"id": "d1", "kind": "approve", "reason": "mine"}, **bound).status_code == 403
    assert found.get("/decision?id=d1", **free).status_code == 200


def test_live_events_are_those_of_the_callers_topics(lake, tokens):
    bound = {"authorization": f"Bearer {add_token(tokens, 'shop', 'read', ['globex'])}"}
    found = page(lake, Access(tokens))
    assert found.get(f"/live?topic={ORDERS}", **bound).status_code == 403
    fleet = found.app.state.fleet
    before = fleet.version
    write(lake, layout_event(layout_json((0, 0x0000, 0xFFFF)), 1))
    fleet.look()
    assert fleet.version > before
    assert asyncio.run(fleet.after(0, None, frozenset({"globex"}), 0)) == before
    assert asyncio.run(fleet.after(0, None, frozenset({"acme/shop"}), 0)) == fleet.version


def test_one_token_does_not_take_all_live_streams(lake, tokens):
    bound = {"authorization": f"Bearer {add_token(tokens, 'shop', 'read', ['globex'])}"}
    found = page(lake, Access(tokens))
    found.app.state.live["shop"] = MAX_LIVE_PER_TOKEN
    found.app.state.fleet.stop()
    assert found.get("/live", **bound).status_code == 503
    assert found.get("/live", authorization=f"Bearer {add_token(tokens, 'ann', 'read')}").status_code == 200


def test_bound_token_hears_nothing_of_the_whole(lake, tokens):
    asked = signed_in(lake, tokens, "acme").get("/operations").text
    assert "<h2>Executors</h2>" not in asked
    assert "<h2>Executors</h2>" in signed_in(lake, tokens.with_name("free")).get("/operations").text


def test_page_is_failing_without_its_tokens(lake, tokens):
    now, token = 0.0, add_token(tokens, "ann", "read")
    found = page(lake, Access(tokens, clock=lambda: now))
    tokens.unlink()
    assert found.get("/", authorization=f"Bearer {token}").status_code == 200
    now = 59.0
    assert found.get("/", authorization=f"Bearer {token}").status_code == 200
    now = 60.0
    assert found.get("/", authorization=f"Bearer {token}").status_code == 303
    assert found.get("/healthz").status_code == 503
