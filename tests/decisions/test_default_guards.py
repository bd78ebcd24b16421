"""The guards of profile `default` against one hot key, regretted merges, and one action at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decisions.autoscale.decide import Hold, Merge, Split, decide, hot_keys_after
from decisions.autoscale.gates import Gate
from decisions.autoscale.hot_keys import HASHES, HotKey, retry_at
from decisions.autoscale.past import MAX_REGRETS, Past, past_after_layout, settle_ms
from decisions.topic.layout import SegmentLayout
from tests.decisions.single_samples import returned_after_sample
from tests.decisions.snapshots import COLD, DEFAULT, MINUTE, NOW, PIP, load, msg_rate, snapshot, stream
from tests.examples import examples

HOUR = 60 * MINUTE
LONG_AGO = NOW - 5 * HOUR


def zoomed(splits, toward=0):
    """The layout after so many splits of the segment with a hash, long ago, and the id of that segment."""
    layout = SegmentLayout.create(1, LONG_AGO)
    for _ in range(splits):
        layout = layout.split_segment(layout.find_active_segment(toward).segment_id, LONG_AGO)
    return layout, layout.find_active_segment(toward).segment_id


def with_key(splits, toward=0, rate=50_000, rest=10, **others):
    """One key in the piece with a hash; all other pieces carry next to nothing."""
    layout, hot = zoomed(splits, toward)
    loads = {one.segment_id: msg_rate(rate if one.segment_id == hot else rest) for one in layout.active}
    return snapshot(layout, loads, DEFAULT, **others), hot


def done(answer):
    return [] if isinstance(answer, Hold) else [answer, *answer.also]


# One hot key


@given(st.integers(0, HASHES - 1), st.integers(6, 12))
@examples(10)
def test_undivided_load_recognized_as_hot_key(toward, splits):
    """It keeps all load through six splits; the explanation has figures."""
    one, hot = with_key(splits, toward)
    answer = decide(one)
    assert not [action for action in done(answer) if isinstance(action, Split)]
    (key,) = hot_keys_after(one)
    segment = one.layout.segments[hot]
    assert (key.start, key.end, key.overload, key.tries) == (segment.start, segment.end, 5.0, 1)
    assert key.within_start <= key.start
    assert key.end <= key.within_end
    (reading,) = [reading for reading in answer.gates if reading.gate is Gate.ONE_HOT_KEY]
    assert (reading.passed, reading.measured, reading.limit, reading.segment) == (False, 5.0, 10.0, hot)
    assert f"about hashes {segment.start:04x} to {segment.end:04x}, 5 times the threshold" in reading.detail


@pytest.mark.parametrize("splits", range(6))
def test_hot_key_split_while_range_may_be_narrow(splits):
    one, hot = with_key(splits)
    assert [action.ids for action in done(decide(one)) if isinstance(action, Split)] == [[hot]]
    assert hot_keys_after(one) == ()


def test_relievable_narrow_range_is_isolated():
    layout, left = zoomed(7)
    right = next(one.segment_id for one in layout.active if one.start == layout.segments[left].end + 1)
    loads = {one.segment_id: msg_rate(10) for one in layout.active} | {left: msg_rate(30_000), right: msg_rate(30_000)}
    actions = done(decide(snapshot(layout, loads, DEFAULT)))
    assert {action.ids[0] for action in actions if isinstance(action, Split)} == {left, right}


def test_hot_key_splits_merged_after_settling():
    one, hot = with_key(6)
    known = replace(one, hot_keys=hot_keys_after(one))
    pairs = []
    layout, keys = one.layout, known.hot_keys
    for _ in range(6):
        loads = {s.segment_id: load(COLD) for s in layout.active}
        loads[layout.find_active_segment(0).segment_id] = msg_rate(50_000)
        answer = decide(snapshot(layout, loads, DEFAULT, hot_keys=keys, pasts={}))
        merged = [action for action in done(answer) if isinstance(action, Merge)]
        pairs += merged
        for action in merged:
            layout = layout.merge_segments(*action.segments, LONG_AGO)
        if len(layout.active) == 1:
            break
    assert (len(pairs), len(layout.active)) == (6, 1)
    young = {s.segment_id: Past(NOW - MINUTE, "split") for s in one.layout.active}
    assert decide(replace(known, pasts=young)).gate is Gate.ONE_HOT_KEY
    assert hot in young


def test_hot_key_retried_after_doubling_pause():
    """A hot key whose load has grown is retried at once."""
    one, _ = with_key(0)
    key = HotKey(0, 1023, 0, HASHES - 1, 5.0, NOW - HOUR)
    assert decide(replace(one, hot_keys=(key,))).gate is Gate.ONE_HOT_KEY
    assert retry_at(key, DEFAULT) == NOW + 5 * HOUR
    assert retry_at(key._replace(tries=2), DEFAULT) == NOW + 11 * HOUR
    over = replace(one, hot_keys=(key._replace(found_at=NOW - 6 * HOUR),))
    assert isinstance(decide(over), Split)
    grown, _ = with_key(0, rate=101_000, hot_keys=(key,))
    assert isinstance(decide(grown), Split)


def test_known_hot_key_holds_no_split_of_others():
    one, hot = with_key(6)
    other = one.layout.active[-1].segment_id
    known = replace(one, hot_keys=hot_keys_after(one), loads={**one.loads, other: msg_rate(20_000)})
    assert [action.ids for action in done(decide(known)) if isinstance(action, Split)] == [[other]]
    assert other != hot


def test_a_load_that_is_not_known_makes_no_hot_key():
    one, _ = with_key(6)
    known = dict(one.loads)
    del known[one.layout.active[-1].segment_id]
    assert hot_keys_after(replace(one, loads=known)) == ()


# Several at once


def test_one_evaluation_splits_all_hot_merges_all_cold():
    rates = [20_000, 15_000, 10, 10, 5_000, 10, 10, 13_000]
    one = snapshot(8, {number: msg_rate(rate, modified_at=NOW - HOUR) for number, rate in enumerate(rates)}, DEFAULT)
    told = [(action.action, action.ids) for action in done(decide(one))]
    assert told == [("split", [0]), ("split", [1]), ("split", [7]), ("merge", [2, 3]), ("merge", [5, 6])]
    assert [(a.action, a.ids) for a in done(decide(replace(one, policy=PIP)))] == [("split", [0])]


@given(
    st.lists(st.sampled_from([0, 10, 4_000, 9_000, 11_000, 60_000]), min_size=1, max_size=12),
    st.integers(0, 14),
    st.integers(1, 14),
    st.integers(1, 4),
)
@examples(60)
def test_parts_disjoint_within_caps_and_consumers(rates, consumers, most, least):
    policy = replace(DEFAULT, max_segments=max(most, least), min_segments=least)
    loads = {number: msg_rate(rate, modified_at=NOW - HOUR) for number, rate in enumerate(rates)}
    one = snapshot(len(rates), loads, policy, consumers=stream(consumers))
    actions = done(decide(one))
    touched = [number for action in actions for number in action.ids]
    assert len(touched) == len(set(touched))
    splits = sum(isinstance(action, Split) for action in actions)
    after = len(rates) + splits - (len(actions) - splits)
    assert splits == 0 or len(rates) + splits <= policy.max_segments
    if splits < len(actions):
        assert after >= max(least, consumers if consumers <= len(rates) else 0)


def test_hot_segments_split_at_once_mild_ones_by_setting():
    layout = SegmentLayout.create(1, LONG_AGO).split_segment(0, NOW - 10_000)
    pasts = {1: Past(NOW - 10_000, "split"), 2: Past(NOW - 10_000, "split")}
    both = snapshot(layout, {1: msg_rate(12_500), 2: msg_rate(10_001)}, DEFAULT, pasts=pasts)
    assert sorted(action.ids for action in done(decide(both))) == [[1], [2]]
    burning = replace(both, policy=replace(DEFAULT, urgent_overload=1.25))
    assert [action.ids for action in done(decide(burning))] == [[1]]
    warm = replace(burning, loads={1: msg_rate(11_000), 2: msg_rate(11_000)})
    held = decide(warm)
    assert (held.gate, held.due) == (Gate.SPLIT_COOLDOWN, NOW + 50_000)
    assert len(done(decide(replace(warm, now=NOW + 50_000)))) == 2


# Merges that are not regretted


def test_split_segments_rest_half_an_hour():
    """The window is half an hour, however often it was reversed."""
    assert [settle_ms(Past(0, "split", regrets), DEFAULT) // MINUTE for regrets in range(4)] == [30, 30, 30, 30]
    unwise = replace(DEFAULT, merge_msg_rate_in_threshold=DEFAULT.split_msg_rate_in_threshold * 0.6)
    assert settle_ms(Past(0, "split", MAX_REGRETS), unwise) > 1000 * 365 * 24 * HOUR
    assert settle_ms(Past(0, "merge", 3), DEFAULT) == DEFAULT.merge_cooldown_ms
    cold = {1: load(COLD, modified_at=NOW - HOUR), 2: load(COLD, modified_at=NOW - HOUR)}
    layout = SegmentLayout.create(1, LONG_AGO).split_segment(0, NOW - 20 * MINUTE)
    pasts = {number: Past(NOW - 20 * MINUTE, "split") for number in (1, 2)}
    one = snapshot(layout, cold, replace(DEFAULT, max_load_age_ms=0), pasts=pasts)
    held = decide(one)
    assert (held.gate, held.binding.measured, held.due) == (Gate.SETTLING, 10 * MINUTE, NOW + 10 * MINUTE)
    assert (held.binding.limit, held.binding.margin) == (0.0, -10.0 * MINUTE)
    assert isinstance(decide(replace(one, policy=replace(DEFAULT, settle_ms=0))), Merge)


def test_quick_resplit_counts_for_that_boundary():
    """Not for finer ones."""
    layout = SegmentLayout.create(2, 0).merge_segments(0, 1, HOUR)
    merged = past_after_layout({}, (0, 1), layout, HOUR)
    assert merged == {2: Past(HOUR, "merge", 0, 0, HASHES // 2)}
    soon = layout.split_segment(2, HOUR + 10 * MINUTE)
    halves = past_after_layout(merged, layout.segments, soon, HOUR + 10 * MINUTE)
    assert {past.regrets for past in halves.values()} == {1}
    finer = soon.split_segment(3, HOUR + 11 * MINUTE)
    after = past_after_layout(halves, soon.segments, finer, HOUR + 11 * MINUTE)
    assert {number: past.regrets for number, past in after.items()} == {4: 1, 5: 0, 6: 0}
    # Of a merge to one segment within eight hours, of one of half the key space within four.
    for pause, regrets in ((8 * HOUR, 1), (8 * HOUR + 1, 0)):
        later = layout.split_segment(2, HOUR + pause)
        assert {past.regrets for past in past_after_layout(merged, layout.segments, later, HOUR + pause).values()} == {
            regrets
        }
    half = SegmentLayout.create(4, 0).merge_segments(0, 1, HOUR)
    pasts = past_after_layout({}, range(4), half, HOUR)
    later = half.split_segment(4, 5 * HOUR + 1)
    assert [past_after_layout(pasts, half.segments, later, 5 * HOUR + 1)[number].regrets for number in (5, 6)] == [0, 0]


@pytest.mark.parametrize(
    ("count", "regrets", "hours"), [(2, 3, 4.0), (2, 2, 8 / 3), (2, 9, 4.0), (4, 1, 1 / 3), (4, 3, 1.0), (8, 3, 0.25)]
)
def test_reversed_neighbours_wait_longer_when_wide(count, regrets, hours):
    """Four hours for halves of the key space after three regrets: by the square of the width, by thirds of regrets."""
    since = NOW - 20 * HOUR
    loads = {number: load(COLD, modified_at=since, cold_since=since) for number in range(count)}
    pasts = {number: Past(since - 5 * HOUR, "split", regrets) for number in range(count)}
    policy = replace(DEFAULT, max_load_age_ms=0)
    one = snapshot(count, loads, policy, pasts=pasts, now=since + round(hours * HOUR))
    assert isinstance(decide(one), Merge)
    held = decide(replace(one, now=one.now - 1))
    assert (held.gate, held.binding.eligible_at) == (Gate.SETTLING, one.now)
    assert isinstance(decide(replace(one, policy=replace(policy, regret_window_ms=0), now=one.now - 1)), Merge)


def test_hot_key_among_busy_neighbours_stays_isolated():
    """Each neighbour carries a part of the threshold; cold pieces are merged with one another, none with the key."""
    one, hot = with_key(8, rate=20_000, rest=900, last_merge_at=None)
    (key,) = hot_keys_after(one)
    segment = one.layout.segments[hot]
    assert (key.within_start, key.within_end) == (segment.start, segment.end)
    known = replace(one, hot_keys=(key,), now=one.now + 1)
    assert all(hot not in action.ids for action in done(decide(known)))
    whole = SegmentLayout.create(1, LONG_AGO)
    again = replace(known, layout=whole, loads={0: msg_rate(30_000)}, pasts=None)
    assert [action.action for action in done(decide(again))] == ["split"], "neighbours are relieved again"


def test_returning_load_extends_the_wait_by_half():
    back = returned_after_sample(None, True, None, True, 0)
    assert back == 0
    back = returned_after_sample(back, True, 0, False, 20 * MINUTE)
    assert back == 20 * MINUTE
    assert returned_after_sample(None, True, 0, False, 20 * MINUTE) is None
    since = NOW - 25 * MINUTE
    spiky = {n: replace(load(COLD, modified_at=since, cold_since=since), returned_after=20 * MINUTE) for n in (0, 1)}
    one = snapshot(2, spiky, replace(DEFAULT, max_load_age_ms=0))
    assert (decide(one).gate, decide(one).due) == (Gate.SETTLING, since + 30 * MINUTE)
    rare = {n: replace(one, returned_after=2 * HOUR) for n, one in spiky.items()}
    assert isinstance(decide(replace(one, loads=rare)), Merge)


def test_half_full_segments_merge_below_split():
    """The result stays below the split threshold."""
    half = {number: msg_rate(3_749, modified_at=NOW - HOUR, cold_since=NOW - HOUR) for number in (0, 1)}
    assert isinstance(decide(snapshot(2, half, DEFAULT)), Merge)
    assert decide(snapshot(2, half, PIP)).gate is Gate.MERGE_THRESHOLDS
    more = half | {1: msg_rate(3_750, modified_at=NOW - HOUR)}
    assert decide(snapshot(2, more, DEFAULT)).gate is Gate.MERGE_THRESHOLDS
