"""The kernel of simulations where one more message a second, or one more millisecond, changes the answer.

Demand moves between rates that lie at, just below and just above the thresholds and the ends of the filter's band; the
policies' waits end at steps, between them and at ticks. Held against the job's engine, as in `test_simulate_kernel`.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from anabranch.simulation.topics.timeline import ConsumersFrom, Timeline
from decisions.topic.layout import HASH_SPACE, SegmentLayout
from engine.autoscale.topics import ConfiguredPolicy
from schemas.metadata import AutoScalePolicyOverride
from tests.examples import examples
from tests.simulation.test_simulate_kernel import NOW, Drawn, _same

SPLIT, MERGE = 1_000.0, 100.0
ONE_MORE = 2.0**-20
RATES = [0.0] + [
    rate * band + beside
    for rate in (SPLIT, MERGE)
    for band in (0.75, 1.0, 1.25, 1.375, 0.625)
    for beside in (-ONE_MORE, 0.0, ONE_MORE)
]
STEP, STEPS = 10_000, 60


def _moving(random, edges, busy):
    """One range of hashes that moves between the rates, the others with a rate each; now and then consumers."""
    profiles = 6
    of_slices = np.zeros((profiles, len(edges) - 1, 4))
    of_slices[:, :, 0] = random.choice(RATES, len(edges) - 1)
    of_slices[:, busy, 0] = random.choice(RATES, profiles)
    changes = int(random.choice([1, 6, 30]))
    beside = random.choice([0, 0, 1, 9_999], changes)
    at = np.unique(np.r_[0, np.maximum(0, random.integers(0, STEPS, changes) * STEP - beside)])
    consumers = [
        ConsumersFrom(NOW + int(one) * STEP, "a", "STREAM", int(random.integers(0, 7)))
        for one in np.sort(random.choice(STEPS, int(random.choice([0, 0, 3])), replace=False))
    ]
    which = random.integers(0, profiles, len(at))
    level = np.where(random.random(len(at)) < 0.5, 1.0, random.choice([0.8, 0.75, 1.25, 4 / 3], len(at)))
    return Timeline(edges, of_slices, at + NOW, which, level if random.random() < 0.3 else None, None, consumers)


def _policy(random, split):
    return ConfiguredPolicy(
        "default",
        AutoScalePolicyOverride.model_validate(
            {
                "splitMsgRateInThreshold": split,
                "mergeMsgRateInThreshold": MERGE,
                "splitCooldownSeconds": int(random.choice([0, 15, 60, 61])),
                "mergeCooldownSeconds": int(random.choice([0, 25, 60])),
                "mergeWindowSeconds": int(random.choice([0, 30, 60])),
                "maxLoadAgeSeconds": int(random.choice([0, 10, 20, 60])),
                "retryBackoffSeconds": int(random.choice([0, 7, 10])),
                "maxSegments": int(random.choice([2, 4, 40])),
                "minSegments": int(random.choice([1, 2])),
                "maxDagDepth": int(random.choice([1, 2, 10])),
                **{
                    name: bool(random.random() < 0.5)
                    for name in (
                        "thresholdCrossing",
                        "coldSinceThreshold",
                        "skipUnsplittable",
                        "mergeKeepsConsumers",
                        "explicitLineage",
                    )
                },
            }
        ).to_json(),
    )


def _at_a_key():
    """A segment of a single hash, and what was split off on the way to it."""
    layout = SegmentLayout.create(1, NOW - 10_000_000)
    while layout.active[0].width > 1:
        layout = layout.split_segment(layout.active[0].segment_id, NOW - 5_000_000)
    return layout


@given(st.integers(0, 2**32 - 1))
@examples(4)
def test_boundary_changes_match_job_engine(seed):
    """The smallest changes: one message or one millisecond more."""
    random = np.random.default_rng(seed)
    count = int(random.choice([1, 2, 4]))
    edges = np.linspace(0, HASH_SPACE, count + 1).astype(np.int64)
    source = Drawn(
        [_moving(random, edges, int(random.integers(count)))], [SegmentLayout.create(count, NOW - 10_000_000)], STEPS
    )
    _same(source, [_policy(random, SPLIT), _policy(random, float(random.choice([SPLIT, 1.25 * SPLIT, 2 * SPLIT])))])


@given(st.integers(0, 2**32 - 1))
@examples(3)
def test_single_hash_splits_fail_as_in_job_engine(seed):
    random = np.random.default_rng(seed)
    edges = np.array([0, 1, HASH_SPACE], np.int64)
    timeline = _moving(random, edges, 0)
    timeline.profiles[:, 0, 0] = random.choice([0.0, 2_000.0, 3_000.0], len(timeline.profiles), p=[0.2, 0.4, 0.4])
    policies = [
        ConfiguredPolicy(
            "default",
            AutoScalePolicyOverride.model_validate(
                {
                    "splitMsgRateInThreshold": SPLIT,
                    "mergeMsgRateInThreshold": MERGE,
                    "maxSegments": 40,
                    "splitCooldownSeconds": int(random.choice([0, 15])),
                    "mergeWindowSeconds": int(random.choice([60, 300])),
                    "retryBackoffSeconds": backoff,
                    "maxLoadAgeSeconds": 0,
                    "skipUnsplittable": False,
                }
            ).to_json(),
        )
        for backoff in (int(random.choice([0, 60])), int(random.choice([7, 10, 30])))
    ]
    found = _same(Drawn([timeline], [_at_a_key()], STEPS), policies)
    for one in found.values():
        assert one.actions.is_applied.sum() == one.splits.sum() + one.merges.sum()
