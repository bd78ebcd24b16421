"""The kernel of simulations against the job's own engine, run step by step on the same demand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from anabranch.simulation.topics import run
from anabranch.simulation.topics.lineages import Lineage
from anabranch.simulation.topics.outcome import COUNTS
from anabranch.simulation.topics.run import simulate
from anabranch.simulation.topics.shapes import ShapedDemand
from anabranch.simulation.topics.timeline import ConsumersFrom, Timeline, Window
from decisions.topic.layout import HASH_SPACE, SegmentLayout
from decisions.topic.lineage import count_merges
from engine.autoscale.topics import ConfiguredPolicy
from schemas.metadata import AutoScalePolicyOverride
from tests.examples import examples
from tests.simulation.step_by_step import StepByStep, bucketed, pruned

NOW = 1_767_225_600_000


class Drawn:
    """A source of timelines that are given, each of the whole time, cut into windows."""

    def __init__(self, timelines, layouts, steps, step_ms=10_000, began_at=NOW, cuts=()):
        self.topics = [f"topic://acme/shop/t{number}" for number in range(len(timelines))]
        self.began_at, self.step_ms, self.steps = began_at, step_ms, steps
        self._timelines, self._layouts, self._cuts = timelines, layouts, cuts

    def layouts(self, places):
        return [self._layouts[place] for place in places]

    def windows(self, places):
        bounds = [self.began_at + step * self.step_ms for step in (0, *self._cuts, self.steps)]
        for begin, end in pairwise(bounds):
            yield Window(begin, end, [_cut(self._timelines[place], begin, end) for place in places])


def _cut(timeline, begin, end):
    """The part of a timeline that a window needs."""
    first = int(np.searchsorted(timeline.at, begin, side="right")) - 1
    kept = slice(max(first, 0), int(np.searchsorted(timeline.at, end)))
    level = None if timeline.level is None else timeline.level[kept]
    return Timeline(
        timeline.edges,
        timeline.profiles,
        timeline.at[kept],
        timeline.which[kept],
        level,
        timeline.factors,
        [one for one in timeline.consumers if begin - 9_999 <= one.at < end],
    )


def _timeline(random, steps, step_ms, began_at):
    slices = int(random.choice([1, 2, 3, 7, 16]))
    edges = np.unique(np.r_[0, HASH_SPACE, random.choice(HASH_SPACE, slices - 1, replace=False)])
    if random.random() < 0.3:
        # One hot key, and what lies beside it.
        key = int(random.integers(1, HASH_SPACE - 1))
        edges = np.unique(np.r_[edges, key, key + 1])
    profiles = int(random.choice([1, 1, 3, 8]))
    # Rates that are near the thresholds of a policy with thresholds of 1,000 and 100, or nothing at all.
    of_slices = random.choice([0.0, 20.0, 90.0, 400.0, 1_500.0, 5_000.0], (profiles, len(edges) - 1, 1))
    of_slices = of_slices * random.uniform(0.5, 1.5, of_slices.shape)
    width = random.choice([1, 4])
    if width == 4:
        of_slices = of_slices * random.choice([0.0, 0.3, 1.0, 2.0], (profiles, 1, 4))
    count = int(random.choice([1, 4, steps // 4, steps]))
    at = np.unique(np.r_[0, random.integers(0, steps * step_ms, count)])
    walk = np.exp(np.cumsum(random.normal(0, random.choice([0.01, 0.1, 0.5]), len(at))))
    gaps = np.where(random.random(len(at)) < 0.2, 0.0, 1.0)
    level = [None, np.clip(walk, 0.0, 20.0), gaps][int(random.integers(3))]
    consumers = [
        ConsumersFrom(
            began_at + int(at),
            str(random.choice(["a", "b"])),
            str(random.choice(["STREAM", "STREAM", "QUEUE"])),
            int(random.integers(0, 9)),
        )
        for at in np.sort(random.integers(0, steps * step_ms, random.integers(0, 6)))
    ]
    return Timeline(
        edges.astype(np.int64),
        of_slices,
        at + began_at,
        random.integers(0, profiles, len(at)),
        level,
        random.uniform(0.5, 2, 4) if width == 1 else None,
        consumers,
    )


def _layout(random, began_at):
    """One to five segments, with a history: splits and merges, some of them long ago."""
    layout = SegmentLayout.create(int(random.integers(1, 6)), began_at - 10_000_000)
    for _ in range(int(random.choice([0, 0, 3, 8]))):
        at = began_at - int(random.integers(0, 200_000))
        active = layout.active
        place = int(random.integers(len(active)))
        if random.random() < 0.5 or len(active) == 1:
            layout = layout.split_segment(active[place].segment_id, at)
        else:
            place = min(place, len(active) - 2)
            layout = layout.merge_segments(active[place].segment_id, active[place + 1].segment_id, at)
    if random.random() < 0.2:
        layout = layout.with_policy(AutoScalePolicyOverride(max_segments=int(random.integers(1, 5))))
    return layout


def _policy(random):
    override = {
        "splitMsgRateInThreshold": 1_000.0,
        "splitMsgRateOutThreshold": 2_000.0,
        "splitBytesRateInThreshold": 1_500,
        "mergeMsgRateInThreshold": float(random.choice([0.0, 100.0, 400.0])),
        "mergeMsgRateOutThreshold": 300.0,
        "mergeBytesRateInThreshold": 300,
        "maxSegments": int(random.choice([3, 6, 40])),
        "minSegments": int(random.choice([1, 2])),
        "maxDagDepth": int(random.choice([1, 3, 10])),
        "splitCooldownSeconds": int(random.choice([0, 15, 60, 130])),
        "mergeCooldownSeconds": int(random.choice([0, 45, 300])),
        "mergeWindowSeconds": int(random.choice([0, 30, 300])),
        "enabled": bool(random.random() < 0.95),
    }
    for name, values in {
        "maxLoadAgeSeconds": [0, 20, 60, 180],
        "retryBackoffSeconds": [0, 7, 30],
        "mergeKeepsConsumers": [False, True],
        "skipUnsplittable": [False, True],
        "normalizedColdness": [False, True],
        "coldSinceThreshold": [False, True],
        "explicitLineage": [False, True],
        "thresholdCrossing": [False, True],
        "parallelActions": [False, True],
        "settleSeconds": [0, 60, 600],
        "returnsWithinSeconds": [0, 120, 900],
        "hotKeySplits": [0, 1, 3],
        "hotKeyRetrySeconds": [60, 600],
        "mergeHeadroom": [0.0, 0.9],
        "urgentOverload": [0.0, 1.25],
        "promptSplits": [False, True],
        "regretWindowSeconds": [0, 300, 3600],
        "entryBucketBudget": [0, 4, 9],
        "rebucketCooldownSeconds": [0, 15, 60],
        "splitVsRebucketMinMsgRateInThreshold": [0.0, 200.0, 1e9],
        "maxEntryBucketsPerSegment": [1, 4, 1024],
    }.items():
        if random.random() < 0.5:
            override[name] = random.choice(values).item()
    profile = str(random.choice(["default", "pip-483", "pulsar-5.0"]))
    known = AutoScalePolicyOverride.model_validate(override)
    return ConfiguredPolicy(profile, known.to_json())


def _with_checkpoints(random, timeline):
    """Some subscriptions have consumers that share no segment."""
    kinds = {name: random.choice(["STREAM", "CHECKPOINT"]).item() for name in "ab"}
    consumers = [
        one if one.kind == "QUEUE" else one._replace(kind=kinds[one.subscription]) for one in timeline.consumers
    ]
    return replace(timeline, consumers=consumers)


def _with_own_buckets(random, layout):
    """Topics that have entry buckets on record, whatever the policy's budget."""
    if random.random() < 0.5:
        return layout
    return bucketed(layout, [[1, 2, 4, 9, None][int(random.integers(5))] for _ in layout.active])


def _drawn(seed):
    random = np.random.default_rng(seed)
    topics, step_ms = int(random.integers(1, 4)), int(random.choice([10_000, 10_000, 7_000, 60_000, 90_000]))
    steps, began_at = int(random.choice([5, 60, 200])), NOW + int(random.choice([0, 0, 12_345, 55_000]))
    cuts = np.unique(random.integers(1, steps, random.integers(0, 3))).tolist()
    timelines = [_timeline(random, steps, step_ms, began_at) for _ in range(topics)]
    layouts = [_layout(random, began_at) for _ in range(topics)]
    # Drawn apart, so that the examples below stay what they are.
    more = np.random.default_rng((seed, 1))
    timelines = [_with_checkpoints(more, one) for one in timelines]
    layouts = [_with_own_buckets(more, one) for one in layouts]
    return Drawn(timelines, layouts, steps, step_ms, began_at, cuts), [_policy(random) for _ in range(2)]


def _same(source, policies, tick_ms=60_000, delay_steps=None):
    named = {str(number): one for number, one in enumerate(policies)}
    late = {} if delay_steps is None else {"delay_ms": delay_steps * source.step_ms}
    found = simulate(source, named, tick_ms=tick_ms, **late)
    first = StepByStep(source, policies[0], tick_ms=tick_ms)
    for number, policy in enumerate(policies):
        plain = StepByStep(source, policy, tick_ms=tick_ms, delay_steps=delay_steps or 1)
        plain.yardsticks = first.yardsticks
        plain.run()
        told = found[str(number)]
        actions = [tuple(row) for row in zip(*(column.tolist() for column in told.actions), strict=True)]
        assert actions == sorted(plain.actions, key=lambda row: (row[1], row[0]))
        assert {name: getattr(told, name).tolist() for name in COUNTS} == {
            name: plain.counts[name].tolist() for name in COUNTS
        }
        assert told.series == plain.series
    return found


@given(st.integers(0, 2**32 - 1), st.sampled_from([60_000, 60_000, 25_000]))
@examples(1)
@example(255, 60_000).via("segments that were sealed long ago are pruned 37 times")
@example(503, 60_000)  # a split for load, held by its cooldown, where consumers may share segments by entry buckets
@example(528_024, 60_000)  # a segment with entry buckets is merged with one without
def test_batch_of_topics_matches_job_engine(seed, tick_ms):
    _same(*_drawn(seed), tick_ms)


@given(st.integers(0, 2**32 - 1), st.sampled_from([60_000, 25_000]), st.integers(0, 9))
@examples(1, derandomize=True)
@example(208_302, 60_000, 7).via("splits while merges are in flight, some of segments that those take away")
def test_delayed_actions_match_job_engine(seed, tick_ms, delay_steps):
    _same(*_drawn(seed), tick_ms, delay_steps)


def _delayed_splits(outages=()):
    """Return the splits of one segment of 2,500/s at 1,000/s each, with a cooldown of 30 s, and done 40 s late."""
    rates = np.full((1, 1, 4), [2_500.0, 0.0, 0.0, 0.0])
    timeline = Timeline(np.array([0, HASH_SPACE]), rates, np.array([NOW]), np.array([0]))
    limits = {"splitMsgRateInThreshold": 1_000.0, "mergeMsgRateInThreshold": 100.0, "splitCooldownSeconds": 30}
    policy = ConfiguredPolicy("pip-483", AutoScalePolicyOverride.model_validate(limits).to_json())
    source = Drawn([timeline], [SegmentLayout.create(1, NOW)], 60)
    return simulate(source, {"late": policy}, delay_ms=40_000, outages=outages)["late"]


def test_delayed_splits_follow_each_other_after_cooldown():
    """By hand: 2,500/s need four segments, one split after the other.

    The first is decided at 0 s and done at 40 s, and its cooldown ends at 70 s; the second is done at 110 s, the third
    at 180 s.
    """
    found = _delayed_splits()
    assert ((found.actions.at - NOW) // 1000).tolist() == [0, 70, 140]
    assert found.actions.segment.tolist() == [0, 1, 2]
    assert (found.over_ms[0], found.splits[0], found.merges[0]) == (180_000, 3, 0)
    assert found.segment_ms[0] == 1_000 * (1 * 40 + 2 * 70 + 3 * 70 + 4 * 420)


def test_nothing_is_decided_in_an_outage():
    """The second split would be decided at 70 s: it waits for the tick at 300 s. The first is done at 40 s anyway."""
    found = _delayed_splits(outages=[(NOW + 20_000, NOW + 300_000), (NOW + 400_000, NOW + 410_000)])
    assert ((found.actions.at - NOW) // 1000).tolist() == [0, 300, 370]
    assert found.segment_ms[0] == 1_000 * (1 * 40 + 2 * 300 + 3 * 70 + 4 * 190)


@given(st.integers(0, 2**32 - 1))
@examples(6)
def test_lineages_match_layouts_after_pruning(seed):
    random = np.random.default_rng(seed)
    layout, now = _layout(random, NOW), NOW
    lineage = Lineage(layout)
    for _ in range(int(random.choice([10, 120]))):
        now += int(random.integers(0, 200_000))
        active = layout.active
        place = int(random.integers(len(active)))
        if (random.random() < 0.6 or len(active) == 1) and active[place].width > 1:
            layout = layout.split_segment(active[place].segment_id, now)
            lineage.split(active[place].segment_id, now)
        elif len(active) > 1:
            two = [one.segment_id for one in active[min(place, len(active) - 2) :][:2]]
            layout = layout.merge_segments(*two, now)
            lineage.merge(*two, now)
        layout = pruned(layout, now)
        lineage.prune(now)
        shown = count_merges(layout.segments)
        assert {number: lineage.depth(number) for number in layout.segments} == shown


def test_chunks_of_topics_answer_as_one(monkeypatch):
    source = ShapedDemand("burst", 7, 5.0, began_at=NOW)
    policies = {"default": ConfiguredPolicy("default", None), "pip-483": ConfiguredPolicy("pip-483", None)}
    at_once = simulate(source, policies)
    monkeypatch.setattr(run, "CHUNK_ROWS", 4)
    seen = []
    by_chunks = simulate(source, policies, progress=lambda done, total: seen.append((done, total)))
    for name, one in at_once.items():
        assert one.splits.sum() > 10
        assert one.of_topics() == by_chunks[name].of_topics()
        assert one.series == by_chunks[name].series
        for column, other in zip(one.actions, by_chunks[name].actions, strict=True):
            assert column.tolist() == other.tolist()
    assert seen == [(0, 70), (20, 70), (40, 70), (60, 70), (70, 70)]


def test_interrupted_simulation_keeps_done_topics(monkeypatch):
    monkeypatch.setattr(run, "CHUNK_ROWS", 2)
    source, policies = ShapedDemand("day", 7, 2.0, began_at=NOW), {"default": ConfiguredPolicy("default", None)}

    def interrupt_at(topic_hours):
        def told(done, total):
            if done >= topic_hours:
                raise KeyboardInterrupt

        return told

    whole = simulate(source, policies)["default"]
    part = simulate(source, policies, progress=interrupt_at(8.0))["default"]
    assert part.topics == whole.topics[:4]
    assert part.of_topics() == whole.of_topics()[:4]
    with pytest.raises(KeyboardInterrupt):
        simulate(source, policies, progress=interrupt_at(0.0))
