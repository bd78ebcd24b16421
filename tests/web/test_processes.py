"""What every page says at its top about the processes behind it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.auth.callers import ANYBODY, Access
from anabranch.auth.tokens import add_token
from anabranch.history.picture import BrakesView, ExecutorView, late_seconds
from anabranch.web.processes import Probe, processes
from anabranch.web.sessions import IDLE_SECONDS, BrowserSessions
from tests.local.lake import ORDERS, at
from tests.web.pages import page

ACTING = ExecutorView("one", (0,), 1, False)
SILENT = ExecutorView("two", (1,), 2, True)


@pytest.mark.parametrize(
    ("pauses", "late"),
    [([], 60), ([1, 1], 60), ([1] * 10, 15), ([1] * 10 + [300], 15), ([60] * 10, 90), ([20, 20, 20, 8], 30)],
)
def test_job_is_late_by_its_own_pace(pauses, late):
    committed = [at(sum(pauses[:number])) for number in range(len(pauses) + 1)]
    assert late_seconds(committed) == late


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=40), st.floats(0.1, 100))
def test_job_that_keeps_its_pace_is_never_late(pauses, pause):
    # However it went before: five pauses alike are its pace.
    committed = [at(sum([*pauses, *[pause] * 20][:number])) for number in range(len(pauses) + 21)]
    assert late_seconds(committed) > pause


def states(**changed):
    given_states = {"batch_at": at(0), "silent_seconds": None, "brakes": BrakesView((ACTING,)), "probe": None}
    found = processes(now=at(2), **{**given_states, **changed})
    return {one.name: (one.state, one.words) for one in found}


def test_processes_at_work_are_good():
    assert states() == {"job": ("good", "last batch 2 s ago"), "executor": ("good", "1 at work")}


def test_process_that_is_down_is_named():
    assert states(silent_seconds=40.0)["job"] == ("bad", "silent for 40 s")
    assert states(batch_at=None)["job"] == ("quiet", "nothing on record")
    assert states(brakes=BrakesView())["executor"] == ("bad", "none is at work")
    assert states(brakes=BrakesView((SILENT,)))["executor"] == ("bad", "1 silent")
    assert states(brakes=BrakesView((ACTING, SILENT)))["executor"] == ("warn", "1 at work, 1 silent")


@pytest.mark.parametrize(
    ("status", "state"), [(200, "good"), (404, "good"), (503, "bad"), (None, "bad"), (OSError(), "bad")]
)
def test_controller_is_known_by_its_answer(status, state):
    def answer():
        if isinstance(status, Exception):
            raise status
        return status

    probe = Probe(answer)
    assert "controller" not in states(probe=probe)
    probe.ask()
    assert states(probe=probe)["controller"][0] == state


def test_every_page_has_them_at_its_top(lake):
    shown = page(lake)
    for path in ("/", f"/topic?name={ORDERS}", "/operations", "/reports", "/standing"):
        assert "none is at work" in shown.get(path).text, path


def test_token_of_a_tenant_is_told_of_no_process(lake, tmp_path):
    file = tmp_path / "tokens"
    token = add_token(file, "shop", "read", ["acme/shop"])
    told = page(lake, Access(file)).get("/standing", authorization=f"Bearer {token}")
    assert (told.status_code, "at work" in told.text) == (200, False)


def test_open_page_keeps_no_session_alive():
    now = [0.0]
    sessions = BrowserSessions(lambda: now[0])
    number = sessions.begin(ANYBODY)
    for _ in range(10):
        now[0] += IDLE_SECONDS / 5
        sessions.caller(number, is_use=False)
    assert sessions.caller(number) is None


def test_old_batch_is_a_warning(lake):
    assert "has written nothing for" in page(lake).get("/standing").text
