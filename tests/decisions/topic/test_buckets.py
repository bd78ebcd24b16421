"""Entry buckets of segments: what each operation makes of them, in a layout and in its record."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decisions.autoscale.clocks import Cooldowns, cooldowns_after_layout
from decisions.autoscale.past import Past, depths_after_layout, made_at, past_after_layout
from decisions.topic.layout import LayoutArgumentError, SegmentLayout
from decisions.topic.lineage import made_by
from schemas.metadata import ScalableTopicMetadata

HOUR = 3_600_000


def counts(layout):
    return [segment.bucket_count for segment in layout.active]


def read(record):
    return SegmentLayout.from_metadata(ScalableTopicMetadata.model_validate_json(json.dumps(record)))


@pytest.mark.parametrize(("segments", "expected"), [(1, [4]), (2, [2, 2]), (3, [1, 1, 1]), (8, [1] * 8)])
def test_budget_is_divided_among_segments(segments, expected):
    assert counts(SegmentLayout.create(segments, 0, bucket_budget=4)) == expected


def test_splits_halve_buckets_merges_add_them():
    layout = SegmentLayout.create(1, 0, bucket_budget=5)
    assert layout.active[0].entry_bucket_splits == (13107, 26214, 39321, 52428)
    halves = layout.split_segment(0, 1)
    assert [segment.entry_bucket_splits for segment in halves.active] == [(32768,), (32768,)]
    quarters = halves.split_segment(1, 2).split_segment(3, 3)
    assert counts(quarters) == [1, 1, 1, 2]
    assert counts(halves.merge_segments(1, 2, 2)) == [4]
    assert counts(halves.merge_segments(1, 2, 2, max_buckets=3)) == [3]


def test_topic_without_buckets_never_gets_any():
    layout = SegmentLayout.create(2, 0).split_segment(0, 1).merge_segments(2, 3, 2)
    assert not layout.has_buckets
    assert "entryBucketSplits" not in layout.to_metadata().to_json()


def test_rebucket_keeps_the_segments_range():
    before = SegmentLayout.create(2, 0, bucket_budget=4)
    after = before.rebucket_segment(1, 8, 9)
    parent, successor = after.segments[1], after.segments[2]
    assert (after.epoch, after.next_segment_id, counts(after)) == (1, 3, [2, 8])
    assert (parent.is_active, parent.child_ids, parent.sealed_at_ms) == (False, (2,), 9)
    assert (successor.start, successor.end, successor.parent_ids) == (parent.start, parent.end, (1,))
    assert successor.entry_bucket_splits == tuple(range(8192, 65536, 8192))
    assert [made_by(after.segments[number], after.segments) for number in range(3)] == [None, None, "rebucket"]


@pytest.mark.parametrize(
    ("segment", "buckets", "said"),
    [
        (0, 4, "has these 4 entry buckets already"),
        (7, 8, "segment not found: 7"),
        (0, 0, "in 1..65536"),
        (0, 65_537, "in 1..65536"),
    ],
)
def test_rebucket_refuses_what_changes_nothing(segment, buckets, said):
    with pytest.raises(LayoutArgumentError, match=said):
        SegmentLayout.create(1, 0, bucket_budget=4).rebucket_segment(segment, buckets, 1)


def test_rebucket_refuses_sealed_and_single_bucket():
    layout = SegmentLayout.create(1, 0)
    with pytest.raises(LayoutArgumentError, match="already"):
        layout.rebucket_segment(0, 1, 1)
    with pytest.raises(LayoutArgumentError, match="cannot rebucket non-active segment: 0"):
        layout.rebucket_segment(0, 4, 1).rebucket_segment(0, 8, 2)


@given(st.lists(st.integers(1, 65_535), unique=True, max_size=20).map(sorted))
def test_record_keeps_uneven_buckets(splits):
    record = json.loads(SegmentLayout.create(1, 0, bucket_budget=1).to_metadata().to_json())
    assert record["segments"]["0"]["entryBucketSplits"] == []
    record["segments"]["0"]["entryBucketSplits"] = splits
    layout = read(record)
    assert counts(layout) == [len(splits) + 1]
    assert json.loads(layout.to_metadata().to_json()) == record
    sealed = layout.split_segment(0, 1).to_metadata().segments[0]
    assert sealed.entry_bucket_splits == splits


@pytest.mark.parametrize("splits", [[0], [65_536], [2, 1], [1, 1], [1.5], ["1"], "1", [True]])
def test_record_with_impossible_buckets_is_refused(splits):
    record = json.loads(SegmentLayout.create(1, 0).to_metadata().to_json())
    record["segments"]["0"]["entryBucketSplits"] = splits
    with pytest.raises(ValueError, match="entryBucketSplits"):
        read(record)


def test_rebucket_sets_its_own_clock_only():
    before = SegmentLayout.create(1, 0, bucket_budget=4).split_segment(0, HOUR)
    after = before.rebucket_segment(1, 8, 2 * HOUR)
    assert cooldowns_after_layout(Cooldowns(5, 6), before.segments, after, 9 * HOUR) == (5, 6, 2 * HOUR)
    # A new leader finds the same in the layout alone.
    assert cooldowns_after_layout(Cooldowns(), (), after, 9 * HOUR) == (HOUR, None, 2 * HOUR)


def test_rebucket_leaves_depth_and_past_as_they_were():
    whole = SegmentLayout.create(2, 0, bucket_budget=4).merge_segments(0, 1, HOUR)
    pasts = past_after_layout({}, (0, 1), whole, HOUR)
    depths = depths_after_layout({}, {}, (0, 1), whole, HOUR)
    assert (pasts, depths) == ({2: Past(HOUR, "merge", 0, 0, 32768)}, {2: 1})
    twice = whole.rebucket_segment(2, 8, 2 * HOUR).rebucket_segment(3, 16, 3 * HOUR)
    assert past_after_layout(pasts, whole.segments, twice, 3 * HOUR) == {4: pasts[2]}
    assert depths_after_layout(depths, pasts, whole.segments, twice, 3 * HOUR) == {4: 1}
    # A rebuild from the layout alone finds the same, and so does one after pruning that remembers the past.
    assert past_after_layout({}, (), twice, 3 * HOUR) == {4: pasts[2]}
    assert depths_after_layout({}, {}, (), twice, 3 * HOUR) == {4: 1}
    assert made_at(4, {}, twice.segments, 3 * HOUR) == HOUR
    pruned = twice.prune_segment(3)
    assert past_after_layout({4: pasts[2]}, twice.segments, pruned, 3 * HOUR) == {4: pasts[2]}
