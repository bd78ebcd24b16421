"""The model check: what holds for every small world, and the flip-flop of the PIP's text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from decisions.autoscale.decide import Hold, Merge, Split
from decisions.topic.layout import HASH_SPACE
from tests.decisions.model import (
    MINUTE,
    cold_topic_with_consumers,
    explore,
    live,
    page,
    small_policy,
    worlds,
)


def tiles(layout):
    """Worked out here, not by the layout: every hash belongs to exactly one active segment."""
    ranges = sorted((s.start, s.end) for s in layout.segments.values() if s.state.value == "ACTIVE")
    ends = [-1, *(end for _, end in ranges)]
    return all(start == end + 1 for (start, _), end in zip(ranges, ends, strict=False)) and ends[-1] == HASH_SPACE - 1


def test_the_default_profile_rests_under_every_constant_demand_and_undoes_nothing():
    count = 0
    for world in worlds("default"):
        life = live(world)
        count += 1
        assert life.ending == "rest"
        assert life.flip_flops == []
    assert count == 5832


def test_the_text_of_the_pip_chases_itself_on_a_cold_topic_with_consumers():
    life = live(cold_topic_with_consumers("pip-483"))
    assert life.ending == "repeats"
    assert life.flip_flops


def test_the_depth_cap_ends_the_chase_only_while_nothing_is_pruned():
    life = live(cold_topic_with_consumers("pip-483", prune=False))
    assert life.ending == "rest"
    assert sum(isinstance(answer, Merge) for _, answer in life.steps) >= 10


def test_the_text_of_the_pip_wanders_into_a_segment_of_one_hash_on_a_silent_topic_and_the_default_does_not():
    assert live(cold_topic_with_consumers("pip-483", rate=0.0)).ending == "stuck"
    assert live(cold_topic_with_consumers("default", rate=0.0)).ending == "rest"


def test_the_same_topic_splits_twice_and_rests_in_the_default_profile():
    life = live(cold_topic_with_consumers("default"))
    assert [type(answer) for _, answer in life.steps] == [Split, Split]
    assert life.ending == "rest"


def test_the_printed_trace_is_up_to_date():
    assert (Path(__file__).parents[2] / "docs" / "flip-flop.md").read_text() == page()


@pytest.mark.parametrize("profile", ["pip-483", "default"])
def test_whatever_an_adversary_does_tiling_caps_and_cooldowns_hold(profile):
    policy = replace(small_policy(profile), merge_cooldown_ms=2 * MINUTE, merge_window_ms=MINUTE, max_dag_depth=3)
    actions = 0
    for world, answer, after in explore(policy, 8, MINUTE):
        assert tiles(after.layout)
        if isinstance(answer, Hold):
            continue
        actions += 1
        count = len(after.layout.active)
        assert policy.min_segments <= count <= policy.max_segments
        last = world.last_split_at if isinstance(answer, Split) else world.last_merge_at
        wait = policy.split_cooldown_ms if isinstance(answer, Split) else policy.merge_cooldown_ms
        assert last is None or world.now - last >= wait
        if isinstance(answer, Merge) and profile == "default":
            assert count >= world.consumers
            assert max(world.depths.get(segment, 0) for segment in answer.segments) < policy.max_dag_depth
    assert actions > 100


def test_a_policy_whose_cold_segments_merge_into_a_hot_one_still_comes_to_rest_because_depth_outlives_pruning():
    unwise = small_policy("default", 8, merge_bytes_rate_in_threshold=1.0)
    unwise = replace(unwise, merge_msg_rate_in_threshold=60.0, max_dag_depth=4)
    world = replace(cold_topic_with_consumers("default", rate=27.5), policy=unwise, consumers=0)
    life = live(world)
    assert life.ending == "rest"
    assert life.flip_flops
    forgetful = live(replace(world, policy=replace(unwise, explicit_lineage=False)))
    assert forgetful.ending == "repeats"
