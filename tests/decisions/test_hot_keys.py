"""A hot key is found by what the whole range around it carries."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from decisions.autoscale.hot_keys import HASHES, KEPT, NEGLIGIBLE, find_key
from decisions.topic.layout import SegmentLayout

NOW = 1_763_660_000_000


@given(
    st.lists(st.integers(0, 30), max_size=14),
    st.lists(st.none() | st.sampled_from([0.0, 1.0, 3.0, 100.0, 1e300]), min_size=15, max_size=15),
    st.integers(0, 14),
    st.integers(1, 6),
    st.sampled_from([1.1, 5.0, 1e6]),
)
def test_found_key_keeps_most_of_its_range(splits_at, rates, place, splits, overload):
    layout = SegmentLayout.create(1, NOW)
    for number in splits_at:
        layout = layout.split_segment(layout.active[number % len(layout.active)].segment_id, NOW)
    active = layout.active
    place, rates = place % len(active), rates[: len(active)]
    segment, own = active[place], rates[place]
    width = segment.width << splits
    start = segment.start // width * width
    inside = [at for at, one in enumerate(active) if one.start < start + width and one.end >= start]
    found = find_key(place, active, rates, overload, splits, NOW)
    # Splits of a wide range that is a tenth too hot may still bring relief.
    is_slight = overload == 1.1 and segment.width > 16
    if width > HASHES or is_slight or any(rates[at] is None for at in inside):
        assert found is None
        return
    total = sum(rates[at] * min(1.0, width / active[at].width) for at in inside)
    assert (found is not None) == (own >= KEPT * total)
    if found is not None:
        is_isolated = overload * (total - own) > NEGLIGIBLE * own
        assert (found.within_start, found.within_end) == (
            (segment.start, segment.end) if is_isolated else (start, start + width - 1)
        )
