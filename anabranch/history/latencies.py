"""Latency of every stage from a consumer event to the applied decision, by the tables' instants.

Stage: under `summary`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from lake.tail import COMMITTED_AT, StoredRow

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
    ordered = sorted(values)
    if not ordered:
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
