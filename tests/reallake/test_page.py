"""Every route of the page on the lake of a real run."""

from __future__ import annotations

from html import unescape
from urllib.parse import quote

import pytest

from tests.reallake.recording import RECREATED
from tests.web.pages import page

pytestmark = [pytest.mark.local_run, pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def browser(real_lake):
    return page(real_lake.lake)


def text_of(browser, path):
    answered = browser.get(path)
    assert answered.status_code == 200, (path, answered.text[:500])
    return unescape(answered.text)


@pytest.mark.parametrize("path", ["/operations", "/operations/health", "/bundles", "/switches", "/reports", "/healthz"])
def test_page_without_a_topic_is_shown(browser, path):
    text_of(browser, path)


def test_fleet_shows_every_topic_with_its_segments(browser, raw):
    shown = text_of(browser, "/")
    for topic in raw.present():
        assert topic.rpartition("/")[2] in shown


@pytest.mark.parametrize("path", ["/topic", "/topic/river", "/topic/why", "/topic/loads", "/topic/consumers"])
def test_topic_page_is_shown(browser, raw, path):
    topics = sorted(raw.present(), key=lambda topic: len(raw.layouts[topic]))
    # The parts of the page cost much: shown for the topic that was made again and the one with the most layouts.
    for topic in topics if path == "/topic" else {RECREATED, topics[-1]} & {*topics}:
        text_of(browser, f"{path}?name={quote(topic)}")


def test_decision_page_says_how_it_ended(browser, raw):
    of_each = {
        raw.ends[row["decision_id"]][0]["status"]: row["decision_id"]
        for row in raw.rows("decisions")
        if row["decision_id"] in raw.ends
    }
    for status, identity in of_each.items():
        assert status in text_of(browser, f"/decision?id={identity}")
