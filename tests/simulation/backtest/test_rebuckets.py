"""Backtests of topics with entry buckets: those on record count, and a rebucket is neither a split nor a merge."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from anabranch.simulation.backtest.demand import Loads
from anabranch.simulation.backtest.incarnations import Announced
from anabranch.simulation.backtest.policies import read_candidate
from anabranch.simulation.backtest.reading import History, TopicHistory
from anabranch.simulation.backtest.running import RAN, RECORD, _prepare_topic, _result, resolved, simulated
from anabranch.simulation.backtest.suggesting import OF_BUCKETS, anywhere, neighbour
from anabranch.simulation.topics.timeline import ConsumersFrom
from decisions.topic.layout import SegmentLayout
from engine.autoscale.topics import ConfiguredPolicy
from schemas.metadata import AutoScalePolicyOverride

MINUTE, HOUR = 60_000, 3_600_000
BEGIN = 1_767_225_600_000
END = BEGIN + HOUR
DEFAULT, PULSAR = ConfiguredPolicy("default", None), ConfiguredPolicy("pulsar-5.0", None)
POLICIES = {RAN: DEFAULT, "pulsar-5.0": PULSAR, "pip-483": ConfiguredPolicy("pip-483", None)}
TWO_BUCKETS = SegmentLayout.create(2, BEGIN - HOUR, bucket_budget=4)
NO_BUCKETS = SegmentLayout.create(2, BEGIN - HOUR)


def backtested(first, consumers=7, kind="STREAM", rate=5_000.0, then=()):
    """The result of a topic of two warm segments that gets consumers after half an hour; `then`: later layouts."""
    loads = Loads(np.array([BEGIN, BEGIN]), np.array([0, 1]), np.array([[rate, 0.0, 30_000.0, 0.0]] * 2))
    record = TopicHistory(
        "topic://acme/shop/orders",
        BEGIN,
        END,
        BEGIN,
        [Announced(BEGIN, first), *then],
        loads,
        [ConsumersFrom(BEGIN + HOUR // 2, "billing", kind, consumers)],
    )
    history = History("", [[record.name]], BEGIN, BEGIN, END, [], DEFAULT)
    prepared = _prepare_topic(history, record)
    [(_, outcomes)] = simulated(history, [prepared], POLICIES)
    return _result(history, prepared, 0, outcomes, POLICIES), outcomes


@pytest.mark.parametrize(
    ("kind", "first", "rate", "splits", "rebuckets"),
    [
        ("STREAM", TWO_BUCKETS, 500.0, 0, 2),
        ("STREAM", NO_BUCKETS, 500.0, 0, 2),
        ("CHECKPOINT", TWO_BUCKETS, 500.0, 0, 0),
        ("CHECKPOINT", TWO_BUCKETS, 5_000.0, 5, 0),
    ],
    ids=["shared", "one-bucket-each", "checkpoint-below-the-floor", "checkpoint"],
)
def test_pulsar_rebuckets_what_is_on_record(kind, first, rate, splits, rebuckets):
    result, outcomes = backtested(first, kind=kind, rate=rate)
    assert (result.counts["pulsar-5.0"]["splits"], int(outcomes["pulsar-5.0"].rebuckets[0])) == (splits, rebuckets)


def test_guard_shares_only_recorded_buckets():
    shared, alone = backtested(TWO_BUCKETS, rate=500.0)[0].counts, backtested(NO_BUCKETS, rate=500.0)[0].counts
    assert (shared[RAN]["splits"], shared[RAN]["segmentHours"]) == (0, 2.0)
    assert shared[RAN]["consumerMinutesWaiting"] == pytest.approx(3 * 10 / 60)
    assert alone[RAN]["splits"] == 5
    assert shared["pip-483"]["splits"] == alone["pip-483"]["splits"] == 5


def test_recorded_rebucket_serves_consumers_unmerged():
    at = BEGIN + HOUR // 2 + 2 * MINUTE
    after = TWO_BUCKETS.rebucket_segment(0, 4, at).rebucket_segment(1, 4, at)
    result, _ = backtested(TWO_BUCKETS, rate=500.0, then=[Announced(at, after)])
    counts = result.counts[RECORD]
    assert (counts["splits"], counts["merges"], counts["reversals"], counts["sealedSegments"]) == (0, 0, 0, 2)
    assert counts["segmentHours"] == 2.0
    # Seven consumers at four buckets for two minutes, then at eight.
    assert counts["consumerMinutesWaiting"] == 3 * 2
    assert result.agreement.missed == {"not decided by the job": 2}


def test_candidates_know_profile_with_buckets():
    assert read_candidate("pulsar-5.0", DEFAULT) == ("pulsar-5.0", PULSAR)
    chance = Random(1)
    for ran in (PULSAR, DEFAULT):
        drawn = anywhere(ran, chance, has_buckets=True)
        for one in (drawn, neighbour(ran, drawn, chance, has_buckets=True)):
            settings = AutoScalePolicyOverride.model_validate_json(one.override).model_dump(by_alias=True)
            assert all(low <= settings[name] <= high for name, (low, high) in OF_BUCKETS.items())
            assert resolved(one).broken is None
        assert not OF_BUCKETS.keys() & set(anywhere(ran, chance).override.split('"'))
