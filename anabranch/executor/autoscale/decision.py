"""Rows of `decisions` of the family `autoscale`: segments, action, and the layout decided on.

Stage: read by the family's `actor`, which makes the call, and by `judge`, which finds its effect.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import ValidationError

from anabranch.executor.kernel.family import Decision, MalformedDecision
from decisions.topic.layout import LayoutError, SegmentLayout
from schemas.base import MAX_SEGMENT_ID, TOPIC_PATTERN
from schemas.metadata import MAX_ENTRY_BUCKETS, MAX_SEGMENTS_IN_METADATA, AutoScalePolicyOverride
from schemas.snapshot import Snapshot
from schemas.tables.rows import Action

_SEGMENTS = {"split": (1, 1), "merge": (2, 2), "rebucket": (1, MAX_SEGMENTS_IN_METADATA)}
"""Minimum and maximum number of segments of an action."""
_EXAMPLES = {
    "split": '{"segments":[3]}',
    "merge": '{"segments":[4,5]}',
    "rebucket": '{"bucketCount":8,"segments":[3,6]}',
}


@dataclass(frozen=True)
class SegmentDecision(Decision):
    """Change of segments of one topic, with the layout it was decided on."""

    action: Action
    segments: tuple[int, ...]
    """One segment id for a split, two for a merge, any number for a rebucket."""
    layout: SegmentLayout
    max_segments: int | None = None
    min_segments: int | None = None
    """Caps of the policy in force at the decision; None: not on record."""
    bucket_count: int | None = None
    """Entry buckets of each successor of a rebucket."""

    def __str__(self) -> str:
        segments = " and ".join(map(str, self.segments))
        into = "" if self.bucket_count is None else f" into {self.bucket_count} entry buckets"
        return f"{self.action} {segments} of {self.subject}{into}"

    def replaces(self, earlier: Decision) -> bool:
        """Return whether this split replaces an earlier merge: a hot segment is split without merging."""
        if not isinstance(earlier, SegmentDecision) or (self.action, earlier.action) != ("split", "merge"):
            return False
        return not set(self.segments).isdisjoint(earlier.segments)


def read_segment_decision(row: Mapping[str, Any]) -> SegmentDecision:
    """Read the decision in a row. Raises `MalformedDecision` and nothing else, whatever the content."""
    if not re.fullmatch(TOPIC_PATTERN, row["subject"] or ""):
        raise MalformedDecision(f"subject {row['subject']!r} is not topic://tenant/namespace/name")
    if row["action"] not in get_args(Action):
        raise MalformedDecision(f"action {row['action']!r} is none of {get_args(Action)}")
    segments, bucket_count = _arguments(row["action"], row["arguments"])
    layout, policy = _decided_on(row["subject"], row["inputs"])
    for segment in segments:
        if segment not in layout.segments or not layout.segments[segment].is_active:
            raise MalformedDecision(f"segment {segment} is not active in the layout of inputs (epoch {layout.epoch})")
    return SegmentDecision(
        row["decision_id"],
        row["family"],
        row["subject"],
        row["action"],
        segments,
        layout,
        policy.max_segments,
        policy.min_segments,
        bucket_count,
    )


def _arguments(action: str, text: str) -> tuple[tuple[int, ...], int | None]:
    try:
        arguments = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise MalformedDecision(f"arguments is no JSON: {error}") from None
    arguments = arguments if isinstance(arguments, dict) else {}
    ids, buckets = arguments.get("segments"), arguments.get("bucketCount")
    segments = tuple(ids) if isinstance(ids, list) else ()
    ids_only = all(type(segment) is int and 0 <= segment <= MAX_SEGMENT_ID for segment in segments)
    least, most = _SEGMENTS[action]
    has_count = ids_only and least <= len(segments) <= most and len(set(segments)) == len(segments)
    has_buckets = action != "rebucket" or (type(buckets) is int and 1 <= buckets <= MAX_ENTRY_BUCKETS)
    if not has_count or not has_buckets:
        raise MalformedDecision(f"arguments of a {action} must be like {_EXAMPLES[action]}, not {text[:200]}")
    return segments, buckets if action == "rebucket" else None


def _decided_on(subject: str, inputs: str) -> tuple[SegmentLayout, AutoScalePolicyOverride]:
    try:
        snapshot = Snapshot.model_validate_json(inputs or "")
        if snapshot.topic != subject:
            raise MalformedDecision(f"inputs is of {snapshot.topic}, the row of {subject}")
        return SegmentLayout.from_metadata(snapshot.layout), snapshot.policy
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        message = f"inputs is no snapshot: {where + ': ' if where else ''}{first['msg']}"
        raise MalformedDecision(message[:500]) from None
    except LayoutError as error:
        raise MalformedDecision(f"the layout in inputs is not valid: {error}"[:500]) from None
