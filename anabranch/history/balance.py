"""Balance of a run: the end of every decision, and the topics that stayed over a split threshold.

Stage: the end of `anabranch run --local`, beside `anabranch.history.summary`; one pass over the raw tables.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from anabranch.history.summary import FINAL, last_steps
from anabranch.query.policies import PoliciesOnRecord
from anabranch.query.wording import decision_segments, segments_text
from lake.rows import WholeTables, active_ranges
from lake.tail import COMMITTED_AT, StoredRow
from schemas.printable import printable
from schemas.tables.rows import DECISIONS, EVENTS, HOLDS, OUTCOMES, SEGMENT_LOAD, WAITS

EVALUATIONS_TOLERATED = 2
"""A topic that is over its threshold at more evaluations in a row than this is reported."""
_VARIABLE_PARTS = (
    (re.compile(r"topic://\S+?(?=[\s,;:)]|$)"), "TOPIC"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "ID"),
    (re.compile(r"\b[0-9a-f]{4}-[0-9a-f]{4}\b"), "RANGE"),
    (re.compile(r"\d+(\.\d+)?(, \d+)*"), "N"),
)
"""Parts of an error text that differ between decisions with the same cause."""


def build_balance(
    lake: WholeTables, started_at: datetime, stopped_at: datetime, executor_stopped_at: datetime | None = None
) -> dict[str, Any]:
    """Return the balance from `started_at` to `stopped_at` (aware instants), ready for JSON.

    - `decisions`: how many were taken; `applied`, `observed`: how many of them ended so
    - `superseded`, `rejected`, `failed`: number of decisions by cause, the variable parts of its text left out
    - `open`: decisions without an end: `decisionId`, `subject`, `action`, `decidedAt`, `state`
    - `overThreshold`: topics with a segment over a split threshold at more than two evaluations in a row, each with
      its longest such time: `topic`, `evaluations`, `from`, `until`, `overload` (largest rate / threshold),
      `segments` (at its end), and `reasons`: at how many of these evaluations the topic acted or was held, by action
      or binding gate; `inFlight`: the decisions that were open at its end
    """
    decisions = [row for row in lake.committed(DECISIONS) if started_at <= row["decided_at"] <= stopped_at]
    steps = last_steps(lake.rows_and_removed(OUTCOMES))
    waits = {row["decision_id"]: row for row in sorted(lake.rows_and_removed(WAITS), key=lambda row: row["at"])}

    def ended(status: str) -> list[StoredRow]:
        ends = (steps.get(row["decision_id"]) for row in decisions)
        return [step for step in ends if step is not None and step["status"] == status]

    def state(row: StoredRow) -> str:
        if executor_stopped_at is not None and row[COMMITTED_AT] >= executor_stopped_at:
            return "committed after the executor was told to stop"
        wait, step = waits.get(row["decision_id"]), steps.get(row["decision_id"])
        if wait is not None and (step is None or step["at"] < wait["at"]):
            return f"waits: {wait['brake']}, {wait['reason']}"
        return "the executor has not begun" if step is None else f"last step: {step['status']}"

    return {
        "decisions": len(decisions),
        "applied": len(ended("applied")),
        "observed": len(ended("observed")),
        **{
            name: dict(Counter(_cause(step["error"]) for step in ended(name)).most_common())
            for name in ("superseded", "rejected", "failed")
        },
        "open": [
            {
                "decisionId": row["decision_id"],
                "subject": row["subject"],
                "action": _action(row),
                "decidedAt": row["decided_at"].isoformat(),
                "state": state(row),
            }
            for row in sorted(decisions, key=lambda row: row["decided_at"])
            if row["decision_id"] not in steps or steps[row["decision_id"]]["status"] not in FINAL
        ],
        "overThreshold": _over_threshold(lake, steps, started_at, stopped_at),
    }


def balance_lines(balance: Mapping[str, Any]) -> list[str]:
    """Return the balance as lines of text."""
    counts = {
        name: content
        if isinstance(content, int)
        else len(content)
        if isinstance(content, list)
        else sum(content.values())
        for name, content in balance.items()
        if name not in ("decisions", "overThreshold")
    }
    summary = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    lines = [f"balance      {balance['decisions']} decisions" + (f": {summary}" if summary else "")]
    for name in ("superseded", "rejected", "failed"):
        lines += [f"  {name:<11}{count} {printable(cause)}" for cause, count in balance[name].items()]
    lines += [
        f"  {'open':<11}{printable(row['subject'])} {printable(row['action'])}, decided {row['decidedAt'][11:19]}: "
        f"{printable(row['state'])}"
        for row in balance["open"]
    ]
    words = "over a split threshold at more than two evaluations in a row:"
    lines.append(words if balance["overThreshold"] else f"{words} no topic")
    for row in balance["overThreshold"]:
        reasons = ", ".join(f"{count} {printable(name)}" for name, count in row["reasons"].items())
        flight = f"; in flight: {', '.join(map(printable, row['inFlight']))}" if row["inFlight"] else ""
        lines.append(
            f"  {printable(row['topic'])}: {row['evaluations']} evaluations from {row['from'][11:19]} to "
            f"{row['until'][11:19]}, up to {row['overload']:.1f} times, segments "
            f"{', '.join(map(str, row['segments']))}; {reasons}{flight}"
        )
    return lines


def _cause(error: str | None) -> str:
    text = error or "no cause on record"
    for pattern, word in _VARIABLE_PARTS:
        text = pattern.sub(word, text)
    return text


def _action(row: StoredRow) -> str:
    return f"{row['action']} {segments_text(decision_segments(row)) or row['arguments']}"


@dataclass
class _Topic:
    """State of a topic during the pass over the tables."""

    life: int = 0
    epoch: int = -1
    active: frozenset[int] = frozenset()
    own_policy: Mapping[str, Any] | None = None
    loads: dict[int, tuple[float, ...]] = field(default_factory=dict)


@dataclass
class _Streak:
    """Consecutive evaluations at which a topic was over a threshold."""

    moments: list[datetime] = field(default_factory=list)
    overload: float = 0.0
    segments: list[int] = field(default_factory=list)


def _over_threshold(
    lake: WholeTables, steps: Mapping[str, StoredRow], started_at: datetime, stopped_at: datetime
) -> list[dict[str, Any]]:
    """Return the topics that stayed over a threshold, the longest first."""
    longest: dict[str, _Streak] = {}
    running: dict[str, _Streak] = {}
    for topic, instant, over in _evaluations(lake):
        if not over or not started_at <= instant <= stopped_at:
            running.pop(topic, None)
            continue
        streak = running.setdefault(topic, _Streak())
        streak.moments.append(instant)
        streak.overload = max(streak.overload, *over.values())
        streak.segments = sorted(over)
        if len(streak.moments) >= len(longest.get(topic, _Streak()).moments):
            longest[topic] = streak
    rows = [
        {
            "topic": topic,
            "evaluations": len(streak.moments),
            "from": streak.moments[0].isoformat(),
            "until": streak.moments[-1].isoformat(),
            "overload": round(streak.overload, 3),
            "segments": streak.segments,
            **_reasons(lake, steps, topic, streak.moments),
        }
        for topic, streak in longest.items()
        if len(streak.moments) > EVALUATIONS_TOLERATED
    ]
    return sorted(rows, key=lambda row: (-row["evaluations"], row["topic"]))


def _reasons(
    lake: WholeTables, steps: Mapping[str, StoredRow], topic: str, moments: Sequence[datetime]
) -> dict[str, Any]:
    """Return why the topic was still over its threshold at these evaluations."""
    holds = sorted((row for row in lake.rows(HOLDS) if row["subject"] == topic), key=lambda row: row["since"])
    decisions = [row for row in lake.rows(DECISIONS) if row["subject"] == topic]
    reasons: Counter[str] = Counter()
    for moment in moments:
        actions = {row["action"] for row in decisions if row["decided_at"] == moment}
        gates = [row["gate"] for row in holds if row["since"] <= moment]
        reasons[" and ".join(sorted(actions)) or (gates[-1] if gates else "no hold on record")] += 1

    def is_open(row: StoredRow) -> bool:
        step = steps.get(row["decision_id"])
        has_ended = step is not None and step["status"] in FINAL and step["at"] <= moments[-1]
        return row["decided_at"] < moments[-1] and not has_ended

    return {"reasons": dict(reasons.most_common()), "inFlight": [_action(row) for row in decisions if is_open(row)]}


def _evaluations(lake: WholeTables) -> Iterator[tuple[str, datetime, dict[int, float]]]:
    """Yield topic, instant and overload by segment of each evaluation at a tick, in the order of batches."""
    policies, topics = PoliciesOnRecord(), defaultdict[str, _Topic](_Topic)
    batches: dict[datetime, tuple[list[StoredRow], list[StoredRow]]] = defaultdict(lambda: ([], []))
    for row in lake.rows(EVENTS):
        if row["type"] in ("tick", "layout", "policy"):
            batches[row["accepted_at"]][0].append(row)
    for row in lake.rows(SEGMENT_LOAD):
        batches[row["accepted_at"]][1].append(row)
    for instant, (events, loads) in sorted(batches.items()):
        ticked: set[str] = set()
        for row in sorted(events, key=_kafka_order):
            if row["type"] == "policy":
                policies.take(row["body"])
            elif row["type"] == "layout":
                _apply_layout(topics, row)
            else:
                ticked.add(row["subject"])
        for row in sorted(loads, key=_kafka_order):
            rates = (row["msg_rate_in"], row["bytes_rate_in"], row["msg_rate_out"], row["bytes_rate_out"])
            topics[row["topic"]].loads[row["segment_id"]] = rates
        for topic in sorted(topics) if "*" in ticked else sorted(ticked & topics.keys()):
            yield topic, instant, _overloads(policies, topic, topics[topic])


def _kafka_order(row: StoredRow) -> tuple[int, int]:
    return row["kafka_partition"], row["kafka_offset"]


def _apply_layout(topics: dict[str, _Topic], row: StoredRow) -> None:
    if row["cause"] == "deleted":
        topics.pop(row["subject"], None)
        return
    layout = json.loads(row["body"])["layout"]
    life, current = row["life"] or layout.get("createdAtMs") or 0, topics[row["subject"]]
    if (life, layout["epoch"]) < (current.life, current.epoch):
        return
    active = frozenset(active_ranges(layout))
    loads = current.loads if life == current.life or not current.life else {}
    topics[row["subject"]] = _Topic(life, layout["epoch"], active, layout.get("autoScalePolicy"), loads)


def _overloads(policies: PoliciesOnRecord, topic: str, current: _Topic) -> dict[int, float]:
    """Return rate / threshold of each active segment over a split threshold: the largest of its four."""
    if (policy := policies.of(topic, current.own_policy)) is None:
        return {}
    ratios = {
        segment: max(rate / limit for rate, limit in zip(rates, policy.split_thresholds, strict=True))
        for segment, rates in current.loads.items()
        if segment in current.active
    }
    return {segment: overload for segment, overload in ratios.items() if overload > 1}
