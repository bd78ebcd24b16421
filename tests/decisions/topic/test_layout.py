"""The segment layout: PIP-468's operations, tiling through every one of them, and records as Pulsar 5 ships them."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as replace_segment

from decisions.topic.layout import HASH_SPACE, LayoutArgumentError, LayoutError, LayoutStateError, SegmentLayout
from decisions.topic.segment import SegmentState
from schemas.kafka.messages import LayoutEvent
from schemas.metadata import ScalableTopicMetadata
from tests.examples import examples


def ranges(layout):
    return [(segment.start, segment.end) for segment in layout.active]


def metadata(layout):
    return json.loads(layout.to_metadata().to_json())


def read(record):
    return SegmentLayout.from_metadata(ScalableTopicMetadata.model_validate_json(json.dumps(record)))


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (1, [(0, 0xFFFF)]),
        (2, [(0, 0x7FFF), (0x8000, 0xFFFF)]),
        (3, [(0, 21844), (21845, 43689), (43690, 0xFFFF)]),
        (HASH_SPACE, [(hash_, hash_) for hash_ in range(HASH_SPACE)]),
    ],
)
def test_initial_segments_equal_with_remainder_last(count, expected):
    layout = SegmentLayout.create(count, 7)
    assert ranges(layout) == expected
    assert (layout.epoch, layout.next_segment_id) == (0, count)
    assert {segment.created_at_ms for segment in layout.active} == {7}


@pytest.mark.parametrize("count", [0, -1, HASH_SPACE + 1])
def test_impossible_segment_count_is_invalid(count):
    with pytest.raises(LayoutArgumentError):
        SegmentLayout.create(count, 0)


def test_split_seals_parent_and_halves_range():
    after = SegmentLayout.create(1, 1).split_segment(0, 9)
    parent, lower, upper = (after.segments[number] for number in range(3))
    assert (after.epoch, after.next_segment_id) == (1, 3)
    assert (parent.state, parent.child_ids) == (SegmentState.SEALED, (1, 2))
    assert (parent.sealed_at_epoch, parent.sealed_at_ms) == (1, 9)
    assert [(s.start, s.end, s.parent_ids, s.created_at_epoch, s.created_at_ms) for s in (lower, upper)] == [
        (0, 0x7FFF, (0,), 1, 9),
        (0x8000, 0xFFFF, (0,), 1, 9),
    ]


def test_of_an_odd_width_the_lower_half_is_one_larger():
    layout = SegmentLayout.create(3, 0).split_segment(0, 0)
    lower, upper = layout.segments[3], layout.segments[4]
    assert (lower.width, upper.width) == (10_923, 10_922)
    two_wide = SegmentLayout.create(HASH_SPACE // 2, 0).split_segment(0, 0)
    assert ranges(two_wide)[:2] == [(0, 0), (1, 1)]


def test_merge_keeps_parents_in_call_order():
    after = SegmentLayout.create(3, 0).merge_segments(1, 0, 5)
    merged = after.segments[3]
    assert (merged.start, merged.end, merged.parent_ids) == (0, 43689, (1, 0))
    assert [after.segments[number].child_ids for number in (0, 1)] == [(3,), (3,)]
    assert (after.epoch, after.next_segment_id, merged.created_at_epoch) == (1, 4, 1)


def test_pruning_removes_segment_and_never_reuses_id():
    layout = SegmentLayout.create(2, 0).merge_segments(0, 1, 1)
    assert layout.merge_depth(2) == 1
    pruned = layout.prune_segment(0)
    assert (pruned.epoch, pruned.next_segment_id, sorted(pruned.segments)) == (2, 3, [1, 2])
    assert pruned.segments[2].parent_ids == (1,)
    assert pruned.merge_depth(2) == 0
    assert min(pruned.split_segment(2, 2).segments[2].child_ids) == 3


SPLIT = SegmentLayout.create(4, 0).split_segment(0, 0)
ONE_HASH = SegmentLayout.create(HASH_SPACE, 0)

WRONG = {
    "split an unknown segment": (LayoutArgumentError, lambda: SPLIT.split_segment(99, 0)),
    "split a sealed segment": (LayoutArgumentError, lambda: SPLIT.split_segment(0, 0)),
    "split one hash": (LayoutStateError, lambda: ONE_HASH.split_segment(5, 0)),
    "merge an unknown segment": (LayoutArgumentError, lambda: SPLIT.merge_segments(1, 99, 0)),
    "merge a sealed segment": (LayoutArgumentError, lambda: SPLIT.merge_segments(0, 1, 0)),
    "merge with itself": (LayoutArgumentError, lambda: SPLIT.merge_segments(1, 1, 0)),
    "merge apart": (LayoutArgumentError, lambda: SPLIT.merge_segments(1, 3, 0)),
    "merge around the end": (LayoutArgumentError, lambda: SPLIT.merge_segments(4, 3, 0)),
    "prune an unknown segment": (LayoutArgumentError, lambda: SPLIT.prune_segment(99)),
    "prune an active segment": (LayoutArgumentError, lambda: SPLIT.prune_segment(1)),
    "depth of an unknown segment": (LayoutArgumentError, lambda: SPLIT.merge_depth(99)),
    "lineage of an unknown segment": (LayoutArgumentError, lambda: SPLIT.lineage(99)),
    "find no hash": (LayoutArgumentError, lambda: SPLIT.find_active_segment(HASH_SPACE)),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_and_states_distinguished(name):
    kind, act = WRONG[name]
    with pytest.raises(LayoutError) as caught:
        act()
    assert type(caught.value) is kind


def test_unowned_hash_is_an_invalid_state():
    torn = replace(SPLIT, segments=MappingProxyType({1: SPLIT.segments[1]}))
    with pytest.raises(LayoutStateError):
        torn.find_active_segment(0)


def test_lineage_has_ancestors_descendants_and_self():
    layout = SPLIT.merge_segments(4, 5, 0)
    assert layout.lineage(6) == {0, 4, 5, 6}
    assert layout.lineage(0) == {0, 4, 5, 6}
    assert layout.lineage(2) == {2}


def test_merge_depth_counts_union_of_merges():
    layout = SegmentLayout.create(4, 0).merge_segments(0, 1, 0).merge_segments(2, 3, 0).merge_segments(4, 5, 0)
    assert [layout.merge_depth(number) for number in (0, 4, 5, 6)] == [0, 1, 1, 3]
    assert layout.split_segment(6, 0).merge_depth(7) == 3


def with_parents(parents):
    segments = {
        n: replace_segment(s, parent_ids=parents.get(n, ())) for n, s in SegmentLayout.create(4, 0).segments.items()
    }
    return replace(SPLIT, segments=MappingProxyType(segments))


def test_lineages_with_cycles_and_missing_parents_end():
    layout = read(metadata(with_parents({0: (1, 99), 1: (0,), 2: (2, 2), 3: (77,)})))
    assert [layout.merge_depth(number) for number in range(4)] == [1, 1, 1, 0]
    assert layout.lineage(0) == {0, 1}


steps = st.lists(st.tuples(st.sampled_from(["split", "merge", "prune"]), st.integers(0, 10**6)), max_size=40)


@given(st.integers(1, 9), steps)
@examples(40)
def test_active_segments_always_tile(count, sequence):
    layout = SegmentLayout.create(count, 0)
    for number, (step, choice) in enumerate(sequence):
        before, active = layout, layout.active
        sealed = [segment.segment_id for segment in layout.segments.values() if not segment.is_active]
        place = choice % len(active)
        if step == "split" and active[place].width > 1:
            layout = layout.split_segment(active[place].segment_id, number)
        elif step == "merge" and place + 1 < len(active):
            layout = layout.merge_segments(active[place].segment_id, active[place + 1].segment_id, number)
        elif step == "prune" and sealed:
            layout = layout.prune_segment(sealed[choice % len(sealed)])
        else:
            continue
        assert layout.epoch == before.epoch + 1
        assert layout.next_segment_id >= before.next_segment_id
        bounds = ranges(layout)
        assert bounds[0][0] == 0
        assert bounds[-1][1] == 0xFFFF
        assert all(left[1] + 1 == right[0] for left, right in itertools.pairwise(bounds))
        for segment in layout.active:
            assert layout.find_active_segment(segment.start) == segment
            assert layout.find_active_segment(segment.end) == segment
        assert read(metadata(layout)) == layout


def test_the_record_is_written_as_pulsar_5_ships_it():
    record = metadata(SegmentLayout.create(2, 5).split_segment(0, 9))
    assert record["segments"]["0"] == {
        "segmentId": 0,
        "hashRange": {"start": 0, "end": 32767},
        "state": "SEALED",
        "parentIds": [],
        "childIds": [2, 3],
        "createdAtEpoch": 0,
        "sealedAtEpoch": 1,
        "createdAtMs": 5,
        "sealedAtMs": 9,
        "sealed": True,
        "active": False,
        "root": True,
        "leaf": False,
        "legacy": False,
    }
    assert record["segments"]["2"] == {
        "segmentId": 2,
        "hashRange": {"start": 0, "end": 16383},
        "state": "ACTIVE",
        "parentIds": [0],
        "childIds": [],
        "createdAtEpoch": 1,
        "sealedAtEpoch": -1,
        "createdAtMs": 9,
        "sealedAtMs": -1,
        "sealed": False,
        "active": True,
        "root": False,
        "leaf": True,
        "legacy": False,
    }


def test_pip_text_record_read_and_written_as_shipped():
    record = metadata(SegmentLayout.create(1, 0))
    record["segments"]["0"] = {
        "segmentId": 0,
        "hashRange": {"start": 0, "end": 65535},
        "state": "ACTIVE",
        "createdAtEpoch": 0,
        "sealedAtEpoch": 0,
    }
    assert metadata(read(record))["segments"]["0"]["sealedAtEpoch"] == -1


FOREIGN = metadata(SegmentLayout.create(2, 0))
FOREIGN |= {"properties": {"owner": "me"}, "autoScalePolicy": {"maxSegments": 5, "later": 1}, "hint": [1]}
FOREIGN["segments"]["0"] |= {"entryBucketSplits": [1, 2], "legacyTopicName": "persistent://a/b/c-partition-0"}
FOREIGN["segments"]["0"]["hashRange"]["note"] = "x"


@pytest.mark.parametrize(
    "change",
    [
        lambda layout: layout,
        lambda layout: layout.split_segment(1, 1),
        lambda layout: layout.merge_segments(0, 1, 1),
        lambda layout: layout.merge_segments(0, 1, 1).prune_segment(1),
    ],
    ids=["unchanged", "split", "merge", "prune"],
)
def test_unknown_fields_and_policy_survive_changes(change):
    record = metadata(change(read(FOREIGN)))
    assert record["properties"] == {"owner": "me"}
    assert record["autoScalePolicy"] == {"maxSegments": 5, "later": 1}
    assert record["hint"] == [1]
    kept = record["segments"]["0"]
    assert (kept["entryBucketSplits"], kept["hashRange"]["note"], kept["legacy"]) == ([1, 2], "x", True)


ATTRIBUTES = ("model_config", "segment_id", "auto_scale_policy", "copy", "segments_", "__class__", "max_segments", "")


@given(
    st.dictionaries(
        st.sampled_from(ATTRIBUTES) | st.text(max_size=4).map(lambda name: f"x{name}"),
        st.none() | st.integers(0, 9) | st.just({"inner": None}),
        min_size=1,
        max_size=4,
    )
)
@examples(15)
def test_null_unknown_fields_survive_changes(unknown):
    record = json.loads(json.dumps(FOREIGN))
    places = (
        lambda it: it,
        lambda it: it["segments"]["0"],
        lambda it: it["segments"]["0"]["hashRange"],
        lambda it: it["autoScalePolicy"],
    )
    for place in places:
        place(record).update(unknown)
    after = metadata(read(record).split_segment(1, 1))
    for place in places:
        assert {name: place(after)[name] for name in unknown} == unknown
    layout = read(record).to_metadata()
    event = LayoutEvent(v=1, type="layout", topic="topic://a/b/c", cause="split", at=1, layout=layout)
    assert json.loads(event.to_json())["layout"].items() >= unknown.items()


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda segments: segments["0"]["hashRange"].update(end=0x7FFE), "gap"),
        (lambda segments: segments["1"]["hashRange"].update(start=0x7FFF), "overlap"),
        (lambda segments: segments["1"]["hashRange"].update(end=0xFFFE), "end at"),
        (lambda segments: segments["1"].update(state="SEALED"), "end at"),
        (lambda segments: segments["0"].update(state="SEALED"), "gap"),
        (lambda segments: segments.clear(), "end at"),
    ],
)
def test_a_record_that_does_not_tile_is_refused(change, fault):
    record = metadata(SegmentLayout.create(2, 0))
    change(record["segments"])
    with pytest.raises(LayoutStateError, match=fault):
        read(record)


def test_ids_unique_despite_wrong_next_id():
    record = metadata(SegmentLayout.create(3, 0))
    record["nextSegmentId"] = 0
    assert sorted(read(record).split_segment(0, 0).segments) == [0, 1, 2, 3, 4]


def test_used_up_ids_are_a_wrong_state():
    record = metadata(SegmentLayout.create(1, 0))
    record["nextSegmentId"] = 2**63 - 1
    with pytest.raises(LayoutStateError, match="used up"):
        read(record).split_segment(0, 0)
