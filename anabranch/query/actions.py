"""Short names for the action and the segments of a row of `decisions`.

Stage: under `anabranch.history.live` and `anabranch.history.summary`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from decisions.autoscale.split_pass import SHIPPED_REASONS
from lake.tail import StoredRow
from schemas.metadata import RATES

_LOADS = frozenset({*RATES, *SHIPPED_REASONS.values()})


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
