"""Evaluations of topics that fail by a fault of ours: each holds its topic alone, and is reported."""

from __future__ import annotations

import pydantic_core
import pytest

from decisions.autoscale.decide import decide
from decisions.topic.layout import SegmentLayout
from engine.autoscale import evaluation, fleet_view
from engine.kernel.records import FAULTS, INTERNAL_ERROR, MAX_FAULT, MAX_FAULTS, Output
from tests.engine.buckets import Bucket
from tests.engine.records import consumers, layout, stats, tick

NOW, MINUTE = 1_763_600_000_000, 60_000
SICK, SOUND = "topic://acme/shop/sick", "topic://acme/shop/sound"


def failing(original, is_sick):
    def call(*arguments):
        if is_sick(*arguments):
            raise ZeroDivisionError("a fault of ours")
        return original(*arguments)

    return call


def two_hot_topics():
    bucket = Bucket()
    for topic in (SICK, SOUND):
        bucket.batch(NOW, layout(SegmentLayout.create(2, NOW), topic=topic), stats({0: 50_000.0, 1: 1.0}, NOW, topic))
    return bucket


def subjects(rows):
    return [(row["subject"], row.get("gate") or row["action"]) for row in rows]


def test_a_failing_topic_is_held_alone(monkeypatch):
    bucket = two_hot_topics()
    monkeypatch.setattr(evaluation, "decide", failing(decide, lambda snapshot: snapshot.topic == SICK))
    output = bucket.batch(NOW + MINUTE, tick(1))
    assert subjects(output.decisions) == [(SOUND, "split")]
    assert subjects(output.holds) == [(SICK, INTERNAL_ERROR)]
    assert [fault[:2] for fault in output.faults] == [("autoscale", SICK)]
    later = bucket.batch(NOW + 2 * MINUTE, tick(2))
    assert SICK not in dict(subjects(later.holds))
    monkeypatch.undo()
    bucket.restart()
    again = bucket.batch(NOW + 3 * MINUTE, tick(3))
    assert (subjects(again.decisions), again.faults) == ([(SICK, "split")], [])


def test_a_failing_consumer_event_holds_its_topic(monkeypatch):
    bucket = two_hot_topics()
    monkeypatch.setattr(evaluation, "decide", failing(decide, lambda snapshot: snapshot.topic == SICK))
    output = bucket.batch(NOW + MINUTE, consumers(5, topic=SICK), consumers(5, topic=SOUND))
    assert {*subjects(output.decisions)} == {(SOUND, "split")}
    assert subjects(output.holds) == [(SICK, INTERNAL_ERROR)]


@pytest.mark.parametrize("name", ["decide_fleet", "binding_readings"])
def test_failing_columns_fall_back_to_topics(monkeypatch, name):
    bucket = two_hot_topics()
    monkeypatch.setattr(fleet_view, name, failing(None, lambda *_: True))
    output = bucket.batch(NOW + MINUTE, tick(1))
    assert subjects(output.decisions) == [(SICK, "split"), (SOUND, "split")]
    assert [subject for _, subject, _ in output.faults] == ["all topics of a bucket"]


def test_faults_are_given_out_within_bounds():
    output = Output()
    for number in range(MAX_FAULTS + 5):
        output.add_fault("autoscale", f"topic-{number}", "x" * 10_000 + "the last line")
    told = pydantic_core.from_json(output.bodies()[FAULTS])
    assert len(told) == MAX_FAULTS
    assert all(len(fault) <= MAX_FAULT and fault.endswith("the last line") for _, _, fault in told)
    assert FAULTS not in Output().bodies()
