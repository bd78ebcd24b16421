"""The demand model: what segments see adds up, moves, rests, and is the same in every process."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.local.demand import KEYS, TopicDemand, demands
from tests.examples import examples
from tests.local.demonstration import NOW, traffic_settings

topics = st.builds(
    lambda seed, index: TopicDemand(traffic_settings(seed=seed), index), st.integers(0, 99), st.integers(0, 11)
)
instants = st.floats(0, 86_400, allow_nan=False).map(lambda offset: NOW + offset)
tilings = st.lists(st.integers(1, KEYS - 1), unique=True, max_size=20).map(
    lambda cuts: ([0, *sorted(cuts)], [*(cut - 1 for cut in sorted(cuts)), KEYS - 1])
)


@given(demand=topics, t=instants, tiling=tilings)
@examples(40)
def test_segment_rates_sum_to_topic_rates(demand, t, tiling):
    parts = demand.rates(t, *tiling)
    whole = demand.rates(t, [0], [KEYS - 1])[0]
    assert parts.shape == (len(tiling[0]), 4)
    assert np.all(parts >= -1e-6)
    np.testing.assert_allclose(parts.sum(axis=0), whole, rtol=1e-9, atol=1e-6)


@given(demand=topics, t=instants, start=st.integers(0, KEYS - 2), width=st.integers(2, KEYS))
@examples(25)
def test_midpoint_split_divides_load(demand, t, start, width):
    end = min(start + width - 1, KEYS - 1)
    middle = (start + end) // 2
    left, right = demand.rates(t, [start, middle + 1], [middle, end])
    np.testing.assert_allclose(left + right, demand.rates(t, [start], [end])[0], rtol=1e-9, atol=1e-6)


def test_hot_range_cools_after_repeated_splits():
    demand = TopicDemand(traffic_settings(), 0)
    t = next(NOW + step for step in range(90) if demand.activity(NOW + step) > 0.99)
    start, end = 0, KEYS - 1
    widths = []
    while demand.rates(t, [start], [end])[0, 0] > 10_000:
        middle = (start + end) // 2
        left, right = demand.rates(t, [start, middle + 1], [middle, end])[:, 0]
        start, end = (start, middle) if left > right else (middle + 1, end)
        widths.append(end - start + 1)
    assert widths
    assert widths[-1] > 256


@pytest.mark.parametrize("index", range(6))
def test_every_topic_is_hot_and_idle_in_turn(index):
    demand = TopicDemand(traffic_settings(burst_seconds=86_400), index)
    activity = [demand.activity(NOW + second / 2) for second in range(180)]
    assert max(activity) > 0.95
    assert sum(value < 0.02 for value in activity) > 50


def test_hot_ranges_wander_over_the_key_space():
    starts = np.arange(64) * (KEYS // 64)
    places = []
    for demand in demands(traffic_settings(burst_seconds=86_400)):
        noons = [NOW + step for step in range(900) if demand.activity(NOW + step) > 0.95]
        places.append({int(np.argmax(demand.rates(t, starts, starts + KEYS // 64 - 1)[:, 0])) for t in noons})
    assert sum(len(hottest) > 3 for hottest in places) >= 3


def test_bursts_come_and_go():
    demand = TopicDemand(traffic_settings(wave_seconds=10**7, seed=3), 1)
    night = next(t for t in np.arange(NOW, NOW + 10**7, 10**4) if demand.activity(t) < 0.02)
    totals = [demand.rates(night + step, [0], [KEYS - 1])[0, 0] for step in range(400)]
    assert max(totals) > 6_000
    assert min(totals) < 600


@given(demand=topics, t=instants)
@examples(25)
def test_consumers_bounded_and_cover_subscriptions(demand, t):
    consumers = demand.consumers(t)
    assert set(consumers) == {subscription.name for subscription in demand.subscriptions}
    assert all(0 <= count <= 6 for count in consumers.values())


def test_consumers_change_every_consumer_seconds():
    demand = TopicDemand(traffic_settings(), 2)
    seen = [demand.consumers(NOW + step / 2) for step in range(2 * 2000)]
    changes = sum(before != after for before, after in itertools.pairwise(seen))
    assert 40 <= changes <= 100


def test_topics_have_unique_names_and_all_types():
    made = demands(traffic_settings(topics=40))
    assert len({demand.topic for demand in made}) == 40
    assert {subscription.type for demand in made for subscription in demand.subscriptions} == {
        "STREAM",
        "QUEUE",
        "CHECKPOINT",
    }


@pytest.mark.process
def test_demand_is_the_same_in_another_process():
    code = (
        "from tests.local.test_demand import *\n"
        "d = TopicDemand(traffic_settings(), 5)\n"
        "print(d.rates(NOW + 33.3, [0, 32768], [32767, 65535]).tolist(), d.consumers(NOW + 33.3))"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    demand = TopicDemand(traffic_settings(), 5)
    here = f"{demand.rates(NOW + 33.3, [0, 32768], [32767, 65535]).tolist()} {demand.consumers(NOW + 33.3)}\n"
    assert other == here
