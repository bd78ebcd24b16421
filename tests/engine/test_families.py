"""The seam of families: a second one runs beside the first, and nothing of the kernel knows it by name."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from decisions.topic.layout import SegmentLayout
from engine.families import FAMILIES
from engine.kernel.bucket import BucketEngine
from engine.kernel.packed import Packed, StateError, StoredPart
from engine.kernel.packing import BucketPacker, unpack_bucket
from engine.kernel.records import LAYOUTS, RAW_SCHEMA
from tests.engine.buckets import SETTINGS, Bucket, stored
from tests.engine.bundles import BUNDLES, PART, SOURCE
from tests.engine.records import TOPIC, layout, outcome, record, stats, tick
from tests.engine.test_engine import MINUTE, NOW, SECOND

BOTH = (*FAMILIES, BUNDLES)
HOT, COOL = "acme/shop/0x00000000_0x40000000", "acme/shop/0x40000000_0xffffffff"


def report(subject, rate, broker="broker-1"):
    body = {"v": 1, "type": "report", "subject": subject, "broker": broker, "rate": rate, "at": NOW}
    return record(SOURCE, subject, body)


def ended(decision, status="applied"):
    subject = decision["subject"]
    body = {"v": 1, "type": "outcome", "family": "bundles", "topic": subject, "status": status, "at": NOW}
    return record("control-events", subject, body | {"decisionId": decision["decision_id"]})


def topic_and_bundles():
    """Records of both families."""
    return [
        layout(SegmentLayout.create(2, NOW - MINUTE)),
        stats({0: 50_000.0, 1: 1.0}, NOW),
        report(HOT, 500.0),
        report(COOL, 5.0),
        tick(1),
    ]


def without_time(output):
    output.counts.operator_ms = 0.0
    # Only who has decoded the state says what was known.
    return {kind: body for kind, body in output.bodies().items() if kind != LAYOUTS}


def test_a_second_family_decides_beside_the_first():
    output = Bucket(families=BOTH).batch(NOW, *topic_and_bundles())
    assert [(row["family"], row["subject"], row["action"]) for row in output.decisions] == [
        ("autoscale", TOPIC, "split"),
        ("bundles", HOT, "move"),
    ]
    assert [(row["family"], row["subject"], row["gate"]) for row in output.holds] == [("bundles", COOL, "load")]
    assert [(row["type"], row["subject"]) for row in output.events if row["kafka_topic"] == SOURCE] == [
        ("report", HOT),
        ("report", COOL),
    ]
    counts = output.counts
    assert (counts.decisions, counts.holds, counts.evaluations) == (2, 1, 3)
    assert counts.messages == counts.messages_accepted == 5


def test_family_outcome_closes_its_decision():
    bucket = Bucket(families=BOTH)
    decision = bucket.batch(NOW, *topic_and_bundles()).decisions[1]
    held = bucket.batch(NOW + SECOND, tick(2)).holds
    assert [(row["subject"], row["gate"]) for row in held if row["family"] == "bundles"] == [(HOT, "in-flight")]
    (again,) = bucket.batch(NOW + 2 * SECOND, ended(decision, "failed")).decisions
    assert (again["subject"], again["seq"]) == (HOT, 2)
    bucket.batch(NOW + 3 * SECOND, report(HOT, 5.0), ended(again))
    assert not bucket.batch(NOW + 4 * SECOND, tick(3)).decisions


def test_an_outcome_of_another_family_changes_nothing():
    bucket = Bucket(families=BOTH)
    split, move = bucket.batch(NOW, *topic_and_bundles()).decisions
    stranger = outcome(move["decision_id"], "failed", topic=split["subject"])
    bucket.batch(NOW + SECOND, stranger, ended({**move, "decision_id": split["decision_id"]}, "failed"))
    assert {row["gate"] for row in bucket.batch(NOW + MINUTE, tick(2)).holds} == {"in-flight"}


def test_refused_or_unreadable_family_input_is_dead_letter():
    unknown = ended({"subject": HOT, "decision_id": "x"})
    output = Bucket(families=BOTH).batch(NOW, unknown, record(SOURCE, HOT, {"v": 1, "type": "other"}))
    assert [row["reason"] for row in output.dead_letters] == ["unknown-topic", "invalid"]


def test_restart_from_stored_family_parts_is_invisible():
    steady, restarted = Bucket(families=BOTH), Bucket(families=BOTH)
    steady.batch(NOW, *topic_and_bundles())
    restarted.packed = steady.packed
    assert sorted(steady.packed.parts) == ["bundles", "loads", "topics"]
    for number in range(1, 4):
        restarted.restart()
        records = [report(COOL, 200.0 * number), tick(number)]
        one, other = (bucket.batch(NOW + number * MINUTE, *records) for bucket in (steady, restarted))
        assert without_time(one) == without_time(other)
        assert steady.packed == restarted.packed


def test_second_family_does_not_change_the_first():
    alone, beside = Bucket(), Bucket(families=BOTH)
    for number in range(3):
        records = [one for one in topic_and_bundles() if one.source != SOURCE]
        one, other = (bucket.batch(NOW + number * MINUTE, *records) for bucket in (alone, beside))
        assert without_time(one) == without_time(other)
        assert beside.packed.parts == alone.packed.parts
        assert beside.packed.fingerprint.startswith(alone.packed.fingerprint)


def test_bucket_stored_before_family_is_readable():
    bucket = Bucket()
    bucket.batch(NOW, *[one for one in topic_and_bundles() if one.source != SOURCE])
    bucket.families = BOTH
    bucket.restart()
    output = bucket.batch(NOW + SECOND, report(HOT, 500.0), tick(2))
    assert [row["gate"] for row in output.holds] == ["in-flight"]
    assert [row["subject"] for row in output.decisions] == [HOT]
    bucket.restart()
    assert [row["gate"] for row in bucket.batch(NOW + 2 * SECOND, tick(3)).holds] == ["in-flight"]


@pytest.mark.parametrize("part", [StoredPart(b"{}"), StoredPart(b"", [b"{}"])])
def test_part_outside_its_fingerprint_refused(part):
    bucket = Bucket()
    bucket.batch(NOW, *topic_and_bundles()[:2])
    more = Packed(bucket.packed.fingerprint, {**bucket.packed.parts, PART: part})
    with pytest.raises(StateError, match="fingerprint"):
        BucketEngine(SETTINGS, BOTH).run(0, more, [], NOW)


def test_family_records_without_columns_unchanged():
    records = topic_and_bundles()[1:4]
    schema = pa.schema(
        [*(one for one in RAW_SCHEMA if one.name != "home"), ("now", pa.int64()), ("bucket", pa.int32())]
    )
    rows = [dict(zip(schema.names, (*one[:7], NOW, 0), strict=True)) for one in records]
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    packed = [row for part in BucketPacker(1, BOTH)(iter([batch])) for row in part.to_pylist()]
    raw, samples, *_ = unpack_bucket([row["kind"] for row in packed], [row["body"] for row in packed], BOTH)
    assert [one.value for one in raw] == [one.value for one in records[1:]]
    engine = BucketEngine(SETTINGS, BOTH)
    written, output = engine.run(0, Packed(), raw, NOW, samples)
    assert output.counts.messages == 3
    assert json.loads(stored(Packed(), written).parts[PART].log[0])[HOT]["rate"] == 500.0
