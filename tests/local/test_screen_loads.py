"""The screen shows messages a second and consumer lag of segments that are in Kafka."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from anabranch.collectors.kafka.process import _write_segments
from anabranch.collectors.kafka.rates import SegmentRates
from anabranch.collectors.kafka.segments import SegmentReport
from anabranch.local.screen.frame import frame
from anabranch.local.screen.loads import SegmentLoad, loads_text, read_loads
from tests.local.test_screen import PARTS, topic, view

TOPIC = "topic://acme/shop/orders"
LOADS = [SegmentLoad(0, 120.0, 3), SegmentLoad(3, 410.0, 12), SegmentLoad(4, None, None)]


def test_collectors_file_is_read_by_topic(tmp_path):
    file = tmp_path / "segments.json"
    assert read_loads(file) == {}
    views = [
        SegmentReport(TOPIC, 0, SegmentRates(120.04, 1.0, 60.0, 1.0), {"billing": 3, "search": 1}),
        SegmentReport(TOPIC, 4, None, {"billing": None}),
    ]
    _write_segments(file, views)
    assert read_loads(file) == {TOPIC: [SegmentLoad(0, 120.0, 3), SegmentLoad(4, None, None)]}
    stored = json.loads(file.read_text())
    file.write_text(json.dumps({**stored, "at": stored["at"] - 60_000}))
    assert read_loads(file) == {}
    file.write_text(json.dumps({**stored, "segments": [{"topic": "t"}]}))
    assert read_loads(file) == {}


@pytest.mark.parametrize(
    ("room", "expected"),
    [
        (80, "530 msg/s lag 15  3: 410/s lag 12  0: 120/s lag 3  4: ?/s lag ?"),
        (40, "530 msg/s lag 15  3: 410/s lag 12"),
        (10, "530 msg/s lag 15"),
    ],
)
def test_busiest_segments_are_shown_first(room, expected):
    assert loads_text(LOADS, room).plain == expected


def test_unknown_loads_are_not_shown_as_zero():
    assert loads_text([SegmentLoad(4, None, None)], 40).plain == "? msg/s lag ?  4: ?/s lag ?"


@pytest.mark.parametrize(("width", "height", "is_shown"), [(100, 40, True), (40, 30, True), (80, 12, False)])
def test_frame_shows_loads_where_there_is_room(width, height, is_shown):
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    topics = [topic(f"topic://acme/shop/t{number}") for number in range(4)]
    console.print(frame(view(*topics), PARTS, width, height, 83.0, {topics[1].name: LOADS}))
    lines = console.file.getvalue().split("\n")[:-1]
    assert len(lines) <= height
    assert any("530 msg/s lag 15" in line for line in lines) == is_shown
