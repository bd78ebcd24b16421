"""Numbers above the topics: overload, open decisions and their reasons, actions, what needs a person.

Pure.

Everything is of what the caller may see; whoever is bound to namespaces is told nothing of processes.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from anabranch.history.attention import Attention, Conditions, attention
from anabranch.history.picture import BrakesView, DecisionView
from anabranch.history.words import span
from anabranch.web.rows import PageFreshness, TopicRow
from lake.tail import StoredRow

HOUR: Final = timedelta(hours=1)
SHOWN_GATES: Final = 3
LINKS: Final = {
    "job": "/operations",
    "executor": "/operations",
    "decision": "/?only=stuck",
    "approval": "/?only=waiting",
    "alert": "/operations",
}
"""The page that a condition leads to."""


@dataclass(frozen=True)
class FleetSummary:
    """Numbers of the fleet."""

    topics: int
    segments: int
    load: float
    """Loads of all segments added up: so many segments at their split threshold would carry it."""
    unseen: int
    """Topics without any load on record."""
    over: int
    """Topics over their split threshold."""
    worst: TopicRow | None
    """The fullest of them."""
    over_seconds: float | None
    """Of the one that has been over it for longest, at least; None: not known, or none is."""
    short: int
    """Consumers without a segment of their own."""
    open: int
    """Topics with an open decision."""
    waiting: Sequence[tuple[str, int]]
    """Of these, those that wait, by brake."""
    stuck: int
    held: int
    gates: Sequence[tuple[str, int]]
    """Topics held by gate, the most frequent first."""
    hour: Sequence[tuple[str, int]]
    """Decisions of the last hour by action and end, the most frequent first."""
    is_hour_whole: bool
    """The known decisions reach back an hour."""
    needs: Sequence[Attention]
    """What needs a person."""


def summarize(
    rows: Sequence[TopicRow],
    decisions: Sequence[DecisionView],
    needs: Sequence[Attention],
    now: datetime,
    is_hour_whole: bool = True,
) -> FleetSummary:
    """Return the numbers of these topics and decisions.

    `needs`: what needs a person beside topics. `is_hour_whole`: no decision of the last hour is missing.
    """
    hot = [row for row in rows if row.is_hot]
    over_from = min((row.hot_from for row in hot if row.hot_from is not None), default=None)
    recent = [decision for decision in decisions if now - decision.decided_at <= HOUR]
    hour = Counter((decision.action, decision.status or "not begun") for decision in recent)
    gates = Counter(row.gate for row in rows if row.gate)
    return FleetSummary(
        topics=len(rows),
        segments=sum(row.segments for row in rows),
        load=sum(row.load_sum for row in rows),
        unseen=sum(row.load is None for row in rows),
        over=len(hot),
        worst=max(hot, key=lambda row: row.load or 0.0, default=None),
        over_seconds=None if over_from is None else max(0.0, (now - over_from).total_seconds()),
        short=sum(row.short for row in rows),
        open=sum(row.is_open for row in rows),
        waiting=Counter(row.waiting for row in rows if row.waiting).most_common(),
        stuck=sum(row.is_stuck(now) for row in rows),
        held=gates.total(),
        gates=gates.most_common(SHOWN_GATES),
        hour=[(f"{action}{'' if count == 1 else 's'} {end}", count) for (action, end), count in hour.most_common()],
        is_hour_whole=is_hour_whole,
        needs=[*needs, *_needs_of_topics(rows, now)],
    )


def needs_of_processes(freshness: PageFreshness, brakes: BrakesView, alerts: Sequence[StoredRow]) -> list[Attention]:
    """Return what needs a person among processes and alerts; nothing before the record was read once."""
    if freshness.is_reading:
        return []
    conditions = Conditions(
        has_run=freshness.batch_at is not None,
        silent_seconds=freshness.silent_seconds,
        is_acted=any(executor.shards and not executor.is_silent for executor in brakes.executors),
        stop=brakes.stop.reason if brakes.stop else None,
        stuck_seconds=None,
        approvals=0,
        firing=tuple(alert["alert"] for alert in alerts if alert["status"] == "firing"),
    )
    return attention(conditions)


def _needs_of_topics(rows: Sequence[TopicRow], now: datetime) -> list[Attention]:
    stuck = [row for row in rows if row.is_stuck(now)]
    approvals = sum(row.waiting == "approval" for row in rows)
    needs = []
    if stuck:
        oldest = max((now - row.stuck_from).total_seconds() for row in stuck if row.stuck_from is not None)
        count = "1 topic is" if len(stuck) == 1 else f"{len(stuck)} topics are"
        needs.append(Attention("decision", f"{count} stuck, the first for {span(oldest)}"))
    if approvals:
        count = "1 decision waits" if approvals == 1 else f"{approvals} decisions wait"
        needs.append(Attention("approval", f"{count} for approval"))
    return needs
