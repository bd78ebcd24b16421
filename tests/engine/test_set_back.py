"""The job's clock is set back: ticks go on, and whatever is waited for comes late by one wait at most."""

from __future__ import annotations

import pytest

from decisions.topic.layout import SegmentLayout
from tests.engine.buckets import ONE_AT_A_TIME, loads_of, topics_of
from tests.engine.records import TOPIC, consumers, layout, of_life, outcome, stats, tick
from tests.engine.test_engine import MINUTE, NOW, SECOND, started, two_segments
from tests.engine.test_replay import NAMES, RecordedBucket, assert_same, replayed

HOUR = 60 * MINUTE


def test_earlier_split_cooldown_ends_on_time():
    bucket = started(configured=ONE_AT_A_TIME)
    bucket.batch(NOW + SECOND, layout(two_segments().split_segment(0, NOW + SECOND), "split"), consumers(4))
    back = NOW - HOUR
    bucket.batch(back, tick(1))
    assert not bucket.batch(back + MINUTE - 1, tick(3)).decisions
    assert [row["reason"] for row in bucket.batch(back + MINUTE, tick(4)).decisions] == ["consumer-count"]


def test_a_back_off_ends_after_its_length():
    bucket = started(stats({0: 50_000.0, 1: 1.0}, NOW))
    (decision,) = bucket.batch(NOW, tick(1)).decisions
    bucket.batch(NOW + SECOND, outcome(decision["decision_id"], "failed"), tick(2))
    back = NOW - HOUR
    bucket.batch(back, stats({0: 50_000.0, 1: 1.0}, back), tick(3))
    assert topics_of(bucket.packed).topics[TOPIC].failures.failed_at == back
    waits = [bucket.batch(back + minute * MINUTE, tick(4)).decisions for minute in range(1, 7)]
    assert len([one for one in waits if one]) == 1


def test_loads_return_and_merge_after_window():
    bucket = started(stats({0: 5_000.0, 1: 1.0}, NOW))
    back = NOW - HOUR
    bucket.batch(back, tick(1))
    bucket.restart()
    at = back + 10 * SECOND
    assert bucket.batch(at, stats({0: 1.0, 1: 2.0}, at)).counts.samples_accepted == 2
    load = loads_of(bucket.packed).loads_of(TOPIC)[0]
    assert (load.msg_rate_in, load.modified_at, load.seen_at) == (1.0, at, at)
    decided = []
    for at in range(back + MINUTE, back + 8 * MINUTE, MINUTE):
        decided += bucket.batch(at, stats({0: 1.0, 1: 2.0}, at), tick(2)).decisions
    assert [row["action"] for row in decided] == ["merge"]


def test_samples_are_held_against_kafkas_clock():
    bucket = started()
    back = NOW - HOUR
    bucket.batch(back, tick(1))
    for at, accepted in ((NOW + SECOND, 1), (NOW + 10 * MINUTE, 0)):
        output = bucket.batch(back + SECOND, stats({0: float(at)}, at)._replace(timestamp=NOW + SECOND))
        assert (output.counts.samples_accepted, output.counts.dead_letters) == (accepted, 1 - accepted)


def test_future_incarnation_accepts_samples_and_ends():
    bucket = started()
    bucket.batch(NOW + SECOND, of_life(NOW, layout(SegmentLayout.create(2, NOW)), NOW))
    back = NOW - HOUR
    bucket.batch(back, tick(1))
    assert bucket.batch(back + SECOND, stats({0: 5.0}, back + SECOND)).counts.samples_accepted == 1
    bucket.batch(back + MINUTE, layout(two_segments(), "deleted", at=NOW, topic=NAMES[0]))
    bucket.batch(back + 2 * MINUTE, tick(2))
    bucket.batch(back + 3 * MINUTE, layout(two_segments(), at=back + 3 * MINUTE, topic=NAMES[0]))
    assert topics_of(bucket.packed).topics[NAMES[0]].layout is not None


@pytest.mark.parametrize("set_back", [HOUR, 3 * SECOND])
def test_rebuilt_state_equal_despite_clock_set_back(set_back):
    bucket = RecordedBucket()
    name, other = NAMES[:2]
    bucket.batch(NOW, layout(two_segments(), topic=name), layout(SegmentLayout.create(1, NOW - HOUR), topic=other))
    bucket.batch(NOW + SECOND, stats({0: 50_000.0, 1: 9.0}, NOW + SECOND, name), stats({0: 3.0}, NOW + SECOND, other))
    split = two_segments().split_segment(1, NOW + 2 * SECOND)
    bucket.batch(NOW + 2 * SECOND, layout(split, "split", topic=name), tick(1))
    now = NOW + 2 * SECOND - set_back
    for minute in range(4):
        at = now + minute * MINUTE
        bucket.batch(at, tick(2), stats({0: 60_000.0 * (minute % 2), 2: 4.0, 3: 5.0}, at, name))
    assert_same(replayed(bucket.history()), *bucket.states())
