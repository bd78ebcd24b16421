"""Which segments each consumer reads: as the controller says, or why that is not known."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from anabranch.admin.answers import Answered, NotConnected, Refused
from decisions.topic.layout import SegmentLayout
from tests.engine.records import consumers, layout
from tests.engine.test_engine import NOW
from tests.engine.test_replay import NAMES, RecordedBucket
from tests.streaming.test_state_snapshots import in_a_lake
from tests.web.pages import page

PATH = f"/topic/consumers?name={quote(NAMES[0], safe='')}"


class Said:
    """A controller that gives one answer, and what it was asked."""

    def __init__(self, reply, lags=()):
        self.reply, self.asked, self.lags = reply, [], dict(lags)

    def consumers(self, topic, subscription):
        self.asked.append((topic, subscription))
        return self.reply

    def layout(self, topic):
        return Answered(SegmentLayout.create(2, NOW).split_segment(0, NOW))

    def backlog(self, topic, descriptor, subscription):
        lag = self.lags.get((descriptor, subscription))
        return Refused(404, "HTTP 404", False) if lag is None else Answered(lag)


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    bucket = RecordedBucket()
    bucket.batch(
        NOW,
        layout(SegmentLayout.create(2, NOW), topic=NAMES[0]),
        consumers(3, NOW, topic=NAMES[0], sub="billing"),
        consumers(2, NOW, topic=NAMES[0], sub="<i>audit", kind="QUEUE"),
    )
    lake = tmp_path_factory.mktemp("consumers") / "lake"
    in_a_lake(bucket, lake)
    return str(lake)


def one(consumer, *segments, connected=True):
    return {"consumer": consumer, "isConnected": connected, "segments": segments}


def test_managed_consumers_shown_with_segments(lake):
    said = Said(Answered({"count": 4, "consumers": [one("<b>a", 0, 7), one("b", connected=False)]}))
    text = page(lake, topics=said).get(PATH).text
    assert said.asked == [(NAMES[0], "billing")]
    assert "&lt;b&gt;a" in text
    assert "0, 7" in text
    assert "none: it waits for one of its own" in text
    assert "away" in text
    assert "4 consumers, 2 of them here" in text


def test_lag_of_each_segment_is_shown_sealed_ones_too(lake):
    reply = Answered({"count": 2, "consumers": [one("a", 0), one("b", 1, 0)]})
    lags = {("0000-7fff-0", "billing"): 1_500, ("8000-ffff-1", "billing"): 0}
    assert "by segment: 0: 1,500, 1: 0<" in page(lake, topics=Said(reply, lags)).get(PATH).text
    assert "by segment" not in page(lake, topics=Said(reply)).get(PATH).text


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Refused(404, "HTTP 404", False), "The cluster does not say"),
        (NotConnected("GET http://c", "refused"), "The controller does not answer: GET http://c: no connection"),
        (Answered([]), "The cluster does not say"),
        (Answered({"count": "many", "consumers": []}), "does not say"),
    ],
)
def test_why_it_is_not_known_is_said(lake, reply, said):
    assert said in page(lake, topics=Said(reply)).get(PATH).text


def test_topic_page_loads_list_when_opened(lake):
    said = Said(Answered({"count": 0, "consumers": []}))
    found = page(lake, topics=said)
    text = found.get(f"/topic?name={quote(NAMES[0], safe='')}").text
    assert "Which segments each of them reads" in text
    assert PATH.replace("&", "&amp;") in text
    assert said.asked == []


def test_without_a_controller_nothing_is_asked(lake):
    assert page(lake).get(PATH).status_code == 200
