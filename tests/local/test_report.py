"""The report: counts from the tables, latencies stage by stage, and checks that find what must never happen."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from anabranch.history.summary import distribution, latencies
from anabranch.local.offsets import end_offsets, unread_ticks
from anabranch.local.processes import PartState
from anabranch.local.report import build_report, report_text
from lake.integrity import check_integrity
from schemas.kafka.connection import KafkaConnection
from schemas.kafka.messages import TickEvent
from schemas.kafka.topics import CONTROL_EVENTS
from schemas.settings.root import Settings
from schemas.tables.arrow import to_arrow
from schemas.tables.rows import DECISIONS, EVENTS, OUTCOMES, TABLES
from tests.local.demonstration import local_settings
from tests.local.lake import (
    ORDERS,
    at,
    batch,
    consumer_event,
    dead_letter,
    decision,
    hold,
    layout_event,
    layout_json,
    outcome,
    policy_event,
    write,
)

NOTHING = {"n": 0, "p50": None, "p95": None, "max": None}
SPLIT = layout_json((0, 0x0000, 0xFFFF), (1, 0x0000, 0x7FFF), (2, 0x8000, 0xFFFF), epoch=1, sealed=(0,))
PARTS = [PartState("job", None, "stopped", 2, 137, at(9), "")]


@pytest.fixture
def home(tmp_path, monkeypatch) -> Settings:
    """Settings of an empty home, with a broker that does not answer and is not waited for."""
    monkeypatch.setattr("anabranch.local.report.end_offsets", lambda kafka: end_offsets(kafka, 0.3))
    return local_settings(tmp_path)


def rows(table, *models):
    return to_arrow(table, models).to_pylist()


def committed(*models, after_ms: float = 50.0):
    return [
        {**row, "_commit_timestamp": row["decided_at"] + timedelta(milliseconds=after_ms)}
        for row in rows(DECISIONS, *models)
    ]


def test_run_without_lake_reports_zeros_and_nulls(home):
    report = build_report(home, PARTS, at(0), at(10))
    assert report["messages"] == {"total": 0, "accepted": 0, "suppressed": 0, "deadLetters": 0}
    assert report["decisions"] == {"total": 0, "byAction": {}, "byReason": {}, "byTrigger": {}}
    assert all(found == NOTHING for found in report["latencies"].values())
    assert report["integrity"]["ok"]
    assert report["integrity"]["kafka"] is None
    assert report["traffic"] is None
    assert report["restarts"] == 2
    json.dumps(report)
    assert "Kafka did not answer" in report_text(report)


def test_counts_cover_run_and_checks_whole_lake(home):
    write(
        home.lake_path,
        batch(0, -50),
        batch(1, 1),
        batch(2, 2, samples_refused=3),
        layout_event(SPLIT, 1, "split"),
        consumer_event("billing", 1, 1.2),
        decision(-40, 1),
        decision(1, 2, reason="consumer-count", trigger="consumer"),
        decision(2, 3, action="merge", reason="cold"),
        decision(3, 4),
        hold(1, "merge-window", 1),
        hold(2, "merge-cooldown", 2),
        dead_letter("not-json", 2),
        outcome("d1", "applied", -39),
        outcome("d2", "intent", 1.3),
        outcome("d2", "applied", 1.5),
        outcome("d3", "intent", 2.2),
        outcome("d1", "applied", 4),
    )
    report = build_report(home, PARTS, at(0), at(10), events=["job died", {"part": "job", "at": at(3)}])
    assert report["batches"]["count"] == 2
    assert report["messages"] == {"total": 20, "accepted": 8, "suppressed": 10, "deadLetters": 2}
    assert report["samples"] == {"in": 60, "accepted": 12, "insignificant": 46, "stale": 2, "refused": 3}
    assert report["events"] == {"layout": 1, "consumer": 1}
    assert report["decisions"] == {
        "total": 3,
        "byAction": {"split": 2, "merge": 1},
        "byReason": {"consumer-count": 1, "cold": 1, "msgRateIn": 1},
        "byTrigger": {"tick": 2, "consumer": 1},
    }
    assert report["outcomes"] == {"applied": 1, "intent": 1, "notBegun": 1}
    assert report["applied"] == {"split:consumer-count": 1}
    assert report["holds"] == {"merge-window": 1, "merge-cooldown": 1}
    assert report["deadLetters"] == {"not-json": 1}
    assert report["layouts"] == {
        ORDERS: {
            "epoch": 1,
            "segments": [{"id": 1, "start": 0, "end": 0x7FFF}, {"id": 2, "start": 0x8000, "end": 0xFFFF}],
        }
    }
    assert report["integrity"]["appliedTwice"] == ["d1"]
    assert not report["integrity"]["ok"]
    assert report["partEvents"][0] == "job died"
    assert "BROKEN: appliedTwice: 1" in report_text(report)


def test_sequences_outlive_a_cleaned_log(home):
    for seq in (1, 2, 3):
        write(home.lake_path, decision(seq, seq))
    table = DeltaTable(f"{home.lake_path}/decisions")
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
    table.create_checkpoint()
    table.cleanup_metadata()
    with pytest.raises(DeltaError):
        table.load_cdf(starting_version=0)
    write(home.lake_path, decision(4, 4))
    assert build_report(home, PARTS, at(0), at(10))["integrity"]["sequenceGaps"] == []


def test_latencies_measured_from_newest_batch_event():
    moment = at(100)
    events = rows(
        EVENTS,
        consumer_event("billing", 1, 99.0, accepted_at=moment, batch_id=7, kafka_offset=1),
        consumer_event("billing", 2, 99.6, accepted_at=moment, batch_id=7, kafka_offset=2),
        consumer_event("billing", 2, 99.9, "snapshot", accepted_at=moment, batch_id=7, kafka_offset=3),
        consumer_event("billing", 9, 99.9, accepted_at=moment, batch_id=7, kafka_offset=4, topic="topic://a/b/c"),
    )
    decisions = committed(decision(100, 1, trigger="consumer", batch_id=7))
    outcomes = rows(
        OUTCOMES, outcome("d1", "intent", 100.1), outcome("d1", "applied", 100.25), outcome("d1", "applied", 101)
    )
    found = {name: value["max"] for name, value in latencies(decisions, events, outcomes).items()}
    assert found == {
        "eventToKafka": 4.0,
        "kafkaToBatch": 396.0,
        "batchToCommitted": 50.0,
        "eventToCommitted": 450.0,
        "committedToIntent": 50.0,
        "committedToApplied": 200.0,
        "eventToApplied": 650.0,
    }


def test_tick_decisions_measure_application_only():
    """The same holds for decisions whose event is unknown."""
    decisions = committed(decision(100, 1), decision(101, 2, trigger="consumer"))
    found = latencies(decisions, [], rows(OUTCOMES, outcome("d1", "applied", 100.15)))
    assert found["committedToApplied"]["n"] == 1
    assert found["eventToCommitted"] == NOTHING


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], NOTHING),
        ([5.04], {"n": 1, "p50": 5.0, "p95": 5.0, "max": 5.0}),
        (range(1, 101), {"n": 100, "p50": 50, "p95": 95, "max": 100}),
        ([3, 1, 2], {"n": 3, "p50": 2, "p95": 3, "max": 3}),
    ],
)
def test_percentiles_are_of_what_was_measured(values, expected):
    assert distribution(values) == expected


class TestIntegrity:
    @staticmethod
    def check(offsets=None, **tables):
        found = {name: rows(TABLES[name], *models) for name, models in tables.items()}
        order = ("batches", "decisions", "holds", "outcomes", "events", "dead_letters")
        return check_integrity(*(found.get(name, []) for name in order), offsets)

    def test_all_is_well_with_what_a_healthy_run_leaves(self):
        found = self.check(
            {"segment-stats": 15, "control-events": 7},
            batches=[batch(0, 0), batch(1, 1)],
            decisions=[decision(1, 1), decision(2, 2)],
            outcomes=[outcome("d1", "intent", 1), outcome("d1", "applied", 2)],
            events=[layout_event(SPLIT, 0), consumer_event("b", 1, 0)],
            dead_letters=[dead_letter("invalid", 0), *(dead_letter("invalid", 0.5, sample) for sample in (0, 7))],
        )
        assert found["ok"]
        assert found["kafka"] == {"endOffsets": {"segment-stats": 15, "control-events": 7}, "counted": 20, "lag": 2}

    def test_more_messages_counted_than_sent_is_found(self):
        assert not self.check({"segment-stats": 9}, batches=[batch(0, 0)])["ok"]

    def test_kafka_lag_counts_newest_generation_only(self):
        found = self.check({"segment-stats": 10}, batches=[batch(0, 0), batch(0, 9, generation="g2")])
        assert found["kafka"]["lag"] == 0
        assert found["ok"]

    @pytest.mark.parametrize(
        ("tables", "name"),
        [
            ({"outcomes": [outcome("d1", "applied", 1), outcome("d1", "applied", 2)]}, "appliedTwice"),
            ({"decisions": [decision(1, 1), decision(2, 3)]}, "sequenceGaps"),
            ({"decisions": [decision(1, 1), decision(2, 1)]}, "sequenceGaps"),
            ({"holds": [hold(1, seq=2)]}, "sequenceGaps"),
            ({"events": [layout_event(layout_json((0, 0, 0x7FFF)), 1)]}, "tornLayouts"),
            ({"events": [layout_event(layout_json((0, 0, 0x8000), (1, 0x8000, 0xFFFF)), 1)]}, "tornLayouts"),
            ({"batches": [batch(1, 1, dead_letters=2)]}, "unbalancedBatches"),
            ({"batches": [batch(1, 1, samples_stale=2)]}, "unbalancedBatches"),
            ({"events": [consumer_event("b", 1, 1), consumer_event("b", 1, 1)]}, "countedTwice"),
            ({"dead_letters": [dead_letter("invalid", 1, 3), dead_letter("invalid", 1, 3)]}, "countedTwice"),
        ],
    )
    def test_what_must_never_happen_is_found(self, tables, name):
        found = self.check(**tables)
        assert found[name]
        assert not found["ok"]
        assert [key for key in found if isinstance(found[key], list) and found[key]] == [name]

    def test_new_checkpoint_may_restart_sequences(self):
        found = self.check(
            batches=[batch(0, 0), batch(0, 5, generation="g2")],
            decisions=[decision(1, 1), decision(6, 1)],
            dead_letters=[dead_letter("invalid", 1), dead_letter("invalid", 1)],
        )
        assert found["ok"]


def test_end_offsets_from_kafka_or_null(kafka):
    assert end_offsets(KafkaConnection("127.0.0.1:1"), 0.3) is None
    before = end_offsets(KafkaConnection(kafka))
    producer = Producer({"bootstrap.servers": kafka})
    for number in range(9):
        producer.produce("consumer-events", key=str(number), value=b"x")
    producer.flush(10)
    after = end_offsets(KafkaConnection(kafka))
    assert sum(after.values()) - sum(before.values()) == 9
    assert set(after) == {"segment-stats", "consumer-events", "control-events"}


def test_final_ticks_not_counted_as_unread(kafka):
    connection = KafkaConnection(kafka)
    producer = Producer({"bootstrap.servers": kafka})
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "unused"})
    ends = {
        number: consumer.get_watermark_offsets(TopicPartition(CONTROL_EVENTS.name, number), timeout=10)[1]
        for number in producer.list_topics(CONTROL_EVENTS.name, 10).topics[CONTROL_EVENTS.name].partitions
    }
    consumer.close()
    recorded = [
        {"kafka_topic": CONTROL_EVENTS.name, "kafka_partition": number, "kafka_offset": end - 1}
        for number, end in ends.items()
    ]
    tick = TickEvent(v=1, type="tick", at=1).to_json()
    for value in (tick, policy_event(0).body, "{", "[]", tick):
        producer.produce(CONTROL_EVENTS.name, key="*", value=value, partition=0)
    producer.produce(CONTROL_EVENTS.name, key="*", value=None, partition=0)
    producer.flush(10)
    assert unread_ticks(connection, recorded) == 2
    elsewhere = {"kafka_topic": "consumer-events", "kafka_partition": 0, "kafka_offset": ends[0] + 9}
    assert unread_ticks(connection, [*recorded, elsewhere]) == 2
    assert unread_ticks(connection, [*recorded, {**recorded[0], "kafka_partition": 0, "kafka_offset": ends[0]}]) == 1
