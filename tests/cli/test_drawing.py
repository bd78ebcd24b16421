"""The picture of a layout: to scale, of the given width, and right for every possible layout."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from anabranch.cli.drawing import SHARED, draw_change, draw_layout, draw_strip
from decisions.topic.layout import HASH_SPACE, SegmentLayout

TOPIC = "topic://acme/shop/orders"


@st.composite
def layouts(draw):
    """Layouts after splits, merges and prunings in any order."""
    layout = SegmentLayout.create(draw(st.sampled_from([1, 2, 3, 7, 64, 1000])), 0)
    for step in draw(st.lists(st.sampled_from(["split", "merge", "prune"]), max_size=12)):
        sealed = [segment for segment in layout.segments.values() if not segment.is_active]
        at = draw(st.integers(0, len(layout.active) - 1))
        if step == "split" and layout.active[at].width > 1:
            layout = layout.split_segment(layout.active[at].segment_id, 0)
        elif step == "merge" and at > 0:
            layout = layout.merge_segments(layout.active[at].segment_id, layout.active[at - 1].segment_id, 0)
        elif step == "prune" and sealed:
            layout = layout.prune_segment(draw(st.sampled_from(sealed)).segment_id)
    return layout


def drawn(renderable, width, terminal=False):
    colours = "256" if terminal else "auto"
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=colours, highlight=False)
    console.print(renderable)
    return console.file.getvalue()


@given(layouts(), st.integers(17, 200))
def test_strip_keeps_width_and_starts_with_ids(layout, width):
    """Every wide segment starts at its column with its id."""
    text = draw_strip(layout.active, width).plain
    assert len(text) == width
    assert set(text) <= set("0123456789abcdef|-#: ")
    cells = width - 1
    for segment in layout.active:
        first, last = segment.start * cells // HASH_SPACE, (segment.end + 1) * cells // HASH_SPACE
        if last - first > len(str(segment.segment_id)) + 1:
            assert text[first] in f"|{SHARED}"
            assert str(segment.segment_id) in text[first + 1 : last]


@given(layouts(), st.integers(50, 200), st.integers(1, 20))
def test_picture_keeps_width_and_names_omissions(layout, width, limit):
    shown = drawn(draw_layout(TOPIC, layout, width, limit), width)
    assert max(map(len, shown.splitlines())) <= width
    assert "\x1b" not in shown
    assert ("more: --limit" in shown) == (len(layout.active) > limit)
    assert max(map(len, drawn(draw_change(TOPIC, layout, width), width).splitlines())) <= width


def test_lineage_shows_origin_of_segments():
    layout = SegmentLayout.create(2, 0).split_segment(0, 0).merge_segments(3, 1, 0)
    lines = [line.rstrip() for line in drawn(draw_layout(TOPIC, layout, 80, 10), 80).splitlines()]
    assert lines == [
        "topic://acme/shop/orders at epoch 2, 2 active segments, 3 sealed",
        "",
        "0000     2000      4000      6000      8000      a000      c000      e000   ffff",
        "|-- 2: 0000-3fff --|----------------------- 4: 4000-ffff ----------------------|",
        "",
        "segment  hashes     from   share  since epoch  created",
        "      2  0000-3fff  0     25.00%            1  1970-01-01T00:00:00Z",
        "      4  4000-ffff  3, 1  75.00%            2  1970-01-01T00:00:00Z",
        "",
        "lineage, oldest first",
        "epoch 0 |------ 0: 0000-7fff ------|------- 1: 8000-ffff ------| created 0, 1",
        "epoch 1 |---- 2 -----|----- 3 -----|------- 1: 8000-ffff ------| split 0 -> 2, 3",
        "epoch 2 |---- 2 -----|-------------- 4: 4000-ffff -------------| merge 3, 1 -> 4",
    ]


def test_pruned_ancestors_leave_labelled_gap():
    layout = SegmentLayout.create(1, 0).split_segment(0, 0).split_segment(1, 0)
    shown = drawn(draw_layout(TOPIC, layout.prune_segment(0).prune_segment(1), 80, 10), 80)
    lineage = shown[shown.index("lineage") :].splitlines()
    assert [line.split()[1] for line in lineage[1:] if line.startswith("epoch")] == ["1", "2"]
    assert "made 2, parents pruned" in shown
    assert "made 3, 4, parents pruned" in " ".join(shown.split())


def test_segments_narrower_than_a_column_share_one():
    layout = SegmentLayout.create(1000, 0)
    assert set(draw_strip(layout.active, 80).plain[:-1]) == {SHARED}
    assert f"{SHARED}: several segments in one column" in drawn(draw_layout(TOPIC, layout, 80, 5), 80)


def test_the_largest_layout_is_drawn():
    layout = SegmentLayout.create(HASH_SPACE, 0)
    assert "and 65531 more" in drawn(draw_layout(TOPIC, layout, 80, 5), 80)


@pytest.mark.parametrize("width", [1, 5, 17, 30])
def test_narrow_terminal_still_gets_picture(width):
    layout = SegmentLayout.create(3, 0).split_segment(1, 0)
    assert drawn(draw_layout(TOPIC, layout, width, 5), width)


def test_colours_are_for_terminals_only():
    layout = SegmentLayout.create(2, 0)
    assert "\x1b[" in drawn(draw_layout(TOPIC, layout, 80, 5), 80, terminal=True)
    assert "\x1b[" not in drawn(draw_layout(TOPIC, layout, 80, 5), 80)
