"""Answers as a table for people, with every evaluated gate; short names of recorded decisions.

Stage: under every command that shows answers or instants.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from decisions.autoscale.answers import Answer, Hold, Merge, Rebucket, Split, next_due
from decisions.autoscale.gates import DESCRIPTIONS, Gate
from decisions.autoscale.snapshot import TopicSnapshot
from decisions.autoscale.split_pass import SHIPPED_REASONS
from decisions.kernel.readings import Reading
from schemas.metadata import RATES
from schemas.printable import printable

if TYPE_CHECKING:
    from lake.tail import StoredRow

_HEADINGS = ("gate", "measured", "limit", "margin", "could pass at", "segment")
_UNITS = {gate.value: description.unit for gate, description in DESCRIPTIONS.items()}
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_LOADS = frozenset({*RATES, *SHIPPED_REASONS.values()})


def explained(snapshot: TopicSnapshot, answer: Answer) -> str:
    """Return the answer as a headline, then its gates, one a row; ends with an empty line."""
    rows = [_HEADINGS, *(_row(reading, snapshot.now) for reading in answer.gates)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    marks = ["   ", *(_mark(answer, reading) for reading in answer.gates)]
    table = [
        f"{mark} " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for mark, row in zip(marks, rows, strict=True)
    ]
    active = len(snapshot.layout.active)
    heading = f"{printable(snapshot.topic)} at {instant(snapshot.now)}, by {snapshot.trigger}, {active} active segments"
    also = [] if isinstance(answer, Hold) else [f"  and {headline(action)}" for action in answer.also]
    return "\n".join([heading, f"  {headline(answer)}", *also, *table, *_due_line(answer, snapshot.now), ""])


def headline(answer: Answer) -> str:
    """Return the answer as a sentence."""
    if isinstance(answer, Split):
        return f"split segment {answer.segment}, because of {answer.reason}"
    if isinstance(answer, Merge):
        return f"merge segments {answer.segments[0]} and {answer.segments[1]}, because both are {answer.reason}"
    if isinstance(answer, Rebucket):
        segments = f"segment{'s' * (len(answer.segments) > 1)} {', '.join(map(str, answer.segments))}"
        return f"give {segments} {answer.bucket_count} entry buckets each, because of {answer.reason}"
    detail = f" ({printable(answer.binding.detail)})" if answer.binding.detail else ""
    return f"hold, {answer.gate.value}: {DESCRIPTIONS[answer.gate].sentence}{detail}"


def millis(instant: datetime) -> int:
    """Return milliseconds since 1970."""
    return (instant - _EPOCH) // timedelta(milliseconds=1)


def instant(at_ms: int) -> str:
    """Return milliseconds since 1970 as UTC; as plain milliseconds beyond the calendar."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"


def duration(milliseconds: float) -> str:
    """Return milliseconds for people: `250ms`, `12.5s`, `4m0s`, `3h20m`."""
    sign, remaining = ("-" if milliseconds < 0 else ""), abs(milliseconds)
    if remaining < 1000:
        return f"{sign}{remaining:.0f}ms"
    if remaining < 60_000:
        return f"{sign}{remaining / 1000:.4g}s"
    minutes, seconds = divmod(int(remaining // 1000), 60)
    if minutes < 60:
        return f"{sign}{minutes}m{seconds}s"
    hours, minutes = divmod(minutes, 60)
    return f"{sign}{hours}h{minutes}m" if hours < 48 else f"{sign}{hours // 24}d"


def _mark(answer: Answer, reading: Reading[Gate]) -> str:
    if isinstance(answer, Hold) and reading == answer.binding:
        return " >>"
    return "  +" if reading.passed else "  -"


def _row(reading: Reading[Gate], now: int) -> tuple[str, ...]:
    eligible = reading.eligible_at
    return (
        reading.gate.value,
        *reading_words(reading.gate.value, reading.measured, reading.limit, reading.margin),
        "" if eligible is None else f"{instant(eligible)} (in {duration(eligible - now)})",
        "" if reading.segment is None else str(reading.segment),
    )


def reading_words(gate: str, *figures: float | None) -> list[str]:
    """Return figures of a gate for people, what was measured first; for `settling` only the time that is left."""
    unit = _UNITS.get(gate)
    if gate == Gate.SETTLING.value and figures[0] is not None:
        return [f"{duration(figures[0])} left", *[""] * (len(figures) - 1)]
    return ["" if value is None else duration(value) if unit == "ms" else number_words(value) for value in figures]


def _due_line(answer: Answer, now: int) -> list[str]:
    due = next_due(answer)
    return [] if due is None else [f"  acts at {instant(due)} (in {duration(due - now)}) if nothing else changes"]


def number_words(value: float | bool | None) -> str:
    """Return a number for people: `12,401`, `0.25`, `none`; from 1,000 on without fraction or exponent."""
    if value is None:
        return "none"
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 1000 else f"{value:,.4g}"


def decision_segments(row: StoredRow) -> tuple[int, ...]:
    """Return the segments of a row of `decisions`."""
    return tuple(json.loads(row["arguments"]).get("segments", ()))


def segments_text(segments: Iterable[int]) -> str:
    """Return segments as text: `3` or `4+5`."""
    return "+".join(str(segment) for segment in segments)


def action_kind(row: StoredRow) -> str:
    """Return the cause of a decision: `split:consumer-count`, `split:load`, `merge` or `rebucket`."""
    if row["action"] != "split":
        return str(row["action"])
    return "split:load" if row["reason"] in _LOADS else f"split:{row['reason']}"


def quantity(count: float, noun: str) -> str:
    """Return a count with its noun: `1 policy`, `1,200 topics`, `0.089 hours`."""
    number = f"{count:,.0f}" if count >= 9.95 or count == int(count) else f"{count:.2g}"
    plural = noun if number == "1" else f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number} {plural}"
