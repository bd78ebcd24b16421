"""The model check: what holds for every small world, and the flip-flop of the PIP's text."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from decisions.autoscale.decide import Hold, Merge, Split
from decisions.topic.layout import HASH_SPACE
from tests.decisions.model import (
    MINUTE,
    actions_of,
    cold_topic_with_consumers,
    explore,
    live,
    page,
    small_policy,
    worlds,
)
from tests.examples import only_first


def tiles(layout):
    """Worked out here, not by the layout: every hash belongs to exactly one active segment."""
    ranges = sorted((s.start, s.end) for s in layout.segments.values() if s.state.value == "ACTIVE")
    ends = [-1, *(end for _, end in ranges)]
    return all(start == end + 1 for (start, _), end in zip(ranges, ends, strict=False)) and ends[-1] == HASH_SPACE - 1


@pytest.mark.parametrize("every", only_first(1, [25, 5, 1]))
def test_default_profile_settles_under_constant_demand(every):
    """It reverses no merge."""
    count = 0
    for world in islice(worlds("default"), 0, None, every):
        life = live(world)
        count += 1
        assert life.ending == "rest"
        assert life.regrets == []
        assert len(life.flip_flops) == len(set(life.flip_flops)), "a range is given back once"
    assert count == -(-5832 // every)


def test_pip_text_oscillates_on_cold_topic():
    life = live(cold_topic_with_consumers("pip-483"))
    assert life.ending == "repeats"
    assert life.flip_flops


def test_depth_cap_ends_oscillation_until_pruning():
    life = live(cold_topic_with_consumers("pip-483", prune=False))
    assert life.ending == "rest"
    assert sum(isinstance(answer, Merge) for _, answer in life.steps) >= 10


def test_pip_text_shrinks_silent_segments_to_one_hash():
    """The default profile does not."""
    assert live(cold_topic_with_consumers("pip-483", rate=0.0)).ending == "stuck"
    assert live(cold_topic_with_consumers("default", rate=0.0)).ending == "rest"


def test_same_topic_settles_in_default_profile():
    life = live(cold_topic_with_consumers("default"))
    assert [type(answer) for _, answer in life.steps] == [Split, Split]
    assert life.ending == "rest"
    assert life.flip_flops == []


def test_the_printed_trace_is_up_to_date():
    assert (Path(__file__).parent / "flip-flop.md").read_text() == page()


@pytest.mark.parametrize("steps", only_first(1, [5, 6, 8]))
def test_adversary_cannot_break_tiling_or_caps(steps):
    policy = replace(small_policy("pip-483"), merge_cooldown_ms=2 * MINUTE, merge_window_ms=MINUTE, max_dag_depth=3)
    actions = 0
    for world, answer, after in explore(policy, steps, MINUTE):
        assert tiles(after.layout)
        if isinstance(answer, Hold):
            continue
        actions += 1
        assert policy.min_segments <= len(after.layout.active) <= policy.max_segments
        last = world.last_split_at if isinstance(answer, Split) else world.last_merge_at
        wait = policy.split_cooldown_ms if isinstance(answer, Split) else policy.merge_cooldown_ms
        assert last is None or world.now - last >= wait
    assert actions > 100


@pytest.mark.parametrize("steps", only_first(1, [5, 6]))
def test_adversary_cannot_break_default_cooldowns(steps):
    """Each segment has its cooldown, and a split its stabilization window."""
    policy = replace(
        small_policy("default"),
        merge_cooldown_ms=MINUTE,
        merge_window_ms=MINUTE,
        max_dag_depth=3,
        settle_ms=2 * MINUTE,
        returns_within_ms=10 * MINUTE,
    )
    splits = merges = several = 0
    for world, answer, after in explore(policy, steps, MINUTE):
        assert tiles(after.layout)
        done = actions_of(answer)
        several += len(done) > 1
        count = len(after.layout.active)
        assert policy.min_segments <= count <= policy.max_segments
        assert len({number for action in done for number in action.ids}) == sum(len(action.ids) for action in done)
        for action in done:
            if isinstance(action, Split):
                splits += 1
                segment = world.layout.segments[action.segment]
                is_urgent = world.records[action.segment][0] >= 125.0
                is_asked = action.reason == "consumer-count"
                assert is_urgent or is_asked or world.now - segment.created_at_ms >= policy.split_cooldown_ms
                continue
            merges += 1
            assert count >= world.consumers
            for number in action.segments:
                past, seen = world.pasts.get(number), world.snapshot()
                assert seen.merge_depth(number) < policy.max_dag_depth
                least = {"split": policy.settle_ms, "merge": policy.merge_cooldown_ms}
                assert past is None or world.now - past.at >= least[past.made] << past.regrets * (past.made == "split")
    assert min(splits, merges, several) > 100


def test_self_heating_merges_settle_despite_pruning():
    """Cold segments merge into a hot one; reversals are remembered beyond pruning."""
    unwise = replace(small_policy("default", 8), merge_msg_rate_in_threshold=60.0)
    world = replace(cold_topic_with_consumers("default", rate=27.5), policy=unwise, consumers=0)
    life = live(world)
    assert life.ending == "rest"
    assert life.regrets
    assert live(replace(world, policy=replace(unwise, settle_ms=0))).ending == "repeats"
