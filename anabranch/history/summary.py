"""Summary of the system between two instants: counts and latencies from the tables.

Stage: the read end, over the whole lake at once; the report of a local run contains it. A row belongs to the period of
its own instant.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from anabranch.query.wording import action_kind
from lake.rows import WholeTables, active_ranges
from lake.tail import COMMITTED_AT, StoredRow
from schemas.tables.rows import BATCHES, DEAD_LETTERS, DECISIONS, EVENTS, HOLDS, OUTCOMES

LATENCIES = (
    "eventToKafka",
    "kafkaToBatch",
    "batchToCommitted",
    "eventToCommitted",
    "committedToIntent",
    "committedToApplied",
    "eventToApplied",
)


def distribution(values: Iterable[float]) -> dict[str, Any]:
    """Return `n`, and `p50`, `p95` (nearest rank) and `max`, rounded to 0.1; null without values."""
    if not (ordered := sorted(values)):
        return {"n": 0, "p50": None, "p95": None, "max": None}

    def rank(share: float) -> float:
        return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 1)

    return {"n": len(ordered), "p50": rank(0.5), "p95": rank(0.95), "max": round(ordered[-1], 1)}


def latencies(
    decisions: Iterable[StoredRow], events: Iterable[StoredRow], outcomes: Iterable[StoredRow]
) -> dict[str, dict[str, Any]]:
    """Return distributions in milliseconds of every stage from a consumer event to the applied decision.

    A decision with the trigger `consumer` belongs to the newest registration or unregistration of its topic in its
    batch; one whose event cannot be found is left out. `decisions` carry `COMMITTED_AT`.
    """
    newest: dict[tuple[str, datetime], StoredRow] = {}
    for row in events:
        if row["type"] == "consumer" and row["cause"] in ("registered", "unregistered"):
            key = (row["subject"], row["accepted_at"])
            if key not in newest or row["at"] > newest[key]["at"]:
                newest[key] = row
    first: dict[tuple[str, str], datetime] = {}
    for row in outcomes:
        step = (row["decision_id"], row["status"])
        first[step] = min(row["at"], first.get(step, row["at"]))
    by_stage: dict[str, list[float]] = {name: [] for name in LATENCIES}
    for row in decisions:
        committed = row[COMMITTED_AT]
        intent, applied = (first.get((row["decision_id"], status)) for status in ("intent", "applied"))
        if intent is not None:
            by_stage["committedToIntent"].append(milliseconds(committed, intent))
        if applied is not None:
            by_stage["committedToApplied"].append(milliseconds(committed, applied))
        event = newest.get((row["subject"], row["decided_at"])) if row["trigger"] == "consumer" else None
        if event is not None and event["batch_id"] == row["batch_id"]:
            by_stage["eventToKafka"].append(milliseconds(event["at"], event["kafka_timestamp"]))
            by_stage["kafkaToBatch"].append(milliseconds(event["kafka_timestamp"], event["accepted_at"]))
            by_stage["batchToCommitted"].append(milliseconds(row["decided_at"], committed))
            by_stage["eventToCommitted"].append(milliseconds(event["at"], committed))
            if applied is not None:
                by_stage["eventToApplied"].append(milliseconds(event["at"], applied))
    return {name: distribution(values) for name, values in by_stage.items()}


def milliseconds(earlier: datetime, later: datetime) -> float:
    """Return the milliseconds from one instant to another."""
    return (later - earlier).total_seconds() * 1000


FINAL = ("applied", "superseded", "rejected", "failed", "observed")
"""The statuses of an outcome after which nothing more is done."""


def summarize(lake: WholeTables, started_at: datetime, stopped_at: datetime) -> dict[str, Any]:
    """Summarize the period from `started_at` to `stopped_at` (aware instants), ready for JSON.

    Layouts are the last ones. Keys: `batches`, `messages`, `samples`, `events`, `evaluations`, `decisions`, `outcomes`,
    `applied`, `holds`, `deadLetters`, `latencies`, `layouts`; `anabranch.local.report.build_report` describes each.
    """
    within = _Within(started_at, stopped_at)
    batches = within.rows(lake.rows(BATCHES), "batch_at")
    outcomes = lake.rows_and_removed(OUTCOMES)
    ours = within.rows(lake.committed(DECISIONS), "decided_at")
    steps = last_steps(outcomes)
    mine = {row["decision_id"] for row in ours}
    return {
        "batches": {
            "count": len(batches),
            "milliseconds": distribution(milliseconds(row["batch_at"], row["committed_at"]) for row in batches),
            "operatorMilliseconds": distribution(row["operator_ms"] for row in batches),
        },
        "messages": {
            "total": _sum(batches, "messages"),
            "accepted": _sum(batches, "messages_accepted"),
            "suppressed": _sum(batches, "messages_suppressed"),
            "deadLetters": _sum(batches, "dead_letters"),
        },
        "samples": {
            "in": _sum(batches, "samples"),
            "accepted": _sum(batches, "samples_accepted"),
            "insignificant": _sum(batches, "samples_insignificant"),
            "stale": _sum(batches, "samples_stale"),
            "refused": _sum(batches, "samples_refused"),
        },
        "events": _count(row["type"] for row in within.rows(lake.rows(EVENTS), "accepted_at")),
        "evaluations": _sum(batches, "evaluations"),
        "decisions": {
            "total": len(ours),
            "byAction": _count(row["action"] for row in ours),
            "byReason": _count(row["reason"] for row in ours),
            "byTrigger": _count(row["trigger"] for row in ours),
        },
        "outcomes": _count(steps.get(identity, {"status": "notBegun"})["status"] for identity in sorted(mine)),
        "applied": _count(
            action_kind(row) for row in ours if steps.get(row["decision_id"], {}).get("status") == "applied"
        ),
        "holds": _count(row["gate"] for row in within.rows(lake.rows(HOLDS), "since")),
        "deadLetters": _count(row["reason"] for row in within.rows(lake.rows(DEAD_LETTERS), "rejected_at")),
        "latencies": latencies(ours, lake.rows(EVENTS), outcomes),
        "layouts": _final_layouts(lake.rows(EVENTS)),
    }


class _Within:
    """Rows whose own time lies in a period."""

    def __init__(self, started_at: datetime, stopped_at: datetime) -> None:
        self._from, self._to = started_at, stopped_at

    def rows(self, rows: Iterable[StoredRow], column: str) -> list[StoredRow]:
        return [row for row in rows if self._from <= row[column] <= self._to]


def last_steps(outcomes: Iterable[StoredRow]) -> dict[str, StoredRow]:
    """Return the final outcome of each decision, or else its newest step, by id."""
    last: dict[str, StoredRow] = {}
    for row in sorted(outcomes, key=lambda row: (row["status"] in FINAL, row["at"])):
        last[row["decision_id"]] = row
    return last


def _final_layouts(events: Iterable[StoredRow]) -> dict[str, Any]:
    newest: dict[str, StoredRow] = {}
    for row in sorted(events, key=lambda row: (row["accepted_at"], row["kafka_offset"])):
        if row["type"] == "layout":
            newest[row["subject"]] = row
    layouts = {
        topic: json.loads(row["body"])["layout"] for topic, row in sorted(newest.items()) if row["cause"] != "deleted"
    }
    return {
        topic: {
            "epoch": layout["epoch"],
            "segments": [
                {"id": segment, "start": start, "end": end} for segment, (start, end) in active_ranges(layout).items()
            ],
        }
        for topic, layout in layouts.items()
    }


def _count(values: Iterable[str]) -> dict[str, int]:
    return dict(Counter(values).most_common())


def _sum(rows: Iterable[StoredRow], column: str) -> int:
    # A column that a later release added is not in old rows.
    return sum(row.get(column) or 0 for row in rows)
