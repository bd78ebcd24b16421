"""The bucket lane rule by rule: profile `pulsar-5.0`, and the guard `rebuckets` in profile `default`."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from random import Random

import pytest

from decisions.autoscale.answers import Rebucket, answer_to_json
from decisions.autoscale.decide import Hold, Merge, Split, decide, next_due
from decisions.autoscale.gates import Gate
from decisions.autoscale.policy import PROFILES, policy_digest, policy_override
from decisions.autoscale.rebucket_pass import bucket_target
from decisions.autoscale.snapshot import snapshot_from_wire, snapshot_to_wire
from decisions.topic.layout import SegmentLayout
from schemas.ids import digest
from tests.decisions.snapshots import (
    DEFAULT,
    MINUTE,
    NOW,
    PIP,
    SHIPPED,
    at,
    bucket_snapshot,
    msg_rate,
    random_snapshot,
    snapshot,
    stream,
)

HOUR = 60 * MINUTE


def topic(segments=1, budget=4, rate=10.0, policy=SHIPPED, **rest):
    """A topic with buckets whose segments all carry one rate of messages in."""
    layout = SegmentLayout.create(segments, NOW - 90 * 24 * HOUR, bucket_budget=budget)
    return snapshot(layout, {number: msg_rate(rate) for number in range(segments)}, policy, **rest)


@pytest.mark.parametrize("policy", [SHIPPED, DEFAULT], ids=["pulsar-5.0", "default"])
def test_consumers_below_the_floor_share_the_buckets(policy):
    for consumers in (2, 3, 4):
        one = topic(consumers=stream(consumers), policy=policy)
        assert decide(one).gate is Gate.SPLIT_THRESHOLDS
        assert decide(replace(one, trigger="consumer")).gate is Gate.ENTRY_BUCKETS
    answer = decide(topic(consumers=stream(5), policy=policy))
    assert (answer.segments, answer.bucket_count, answer.reason) == ((0,), 8, "below-split-rate-floor")
    assert answer.arguments == {"segments": [0], "bucketCount": 8}


@pytest.mark.parametrize(("rate", "kind"), [(999.0, Rebucket), (1_000.0, Split)])
def test_floor_decides_between_rebucket_and_split(rate, kind):
    for policy in (SHIPPED, DEFAULT):
        assert type(decide(topic(rate=rate, consumers=stream(5), policy=policy))) is kind


def test_segments_below_target_are_one_decision():
    layout = SegmentLayout.create(4, 0, bucket_budget=4).rebucket_segment(1, 8, 1)
    one = snapshot(layout, {n: msg_rate(1) for n in (0, 2, 3, 4)}, replace(SHIPPED, max_segments=4))
    answer = decide(replace(one, consumers=stream(17)))
    assert (answer.segments, answer.bucket_count, answer.reason) == ((0, 2, 3), 8, "at-max-segments")
    assert {name: value for name, value in json.loads(answer_to_json(answer)).items() if name != "gates"} == {
        "action": "rebucket",
        "segments": [0, 2, 3],
        "bucketCount": 8,
        "reason": "at-max-segments",
    }


def test_rebucket_waits_for_its_own_cooldown_only():
    waiting = topic(consumers=stream(9), last_rebucket_at=NOW - MINUTE + 1, last_split_at=NOW, last_merge_at=NOW)
    hold = decide(waiting)
    assert (hold.gate, next_due(hold)) == (Gate.REBUCKET_COOLDOWN, NOW + 1)
    assert isinstance(decide(at(waiting, NOW + 1)), Rebucket)


def test_full_segments_hold_with_the_reason():
    full = replace(SHIPPED, max_entry_buckets_per_segment=4)
    hold = decide(topic(consumers=stream(9), policy=full))
    assert (hold.gate, hold.binding.measured, hold.binding.limit) == (Gate.MAX_ENTRY_BUCKETS, 4.0, 4.0)


def test_checkpoints_count_for_splits_only():
    checkpoint = {"group": ("CHECKPOINT", 9)}
    assert isinstance(decide(topic(consumers=checkpoint, rate=1_000.0)), Split)
    assert decide(topic(consumers=checkpoint)).gate is Gate.SPLIT_THRESHOLDS
    capped = replace(SHIPPED, max_segments=1)
    assert decide(topic(consumers=checkpoint, rate=1_000.0, policy=capped)).gate is Gate.MAX_SEGMENTS
    # Profile default lets no consumer wait that only a segment can help.
    answer = decide(topic(consumers=checkpoint, policy=DEFAULT))
    assert isinstance(answer, Split)


def test_merge_that_idles_a_consumer_is_passed_over():
    full = replace(SHIPPED, max_entry_buckets_per_segment=4)
    cold = topic(2, budget=8, consumers=stream(8), policy=full)
    hold = decide(cold)
    assert (hold.gate, hold.binding.measured, hold.binding.limit) == (Gate.MERGE_CAPACITY, 4.0, 8.0)
    assert isinstance(decide(replace(cold, consumers=stream(4))), Merge)


@pytest.mark.parametrize(("consumers", "merges"), [(8, 2), (11, 1), (12, 1), (13, 0)])
def test_parallel_merges_leave_each_consumer_a_bucket(consumers, merges):
    """Of 16 entry buckets each merge costs four."""
    narrow = replace(DEFAULT, max_entry_buckets_per_segment=4)
    answer = decide(topic(4, budget=16, consumers=stream(consumers), policy=narrow))
    assert (1 + len(answer.also) if isinstance(answer, Merge) else 0) == merges


def test_capacity_is_that_after_the_cheapest_merge():
    layout = SegmentLayout.create(4, 0, bucket_budget=16).rebucket_segment(2, 1, 0).rebucket_segment(3, 1, 0)
    loads = {segment.segment_id: msg_rate(10.0) for segment in layout.active}
    narrow = replace(DEFAULT, max_entry_buckets_per_segment=4)
    answer = decide(snapshot(layout, loads, narrow, consumers=stream(10)))
    (reading,) = [one for one in answer.gates if one.gate is Gate.MERGE_CAPACITY]
    assert (reading.measured, reading.limit) == (10.0, 10.0)
    assert isinstance(answer, Merge)
    assert (answer.segments, answer.also) == ((4, 5), ())


def test_default_merges_below_consumers_if_shared():
    few = decide(topic(4, budget=16, rate=374.0, consumers=stream(4), policy=DEFAULT))
    assert isinstance(few, Merge)
    # Together three quarters of the floor: the next evaluation would split for its consumers.
    assert decide(topic(4, budget=16, rate=375.0, consumers=stream(4), policy=DEFAULT)).gate is Gate.MERGE_CONSUMERS
    # Three checkpoint consumers need a segment each.
    consumers = {"group": ("CHECKPOINT", 3), **stream(4)}
    merges = decide(topic(4, budget=16, consumers=consumers, policy=DEFAULT))
    assert isinstance(merges, Merge)
    assert merges.also == ()


def test_one_hash_candidate_holds_shipped_split():
    layout = SegmentLayout.create(1, 0, bucket_budget=4)
    while layout.active[0].width > 1:
        layout = layout.split_segment(layout.active[0].segment_id, 1)
    single, other = layout.active[0].segment_id, layout.active[-1].segment_id
    loads = {single: msg_rate(90_000.0), other: msg_rate(20_000.0)}
    assert decide(snapshot(layout, loads, SHIPPED)).gate is Gate.UNSPLITTABLE
    assert decide(snapshot(layout, loads, DEFAULT)).segment == other


def test_guard_needs_buckets_in_the_layout():
    for policy in (PIP, DEFAULT):
        without = topic(budget=0, consumers=stream(3), policy=policy)
        assert isinstance(decide(without), Split)
    assert isinstance(decide(topic(consumers=stream(5), policy=PIP)), Split)
    assert isinstance(decide(topic(budget=0, consumers=stream(3))), Rebucket)


def test_without_buckets_the_guard_changes_no_answer():
    rng = Random("no buckets")
    for _ in range(1_500):
        plain = random_snapshot(rng, guards=True)
        guarded = replace(plain, policy=replace(plain.policy, rebuckets=True, rebucket_cooldown_ms=7))
        assert decide(guarded) == decide(plain)


def test_json_snapshot_decides_alike_in_profiles():
    rng = Random("json")
    for number in range(300):
        one = (random_snapshot if number % 5 == 0 else bucket_snapshot)(rng, guards=number % 2 == 0)
        again = snapshot_from_wire(snapshot_to_wire(one), ("default", "pip-483", "pulsar-5.0")[number % 3])
        if one.policy.enabled and one.policy.broken is None:
            # Byte thresholds are whole numbers in JSON.
            assert decide(replace(again, policy=one.policy)) == decide(one)
            names = ("rebuckets", "max_entry_buckets_per_segment") if one.has_buckets else ()
            for name in ("as_shipped", *names):
                assert getattr(again.policy, name) == getattr(one.policy, name)


def test_policy_without_buckets_is_unchanged():
    assert "rebuckets" not in policy_override(DEFAULT, has_buckets=False).to_json()
    values = {field.name: getattr(DEFAULT, field.name) for field in fields(DEFAULT)}
    names = (
        "rebucket_cooldown_ms",
        "split_vs_rebucket_min_msg_rate_in_threshold",
        "max_entry_buckets_per_segment",
        "entry_bucket_budget",
        "rebuckets",
        "as_shipped",
    )
    assert policy_digest(DEFAULT) == digest({name: values[name] for name in values if name not in names}, size=8)
    digests = {policy_digest(policy) for policy in PROFILES.values()}
    assert len(digests) == 3
    assert policy_digest(replace(DEFAULT, rebuckets=False)) not in digests


@pytest.mark.parametrize(
    ("consumers", "segments", "target"),
    [(2, 1, 2), (3, 1, 4), (4, 1, 4), (5, 1, 8), (9, 4, 4), (200, 64, 4), (8, 8, 1)],
)
def test_target_is_the_next_power_of_two(consumers, segments, target):
    assert bucket_target(consumers, segments) == target


def test_constant_consumers_come_to_rest_in_default():
    """Rebucket once, merge once, and no split undoes it."""
    layout, actions = SegmentLayout.create(4, NOW, bucket_budget=4), []
    pasts, now = {}, NOW
    for _ in range(200):
        now += 5 * MINUTE
        loads = {
            segment.segment_id: replace(msg_rate(150.0 * segment.width / 16_384, modified_at=now - HOUR), seen_at=now)
            for segment in layout.active
        }
        answer = decide(
            replace(snapshot(layout, loads, DEFAULT, consumers=stream(6), pasts=pasts, last_rebucket_at=None), now=now)
        )
        if isinstance(answer, Hold):
            continue
        actions.append(answer.action)
        for one in (answer, *answer.also):
            if isinstance(one, Rebucket):
                for number in one.segments:
                    layout = layout.rebucket_segment(number, one.bucket_count, now)
            elif isinstance(one, Merge):
                layout = layout.merge_segments(*one.segments, now)
            else:
                layout = layout.split_segment(one.segment, now)
    assert actions == ["rebucket", "merge", "merge"]
    assert [segment.bucket_count for segment in layout.active] == [8]


def test_bucket_hold_acts_exactly_when_due():
    rng, met = Random("due"), 0
    for number in range(1_500):
        one = bucket_snapshot(rng, guards=number % 2 == 0)
        answer = decide(one)
        names = [reading.gate for reading in answer.gates]
        assert len(names) == len(set(names))
        due = next_due(answer)
        if due is None or not isinstance(answer, Hold) or one.policy.max_load_age_ms:
            continue
        met += 1
        assert not isinstance(decide(at(one, due)), Hold)
        assert due - 1 <= one.now or isinstance(decide(at(one, due - 1)), Hold)
    assert met > 50
