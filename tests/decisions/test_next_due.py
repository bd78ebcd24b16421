"""When topics are next due, in columns: the same as `decide` says topic by topic."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from decisions.autoscale.decide import Hold, Split, decide
from decisions.autoscale.gates import Gate
from decisions.autoscale.next_due import SegmentColumns, TopicColumns, next_due
from decisions.autoscale.policy_columns import PolicyColumns
from decisions.kernel.readings import MAX_INSTANT_MS
from tests.decisions.packing import pack_snapshots
from tests.decisions.snapshots import random_snapshot
from tests.examples import only_first

URGENT = {Gate.SPLIT_COOLDOWN, Gate.RETRY_BACKOFF}


def drawn(rng, number):
    """A tick as simulations have it: nothing open, loads seen now, failures of splits only, no clock ahead."""
    one = random_snapshot(rng, guards=number % 3 != 0)
    loads = {
        segment: replace(load, seen_at=one.now, cold_since=load.cold_since and min(load.cold_since, one.now))
        for segment, load in one.loads.items()
    }
    return replace(
        one,
        trigger="tick",
        in_flight=None,
        hot_keys=(),
        failed_action="split" if one.failures else None,
        failed_at=one.failed_at if one.failures else None,
        failures=one.failures if one.failed_at is not None else 0,
        loads=loads,
        policy=replace(
            one.policy,
            parallel_actions=False,
            hot_key_splits=0,
            rebuckets=False,
            entry_bucket_budget=0,
            as_shipped=False,
        ),
    )


def due_by_topic(snapshots):
    """Yield each snapshot with what the columns say of it."""
    fleet, places = pack_snapshots(snapshots)
    policies, count = PolicyColumns(fleet.policies), np.diff(fleet.offsets)
    policy = np.repeat(np.arange(len(fleet.policies)), np.diff([*fleet.policy_starts, len(fleet)]))
    owner, rates = np.repeat(np.arange(len(fleet)), count), np.stack(fleet.rates, axis=1)
    topics = TopicColumns(
        policy,
        fleet.now,
        count,
        fleet.required,
        fleet.last_split_at,
        fleet.last_merge_at,
        fleet.failures,
        fleet.failed_at,
    )
    segments = SegmentColumns(
        owner,
        (rates > policies.split[policy[owner]]).any(axis=1),
        (rates < policies.merge[policy[owner]]).all(axis=1),
        fleet.is_single_hash,
        fleet.cold_since,
        fleet.shallow_at,
        fleet.settled_at,
    )
    due = next_due(policies, topics, segments)
    for topic, place in enumerate(places.tolist()):
        yield snapshots[place], type(due)._make(column[topic].item() for column in due)


@pytest.mark.parametrize("seed", only_first(1, range(4)))
def test_next_due_matches_decide_for_each_topic(seed):
    rng, met = Random(f"due {seed}"), Counter()
    for one, due in due_by_topic([drawn(rng, number) for number in range(3_000)]):
        answer = decide(one)
        if isinstance(answer, Hold):
            assert not due.may_split
            assert not due.may_merge
            first = min(due.split_due, due.merge_due)
            assert (None if first >= MAX_INSTANT_MS else first) == answer.due, answer
            assert due.is_urgent == (answer.gate in URGENT)
            if due.is_urgent:
                assert min(due.opens_at, MAX_INSTANT_MS) == (answer.binding.eligible_at or MAX_INSTANT_MS)
            met[answer.gate, answer.due is not None] += 1
        else:
            assert due.may_split if isinstance(answer, Split) else due.may_merge
            met[answer.action, True] += 1
    waits = (*URGENT, Gate.MERGE_COOLDOWN, Gate.MERGE_WINDOW, Gate.SETTLING, Gate.MAX_DAG_DEPTH)
    assert min(met[kind, True] for kind in (*waits, "split", "merge")) > 0, met
