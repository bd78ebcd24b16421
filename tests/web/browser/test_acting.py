"""What a person may do on the page, and what nobody may do through the browser of one who may."""

from __future__ import annotations

import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from anabranch.auth.tokens import add_token
from anabranch.web.sessions import IDLE_SECONDS, BrowserSessions
from decisions.topic.layout import SegmentLayout
from lake.brakes import BrakeReader
from tests.engine.records import layout, stats, tick
from tests.local.lake import layout_event, layout_json, write
from tests.query.views.recorded import ORDERS
from tests.runtime.listener.edges import running
from tests.waiting import wait_until
from tests.web.browser.chromium import Look
from tests.web.browser.test_pages import Growing, decided

pytestmark = pytest.mark.browser


@pytest.fixture
def undecided(tmp_path):
    """A lake with a fresh split that nobody has judged yet; an old one could not be approved any more."""
    growing = Growing(tmp_path, round(time.time() * 1000))
    hot = stats({0: 50_000.0, 1: 1.0}, growing.now, ORDERS)
    growing.batch(layout(SegmentLayout.create(2, growing.now), topic=ORDERS), hot, tick(growing.now))
    return growing.lake


def acts(lake):
    """What stands in the table of brakes."""
    reader = BrakeReader(lake)
    reader.read()
    return reader.acts


def sign_in(page, token):
    page.open("/sign-in")
    page.find("#token, input[name=token]").send_keys(token)
    page.find("main button").click()
    page.until("Fleet", "h1")


def test_decision_approved_by_two_clicks(look, undecided):
    page, identity = look(undecided), decided(undecided)
    page.open(f"/decision?id={identity}")
    page.find("#reason").send_keys("looks right")
    page.find("button[value=approve]").click()
    wait_until(lambda: acts(undecided).number == 1)
    (act,) = acts(undecided).approvals.values()
    assert (act.kind, act.decision_id, act.reason) == ("approve", identity, "looks right")
    page.until("approved")
    assert page.said() == []


def test_open_page_ends_with_its_session(browser, tmp_path, monkeypatch):
    """The page asks for itself at the last moment of the session, which is no use of it."""
    now = 0.0
    monkeypatch.setattr("anabranch.web.app.BrowserSessions", partial(BrowserSessions, lambda: now))
    with running("page", tmp_path) as edge:
        page = Look(browser, f"http://127.0.0.1:{edge.port}")
        sign_in(page, edge.token)
        now = IDLE_SECONDS - 1
        write(str(tmp_path / "lake"), layout_event(layout_json((0, 0, 0xFFFF)), 0))
        page.until("orders")
        now = IDLE_SECONDS + 1
        page.until("Sign in", "h1")
        browser.get("about:blank")


def test_browser_asks_for_missing_reason(look, undecided):
    page = look(undecided)
    page.open(f"/decision?id={decided(undecided)}")
    page.find("button[value=reject]").click()
    assert page.driver.execute_script("return document.querySelector('#reason').validity.valueMissing")
    assert acts(undecided).number == 0


def test_pause_and_resume_shown_with_command(look, undecided):
    page = look(undecided)
    page.open("/operations")
    page.until('anabranch decisions pause all --for 1h --reason "…"')
    page.find("#reason").send_keys("maintenance")
    page.find("button[value=pause]").click()
    page.until("maintenance", "#operations")
    page.find("#operations input[name=reason]").send_keys("done")
    page.find("#operations form button").click()
    page.until("Nothing is paused.")
    assert acts(undecided).number == 2


def test_read_only_token_cannot_act(look, undecided, tmp_path):
    """It sees no button and is refused when it sends the form itself."""
    tokens, identity = tmp_path / "tokens", decided(undecided)
    token = add_token(tokens, "ann", "read")
    page = look(undecided, f'tokens_file = "{tokens}"')
    sign_in(page, token)
    page.open(f"/decision?id={identity}")
    page.until("it takes a token with role operate")
    assert not page.all("button[value=approve]")
    status = page.driver.execute_async_script(
        "const done = arguments[arguments.length - 1];"
        "const proof = document.querySelector('input[name=proof]').value;"
        "fetch('/decision', {method: 'POST', body: new URLSearchParams({proof, id: arguments[0], kind: 'approve', "
        "reason: 'x'})}).then(answer => done(answer.status))",
        identity,
    )
    assert status == 403
    assert acts(undecided).number == 0


@pytest.mark.parametrize("guarded", [False, True], ids=["without tokens", "signed in"])
def test_foreign_page_cannot_act_via_browser(look, undecided, tmp_path, guarded):
    lines, identity = [], decided(undecided)
    if guarded:
        token = add_token(tmp_path / "tokens", "ann", "operate")
        lines = [f'tokens_file = "{tmp_path / "tokens"}"']
    page = look(undecided, *lines)
    if guarded:
        sign_in(page, token)
    strange = tmp_path / "strange"
    strange.mkdir()
    fields = {"id": identity, "kind": "approve", "reason": "x", "proof": "0"}
    hidden = "".join(f'<input name="{name}" value="{value}">' for name, value in fields.items())
    (strange / "index.html").write_text(
        f'<!doctype html><form id="f" method="post" action="{page.base}/decision">{hidden}</form>'
        "<script>document.querySelector('#f').submit()</script>"
    )
    quiet = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(quiet, directory=str(strange))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        # By another name of this machine, which is another site.
        page.driver.get(f"http://localhost:{server.server_port}/")
        wait_until(lambda: page.driver.current_url.startswith(page.base), 20)
        server.shutdown()
    assert acts(undecided).number == 0
    assert "approved" not in page.text()
