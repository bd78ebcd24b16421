"""The page of a topic: its river, why it holds now and then, its policy and its consumers."""

from __future__ import annotations

import os
import re
import signal
import time
from datetime import datetime, timezone
from types import SimpleNamespace
from urllib.parse import quote

import psutil
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from anabranch.auth.callers import Access
from anabranch.auth.tokens import add_token
from anabranch.history.lineage.record import Reach, River
from anabranch.query.topics import UnknownTopic, find_topic
from anabranch.query.wording import millis
from anabranch.web import replays
from anabranch.web.curves import load_columns
from anabranch.web.pages import topic
from anabranch.web.pages.windows import WindowError, read_instant, read_window
from anabranch.web.past import Sample, read_decisions, read_holds, read_loads, read_silences
from decisions.autoscale.policy import PolicyError, read_policy
from decisions.topic.layout import SegmentLayout
from lake.tables import create_table
from schemas.tables.rows import BATCHES, DECISIONS, EVENTS, HOLDS, SEGMENT_LOAD
from tests.engine.records import configured, consumers, delivery, layout, stats, tick
from tests.engine.test_engine import MINUTE, NOW, SECOND
from tests.engine.test_replay import NAMES, RecordedBucket
from tests.local.lake import ORDERS, at, batch, decision, hold, layout_event, load, outcome, write
from tests.web.pages import page, pictures

ENDS = datetime(2026, 11, 22, 14, 30, tzinfo=timezone.utc)
T0 = quote(NAMES[0], safe="")


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """A topic that is hot and splits, and one beside it."""
    bucket = RecordedBucket()
    made = SegmentLayout.create(2, NOW - MINUTE)
    bucket.batch(
        NOW,
        configured({"minSegments": 1}),
        *(layout(made, topic=name) for name in NAMES[:2]),
        consumers(1, topic=NAMES[0]),
    )
    bucket.batch(NOW + SECOND, stats({0: 5_000.0, 1: 5_000.0}, NOW, NAMES[0]), tick(1))
    for minute in range(1, 5):
        at = NOW + minute * MINUTE
        bucket.batch(at, stats({0: 10.0 * minute, 1: 10.0}, at, NAMES[0]), tick(minute + 1))
    slow = {"id": 1, "subscription": "<b>", "backlog": 9_000, "msgRateOut": 0.0, "consumers": 0, "readyConsumers": 0}
    bucket.batch(at + SECOND, delivery(slow, reported=2, at=at, topic=NAMES[0]))
    lake = tmp_path_factory.mktemp("lake")
    for table in (EVENTS, SEGMENT_LOAD, DECISIONS, HOLDS, BATCHES):
        write_deltalake(create_table(lake, table), bucket.table(table), mode="append")
    return str(lake)


def test_head_shows_state_and_policy_origins(lake):
    text = page(lake).get(f"/topic?name={T0}").text
    assert "2 segments, epoch 0" in text
    assert "Holds: " in text
    assert "<bdi>billing</bdi>" in text
    assert "splitMsgRateInThreshold" in text
    assert re.search(r"values are not those of the profile", text)


def test_topic_name_suffix_found_or_suggested(lake):
    found = page(lake)
    assert found.get("/topic?name=t0").status_code == 200
    unknown = found.get("/topic?name=t")
    assert (unknown.status_code, "the nearest names are" in unknown.text) == (404, True)


def test_key_space_picture_links_and_has_table(lake):
    """Its places lead to the explanation; a table says the same."""
    answer = page(lake).get(f"/topic/river?name={T0}&last=15m", hx_request="true")
    [picture] = pictures(answer.text)
    assert "<html" not in answer.text
    links = [one for one in picture.iter() if one.tag == "a"]
    titles = [one.find("title").text for one in links]
    assert any(title.startswith("segment 0, ") and "msgRateIn 5,000 of " in title for title in titles)
    assert any(title.startswith("held by merge-window from ") for title in titles)
    assert all(one.get("href").startswith("/topic?name=") and one.get("href").endswith("#why") for one in links)
    assert not any(name == "style" for one in picture.iter() for name in one.attrib)
    assert "<caption>Segments</caption>" in answer.text
    assert "0000 to 7fff" in answer.text


def test_picture_of_many_segments_begins_later_and_says_so(tmp_path, monkeypatch):
    made = SegmentLayout.create(1, millis(at(0)))
    split = made.split_segment(0, millis(at(60)))
    layouts = (made, split, split.merge_segments(1, 2, millis(at(120))))
    metadata = (layout.to_metadata().model_dump(mode="json", by_alias=True) for layout in layouts)
    holds = (hold(60 + number / 100) for number in range(2_000))
    write(str(tmp_path), *(layout_event(one, 60 * n) for n, one in enumerate(metadata)), *holds, batch(0, 180))
    found, asked = page(str(tmp_path)), f"/topic/river?name={ORDERS}"
    whole = found.get(asked).text
    assert "segments have ended" not in whole
    assert 10 < whole.count('class="held ') < 300
    monkeypatch.setattr(topic, "MAX_ENDED", 2)
    cut = found.get(asked).text
    assert "More than 2 segments have ended in this time: the picture begins at 2026-11-20 12:01:00 UTC" in cut
    assert cut.count("<clipPath") == whole.count("<clipPath") - 1 == 3


def test_a_part_asked_for_by_itself_is_a_whole_page(lake):
    for part in ("river", "why"):
        text = page(lake).get(f"/topic/{part}?name={T0}").text
        assert text.count("<html") == 1
        assert 'href="/static/page.css"' in text


def test_explanations_show_gates_and_changes(lake):
    """Explain now and an earlier time, gate by gate."""
    found = page(lake)
    now = found.get(f"/topic/why?name={T0}").text
    assert re.search(r'class="binds"><th scope="row">merge-window', now)
    assert "if all else stays as it is" in now
    assert "</strong></li>" in now
    then = found.get(f"/topic/why?name={T0}&at=2025-11-20T17:33:50Z").text
    assert re.search(r'class="binds"><th scope="row">merge-thresholds', then)
    assert "--at 2025-11-20T17:33:50Z" in then


def test_why_answers_with_another_policy(lake):
    found = page(lake)
    tried = quote("splitMsgRateInThreshold = 4000\nmergeMsgRateInThreshold = 1000")
    text = found.get(f"/topic/why?name={T0}&at=2025-11-20T17:33:50Z&policy={tried}").text
    assert re.search(r"With <code>splitMsgRateInThreshold = .+?</code>: <strong>split segment", text)
    assert "With <code>" not in found.get(f"/topic/why?name={T0}").text
    wrong = found.get(f"/topic/why?name={T0}&policy=splitMsgRateInTreshold=1").text
    assert "did you mean splitMsgRateInThreshold?" in wrong
    assert "Gate by gate" in wrong


def test_why_says_what_a_slow_topic_is_short_of(lake):
    found = page(lake)
    now = found.get(f"/topic/why?name={T0}").text
    assert "short of working consumers" in now
    assert "segment 1, &lt;b&gt;: 9,000 messages behind (nothing delivered)" in now
    assert "the stats do not tell" in found.get(f"/topic/why?name={T0}&at=2025-11-20T17:33:50Z").text


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("at=noon", "a time is written 14:05"),
        ("at=2020-01-01T00:00", "the record begins at"),
        ("segment=9", "there is no segment 9"),
    ],
)
def test_what_is_not_on_record_is_said(lake, query, words):
    assert words in page(lake).get(f"/topic/why?name={T0}&{query}").text


def test_a_window_before_the_record_says_so(lake):
    text = page(lake).get(f"/topic/river?name={T0}&from=2020-01-01&to=2020-01-02").text
    assert "no layout of" in text


def test_curves_are_columns_of_the_fullest_segments(lake):
    found = page(lake).get(f"/topic/loads?name={T0}&last=15m").json()
    assert [one["id"] for one in found["segments"]] == [0, 1]
    assert all(len(one["load"]) == len(found["at"]) for one in found["segments"])
    assert found["at"] == sorted(found["at"])


def test_slow_explanations_leave_a_turn_to_curves(lake, monkeypatch):
    monkeypatch.setattr(replays, "WAIT_SECONDS", 0.05)
    found = page(lake)
    with replays.REPLAYS.lock:
        assert "too many are asking" in found.get(f"/topic/why?name={T0}").text
        assert found.get(f"/topic/loads?name={T0}&last=15m").json()["at"]
    assert "Gate by gate" in found.get(f"/topic/why?name={T0}").text


def test_explanation_after_its_process_was_killed(lake):
    found = page(lake)
    assert "Gate by gate" in found.get(f"/topic/why?name={T0}").text
    os.kill(replays.REPLAYS._worker.pid, signal.SIGKILL)
    assert "was killed by signal 9" in found.get(f"/topic/why?name={T0}").text
    assert "Gate by gate" in found.get(f"/topic/why?name={T0}").text


def test_explanation_whose_process_hangs_is_ended(lake, monkeypatch):
    found, hangs = page(lake), replays.REPLAYS
    assert "Gate by gate" in found.get(f"/topic/why?name={T0}").text
    assert hangs._worker is not None
    pid = hangs._worker.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        monkeypatch.setattr(replays, "ANSWER_SECONDS", 0.2)
        assert "no answer after 0.2 s, so its process was ended" in found.get(f"/topic/why?name={T0}").text
        assert not psutil.pid_exists(pid)
    finally:
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGCONT)
    monkeypatch.undo()
    assert "Gate by gate" in found.get(f"/topic/why?name={T0}").text


def test_stop_ends_explanations_that_wait_for_their_turn(monkeypatch):
    asked, begun = replays.Replays(), []

    def acquire(timeout):
        asked.stop()
        return True

    monkeypatch.setattr(replays, "Worker", lambda _: begun.append(1) or SimpleNamespace(end=begun.clear))
    monkeypatch.setattr(asked, "lock", SimpleNamespace(acquire=acquire, release=lambda: None))
    with pytest.raises(replays.ReplayBusy, match="the page is being stopped"):
        asked.explain("lake", T0, None, None, configured())
    assert not begun


def test_load_counts_until_the_next_one_on_record(lake):
    columns = page(lake).get(f"/topic/loads?name={T0}&last=15m").json()
    at, loads = columns["at"], columns["segments"][0]["load"]
    begins = (NOW + SECOND) / 1000
    steady = [load for instant, load in zip(at, loads, strict=True) if begins <= instant < begins + 59]
    assert steady
    assert set(steady) == {0.5}
    assert columns["active"][-1] == 2
    assert columns["window"][0] == at[0]


def test_curve_ends_with_its_segment_and_in_silences():
    whole = Reach(0, 0x0000, 0xFFFF, 0, 5_000)
    half = Reach(1, 0x0000, 0x7FFF, 5_000, None)
    river = River("t", 0, 10_000, (whole, half), ())
    samples = {0: [Sample(1_000, (1.0, 0, 0, 0))], 1: [Sample(6_000, (2.0, 0, 0, 0))]}
    columns = load_columns(river, samples, [(7_000, 9_000)], lambda sample: sample.rates[0])
    by_instant = dict(zip(columns["at"], zip(*(one["load"] for one in columns["segments"]), strict=True), strict=True))
    assert by_instant[0.0] == (None, None)
    assert by_instant[1.0] == (1.0, None)
    # The end of a segment with one load: without it, the curve would be a point that nobody sees.
    assert by_instant[5.0] == (1.0, None)
    assert by_instant[6.0] == by_instant[7.0] == by_instant[9.0] == by_instant[10.0] == (None, 2.0)
    assert by_instant[7.001] == by_instant[8.999] == (None, None)
    assert dict(zip(columns["at"], columns["active"], strict=True)) == {
        **dict.fromkeys((0.0, 1.0, 5.0, 6.0, 7.0, 9.0, 10.0), 1),
        **dict.fromkeys((7.001, 8.999), None),
    }


def test_curves_of_many_segments_have_the_points_of_a_screen():
    reaches = [Reach(number, 0, 0xFFFF, number * 7, number * 7 + number % 50) for number in range(20_000)]
    samples = {number: [Sample(number * 7, (number, 0, 0, 0))] for number in range(0, 20_000, 100)}
    columns = load_columns(River("t", 0, 140_000, reaches, ()), samples, [], lambda sample: sample.rates[0])
    assert len(columns["at"]) < 5_000
    assert {reaches[one["id"]].ends / 1000 for one in columns["segments"]} < set(columns["at"])
    counted = list(zip(columns["at"], columns["active"], strict=True))[::100]
    assert counted == [(at, sum(reach.is_there(round(at * 1000)) for reach in reaches)) for at, _ in counted]


def test_curve_begins_with_the_life_of_its_segment():
    """The topic was deleted and made again: the load on record is of a segment of the same number before."""
    again = Reach(0, 0x0000, 0xFFFF, 4_000, None, life=1)
    samples = {0: [Sample(1_000, (1.0, 0, 0, 0)), Sample(6_000, (2.0, 0, 0, 0))]}
    columns = load_columns(River("t", 0, 10_000, (again,), ()), samples, [], lambda sample: sample.rates[0])
    assert dict(zip(columns["at"], columns["segments"][0]["load"], strict=True)) == {
        **dict.fromkeys((0.0, 1.0, 4.0)),
        **dict.fromkeys((6.0, 10.0), 2.0),
    }


def test_pause_of_the_job_is_a_silence(tmp_path):
    seconds = [*range(30), *range(100, 130)]
    write(str(tmp_path), *(batch(number, second) for number, second in enumerate(seconds)))
    silences = read_silences(str(tmp_path), at(0), at(200))
    assert silences == [(millis(at(29.25)), millis(at(100.25)))]
    assert read_silences(str(tmp_path), at(0), at(2 * 86_400)) == []


def test_a_token_of_another_tenant_sees_no_part_of_it(lake, tmp_path):
    token = add_token(tmp_path / "tokens", "ann", "read", ["globex"])
    found = page(lake, Access(tmp_path / "tokens"))
    found.post("/sign-in", {"token": token})
    for part in ("", "/river", "/why", "/loads"):
        for name in (T0, "t0", "nobody"):
            answer = found.get(f"/topic{part}?name={name}")
            assert answer.status_code == 403, (part, name)


def test_unapplied_decision_is_hollow_mark(lake, tmp_path):
    import shutil

    copy = tmp_path / "lake"
    shutil.copytree(lake, copy)
    when = datetime.fromtimestamp((NOW + 2 * MINUTE) / 1000, timezone.utc)
    on = {"subject": NAMES[0], "decided_at": when, "day": when.date()}
    write(str(copy), decision(0, **on), decision(0, 2, decision_id="d2", **on))
    write(str(copy), outcome("d1", "applied", 0, subject=NAMES[0], at=when, day=when.date()))
    text = page(str(copy)).get(f"/topic/river?name={T0}&last=15m").text
    [picture] = [one for one in pictures(text) if one.get("class") == "river"]
    marks = {
        one.get("href"): one.find("polygon").get("class")
        for one in picture.iter("a")
        if one.find("polygon") is not None
    }
    assert marks == {"/decision?id=d1": "mark", "/decision?id=d2": "mark hollow"}


@given(st.text(max_size=25))
def test_an_instant_is_read_or_refused_in_words(text):
    try:
        assert read_instant(text, ENDS).tzinfo is not None
    except WindowError:
        return


@given(st.fixed_dictionaries({}, optional={key: st.text(max_size=25) for key in ("from", "to", "last")}))
def test_a_window_has_a_length_or_is_refused(query):
    try:
        window = read_window(query, ENDS)
    except WindowError:
        return
    assert window.since < window.until


def test_times_of_day_are_latest_before_record_end():
    assert read_instant("14:05", ENDS) == datetime(2026, 11, 22, 14, 5, tzinfo=timezone.utc)
    assert read_instant("9:05:07", ENDS) == datetime(2026, 11, 22, 9, 5, 7, tzinfo=timezone.utc)
    assert read_instant("15:00", ENDS) == datetime(2026, 11, 21, 15, 0, tzinfo=timezone.utc)
    window = read_window({"to": "14:00", "last": "6h"}, ENDS)
    assert (window.until - window.since).total_seconds() == 6 * 3600


def test_long_window_shows_peak_load_per_step(tmp_path):
    lake, rates = str(tmp_path), [number * 7919 % 5_000 for number in range(3_000)]
    write(lake, *(load(0, rate, number) for number, rate in enumerate(rates)), load(1, 7, 5))
    found = read_loads(lake, ORDERS, at(0), at(30_000))
    assert found[1] == [Sample(millis(at(5)), (7.0, 700.0, 14.0, 1_400.0))]
    assert len(found[0]) == 100
    assert [one.rates[0] for one in found[0]] == [max(rates[first : first + 30]) for first in range(0, 3_000, 30)]
    assert len(read_loads(lake, ORDERS, at(0), at(600))[0]) == 601


def test_unknown_topic_of_a_large_fleet_costs_little(tmp_path):
    names = [f"topic://acme/shop{number % 200}/orders-{number}" for number in range(100_000)]
    began = time.process_time()
    with pytest.raises(UnknownTopic, match="nearest names"):
        find_topic(names, "order-123")
    with pytest.raises(UnknownTopic):
        find_topic(names, "x" * 16_000)
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("text", "times", "end"),
    [
        ("a=", ("[", 3_990), ""),
        ("maxSegments = 0x", ("f", 3_900), ""),
        ("maxSegments = ", ("9", 3_900), ""),
        ("maxSegments = ", ("9", 9_000), ""),
        ("", (".", 4_000), ""),
        ("", ("a.", 1_998), "a=1"),
    ],
)
def test_hostile_policy_is_a_policy_error(text, times, end):
    began = time.process_time()
    with pytest.raises(PolicyError):
        read_policy(text + times[0] * times[1] + end)
    assert time.process_time() - began < 1


def test_end_counts_before_an_intent_of_a_faster_clock(tmp_path):
    """Another executor looked at the decision before it was over; its clock is ahead of the one that ended it."""
    lake = str(tmp_path / "lake")
    write(lake, decision(0), outcome("d1", "applied", 5), outcome("d1", "intent", 9))
    [mark] = read_decisions(lake, ORDERS, at(0), at(10))
    assert mark.status == "applied"


def test_holds_of_a_window_stand_in_it(tmp_path):
    """One that ended before it is left out, and the one that stands at its beginning is cut."""
    lake = str(tmp_path)
    write(lake, hold(0), hold(100, "cooldown", 2), hold(250, "split-load", 3))
    held = read_holds(lake, ORDERS, at(200), at(300), [])
    assert [(one.gate, one.since, one.until) for one in held] == [
        ("cooldown", millis(at(200)), millis(at(250))),
        ("split-load", millis(at(250)), millis(at(300))),
    ]
