"""Totals of a run of the whole system, from the lake's raw rows and without backtest code.

Layouts are those that were announced, loads those that were accepted, actions those decisions that were applied.
Instants are milliseconds since 1970, of the job's clock.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from anabranch.local.demand import TopicDemand

RATES = ("msg_rate_in", "bytes_rate_in", "msg_rate_out", "bytes_rate_out")
"""In the order of a policy's four split thresholds."""


def counts_of(lake: str, begin: int, end: int, limits: Sequence[float], topic: str | None = None) -> dict[str, float]:
    """Return splits, merges, segment-hours and minutes over `limits`, of all topics or of `topic`."""
    applied = {
        row["decision_id"] for row in _rows(lake, "outcomes", "decision_id", "status") if row["status"] == "applied"
    }
    actions = Counter(
        row["action"]
        for row in _rows(lake, "decisions", "decision_id", "subject", "action", "decided_at")
        if row["decision_id"] in applied
        and begin <= _millis(row["decided_at"]) < end
        and topic in (None, row["subject"])
    )
    segment_ms = over_ms = 0
    for subject, changes in _changes(lake, end).items():
        if topic not in (None, subject):
            continue
        segments, over = _topic(changes, begin, end, limits)
        segment_ms, over_ms = segment_ms + segments, over_ms + over
    return {
        "splits": actions["split"],
        "merges": actions["merge"],
        "segmentHours": segment_ms / 3_600_000,
        "minutesOverThreshold": over_ms / 60_000,
    }


def minutes_over(lake: str, begin: int, end: int, limits: Sequence[float], demands: Sequence[TopicDemand]) -> float:
    """Return minutes with a segment over `limits`, from the recorded layouts and the clients' demand.

    Computed second by second. The recorded loads would give too little: a new segment has none until its first report,
    which hides a second or two after each split that was not enough.
    """
    layouts: dict[str, list[tuple[int, int, list[tuple[int, int]]]]] = defaultdict(list)
    for row in _rows(lake, "events", "subject", "type", "body", "accepted_at"):
        if row["type"] == "layout":
            layout = json.loads(row["body"])["layout"]
            ranges = [segment["hashRange"] for segment in layout["segments"].values() if segment["state"] == "ACTIVE"]
            active = sorted((int(segment["start"]), int(segment["end"])) for segment in ranges)
            layouts[row["subject"]].append((_millis(row["accepted_at"]), int(layout["epoch"]), active))
    seconds = 0
    for demand in demands:
        changes = sorted(layouts[demand.topic])
        instants = np.arange(begin, end, 1000)
        for instant, index in zip(
            instants.tolist(), np.searchsorted([segment[0] for segment in changes], instants, "right"), strict=True
        ):
            if index:
                starts, ends = zip(*changes[index - 1][2], strict=True)
                seconds += bool((demand.rates(instant / 1000, starts, ends) > np.asarray(limits)).any())
    return seconds / 60


def outcomes_of(lake: str) -> dict[str, int]:
    """Return how decisions ended, by status of their last step."""
    last = {
        row["decision_id"]: row["status"]
        for row in sorted(
            _rows(lake, "outcomes", "decision_id", "status", "at"),
            key=lambda row: (row["at"], row["status"] != "intent"),
        )
    }
    return dict(Counter(last.values()).most_common())


def lag_seconds(lake: str) -> float:
    """Return the median time from a decision to when the job has heard of the layout that it led to."""
    decided = {row["decision_id"]: row["decided_at"] for row in _rows(lake, "decisions", "decision_id", "decided_at")}
    lags = [
        (row["accepted_at"] - decided[by]).total_seconds()
        for row in _rows(lake, "events", "type", "body", "accepted_at")
        if row["type"] == "layout" and (by := json.loads(row["body"]).get("decisionId")) in decided
    ]
    return median(lags) if lags else 0.0


def first_heard(lake: str) -> int:
    """Return when the job accepted the first load of a topic, the median of the topics."""
    first: dict[str, int] = {}
    for row in _rows(lake, "segment_load", "topic", "accepted_at"):
        accepted_at = round(row["accepted_at"].timestamp() * 1000)
        first[row["topic"]] = min(accepted_at, first.get(row["topic"], accepted_at))
    return round(median(first.values()))


Change = tuple[tuple[int, int, int, int], str, Any]
"""Where it is in order, what it is, and what it says."""


def _changes(lake: str, end: int) -> Mapping[str, list[Change]]:
    """Layouts and loads of each topic, in their order."""
    by_topic: dict[str, list[Change]] = defaultdict(list)
    columns = ("subject", "type", "cause", "body", "accepted_at", "kafka_partition", "kafka_offset")
    for row in _rows(lake, "events", *columns):
        if row["type"] == "layout":
            layout = json.loads(row["body"])["layout"]
            active = (
                set()
                if row["cause"] == "deleted"
                else {int(entry["segmentId"]) for entry in layout["segments"].values() if entry["state"] == "ACTIVE"}
            )
            by_topic[row["subject"]].append(((*_place(row)[:1], 0, *_place(row)[1:]), "layout", active))
    for row in _rows(lake, "segment_load", "topic", "segment_id", *RATES, *columns[4:]):
        rates = [row[name] for name in RATES]
        by_topic[row["topic"]].append(((*_place(row)[:1], 1, *_place(row)[1:]), "load", (row["segment_id"], rates)))
    return {
        topic: sorted((entry for entry in changes if entry[0][0] < end), key=lambda entry: entry[0])
        for topic, changes in by_topic.items()
    }


def _topic(changes: Sequence[Change], begin: int, end: int, limits: Sequence[float]) -> tuple[int, int]:
    """Milliseconds of segments, and those with one of them over its limits."""
    active: set[int] = set()
    over: set[int] = set()
    segment_ms = over_ms = 0
    for change, following in pairwise([*changes, ((end, 0, 0, 0), "end", None)]):
        position, kind, payload = change
        if kind == "layout":
            active, over = payload, over & payload
        elif any(rate > limit for rate, limit in zip(payload[1], limits, strict=True)):
            over = (over | {payload[0]}) & active
        else:
            over = over - {payload[0]}
        lasted = max(0, following[0][0] - max(begin, position[0]))
        segment_ms, over_ms = segment_ms + len(active) * lasted, over_ms + bool(over) * lasted
    return segment_ms, over_ms


def _place(row: Mapping[str, Any]) -> tuple[int, int, int]:
    return _millis(row["accepted_at"]), row["kafka_partition"], row["kafka_offset"]


def _rows(lake: str, table: str, *columns: str) -> list[dict[str, Any]]:
    try:
        delta = DeltaTable(f"{lake}/{table}")
    except TableNotFoundError:
        return []
    rows: list[dict[str, Any]] = delta.to_pyarrow_table(columns=list(columns)).to_pylist()
    return rows


def _millis(instant: Any) -> int:
    return round(instant.timestamp() * 1000)
