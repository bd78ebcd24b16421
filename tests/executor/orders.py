"""Rows of `decisions` as the job writes them, and decisions made from layouts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from itertools import count
from typing import Any

from deltalake import write_deltalake

from anabranch.executor.autoscale.decision import SegmentDecision
from decisions.topic.layout import SegmentLayout
from lake.tables import create_table, open_table
from schemas.ids import canonical_json, decision_id
from schemas.snapshot import ENGINE_VERSION, Snapshot
from schemas.tables.arrow import to_arrow
from schemas.tables.rows import DECISIONS, DecisionRow

DECIDED_AT = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc)
_seq = count(1)


def decision(layout: SegmentLayout, *segments: int, topic: str = "topic://acme/shop/orders") -> SegmentDecision:
    """A split of one segment or a merge of two, decided on `layout`."""
    action = "split" if len(segments) == 1 else "merge"
    created = [layout.segments[segment].created_at_ms for segment in segments]
    name = decision_id(topic, layout.epoch, action, list(segments), 1, created)
    return SegmentDecision(name, "autoscale", topic, action, segments, layout)  # type: ignore[arg-type]


def row(decided: SegmentDecision, **changed: Any) -> DecisionRow:
    """The row of a decision that is taken now; `changed` columns are taken as they are, however wrong."""
    now = datetime.now(timezone.utc)
    snapshot = Snapshot(topic=decided.subject, now=1_763_660_000_000, layout=decided.layout.to_metadata())
    number = next(_seq)
    arguments = {"segments": list(decided.segments)}
    if decided.bucket_count is not None:
        arguments["bucketCount"] = decided.bucket_count  # type: ignore[assignment]
    columns = {
        "decision_id": decided.decision_id,
        "family": "autoscale",
        "subject": decided.subject,
        "action": decided.action,
        "arguments": canonical_json(arguments),
        "reason": "cold" if decided.action == "merge" else "msgRateIn",
        "trigger": "tick",
        "layout_epoch": decided.layout.epoch,
        "policy_digest": "0" * 32,
        "decided_at": now,
        "inputs": snapshot.to_json(),
        "gates": "[]",
        "engine_version": ENGINE_VERSION,
        "batch_id": number,
        "seq": number,
        "day": now.date(),
    }
    return DecisionRow(**(columns | changed))


def commit(lake: str, rows: Sequence[DecisionRow]) -> None:
    """One commit with all rows, as a batch of the job makes."""
    table = open_table(lake, DECISIONS) or create_table(lake, DECISIONS)
    write_deltalake(table, to_arrow(DECISIONS, rows), mode="append")
