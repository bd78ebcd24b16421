"""A row of the `decisions` table as a value that can be acted on, or the reason why it cannot.

Stage: first in the executor; `tail` brings the rows, `loop` reads each once. A malformed row never raises: it becomes
an outcome `rejected` with the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pydantic import ValidationError

from decisions.topic.layout import LayoutError, SegmentLayout
from schemas.base import MAX_SEGMENT_ID, TOPIC_PATTERN
from schemas.snapshot import Snapshot
from schemas.tables import Action, Family

COLUMNS = ("decision_id", "family", "subject", "action", "arguments", "inputs", "decided_at", "batch_id", "seq")
"""The columns of `decisions` that the executor reads."""

_ID = re.compile(r"[\x21-\x7e]{1,128}")
"""A decision's id travels in an HTTP header."""
_SEGMENTS = {"split": 1, "merge": 2}


@dataclass(frozen=True)
class Decision:
    """One action to take on one topic, and the layout that it was decided on."""

    decision_id: str
    family: Family
    subject: str
    action: Literal["split", "merge"]
    segments: tuple[int, ...]
    """One segment id for a split, two for a merge."""
    layout: SegmentLayout

    def __str__(self) -> str:
        return f"{self.action} {' and '.join(map(str, self.segments))} of {self.subject}"


@dataclass(frozen=True)
class Malformed:
    """A row that is no decision: its name as far as it has one, and what is wrong with it."""

    decision_id: str
    family: str
    subject: str
    why: str

    def __str__(self) -> str:
        return f"the row for {self.subject}"


def read_decision(row: Mapping[str, Any]) -> Decision | Malformed:
    """The decision in a row (a mapping with `COLUMNS`). Total: raises for no content."""
    try:
        return _read(row)
    except _Fault as fault:
        decision_id, family, subject = (str(row.get(column) or "") for column in ("decision_id", "family", "subject"))
        return Malformed(decision_id, family, subject, f"the decisions row is malformed: {fault}")


class _Fault(Exception):
    pass


def _read(row: Mapping[str, Any]) -> Decision:
    if not _ID.fullmatch(row["decision_id"] or ""):
        raise _Fault("decision_id must be 1 to 128 printable ASCII characters without a space")
    if row["family"] not in get_args(Family):
        raise _Fault(f"this executor does not know the family {row['family']!r}; it knows {get_args(Family)}")
    if not re.fullmatch(TOPIC_PATTERN, row["subject"] or ""):
        raise _Fault(f"subject {row['subject']!r} is not topic://tenant/namespace/name")
    if row["action"] not in get_args(Action):
        raise _Fault(f"action {row['action']!r} is none of {get_args(Action)}")
    segments = _segments(row["action"], row["arguments"])
    layout = _decided_layout(row["subject"], row["inputs"])
    for segment in segments:
        if segment not in layout.segments or not layout.segments[segment].is_active:
            raise _Fault(f"segment {segment} is not active in the layout of inputs (epoch {layout.epoch})")
    return Decision(row["decision_id"], row["family"], row["subject"], row["action"], segments, layout)


def _segments(action: str, text: str) -> tuple[int, ...]:
    try:
        arguments = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise _Fault(f"arguments is no JSON: {error}") from None
    found = arguments.get("segments") if isinstance(arguments, dict) else None
    segments = tuple(found) if isinstance(found, list) else ()
    ids_only = all(type(segment) is int and 0 <= segment <= MAX_SEGMENT_ID for segment in segments)
    if not ids_only or len(set(segments)) != _SEGMENTS[action] or len(segments) != _SEGMENTS[action]:
        wanted = '{"segments":[3]}' if action == "split" else '{"segments":[4,5]}'
        raise _Fault(f"arguments of a {action} must be like {wanted}, not {text[:200]}")
    return segments


def _decided_layout(subject: str, inputs: str) -> SegmentLayout:
    try:
        snapshot = Snapshot.model_validate_json(inputs or "")
        if snapshot.topic != subject:
            raise _Fault(f"inputs is of {snapshot.topic}, the row of {subject}")
        return SegmentLayout.from_metadata(snapshot.layout)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise _Fault(f"inputs is no snapshot: {where + ': ' if where else ''}{first['msg']}"[:500]) from None
    except LayoutError as error:
        raise _Fault(f"the layout in inputs is not valid: {error}"[:500]) from None
