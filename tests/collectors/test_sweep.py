"""Calls are dealt out: every topic has its turn, those that change have more, and no broker gets more than it may."""

from __future__ import annotations

from collections import Counter, OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.collectors.pulsar.sweep import USED_SECONDS, Budget, Sweep


def sweep_of(count, pause=1.0):
    sweep = Sweep(pause)
    for number in range(count):
        sweep.add(str(number))
    return sweep


def read_next(sweep, now):
    """Look at the next topic, and have its answer at once."""
    topic = sweep.next(now)
    if topic is not None:
        sweep.note_read(topic, now)
    return topic


def test_every_topic_is_looked_at_before_one_is_again():
    sweep = sweep_of(100)
    assert sorted(sweep.next(0.0) for _ in range(100)) == sorted(map(str, range(100)))
    assert sweep.next(0.5) is None
    assert sweep.next(1.0) is not None


def test_changing_topic_first_without_starving():
    sweep = sweep_of(1000)
    for _ in range(1000):
        sweep.next(0.0)
    looked = Counter()
    sweep.heat("7", 10.0)
    assert "7" in (sweep.next(10.0), sweep.next(10.0))
    now = 10.0
    while now < 40:
        now += 0.02
        if topic := sweep.next(now):
            looked[topic] += 1
    assert looked["7"] >= 25
    assert len(looked) > 700


def test_busy_topics_visited_more_without_starving():
    sweep = sweep_of(1000)
    for _ in range(1000):
        sweep.next(0.0)
    for number in range(0, 1000, 10):
        sweep.is_used(str(number), 1.0)
    looked = Counter(read_next(sweep, 1.0 + turn / 10) for turn in range(1, 1600))
    used = [looked[str(number)] for number in range(0, 1000, 10)]
    others = [looked[str(number)] for number in range(1000) if number % 10]
    assert min(used) >= 8
    assert sum(others) >= 300
    assert max(others) <= 1
    now = 1.0 + 160
    assert sweep.oldest_seconds(now, used=True) < 20 < sweep.oldest_seconds(now)


def test_idle_topic_yields_its_turns():
    sweep = sweep_of(10)
    for number in range(10):
        sweep.is_used(str(number), 0.0)
    assert sorted(sweep.next(1.0) for _ in range(10)) == sorted(map(str, range(10)))
    assert sorted(sweep.next(USED_SECONDS + 1) for _ in range(10)) == sorted(map(str, range(10)))
    assert sweep.oldest_seconds(USED_SECONDS + 1, used=True) == 0.0


def test_a_topic_that_is_gone_is_not_looked_at():
    sweep = sweep_of(3)
    sweep.remove("1")
    sweep.heat("1", 0.0)
    assert {sweep.next(0.0) for _ in range(4)} == {"0", "2", None}


def test_a_topic_that_is_to_be_looked_at_later_waits():
    sweep = sweep_of(1, pause=60)
    sweep.next(0.0)
    sweep.hurry("0", 0.5)
    assert sweep.next(0.4) is None
    assert sweep.next(0.5) == "0"


def test_age_counts_topics_that_were_never_read():
    sweep = sweep_of(0)
    sweep.add("a", 100.0)
    sweep.add("b", 150.0)
    assert (sweep.oldest_seconds(160.0), sweep.unread) == (60.0, 2)
    sweep.next(160.0)
    assert (sweep.oldest_seconds(160.0), sweep.unread) == (60.0, 2)
    sweep.note_read("a", 160.0)
    assert (sweep.oldest_seconds(160.0), sweep.unread) == (10.0, 1)


def test_age_goes_on_when_a_topic_moves():
    first, second = sweep_of(0), sweep_of(0)
    first.add("a", 100.0)
    first.note_read("a", 130.0)
    second.add("a", *first.remove("a"))
    assert (second.oldest_seconds(160.0), second.unread) == (30.0, 0)


@pytest.mark.parametrize(
    ("take", "table", "most"), [("next", "_at_once", 4), ("next_at_once", "_at_once", 4), ("next", "_hot_until", 64)]
)
def test_first_visit_cost_independent_of_fleet(take, table, most):
    """Entries that are read for a look, not time: a machine under load measures anything."""

    def reads(topics):
        sweep = sweep_of(topics)
        for topic in range(topics):
            sweep.heat(str(topic), 0.0)
        if table == "_hot_until":
            sweep._at_once.clear()
        # Of a plain dict even the first entries take time by the number of those that were removed before them.
        assert type(getattr(sweep, table)) is OrderedDict
        counting = CountingDict(getattr(sweep, table))
        setattr(sweep, table, counting)
        for _ in range(topics // 2):
            getattr(sweep, take)(1.0)
        return counting.reads / (topics // 2)

    assert reads(4_000) <= 2 * reads(400) <= 2 * most


class CountingDict(OrderedDict):
    """Counts the entries that are read by iteration."""

    reads = 0

    def items(self):
        for item in super().items():
            self.reads += 1
            yield item


@given(st.lists(st.floats(0, 3), max_size=200), st.floats(0.5, 100))
def test_broker_call_rate_limited(waits, rate):
    budget, now, taken = Budget(rate), 0.0, 0
    for wait in waits:
        now += wait
        taken += budget.take(now)
    assert taken <= rate * now + max(rate, 1.0) + 1
