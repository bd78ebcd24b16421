"""State of all topics at an instant, as values: segments, loads, holds, decisions, brakes, rates.

Stage: output of `anabranch.history.live`, input of the terminal's screen and the page. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise

from lake.brakes import SafeguardAct
from lake.tail import StoredRow

RATE_SECONDS = 10.0
"""Time over which rates are averaged."""
LATE_SECONDS = 15.0
"""Shortest time after which a job counts as late."""
PACE_BATCHES = 20
"""Number of newest batches that determine the pace of the job."""
UNKNOWN_PACE_SECONDS = 60.0
"""Time without a batch after which a job of unknown pace is late."""


@dataclass(frozen=True)
class SegmentView:
    """Active segment: its inclusive hash range and its last accepted load."""

    id: int
    start: int
    end: int
    rates: tuple[float, float, float, float] | None
    """The four rates per second in the order of `RATES`; None = no load record yet."""
    overload: float | None
    """Largest ratio of a rate to its split threshold; above 1 it is to be split. None if either is unknown."""
    is_cold: bool
    """All four rates are below the merge thresholds."""


@dataclass(frozen=True)
class HoldView:
    """Binding gate of a topic that does not act, with measurement, limit and start."""

    gate: str
    measured: float | None
    limit: float | None
    eligible_at: datetime | None
    since: datetime


@dataclass(frozen=True)
class TopicView:
    """Current state of one scalable topic."""

    name: str
    epoch: int
    segments: tuple[SegmentView, ...]
    """Active segments by hash start."""
    consumers: tuple[tuple[str, str, int], ...]
    """Subscription, its type, and its connected consumers, by name."""
    hold: HoldView | None
    """None while a decision is open, or before the first evaluation."""
    open_decision: str | None
    """`split 3` or `merge 4+5` while that decision has no outcome yet."""
    brake: str | None = None
    """Brake that holds that decision (`schemas.tables.rows.WaitRow.brake`); None: nothing."""
    last: "DecisionView | None" = None
    """Its newest decision; None: none was seen."""
    unheard_since: datetime | None = None
    """End of the last decision, while the job still holds the topic for it; None: it does not."""
    loaded_at: datetime | None = None
    """Time at which its newest load was accepted; None: none was seen."""


@dataclass(frozen=True)
class DecisionView:
    """Decision and the end of its application."""

    decision_id: str
    topic: str
    action: str
    segments: tuple[int, ...]
    reason: str
    trigger: str
    decided_at: datetime
    status: str | None
    """Newest outcome: intent, applied, superseded, rejected, failed or observed; None = not begun."""
    status_at: datetime | None
    error: str | None
    brake: str | None = None
    """Brake that holds it (`schemas.tables.rows.WaitRow.brake`); None: nothing."""


@dataclass(frozen=True)
class ExecutorView:
    """Executor in the register."""

    name: str
    shards: tuple[int, ...]
    """Shards that it acts on; none: it stands by."""
    of: int
    """Number of all shards."""
    is_silent: bool
    """Its heartbeat is overdue: others take over."""
    beat_at: datetime | None = field(default=None, compare=False)
    """Its newest heartbeat; not compared, so it alone is no change."""


@dataclass(frozen=True)
class BrakesView:
    """Registered executors, and the brakes on them."""

    executors: tuple[ExecutorView, ...] = ()
    stop: SafeguardAct | None = None
    pauses: tuple[SafeguardAct, ...] = ()
    waiting: Mapping[str, int] = field(default_factory=dict)
    """Number of waiting decisions, by brake."""


@dataclass(frozen=True)
class Rates:
    """Activity of the job in the last ten seconds, per second; `batch_ms`: mean time from batch to commit."""

    messages: float = 0.0
    samples: float = 0.0
    accepted_share: float | None = None
    """Significant samples as a part of all samples; None when there were none."""
    events: float = 0.0
    batch_ms: float | None = None


@dataclass(frozen=True)
class LakeView:
    """Everything that the screen draws, as of `now`."""

    now: datetime
    topics: tuple[TopicView, ...] = ()
    decisions: tuple[DecisionView, ...] = ()
    """Newest first."""
    actions: Mapping[str, int] = field(default_factory=dict)
    """Applied actions seen so far by what led to them: `split:consumer-count`, `split:load`, `merge`."""
    dead_letters: Mapping[str, int] = field(default_factory=dict)
    """Number of dead letters by reason, as far back as the tail reads."""
    rates: Rates = Rates()
    brakes: BrakesView = BrakesView()


def recent_rates(batches: Iterable[StoredRow], now: datetime, seconds: float = RATE_SECONDS) -> Rates:
    """Return the rates of the batches committed in the last `seconds` before `now`."""
    recent = [row for row in batches if 0 <= (now - row["committed_at"]).total_seconds() <= seconds]
    if not recent:
        return Rates()
    samples = sum(row["samples"] for row in recent)
    return Rates(
        messages=sum(row["messages"] for row in recent) / seconds,
        samples=samples / seconds,
        accepted_share=sum(row["samples_accepted"] for row in recent) / samples if samples else None,
        events=sum(row["events"] for row in recent) / seconds,
        batch_ms=sum((row["committed_at"] - row["batch_at"]).total_seconds() for row in recent) * 1000 / len(recent),
    )


def late_seconds(committed: Sequence[datetime]) -> float:
    """Return the time without a batch after which a job is late, by its newest batches, oldest first.

    It is one and a half times the second-longest pause between them: an idle job commits only at its ticks, and the
    longest pause may be an outage.
    """
    pauses = sorted((later - earlier).total_seconds() for earlier, later in pairwise(committed[-PACE_BATCHES:]))
    return UNKNOWN_PACE_SECONDS if len(pauses) < 3 else max(LATE_SECONDS, 1.5 * pauses[-2])
