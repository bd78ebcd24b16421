"""Layouts with a history: random splits and merges from an initial layout, and what a subscription drained of it."""

from __future__ import annotations

import itertools

from hypothesis import strategies as st

from decisions.topic.layout import SegmentLayout
from decisions.topic.segment import Segment
from schemas.metadata import ScalableTopicMetadata

MAX_STEPS = 12


@st.composite
def layouts(draw: st.DrawFn) -> SegmentLayout:
    """A layout after up to `MAX_STEPS` splits and merges; nothing is pruned."""
    layout = SegmentLayout.create(draw(st.integers(1, 6)), now_ms=0)
    for now in range(draw(st.integers(0, MAX_STEPS))):
        layout = step(layout, draw(st.integers(0, 10_000)), draw(st.booleans()), now)
    return layout


def step(layout: SegmentLayout, choice: int, merge: bool, now_ms: int) -> SegmentLayout:
    """One split or merge; `choice` says where. A layout of one segment is split."""
    active = layout.active
    if merge and len(active) > 1:
        lower = choice % (len(active) - 1)
        return layout.merge_segments(active[lower].segment_id, active[lower + 1].segment_id, now_ms)
    return layout.split_segment(active[choice % len(active)].segment_id, now_ms)


def sealed_ids(layout: SegmentLayout) -> list[int]:
    """Ids of the sealed segments, ascending."""
    return sorted(number for number, segment in layout.segments.items() if not segment.is_active)


def ancestors(layout: SegmentLayout, segment: Segment) -> frozenset[int]:
    """Ids of all segments that came before a segment, those not in the layout included."""
    found: set[int] = set()
    waiting = list(segment.parent_ids)
    while waiting:
        number = waiting.pop()
        if number not in found:
            found.add(number)
            waiting.extend(layout.segments[number].parent_ids if number in layout.segments else ())
    return frozenset(found)


@st.composite
def drained_layouts(draw: st.DrawFn) -> tuple[SegmentLayout, frozenset[int]]:
    """A layout and any part of its sealed segments as drained: an empty one can be so before its parents are."""
    layout = draw(layouts())
    sealed = sealed_ids(layout)
    return layout, draw(st.frozensets(st.sampled_from(sealed))) if sealed else frozenset()


def assert_tiles(layout: ScalableTopicMetadata) -> None:
    """The active segments cover the hash space without gap or overlap."""
    active = sorted(
        (segment.hash_range.start, segment.hash_range.end)
        for segment in layout.segments.values()
        if segment.state == "ACTIVE"
    )
    assert active[0][0] == 0x0000
    assert active[-1][1] == 0xFFFF
    assert all(left[1] + 1 == right[0] for left, right in itertools.pairwise(active))
