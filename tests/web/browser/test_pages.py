"""The pages as people meet them: in light and dark, on a phone, by keyboard; live; and with names that mean harm."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from urllib.parse import quote

import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from anabranch.query.sql import LakeSql
from decisions.topic.layout import SegmentLayout
from lake.tables import create_lake
from streaming.sink.sink import APP
from tests.engine.records import consumers, layout, record, stats, tick
from tests.engine.test_replay import RecordedBucket
from tests.local.lake import batch, write
from tests.query.views.recorded import ORDERS, Story
from tests.waiting import wait_until
from tests.web.browser.chromium import DESK, PATIENCE_S, PHONE, Look
from tests.web.browser.conftest import served, served_here

pytestmark = pytest.mark.browser

SECOND = 1_000


def topic(name):
    return f"/topic?name={quote(name, safe='')}"


@pytest.fixture(scope="session")
def story(tmp_path_factory):
    return Story().run().write(tmp_path_factory.mktemp("story") / "lake")


@pytest.fixture(scope="module")
def page(browser, story, tmp_path_factory):
    """The pages of the story, served once for all that only look."""
    with served_here(tmp_path_factory.mktemp("served"), story) as address:
        yield Look(browser, address)
        browser.get("about:blank")


def decided(lake, action="split"):
    """The id of a decision on record."""
    rows = LakeSql(lake).ask(f"SELECT decision_id FROM decisions WHERE action = '{action}' ORDER BY decided_at LIMIT 1")
    return rows.read_all()["decision_id"][0].as_py()


PAGES = {
    "fleet": (lambda lake: "/", "orders"),
    "topic": (lambda lake: topic(ORDERS), "Gate by gate"),
    "topic of an instant": (lambda lake: topic(ORDERS) + "&at=2026-11-22T11:20:00Z", "Gate by gate"),
    "decision": (lambda lake: f"/decision?id={decided(lake)}", "Timeline"),
    "operations": (lambda lake: "/operations", "Safety controls"),
}


@pytest.mark.parametrize("name", PAGES)
def test_page_sound_in_each_theme_and_size(name, page, story):
    address, text = PAGES[name]
    path = address(story)
    for scheme, size in (("light", DESK), ("dark", PHONE)):
        page.open(path, scheme, size)
        page.until(text)
        assert page.said() == [], (scheme, size)
        assert page.faults() == [], (scheme, size)
        assert page.overflow() == 0, (scheme, size)
        assert page.broken_words() == [], (scheme, size)
    page.open(path)
    page.until(text)
    # What is still being read would take the focus away with it.
    wait_until(lambda: not page.all("[hx-trigger^=load].htmx-request, [data-chart][data-state=asked]"), PATIENCE_S)
    assert page.reachable() >= page.clickable()


SPANS_S = (0.5, 5, 60, 660, 1_500, 7_200, 90_000, 40 * 86_400, 900 * 86_400)


def test_no_axis_repeats_a_label(page):
    page.open(topic(ORDERS))
    page.until("Gate by gate")
    wait_until(lambda: page.all("[data-chart=loads][data-state=drawn]"), PATIENCE_S)
    labels = """
        const plot = document.querySelector("[data-chart=loads]").plot, [axis, least, most] = arguments;
        plot.scales[axis].range = () => [least, most];
        plot.setScale(axis, {min: least, max: most});
        return new Promise((done) => setTimeout(() => done(plot.axes["xy".indexOf(axis)]._values)));
    """
    spans = [("x", 1_795_000_000, 1_795_000_000 + span) for span in SPANS_S]
    for axis, least, most in spans + [("y", 0, high) for high in (0.004, 0.03, 0.3, 1.08, 40)]:
        shown = [label for label in page.driver.execute_script(labels, axis, least, most) if label]
        assert 1 < len(shown) == len(set(shown)), (most - least, shown)


class Growing:
    """A lake that a bucket writes on to while it is watched."""

    def __init__(self, folder, now):
        self.bucket, self.now, self.written = RecordedBucket(), now, 0
        self.lake = str(folder / "lake")
        self.made = create_lake(self.lake)

    def batch(self, *records):
        self.now += SECOND
        self.bucket.batch(self.now, *records)
        number, self.written = self.written, self.written + 1
        for name, rows in self.bucket.tables.items():
            if len(rows[number]):
                done = CommitProperties(app_transactions=[Transaction(f"{APP}:first", number)])
                write_deltalake(self.made[name], rows[number], mode="append", commit_properties=done)


@pytest.fixture
def growing(tmp_path):
    return Growing(tmp_path, 1_795_000_000_000)


def test_split_appears_without_reload(look, growing):
    known = SegmentLayout.create(2, growing.now)
    growing.batch(layout(known, topic=ORDERS), stats({0: 10.0, 1: 10.0}, growing.now, ORDERS), tick(growing.now))
    page = look(growing.lake)
    for path, place, words in (("/", "#fleet tbody td.number", "{}"), (topic(ORDERS), "#now", "{} segments")):
        page.open(path)
        page.until(words.format(len(known.active)), place)
        page.driver.execute_script("window.same = true")
        known = known.split_segment(known.active[0].segment_id, growing.now)
        growing.batch(layout(known, "split", topic=ORDERS))
        page.until(words.format(len(known.active)), place)
        assert page.driver.execute_script("return window.same") is True


def test_open_page_tells_that_the_job_has_stopped(look, tmp_path):
    lake = str(tmp_path / "lake")
    create_lake(lake)
    page = look(lake)
    page.open("/")
    page.until("Nothing of the job is on record yet", "#standing")
    page.driver.execute_script("window.same = true")
    # At a pace of a second: a job is late 15 s after its last batch.
    now = datetime.now(timezone.utc)
    write(lake, *(batch(age, 0, committed_at=now - timedelta(seconds=age)) for age in (5, 4, 3, 2, 1, 0)))
    page.until("The job has written nothing for", "#standing")
    assert page.driver.execute_script("return window.same") is True


def test_open_page_tells_that_its_server_is_frozen(browser, growing, tmp_path):
    growing.batch(tick(growing.now))
    with served(tmp_path, growing.lake) as (address, server):
        page = Look(browser, address)
        page.open("/")
        page.until("executor", "#standing")
        server.suspend()
        try:
            page.until("The server of this page has not answered since", "#standing")
        finally:
            server.resume()
        page.until("executor", "#standing")
        browser.get("about:blank")


def test_many_tabs_of_a_topic_leave_connections_to_the_next(look, story):
    page = look(story)
    page.open(topic(ORDERS))
    first, opened = page.driver.current_window_handle, []
    try:
        for _ in range(7):
            page.driver.switch_to.new_window("tab")
            opened.append(page.driver.current_window_handle)
            page.driver.get(page.base + topic(ORDERS))
            page.until("Gate by gate")
    finally:
        for tab in opened:
            page.driver.switch_to.window(tab)
            page.driver.close()
        page.driver.switch_to.window(first)


HOSTILE = [
    "topic://acme/shop/<script>window.hostile=1</script>",
    "topic://acme/shop/\"'><img src=x onerror=window.hostile=1>",
    "topic://acme/shop/abc\u202egnp.exe",
    "topic://acme/shop/" + "long" * 2_500,
]


def test_hostile_names_and_bytes_stay_text(look, growing):
    known = SegmentLayout.create(1, growing.now)
    growing.batch(*(layout(known, topic=name) for name in HOSTILE), tick(growing.now))
    events = [row for rows in growing.bucket.tables["events"] for row in rows.to_pylist()]
    accepted = [name for name in HOSTILE if any(row["subject"] == name for row in events)]
    assert accepted
    growing.batch(
        *(stats({0: 50_000.0}, growing.now, name) for name in accepted),
        tick(growing.now),
        *(consumers(9, growing.now, topic=name, sub="<img src=x onerror=window.hostile=3>") for name in accepted),
        record("consumer-events", HOSTILE[0], b"<script>window.hostile=2</script>\xff\x00\xe2\x80\xae"),
    )
    identities = LakeSql(growing.lake).ask("SELECT decision_id FROM decisions").read_all()["decision_id"].to_pylist()
    assert len(identities) >= len(accepted)
    page = look(growing.lake)
    page.open("/", "light", PHONE)
    page.until(f"{len(accepted)} topics")
    topics = [topic(name) for name in HOSTILE]
    parts = [path.replace("/topic?", f"/topic/{part}?") for path in topics for part in ("river", "why", "consumers")]
    for path in ["/", "/operations", *topics, *parts, *(f"/decision?id={one}" for one in identities)]:
        page.open(path, "light", PHONE)
        assert page.driver.execute_script("return window.hostile") is None, path
        assert "\u202e" not in page.driver.execute_script("return document.body.innerText"), path
        assert page.overflow() == 0, path
        assert not page.all("main script, main img"), path
    page.open("/operations")
    page.until("<script>window.hostile=2</script>")
