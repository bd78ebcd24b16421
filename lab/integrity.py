"""Whether what must always hold did: checks over all rows of the lake, and Kafka's own count of what was sent.

Stage: part of the report of a local run (`lab.report`), and of the tests that kill parts of it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from lab.view import active_ranges
from lake.tables import open_table
from lake.tail import Row
from schemas.kafka import KAFKA_TOPICS
from schemas.settings import Settings
from schemas.tables import BATCHES

KEYS = 0x10000
KAFKA_SECONDS = 5.0


def check_integrity(
    batches: Sequence[Row],
    decisions: Sequence[Row],
    holds: Sequence[Row],
    outcomes: Sequence[Row],
    events: Sequence[Row],
    dead_letters: Sequence[Row],
    offsets: Mapping[str, int] | None,
) -> dict[str, Any]:
    """What must always hold (DESIGN section 5), on all rows of the lake; `lab.report.build_report` names the keys."""
    newest = max(batches, key=lambda row: row["committed_at"])["generation"] if batches else None
    generations = {row["generation"] for row in batches}
    counted = sum(row["messages"] for row in batches if row["generation"] == newest)
    applied = Counter(row["decision_id"] for row in outcomes if row["status"] == "applied")
    # A new checkpoint reads Kafka again from the start: only within one may nothing be seen twice.
    records = Counter(
        (row["kafka_topic"], row["kafka_partition"], row["kafka_offset"])
        for row in (*events, *dead_letters)
        if len(generations) <= 1
    )
    found: dict[str, Any] = {
        "appliedTwice": sorted(identity for identity, times in applied.items() if times > 1),
        "sequenceGaps": [
            *_sequence_gaps("decisions", decisions, "decided_at", len(generations) > 1),
            *_sequence_gaps("holds", holds, "since", len(generations) > 1),
        ],
        "tornLayouts": [
            {"topic": row["subject"], "at": row["at"].isoformat()}
            for row in events
            if row["type"] == "layout" and not _tiles(active_ranges(json.loads(row["body"])["layout"]).values())
        ],
        "unbalancedBatches": [
            row["batch_id"]
            for row in batches
            if row["messages"] != row["messages_accepted"] + row["messages_suppressed"] + row["dead_letters"]
        ],
        "countedTwice": [
            f"{topic}-{partition}@{offset}" for (topic, partition, offset), times in records.items() if times > 1
        ],
        "kafka": None
        if offsets is None
        else {"endOffsets": dict(offsets), "counted": counted, "lag": sum(offsets.values()) - counted},
    }
    kafka = found["kafka"]
    found["ok"] = not any(found[name] for name in found if name != "kafka") and (kafka is None or kafka["lag"] >= 0)
    return found


def end_offsets(bootstrap: str, seconds: float = KAFKA_SECONDS) -> dict[str, int] | None:
    """The sum of the end offsets of each Kafka topic; None when the broker does not answer in `seconds`."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "anabranch-report", "log_level": 0})
    found: dict[str, int] = {}
    try:
        known = consumer.list_topics(timeout=seconds).topics
        for topic in KAFKA_TOPICS:
            partitions = known[topic.name].partitions if topic.name in known else ()
            found[topic.name] = sum(
                consumer.get_watermark_offsets(TopicPartition(topic.name, partition), timeout=seconds)[1]
                for partition in partitions
            )
    except KafkaException:
        return None
    finally:
        consumer.close()
    return found


def _sequence_gaps(table: str, rows: Iterable[Row], time: str, restarts: bool) -> list[dict[str, Any]]:
    """Where `seq` of a subject does not go on by one; `restarts`: it may begin again at 1 (a new checkpoint)."""
    gaps, before = [], Counter[str]()
    for row in sorted(rows, key=lambda row: (row[time], row["seq"])):
        expected = before[row["subject"]] + 1
        if row["seq"] != expected and not (restarts and row["seq"] == 1):
            gaps.append({"table": table, "subject": row["subject"], "expected": expected, "seq": row["seq"]})
        before[row["subject"]] = row["seq"]
    return gaps


def _tiles(ranges: Iterable[tuple[int, int]]) -> bool:
    following = 0
    for start, end in sorted(ranges):
        if start != following:
            return False
        following = end + 1
    return following == KEYS


def unread_messages(settings: Settings) -> int | None:
    """Kafka records that the job has not accounted for yet; None when the broker does not answer."""
    offsets = end_offsets(settings.kafka.bootstrap)
    table = open_table(settings.lake_path, BATCHES)
    if offsets is None or table is None:
        return None
    rows = table.to_pyarrow_table(columns=["generation", "messages", "committed_at"]).to_pylist()
    newest = max(rows, key=lambda row: row["committed_at"])["generation"] if rows else None
    return sum(offsets.values()) - sum(row["messages"] for row in rows if row["generation"] == newest)
