"""Clusters with bundles, and reports, in a real browser."""

from __future__ import annotations

import pytest

from tests.query.views.recorded_cluster import ClusterStory
from tests.query.views.recorded_switch import SwitchStory
from tests.web.browser.chromium import DESK, PHONE, Look
from tests.web.browser.conftest import served_here

pytestmark = pytest.mark.browser

REPORT = """<!doctype html><title>Backtest</title><p id="said">before</p>
<script>document.getElementById("said").textContent = "by its script"; try { document.cookie = "a=b" } catch {}
fetch("/").then(() => document.body.append("reached"), () => document.body.append("kept in"))</script>"""


@pytest.fixture(scope="module")
def page(browser, tmp_path_factory):
    """The pages of a cluster and of a switch."""
    folder = tmp_path_factory.mktemp("served")
    lake = str(ClusterStory().run().write(folder / "lake"))
    SwitchStory(lake).run(first_attempt_only=True)
    with served_here(folder, lake) as address:
        yield Look(browser, address)
        browser.get("about:blank")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/bundles?cluster=west&last=365d", "what each broker has"),
        ("/switches", "Ledgers that failed"),
        ("/reports", "can be mailed"),
    ],
)
def test_page_sound_in_each_theme_and_size(path, text, page):
    for scheme, size in (("light", DESK), ("dark", PHONE)):
        page.open(path, scheme, size)
        page.until(text)
        assert page.said() == [], (scheme, size)
        assert page.faults() == [], (scheme, size)
        assert page.overflow() == 0, (scheme, size)
        assert page.broken_words() == [], (scheme, size)


def test_report_script_isolated_from_page(look, tmp_path):
    folder = tmp_path / "reports"
    folder.mkdir()
    (folder / "backtest.html").write_text(REPORT)
    page = look(str(tmp_path / "lake"), f'reports = "{folder}"')
    page.open("/reports/read?name=backtest.html")
    page.until("by its script")
    page.until("kept in")
    # The browser is shared: another test may have signed in.
    assert "a" not in {one["name"] for one in page.driver.get_cookies()}
