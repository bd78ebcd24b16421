"""Invariant checks over all rows of the lake (design "What must always hold").

Stage: beside everything, on demand: in the report of a local run (`anabranch.local.report`) and in the tests that kill
parts of one. Kafka's own message count comes in as a number per topic.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from lake.rows import active_ranges
from lake.tail import StoredRow

KEYS = 0x10000
"""Size of the hash space that the active segments of a topic tile."""


def check_integrity(
    batches: Sequence[StoredRow],
    decisions: Sequence[StoredRow],
    holds: Sequence[StoredRow],
    outcomes: Sequence[StoredRow],
    events: Sequence[StoredRow],
    dead_letters: Sequence[StoredRow],
    offsets: Mapping[str, int] | None,
) -> dict[str, Any]:
    """Check the invariants on all rows; `anabranch.local.report.build_report` documents the keys.

    `offsets`: by Kafka topic the sum of its end offsets; None: Kafka did not respond.
    """
    generations = {row["generation"] for row in batches}
    counted = counted_messages(batches)
    deleted = {row["subject"] for row in events if row["type"] == "layout" and row["cause"] == "deleted"}
    applied = Counter(row["decision_id"] for row in outcomes if row["status"] == "applied")
    # A new checkpoint reads Kafka again from the start: records must be unique only within one checkpoint.
    records = Counter(
        (row["kafka_topic"], row["kafka_partition"], row["kafka_offset"], row.get("sample"))
        for row in (*events, *dead_letters)
        if len(generations) <= 1
    )
    report: dict[str, Any] = {
        "appliedTwice": sorted(identity for identity, times in applied.items() if times > 1),
        "sequenceGaps": [
            *_sequence_gaps("decisions", decisions, "decided_at", len(generations) > 1, deleted),
            *_sequence_gaps("holds", holds, "since", len(generations) > 1, deleted),
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
            or row["samples"] != row["samples_accepted"] + row["samples_insignificant"] + row["samples_stale"]
        ],
        "countedTwice": [
            f"{topic}-{partition}@{offset}" + ("" if sample is None else f"/{sample}")
            for (topic, partition, offset, sample), times in records.items()
            if times > 1
        ],
        "kafka": None
        if offsets is None
        else {"endOffsets": dict(offsets), "counted": counted, "lag": sum(offsets.values()) - counted},
    }
    kafka = report["kafka"]
    report["ok"] = not any(report[name] for name in report if name != "kafka") and (kafka is None or kafka["lag"] >= 0)
    return report


def counted_messages(batches: Sequence[StoredRow]) -> int:
    """Return the number of Kafka records that the newest checkpoint has counted in `batches`."""
    newest = max(batches, key=lambda row: row["committed_at"])["generation"] if batches else None
    return sum(row["messages"] for row in batches if row["generation"] == newest)


def _sequence_gaps(
    table: str, rows: Iterable[StoredRow], time: str, restarts: bool, deleted: Set[str]
) -> list[dict[str, Any]]:
    """Return the rows whose `seq` does not follow its subject's previous one.

    It may restart at 1 with a new checkpoint (`restarts`), and with a new incarnation of a deleted topic.
    """
    gaps, before = [], Counter[tuple[str, str]]()
    # Batches of one checkpoint are ordered by number, even if the clock was set back.
    for row in sorted(rows, key=lambda row: (row[time] if restarts else row["batch_id"], row["seq"])):
        subject = (row["family"], row["subject"])
        expected = before[subject] + 1
        if row["seq"] != expected and not (row["seq"] == 1 and (restarts or row["subject"] in deleted)):
            gaps.append({"table": table, "subject": row["subject"], "expected": expected, "seq": row["seq"]})
        before[subject] = row["seq"]
    return gaps


def _tiles(ranges: Iterable[tuple[int, int]]) -> bool:
    following = 0
    for start, end in sorted(ranges):
        if start != following:
            return False
        following = end + 1
    return following == KEYS
