"""Rows of the lake with sane defaults, and a lake to write them to; for the tests of view, screen and report."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

from deltalake import write_deltalake

from lake.tables import create_table
from schemas.tables.arrow import to_arrow
from schemas.tables.rows import (
    TABLES,
    BatchRow,
    DeadLetterRow,
    DecisionRow,
    EventRow,
    HoldRow,
    OutcomeRow,
    SegmentLoadRow,
    TableRow,
    WaitRow,
)

START = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc)
ORDERS = "topic://acme/shop/orders"
POLICY = {
    "splitMsgRateInThreshold": 10_000.0,
    "splitBytesRateInThreshold": 20_000_000,
    "splitMsgRateOutThreshold": 30_000.0,
    "splitBytesRateOutThreshold": 60_000_000,
    "mergeMsgRateInThreshold": 3_000.0,
    "mergeBytesRateInThreshold": 5_000_000,
    "mergeMsgRateOutThreshold": 8_000.0,
    "mergeBytesRateOutThreshold": 15_000_000,
}
_TABLES = {table.row: table for table in TABLES.values()}


def at(seconds: float) -> datetime:
    """`seconds` after the start of the test's time."""
    return START + timedelta(seconds=seconds)


def millis(seconds: float) -> int:
    return int(at(seconds).timestamp() * 1000)


def write(lake: str, *rows: TableRow) -> None:
    """One commit a table with its rows, tables in the order of their first row."""
    grouped: dict[type[TableRow], list[TableRow]] = {}
    for row in rows:
        grouped.setdefault(type(row), []).append(row)
    for kind, of_kind in grouped.items():
        table = _TABLES[kind]
        write_deltalake(create_table(lake, table), to_arrow(table, of_kind), mode="append")


def layout_json(*ranges: tuple[int, int, int], epoch: int = 0, sealed: tuple[int, ...] = ()) -> dict[str, Any]:
    """A layout's JSON from (id, start, end)."""
    return {
        "epoch": epoch,
        "nextSegmentId": max((segment for segment, _, _ in ranges), default=-1) + 1,
        "segments": {
            str(segment): {
                "segmentId": segment,
                "hashRange": {"start": start, "end": end},
                "state": "SEALED" if segment in sealed else "ACTIVE",
            }
            for segment, start, end in ranges
        },
    }


def event(kind: str, body: dict[str, Any], seconds: float, **changed: Any) -> EventRow:
    when = at(seconds)
    source = "consumer-events" if kind == "consumer" else "control-events"
    whole = {
        "subject": body.get("topic") or "*",
        "type": kind,
        "cause": body.get("event") or body.get("cause"),
        "body": json.dumps(body),
        "at": when,
        "kafka_topic": source,
        "kafka_partition": 0,
        "kafka_offset": int(seconds * 1000),
        "kafka_timestamp": when + timedelta(milliseconds=4),
        "accepted_at": when + timedelta(milliseconds=100),
        "batch_id": int(seconds),
        "day": when.date(),
    }
    return EventRow(**{**whole, **changed})


def layout_event(layout: dict[str, Any], seconds: float, cause: str = "created", topic: str = ORDERS) -> EventRow:
    body = {"v": 1, "type": "layout", "topic": topic, "cause": cause, "layout": layout, "at": millis(seconds)}
    return event("layout", body, seconds)


def policy_event(seconds: float, scope: str = "cluster", **changed: Any) -> EventRow:
    """By default what the job says at its start."""
    body = {"v": 1, "type": "policy", "scope": scope, "profile": "default", "policy": POLICY, "at": millis(seconds)}
    return event("policy", {**body, **changed}, seconds)


def consumer_event(
    subscription: str, consumers: int, seconds: float, what: str = "registered", topic: str = ORDERS, **changed: Any
) -> EventRow:
    body = {
        "v": 1,
        "topic": topic,
        "subscription": subscription,
        "type": "STREAM",
        "event": what,
        "consumer": f"{subscription}-0",
        "consumers": consumers,
        "at": millis(seconds),
    }
    return event("consumer", body, seconds, **changed)


def load(segment: int, rate: float, seconds: float, topic: str = ORDERS) -> SegmentLoadRow:
    return SegmentLoadRow(
        topic=topic,
        segment_id=segment,
        msg_rate_in=rate,
        bytes_rate_in=rate * 100,
        msg_rate_out=rate * 2,
        bytes_rate_out=rate * 200,
        reporter="broker-1",
        sampled_at=at(seconds),
        accepted_at=at(seconds),
        cause="changed",
        kafka_partition=0,
        kafka_offset=int(seconds * 1000),
        kafka_timestamp=at(seconds),
        batch_id=int(seconds),
        day=at(seconds).date(),
    )


def decision(seconds: float, seq: int = 1, **changed: Any) -> DecisionRow:
    whole = {
        "decision_id": f"d{seq}",
        "family": "autoscale",
        "subject": ORDERS,
        "action": "split",
        "arguments": '{"segments":[0]}',
        "reason": "msgRateIn",
        "trigger": "tick",
        "layout_epoch": seq - 1,
        "policy_digest": "p",
        "decided_at": at(seconds),
        "inputs": json.dumps({"policy": POLICY}),
        "gates": "[]",
        "engine_version": "1",
        "batch_id": int(seconds),
        "seq": seq,
        "day": at(seconds).date(),
    }
    return DecisionRow(**{**whole, **changed})


def hold(seconds: float, gate: str = "split-load", seq: int = 1, **changed: Any) -> HoldRow:
    whole = {
        "family": "autoscale",
        "subject": ORDERS,
        "gate": gate,
        "measured": 0.5,
        "limit": 1.0,
        "margin": -0.5,
        "eligible_at": None,
        "trigger": "tick",
        "since": at(seconds),
        "layout_epoch": 0,
        "policy_digest": "p",
        "inputs": None,
        "gates": None,
        "layout_digest": "l",
        "engine_version": "1",
        "batch_id": int(seconds),
        "seq": seq,
        "day": at(seconds).date(),
    }
    return HoldRow(**{**whole, **changed})


def outcome(decision_id: str, status: str, seconds: float, **changed: Any) -> OutcomeRow:
    whole = {
        "decision_id": decision_id,
        "family": "autoscale",
        "subject": ORDERS,
        "status": status,
        "attempt": 1,
        "at": at(seconds),
        "layout_epoch": 1,
        "seen": "{}",
        "error": None,
        "executor": "e",
        "mode": "act",
        "day": at(seconds).date(),
    }
    return OutcomeRow(**{**whole, **changed})


def wait(decision_id: str, brake: str, seconds: float, reason: str = "why") -> WaitRow:
    return WaitRow(
        decision_id=decision_id,
        family="autoscale",
        subject=ORDERS,
        brake=brake,
        reason=reason,
        until=None,
        at=at(seconds),
        executor="e",
        day=at(seconds).date(),
    )


def dead_letter(reason: str, seconds: float, sample: int | None = None) -> DeadLetterRow:
    return DeadLetterRow(
        reason=reason,
        detail="what was wrong",
        key=b"k",
        raw=b"{",
        raw_size=1,
        raw_sha256=None,
        kafka_topic="segment-stats",
        kafka_partition=0,
        kafka_offset=int(seconds * 1000),
        kafka_timestamp=at(seconds),
        rejected_at=at(seconds),
        batch_id=int(seconds),
        day=at(seconds).date(),
        sample=sample,
    )


def batch(batch_id: int, seconds: float, **changed: Any) -> BatchRow:
    whole = {
        "batch_id": batch_id,
        "generation": "g1",
        "batch_at": at(seconds),
        "messages": 10,
        "messages_accepted": 4,
        "messages_suppressed": 5,
        "dead_letters": 1,
        "samples": 30,
        "samples_accepted": 6,
        "samples_insignificant": 23,
        "samples_stale": 1,
        "events": 2,
        "decisions": 0,
        "holds": 0,
        "evaluations": 3,
        "operator_ms": 4.0,
        "committed_at": at(seconds + 0.25),
        "day": at(seconds).date(),
    }
    return BatchRow(**{**whole, **changed})
