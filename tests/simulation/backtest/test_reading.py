"""What a lake says of topics that come, go and come again, of policies that change, and of a job that was down."""

from __future__ import annotations

import json

import pytest

from anabranch.simulation.backtest.reading import open_history
from anabranch.simulation.backtest.running import RAN, RECORD, backtest
from anabranch.simulation.backtest.spilling import TOPIC_INDEX, read_part, spill_table
from decisions.topic.layout import SegmentLayout
from engine.autoscale.topics import ConfiguredPolicy
from schemas.metadata import AutoScalePolicyOverride
from schemas.tables.rows import EVENTS, SEGMENT_LOAD
from tests.engine.records import configured, consumers, layout, policy, stats, tick
from tests.engine.test_replay import RecordedBucket
from tests.simulation.backtest.lakes import written_by_batch

NOW, MINUTE = 1_767_225_600_000, 60_000
HERE, LATER = "topic://acme/shop/here", "topic://acme/shop/later"
PIP = ConfiguredPolicy("pip-483", None)


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """An hour: a topic that is deleted and made again, one that comes later, an outage, two policies, an override."""
    folder = tmp_path_factory.mktemp("lake")
    bucket = RecordedBucket()
    one = SegmentLayout.create(1, NOW)
    bucket.batch(
        NOW,
        configured({"maxSegments": 9}),
        policy({"minSegments": 2}, "acme/shop"),
        layout(one, at=NOW, topic=HERE),
        consumers(1, NOW, topic=HERE),
        tick(NOW),
    )
    for minute in range(1, 60):
        at = NOW + minute * MINUTE
        if 30 <= minute < 40:
            continue
        told = [stats({0: 100.0 + minute}, at, HERE), tick(at)]
        if minute == 10:
            told.append(layout(one, "deleted", at=at, topic=HERE))
        if minute == 20:
            again = SegmentLayout.create(1, at)
            own = again.with_policy(AutoScalePolicyOverride(min_segments=1))
            told = [layout(again, at=at, topic=HERE), layout(own, at=at, topic=LATER), tick(at)]
        if minute == 45:
            told.append(configured({"maxSegments": 3}))
        bucket.batch(at, *told)
    bucket.batch(NOW + 60 * MINUTE, tick(NOW + 60 * MINUTE))
    lake = written_by_batch(bucket, folder / "lake")
    return open_history(lake, folder / "loads", None, None, None, PIP)


def test_each_incarnation_has_its_own_period(history):
    found = [((one.began_at - NOW) / MINUTE, (one.ends_at - NOW) / MINUTE) for one in history.part(0)]
    assert found == [(0, 10), (20, 60), (20, 60)]
    assert [one.name for one in history.part(0)] == [HERE, HERE, LATER]
    # The loads of the first are not those of the second.
    assert [(int(one.loads.at[0]) - NOW) / MINUTE for one in history.part(0)[:2]] == [1, 21]


def test_longest_policy_wins_and_other_time_reported(history):
    assert json.loads(history.ran.override) == {"maxSegments": 9}
    assert [((begin - NOW) / MINUTE, (end - NOW) / MINUTE) for begin, end in history.other_policy] == [(45, 60)]


def test_namespace_override_applies_under_the_topics_own(history):
    overrides = [(one.name, one.announced[0].layout.auto_scale_policy.min_segments) for one in history.part(0)]
    assert overrides == [(HERE, 2), (HERE, 2), (LATER, 1)]


def test_an_outage_and_a_topic_without_loads_are_gaps(history):
    assert [((begin - NOW) / MINUTE, (end - NOW) / MINUTE) for begin, end in history.outages] == [(29, 40)]
    found = backtest(history, {})
    assert [one.assumed[RAN].by_kind["gap"] / MINUTE for one in found.topics if one.topic == LATER] == [40]
    assert sum(one.hours for one in found.topics) == pytest.approx(90 / 60)
    assert found.totals(RECORD)["splits"] == 0


def test_part_is_read_without_the_rows_of_others(tmp_path):
    """Of 520 parts each one would otherwise read the whole record again."""
    bucket = RecordedBucket()
    bucket.batch(NOW, *(layout(SegmentLayout.create(1, NOW), at=NOW, topic=name) for name in (HERE, LATER)))
    for number in range(3):
        at = NOW + number * MINUTE
        bucket.batch(at, *(stats({0: 100.0 * 2**number}, at, name) for name in (HERE, LATER)), tick(at))
    lake, parts = written_by_batch(bucket, tmp_path / "lake"), [[HERE], [LATER]]
    for table, topic, rows in ((SEGMENT_LOAD, "topic", 3), (EVENTS, "subject", 1)):
        assert spill_table(lake, tmp_path, table, topic, ["accepted_at"], parts) == 2 * rows
        read = [read_part(tmp_path, table, number)[TOPIC_INDEX].to_pylist() for number in range(2)]
        assert read == [[0] * rows, [1] * rows]
