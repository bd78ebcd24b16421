"""A run in plain sentences: actions on each topic and why, reversals, and alerts.

Stage: for the report of a local run (`anabranch.local.report`).
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime

from anabranch.history.summary import last_steps
from anabranch.query.wording import action_kind, decision_segments
from decisions.autoscale.gates import Gate
from lake.rows import WholeTables, active_ranges
from lake.tail import StoredRow
from schemas.tables.rows import ALERTS, DECISIONS, EVENTS, HOLDS, OUTCOMES

_BECAUSE = {
    "split:load": "split {times} as a segment was over its threshold",
    "split:consumer-count": "split {times} for consumers without a segment of their own",
    "merge": "merged {times} as neighbours had been quiet for long enough",
}
_ONE_KEY = frozenset({Gate.ONE_HOT_KEY.value, Gate.UNSPLITTABLE.value})


def tell_run(lake: WholeTables, started_at: datetime, stopped_at: datetime) -> list[str]:
    """Return the run from `started_at` to `stopped_at` (aware instants) as sentences, topics first."""
    steps = last_steps(lake.rows_and_removed(OUTCOMES))
    applied = [
        row
        for row in sorted(lake.committed(DECISIONS), key=lambda row: row["decided_at"])
        if row["family"] == "autoscale"
        and started_at <= row["decided_at"] <= stopped_at
        and steps.get(row["decision_id"], {}).get("status") == "applied"
    ]
    holds = [row for row in lake.rows_and_removed(HOLDS) if started_at <= row["since"] <= stopped_at]
    sizes = _segment_counts(lake.rows_and_removed(EVENTS), started_at)
    sentences = [_topic_sentence(topic, sizes[topic], applied, holds) for topic in sorted(sizes)]
    undone = _count_undone(applied, steps)
    sentences.append(f"{_times(len(applied), 'action')}, {undone or 'none'} of them undone by the opposite.")
    alerts = [row for row in lake.rows(ALERTS) if row["status"] == "firing" and row["notice"] is None]
    fired = sorted({f"{row['alert']}: {row['summary']}" for row in alerts if started_at <= row["at"] <= stopped_at})
    return [*sentences, *(f"Alert {alert}." for alert in fired)]


def _segment_counts(events: Iterable[StoredRow], started_at: datetime) -> dict[str, list[int]]:
    """Return how many active segments each topic had, by layout, from the one that the run found on."""
    counts: dict[str, list[int]] = {}
    layouts = [row for row in events if row["type"] == "layout" and row["cause"] != "deleted"]
    for row in sorted(layouts, key=lambda row: (row["accepted_at"], row["kafka_offset"])):
        before = [] if row["accepted_at"] <= started_at else counts.get(row["subject"], [])
        counts[row["subject"]] = [*before, len(active_ranges(json.loads(row["body"])["layout"]))]
    return counts


def _topic_sentence(topic: str, sizes: Sequence[int], applied: Iterable[StoredRow], holds: Iterable[StoredRow]) -> str:
    kinds = Counter(action_kind(row) for row in applied if row["subject"] == topic)
    clauses = [
        _BECAUSE.get(kind, f"{kind} {{times}}").format(times=_times(count, "time")) for kind, count in kinds.items()
    ]
    if {row["gate"] for row in holds if row["subject"] == topic} & _ONE_KEY:
        clauses.append("one hot key was found, which no split relieves")
    size = f"{sizes[0]} to {sizes[-1]} segments" if kinds else _times(sizes[-1], "segment")
    return f"{topic}: {size}, {'; '.join(clauses) or 'nothing to do'}."


def _count_undone(applied: Sequence[StoredRow], steps: dict[str, StoredRow]) -> int:
    """Count actions of which a segment that they made was given to the opposite action later."""
    makers = {
        (row["subject"], child): row
        for row in applied
        for child in json.loads(steps[row["decision_id"]]["seen"]).get("children") or ()
    }
    undone = {
        maker["decision_id"]
        for row in applied
        for segment in decision_segments(row)
        if (maker := makers.get((row["subject"], segment))) is not None and maker["action"] != row["action"]
    }
    return len(undone)


def _times(count: int, noun: str) -> str:
    return "once" if (count, noun) == (1, "time") else f"{count} {noun}{'s' * (count != 1)}"
