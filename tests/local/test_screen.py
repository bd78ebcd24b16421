"""The screen: every frame fits its terminal, says what matters first, and reads without colour."""

from __future__ import annotations

import io
import itertools
import re
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from anabranch.history.picture import (
    BrakesView,
    DecisionView,
    ExecutorView,
    HoldView,
    LakeView,
    Rates,
    SegmentView,
    TopicView,
)
from anabranch.history.words import age, amount, hold_reason, printable, short_names, span
from anabranch.local.processes import PartState
from anabranch.local.screen import frame, run_screen
from anabranch.local.screen.keyspace import ruler, strip
from decisions.autoscale.gates import DESCRIPTIONS, Gate
from tests.examples import examples
from tests.harness.screen import export_frame
from tests.local.demonstration import local_settings
from tests.local.lake import at, decision, hold, layout_event, layout_json, load, outcome, write
from tests.waiting import wait_until

SIZES = [(80, 24), (100, 30), (140, 40), (220, 60), (60, 20), (40, 12), (20, 6), (8, 2), (1, 1)]


def part(name: str, state: str = "up", restarts: int = 0, detail: str = "") -> PartState:
    return PartState(name, 17, state, restarts, None, at(-60), detail)


PARTS = [part(name) for name in ("kafka", "controller", "traffic", "job", "executor")]


def segment(number: int, start: int, end: int, overload: float | None = 0.5, cold: bool = False) -> SegmentView:
    return SegmentView(number, start, end, (1.0, 1.0, 1.0, 1.0), overload, cold)


def topic(name: str = "topic://acme/shop/orders", segments: int = 4, **changed: object) -> TopicView:
    width = 0x10000 // segments
    whole = {
        "name": name,
        "epoch": 7,
        "segments": tuple(segment(n, n * width, (n + 1) * width - 1, n / 3) for n in range(segments)),
        "consumers": (("audit", "QUEUE", 3), ("billing", "STREAM", 4)),
        "hold": HoldView("merge-cooldown", 4000.0, 12_000.0, at(8), at(0)),
        "open_decision": None,
    }
    return TopicView(**{**whole, **changed})


def decided(number: int = 0, status: str | None = "applied", **changed: object) -> DecisionView:
    whole = {
        "decision_id": f"d{number}",
        "topic": "topic://acme/shop/orders",
        "action": "split",
        "segments": (number,),
        "reason": "bytesRateOut",
        "trigger": "tick",
        "decided_at": at(-5 * number - 2),
        "status": status,
        "status_at": at(-5 * number - 1),
        "error": None,
    }
    return DecisionView(**{**whole, **changed})


def view(*topics: TopicView, decisions: int = 3, **changed: object) -> LakeView:
    whole = {
        "now": at(0),
        "topics": topics,
        "decisions": tuple(map(decided, range(decisions))),
        "actions": {"split:load": 3},
        "dead_letters": {"not-json": 2},
        "rates": Rates(60.0, 412.0, 0.18, 2.1, 251.0),
    }
    return LakeView(**{**whole, **changed})


def drawn(shown: LakeView, width: int, height: int, parts=PARTS, color: str | None = None) -> list[str]:
    """The frame as lines of text, drawn on a console that would wrap what is too wide."""
    console = Console(file=io.StringIO(), width=max(width, 1), height=height, color_system=color, record=False)
    console.print(frame(shown, parts, width, height, 83.0))
    return console.file.getvalue().split("\n")[:-1]


MANY = view(*(topic(f"topic://acme/shop/topic-{number:02}", 1 + number % 9) for number in range(40)), decisions=50)
WIDE = view(topic(segments=64), topic("topic://acme/shop/" + "very-long-name-" * 20, 64), decisions=30)
FOREIGN = view(
    topic("topic://租户/命名空间/非常非常长的主题名称", consumers=(("订阅", "STREAM", 2),)),
    topic("topic://acme/shop/\x1b[2Jclear", hold=None, open_decision="split 3"),
)
VIEWS = {
    "empty": view(decisions=0),
    "six": view(*(topic(f"topic://acme/shop/t{n}") for n in range(6))),
    "many": MANY,
    "wide": WIDE,
    "foreign": FOREIGN,
}


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", ["many", "wide", "foreign"])
def test_a_frame_fits_any_terminal_without_wrapping(name, size):
    width, height = size
    lines = drawn(VIEWS[name], width, height)
    assert len(lines) <= height
    assert all(cell_len(line) <= width for line in lines)


@given(width=st.integers(1, 250), height=st.integers(1, 70), topics=st.integers(0, 12), decisions=st.integers(0, 20))
@examples(15)
def test_a_frame_fits_terminals_of_every_size(width, height, topics, decisions):
    shown = view(*(topic(f"topic://acme/shop/t{n}", 1 + n * 3) for n in range(topics)), decisions=decisions)
    lines = drawn(shown, width, height)
    assert len(lines) <= height
    assert all(cell_len(line) <= width for line in lines)


def test_eighty_columns_show_the_whole_screen():
    text = "\n".join(drawn(VIEWS["six"], 80, 24))
    for words in (
        "● job",
        "412 samples/s",
        "18 % significant",
        "2 dead letters",
        "251 ms a batch",
        "0000",
        "The last merge was too recent",
        "billing 4",
        "audit (3)",
        "split 1",
        "bytesRateOut",
        "tick",
        "applied after 1.0 s",
        "over the split threshold",
    ):
        assert words in text
    assert all(f"t{number} " in text for number in range(6))


def test_colours_change_nothing_but_the_look():
    plain = "\n".join(line.rstrip() for line in drawn(WIDE, 120, 40))
    coloured = Console(file=io.StringIO(), width=120, height=40, color_system="truecolor", force_terminal=True)
    coloured.print(frame(WIDE, PARTS, 120, 40, 83.0))
    stripped = re.sub(r"\x1b\[[0-9;]*m", "", coloured.file.getvalue())
    assert "\n".join(line.rstrip() for line in stripped.split("\n")[:-1]) == plain
    assert stripped != coloured.file.getvalue()


def test_small_terminal_shows_busiest_topics():
    """The rest of the forty is counted."""
    calm = [topic(f"topic://acme/shop/calm-{number:02}", 1) for number in range(39)]
    busy = topic("topic://acme/shop/busy", open_decision="split 9")
    text = "\n".join(drawn(view(*calm, busy), 80, 24))
    assert "busy" in text
    assert "split 9 under way" in text
    assert "more topics" in text


def test_failed_part_shown_with_restarts():
    parts = [part("kafka"), part("job", "restarting", 3, "exit 137; again in 4 s")]
    text = "\n".join(drawn(VIEWS["six"], 80, 24, parts))
    assert "✗ job ↻3" in text
    assert "job restarting: exit 137; again in 4 s" in text


def test_only_several_executors_shown_with_shards():
    several = BrakesView(
        executors=(
            ExecutorView("a:1", (0, 2), 4, False),
            ExecutorView("b:2", (1, 3), 4, True),
            ExecutorView("c:3", (), 4, False),
        )
    )
    text = "\n".join(drawn(view(topic(), brakes=several), 100, 40))
    assert "executors: a:1 has 0, 2 of 4; b:2 has 1, 3 of 4 (silent); c:3 stands by" in text
    alone = BrakesView(executors=(ExecutorView("a:1", (0,), 1, False),))
    assert "executors" not in "\n".join(drawn(view(topic(), brakes=alone), 100, 40))


def test_names_of_strangers_cannot_steer_the_terminal():
    text = "\n".join(drawn(FOREIGN, 200, 30))
    assert "\x1b" not in text
    assert "·[2Jclear" in text


def test_an_empty_view_says_what_it_waits_for():
    text = "\n".join(drawn(view(decisions=0), 80, 24, []))
    assert "no topics yet" in text
    assert "none yet" in text


@pytest.mark.parametrize(
    ("status", "words"),
    [("applied", "✓"), ("rejected", "✗"), ("failed", "✗"), ("superseded", "~"), ("observed", "○"), (None, "not begun")],
)
def test_every_outcome_has_its_mark(status, words):
    shown = decided(1, status, error="HTTP 500" if status == "failed" else None)
    text = "\n".join(drawn(LakeView(now=at(0), topics=(topic(),), decisions=(shown,)), 100, 30))
    assert words in text
    assert ("HTTP 500" in text) == (status == "failed")


class TestStrip:
    def test_segments_as_wide_as_ranges_with_ids_first(self):
        shown = strip(
            [segment(3, 0, 0x7FFF, 0.1, True), segment(4, 0x8000, 0xBFFF, 0.8), segment(5, 0xC000, 0xFFFF, 2)], 32
        )
        assert shown.plain == "│3░░░░░░░░░░░░░░│4▓▓▓▓▓▓│5██████"

    @given(cuts=st.lists(st.integers(1, 0xFFFF), unique=True, max_size=200), width=st.integers(1, 200))
    @examples(20)
    def test_any_layout_fills_exactly_the_width(self, cuts, width):
        edges = [0, *sorted(cuts), 0x10000]
        segments = [segment(n, a, b - 1, n % 3) for n, (a, b) in enumerate(itertools.pairwise(edges))]
        assert strip(segments, width).cell_len == width
        assert " " not in strip(segments, width).plain

    def test_shared_cell_shows_hottest_segment(self):
        segments = [segment(n, n * 1024, n * 1024 + 1023, 3.0 if n == 21 else 0.1, n != 21) for n in range(64)]
        assert strip(segments, 16).plain.count("█") == 1

    def test_unseen_load_not_drawn_as_cold(self):
        assert strip([segment(1, 0, 0xFFFF, None)], 6).plain == "│1····"

    @pytest.mark.parametrize("width", [1, 5, 16, 40, 100])
    def test_ruler_is_as_wide_as_the_strip(self, width):
        assert ruler(width).cell_len == width
        assert ruler(width).plain.startswith("0000"[:width])


class TestWords:
    def test_names_lose_what_all_of_them_have_in_front(self):
        assert short_names(["topic://a/b/x", "topic://a/b/y/z"]) == {"topic://a/b/x": "x", "topic://a/b/y/z": "y/z"}
        assert short_names(["topic://a/b/x", "topic://a/c/x"]) == {"topic://a/b/x": "b/x", "topic://a/c/x": "c/x"}
        assert short_names(["topic://a/b/x", "topic://d/b/x"]) == {"topic://a/b/x": "a/b/x", "topic://d/b/x": "d/b/x"}

    @pytest.mark.parametrize(
        ("value", "shown"),
        [(0, "0"), (0.53, "0.53"), (812.4, "812"), (999.99, "1k"), (12_345, "12.3k"), (64e6, "64M"), (2.5e9, "2.5G")],
    )
    def test_amounts_are_short(self, value, shown):
        assert amount(value) == shown

    @pytest.mark.parametrize(
        ("seconds", "shown"),
        [(-1, "0.0 s"), (0.42, "0.4 s"), (12, "12 s"), (300, "5 min"), (8000, "2 h"), (10**6, "12 d")],
    )
    def test_spans_use_the_unit_that_fits(self, seconds, shown):
        assert span(seconds) == shown

    def test_ages_never_run_backwards(self):
        assert age(at(5), at(0)) == "0 s"
        assert age(at(-90), at(0)) == "90 s"

    def test_holds_count_down_and_then_are_due(self):
        waiting = HoldView("merge-window", 2000.0, 8000.0, at(6), at(0))
        sentence = DESCRIPTIONS[Gate.MERGE_WINDOW].sentence.rstrip(".")
        assert hold_reason(waiting, at(0)) == f"{sentence} (2 of 8 s), 6.0 s left"
        assert hold_reason(waiting, at(5)) == f"{sentence} (7 of 8 s), 1.0 s left"
        assert hold_reason(waiting, at(7)) == f"{sentence} (8 of 8 s), due at the next tick"

    def test_a_time_that_is_left_is_said_once(self):
        settling = HoldView("settling", 1_700_000.0, 0.0, at(1_700), at(0))
        sentence = DESCRIPTIONS[Gate.SETTLING].sentence.rstrip(".")
        assert hold_reason(settling, at(0)) == f"{sentence}, 28 min left"
        assert hold_reason(settling, at(0), 50) == "Merges wait for load to settle, 28 min left"

    def test_sentence_of_a_gate_loses_its_backticks(self):
        reason = hold_reason(HoldView("disabled", None, None, None, at(0)), at(0))
        assert reason == "The effective policy has enabled = false"

    @pytest.mark.parametrize(
        ("gate", "measured", "limit", "figures"),
        [
            ("max-segments", 16.0, 16.0, "16 of 16"),
            ("split-thresholds", 0.534, 1.0, "(53 % of the split threshold)"),
            ("merge-thresholds", 1.8, 1.0, "(180 % of the merge threshold)"),
            ("one-hot-key", 2.3, 4.6, "(230 % of the split threshold)"),
        ],
    )
    def test_figures_are_in_the_unit_of_the_gate(self, gate, measured, limit, figures):
        assert figures in hold_reason(HoldView(gate, measured, limit, None, at(0)), at(0))

    @pytest.mark.parametrize(
        ("room", "shown"),
        [
            (200, "The last merge was too recent (4 of 12 s), 8.0 s left"),
            (45, "The last merge was too recent, 8.0 s left"),
            (36, "merge-cooldown: 4 of 12 s, 8.0 s left"),
            (30, "merge-cooldown, 8.0 s left"),
            (5, "merge-cooldown"),
        ],
    )
    def test_reasons_drop_detail_before_they_are_cut(self, room, shown):
        assert hold_reason(HoldView("merge-cooldown", 4000.0, 12_000.0, at(8), at(0)), at(0), room + 1) == shown

    def test_unknown_gate_shown_by_its_code(self):
        assert hold_reason(HoldView("moon-phase", 1.0, 2.0, None, at(0)), at(0)) == "moon phase (1 of 2)"

    def test_control_characters_become_dots(self):
        assert printable("a\x1b[31m\nb\u202e") == "a·[31m·b·"


def test_export_saves_picture_and_text():
    picture = export_frame(VIEWS["six"], PARTS, 100, 30, "svg")
    assert picture.startswith("<svg")
    assert 'url("http' not in picture
    assert "The last merge was too recent" in export_frame(VIEWS["six"], PARTS, 100, 30, "text")


def test_running_screen_follows_lake_and_restores_terminal(tmp_path):
    loaded = local_settings(tmp_path)
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100, height=30)
    stop = threading.Event()
    thread = threading.Thread(target=run_screen, args=(loaded, lambda: PARTS, stop, console))
    thread.start()
    try:
        wait_until(lambda: "no topics yet" in file.getvalue())
        write(
            loaded.lake_path,
            layout_event(layout_json((0, 0, 0xFFFF)), 0),
            load(0, 20_000, 1),
            hold(1, "split-cooldown"),
        )
        wait_until(lambda: "The last split was too recent" in file.getvalue())
        write(loaded.lake_path, decision(2), outcome("d1", "applied", 3))
        wait_until(lambda: "applied" in file.getvalue().rpartition("newest decisions")[2])
    finally:
        stop.set()
        thread.join(10)
    assert not thread.is_alive()
    assert "\x1b[?1049l" in file.getvalue()
