"""Live view of the fleet from the tables: topics, segments, load, consumers, holds, newest decisions.

Stage: the read end of the whole system; the screen of the local run draws it. Every table is tailed by version, so a
refresh costs milliseconds regardless of the history. There is a single source: layouts and consumers come from the
`events` table and not from the controller, so the view survives an outage of the controller.
Longer than other modules because all tables change the same topics.
"""

import json
import logging
import re
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from anabranch.history.picture import (
    BrakesView,
    DecisionView,
    ExecutorView,
    HoldView,
    LakeView,
    SegmentView,
    TopicView,
    recent_rates,
)
from anabranch.query.policies import PoliciesOnRecord
from anabranch.query.wording import action_kind, decision_segments, segments_text
from anabranch.simulation.shadow.lives import LifeOf, NameLives
from decisions.autoscale.policy import Policy, ResolvedPolicy
from decisions.autoscale.rates import Rates as SegmentRates
from decisions.autoscale.rates import is_cold, segment_overload
from decisions.topic.segment import Segment
from engine.autoscale.topics import REMEMBERED_MS
from lake.brakes import BrakeReader
from lake.register import EXECUTORS, read_register
from lake.rows import active_ranges
from lake.tables import stream_columns
from lake.tail import BACKLOG_VERSIONS, StoredRow, Tail
from schemas.tables.rows import BATCHES, DEAD_LETTERS, DECISIONS, EVENTS, HOLDS, OUTCOMES, SEGMENT_LOAD, WAITS

log = logging.getLogger(__name__)

EXECUTORS_SECONDS = 3.0
"""Between two looks at the register of executors."""
MAX_DECISIONS = 200
"""The newest decisions that are kept."""
_CREATED_AT = re.compile(r'"createdAtMs" *: *([0-9]+)')


@dataclass
class _Topic:
    epoch: int = 0
    ranges: dict[int, tuple[int, int]] = field(default_factory=dict)
    loads: dict[int, tuple[float, float, float, float]] = field(default_factory=dict)
    loaded_at: datetime | None = None
    """When its newest load was accepted."""
    consumers: dict[str, tuple[str, int]] = field(default_factory=dict)
    hold: HoldView | None = None
    own_policy: Mapping[str, Any] | None = None
    newest: StoredRow | None = None
    """Its newest decision, and"""
    outcome: StoredRow | None = None
    """the newest outcome of that."""


News = dict[str, list[StoredRow]]
"""New rows by table."""

_COLUMNS = {
    EVENTS.name: ("subject", "type", "cause", "body", "accepted_at", "kafka_offset"),
    SEGMENT_LOAD.name: (
        "topic",
        "segment_id",
        "msg_rate_in",
        "bytes_rate_in",
        "msg_rate_out",
        "bytes_rate_out",
        "accepted_at",
    ),
    DECISIONS.name: ("decision_id", "subject", "action", "arguments", "reason", "trigger", "decided_at"),
    HOLDS.name: ("subject", "gate", "measured", "limit", "eligible_at", "since"),
    OUTCOMES.name: ("decision_id", "subject", "status", "at", "error"),
    DEAD_LETTERS.name: ("reason",),
}
"""Columns that are read where not all are: the inputs of a decision alone are kilobytes."""


class LakeReader:
    """Reader that keeps a `LakeView` up to date.

    Not thread-safe: one thread at a time calls it; the views are immutable. For a large fleet, `take` returns the
    topics that have changed, and `topic` the view of one.
    """

    def __init__(self, lake: str, backlog: int = BACKLOG_VERSIONS) -> None:
        """`backlog`: versions of each table to read at first."""
        self._lake, self._backlog = lake, backlog
        self._has_older = False
        self._tails = {
            table.name: Tail(lake, table, _COLUMNS.get(table.name, ()), backlog=backlog)
            for table in (EVENTS, SEGMENT_LOAD, DECISIONS, HOLDS, OUTCOMES, WAITS, DEAD_LETTERS, BATCHES)
        }
        self._brakes = BrakeReader(lake)
        self._executors: list[StoredRow] = []
        self._executors_at = float("-inf")
        self._waits: dict[str, StoredRow] = {}
        self._topics: dict[str, _Topic] = {}
        self._lives: dict[str, NameLives] = {}
        self._ended_at: dict[str, datetime] = {}
        """When the end of a name's former incarnation was accepted, oldest first; forgotten as by the job."""
        self._policies = PoliciesOnRecord()
        self._decisions: dict[str, StoredRow] = {}
        self._outcomes: dict[str, StoredRow] = {}
        self._applied: set[str] = set()
        self._actions: Counter[str] = Counter()
        self._dead_letters: Counter[str] = Counter()
        self._batches: deque[StoredRow] = deque(maxlen=600)
        self._changed: set[str] = set()
        self.trouble: str | None = None
        """Last error while reading a table; None: all could be read."""

    def refresh(self, now: datetime | None = None) -> LakeView:
        """Read new rows and return the view as of `now` (default: the wall clock)."""
        self.take()
        return self._view(now or datetime.now(timezone.utc))

    def read(self) -> News:
        """Read new rows without changing the state that other methods return. May take long."""
        self.trouble = None
        new = {name: self._news(tail) for name, tail in self._tails.items()}
        self._read_brakes()
        self._read_executors()
        return {**new, EVENTS.name: [*self._older_events(), *new[EVENTS.name]]}

    def take(self, new: News | None = None) -> set[str]:
        """Apply new rows (None: read them first); return the topics whose view may have changed."""
        new = self.read() if new is None else new
        self._changed = set()
        for row in new[EVENTS.name]:
            self._take_event(row)
        if any(row["type"] == "policy" for row in new[EVENTS.name]):
            self._changed.update(self._topics)
        for row in new[SEGMENT_LOAD.name]:
            if self._is_of_former(row["topic"], row["accepted_at"]):
                continue
            topic = self._topic(row["topic"])
            topic.loaded_at = row["accepted_at"]
            topic.loads[row["segment_id"]] = (
                row["msg_rate_in"],
                row["bytes_rate_in"],
                row["msg_rate_out"],
                row["bytes_rate_out"],
            )
        # Of the two tables the one with the later instant has the last word on whether a topic holds.
        for row in sorted(new[DECISIONS.name] + new[HOLDS.name], key=lambda row: row.get("decided_at") or row["since"]):
            self._take_decision_or_hold(row)
        for row in new[WAITS.name]:
            self._waits[row["decision_id"]] = row
            self._changed.add(row["subject"])
        for row in new[OUTCOMES.name]:
            self._take_outcome(row)
        self._dead_letters.update(row["reason"] for row in new[DEAD_LETTERS.name])
        self._batches.extend(new[BATCHES.name])
        return self._changed

    def topic(self, name: str) -> TopicView | None:
        """Return the view of a topic; None: there is none of that name."""
        topic = self._topics.get(name)
        return None if topic is None or not topic.ranges else self._topic_view(name, topic)

    def policy(self, name: str) -> ResolvedPolicy | None:
        """Return a topic's policy with each value's source; None: the job has not announced its own."""
        topic = self._topics.get(name)
        return self._policies.resolved(name, topic.own_policy if topic else None)

    def whole(self, now: datetime) -> LakeView:
        """Return the view as of `now` without the topics."""
        return self._view(now, with_topics=False)

    @property
    def batches(self) -> tuple[StoredRow, ...]:
        """Return the newest batches of the job, in the order of their commits."""
        return tuple(self._batches)

    @property
    def applied(self) -> int:
        """Return how many actions were applied, as far as this reader has seen; it only grows."""
        return self._actions.total()

    def _older_events(self) -> list[StoredRow]:
        """Return the layout, consumer and policy events that matter from before the tail, oldest first.

        State that has not changed since is recorded only once, however long ago. Of each part of a subject these are
        the newest event and the one of the latest incarnation: a late announcement of an earlier one may be the newest.
        Empty if the tail covers the whole table, or after the first call.
        """
        if self._has_older or not (versions := self._tails[EVENTS.name].position):
            return []
        self._has_older = True
        if versions <= self._backlog:
            return []
        newest: dict[tuple[str, str], StoredRow] = {}
        latest: dict[tuple[str, str], StoredRow] = {}
        columns = (*_COLUMNS[EVENTS.name], "at", "in_columns", "life", "epoch")
        is_of_topic = pc.is_in(pc.field("type"), pa.array(["layout", "consumer", "policy"]))
        try:
            for rows in stream_columns(self._lake, EVENTS, columns, 1024, is_of_topic):
                for row in rows.to_pylist():
                    key = row["subject"], _part(row)
                    if key not in newest or _age(newest[key]) < _age(row):
                        newest[key] = row
                    if key not in latest or _incarnation(latest[key]) < _incarnation(row):
                        latest[key] = row
        except (DeltaError, OSError) as error:
            log.debug("events cannot be read, trying again: %s", error)
            self._has_older = False
            return []
        return sorted({id(row): row for rows in (newest, latest) for row in rows.values()}.values(), key=_age)

    def _news(self, tail: Tail) -> list[StoredRow]:
        """Return new rows; empty if the table cannot be read at the moment: the next call returns them."""
        try:
            return tail.read()
        except (DeltaError, OSError) as error:
            log.debug("a table cannot be read, trying again: %s", error)
            self.trouble = str(error).partition("\n")[0]
            return []

    def _topic(self, name: str) -> _Topic:
        self._changed.add(name)
        return self._topics.setdefault(name, _Topic())

    def _take_event(self, row: StoredRow) -> None:
        if row["type"] == "policy":
            self._policies.take(row["body"])
        if row["type"] not in ("layout", "consumer"):
            return
        name, body = row["subject"], json.loads(row["body"])
        layout, created_at = body.get("layout") or {}, body.get("topicCreatedAt")
        lives = self._lives.setdefault(name, NameLives())
        # Where announcements name their incarnation, segments are not needed to tell it.
        segments = {} if created_at is not None else _births(layout)
        if row["type"] == "consumer":
            life = lives.follow_consumers(created_at, body["at"])
        elif body["cause"] == "deleted":
            if lives.follow_deletion(segments, created_at, body["at"]):
                self._end_incarnation(name, row["accepted_at"])
            return
        else:
            life = lives.follow_layout(segments, created_at, body["at"])
        if life is LifeOf.EARLIER:
            return
        if life is LifeOf.LATER:
            self._end_incarnation(name, row["accepted_at"])
        topic = self._topic(name)
        if row["type"] == "consumer":
            if body["event"] == "deleted":
                topic.consumers.pop(body["subscription"], None)
            else:
                topic.consumers[body["subscription"]] = (body["type"], body["consumers"])
        elif not topic.ranges or topic.epoch <= layout["epoch"]:
            topic.epoch = layout["epoch"]
            topic.own_policy, topic.ranges = layout.get("autoScalePolicy"), active_ranges(layout)
            topic.loads = {segment: load for segment, load in topic.loads.items() if segment in topic.ranges}

    def _end_incarnation(self, name: str, accepted_at: datetime) -> None:
        """Remove a topic that was deleted, or created again; remember that for as long as the job does."""
        self._changed.add(name)
        self._topics.pop(name, None)
        self._ended_at.pop(name, None)
        self._ended_at[name] = accepted_at
        oldest = accepted_at - timedelta(milliseconds=REMEMBERED_MS)
        while self._ended_at[former := next(iter(self._ended_at))] < oldest:
            del self._ended_at[former]
            if former not in self._topics:
                self._lives.pop(former, None)

    def _is_of_former(self, name: str, instant: datetime) -> bool:
        """Return whether a row is of an ended incarnation; those of the ending batch are of the next."""
        ended_at = self._ended_at.get(name)
        return ended_at is not None and (instant < ended_at or (instant == ended_at and name not in self._topics))

    def _take_decision_or_hold(self, row: StoredRow) -> None:
        is_of_former = self._is_of_former(row["subject"], row.get("decided_at") or row["since"])
        topic = _Topic() if is_of_former else self._topic(row["subject"])
        if "decision_id" in row:
            topic.hold, topic.newest, topic.outcome = None, row, None
            self._decisions[row["decision_id"]] = row
            while len(self._decisions) > MAX_DECISIONS:
                oldest = next(iter(self._decisions))
                del self._decisions[oldest]
                self._outcomes.pop(oldest, None)
                self._applied.discard(oldest)
        else:
            topic.hold = HoldView(
                gate=row["gate"],
                measured=row["measured"],
                limit=row["limit"],
                eligible_at=row["eligible_at"],
                since=row["since"],
            )

    def _read_brakes(self) -> None:
        try:
            self._brakes.read()
        except (DeltaError, OSError) as error:
            log.debug("brakes cannot be read, trying again: %s", error)

    def _take_outcome(self, row: StoredRow) -> None:
        identity = row["decision_id"]
        if identity in self._waits and (row["status"] != "intent" or self._waits[identity]["at"] <= row["at"]):
            del self._waits[identity]
        topic = self._topics.get(row["subject"])
        if topic is not None and topic.newest is not None and topic.newest["decision_id"] == identity:
            topic.outcome = row
            self._changed.add(row["subject"])
        if identity not in self._decisions:
            return
        self._outcomes[identity] = row
        if row["status"] == "applied" and identity not in self._applied:
            self._applied.add(identity)
            self._actions[action_kind(self._decisions[identity])] += 1

    def _view(self, now: datetime, with_topics: bool = True) -> LakeView:
        topics = sorted(self._topics.items()) if with_topics else []
        return LakeView(
            now=now,
            topics=tuple(self._topic_view(name, topic) for name, topic in topics if topic.ranges),
            decisions=tuple(
                self._decision_view(row, self._outcomes.get(row["decision_id"]))
                for row in reversed(self._decisions.values())
            ),
            actions=dict(self._actions),
            dead_letters=dict(self._dead_letters.most_common()),
            rates=recent_rates(self._batches, now),
            brakes=BrakesView(
                executors=tuple(_executor_view(row, now) for row in self._executors),
                stop=self._brakes.acts.stop,
                pauses=tuple(self._brakes.acts.paused(now)),
                waiting=dict(Counter(row["brake"] for row in self._waits.values()).most_common()),
            ),
        )

    @property
    def around(self) -> tuple[int, int]:
        """Return a fingerprint of the state outside the tailed tables: brakes and registered executors."""
        now = datetime.now(timezone.utc)
        return self._brakes.acts.number, hash(tuple(_executor_view(row, now) for row in self._executors))

    def _read_executors(self) -> None:
        """Read the register at intervals; if it cannot be read, the previous rows stay."""
        if time.monotonic() - self._executors_at < EXECUTORS_SECONDS:
            return
        self._executors_at = time.monotonic()
        try:
            self._executors = sorted(read_register(self._lake, EXECUTORS), key=lambda row: row["since"])
        except (DeltaError, OSError) as error:
            log.warning("the register of executors cannot be read: %s", error)

    def _brake(self, decision_id: str) -> str | None:
        return self._waits[decision_id]["brake"] if decision_id in self._waits else None

    def _topic_view(self, name: str, topic: _Topic) -> TopicView:
        policy = self._policies.of(name, topic.own_policy)
        is_over = topic.outcome is not None and topic.outcome["status"] != "intent"
        newest = None if is_over else topic.newest
        holds_for_it = topic.hold is not None and topic.hold.gate == "in-flight"
        return TopicView(
            name=name,
            epoch=topic.epoch,
            segments=tuple(
                SegmentView(
                    id=segment,
                    start=start,
                    end=end,
                    rates=topic.loads.get(segment),
                    overload=_overload(topic.loads.get(segment), policy),
                    is_cold=_is_cold(topic.loads.get(segment), policy),
                )
                for segment, (start, end) in topic.ranges.items()
            ),
            consumers=tuple((sub, kind, count) for sub, (kind, count) in sorted(topic.consumers.items())),
            # The job notes that a decision is open, but not that it no longer is: the outcome says so.
            hold=None if holds_for_it and not newest else topic.hold,
            open_decision=f"{newest['action']} {segments_text(decision_segments(newest))}" if newest else None,
            brake=self._brake(newest["decision_id"]) if newest else None,
            last=self._decision_view(topic.newest, topic.outcome) if topic.newest else None,
            unheard_since=topic.outcome["at"] if holds_for_it and is_over and topic.outcome else None,
            loaded_at=topic.loaded_at,
        )

    def _decision_view(self, row: StoredRow, outcome: StoredRow | None) -> DecisionView:
        outcome = outcome or {}
        return DecisionView(
            decision_id=row["decision_id"],
            topic=row["subject"],
            action=row["action"],
            segments=decision_segments(row),
            reason=row["reason"],
            trigger=row["trigger"],
            decided_at=row["decided_at"],
            status=outcome.get("status"),
            status_at=outcome.get("at"),
            error=outcome.get("error"),
            brake=self._brake(row["decision_id"]),
        )


def _part(event: StoredRow) -> str:
    """Return the part of its subject that an event replaces: each event states that part in full."""
    if event["type"] == "layout":
        return "deleted" if event["cause"] == "deleted" else ""
    body = json.loads(event["body"])
    if event["type"] == "consumer":
        return str(body["subscription"])
    return f"{body['scope']} {body.get('name')} {body.get('profile') is None}"


def _age(event: StoredRow) -> tuple[datetime, int]:
    return event["accepted_at"], event["kafka_offset"]


def _incarnation(event: StoredRow) -> tuple[int, int, datetime, float]:
    """Return a key that orders the events of one part of a subject by incarnation and epoch.

    An incarnation begins when its announcements say, else with the oldest segment of its layout (0: not known).
    """
    in_columns, body = event["in_columns"], event["body"]
    begins = [event["life"] if in_columns else json.loads(body).get("topicCreatedAt")]
    if begins == [None] and event["type"] == "layout":
        begins = [int(digits) for digits in _CREATED_AT.findall(body)]
    life = min((begin for begin in begins if begin), default=0)
    return life, (event["epoch"] if life and in_columns else None) or 0, event["at"], -event["accepted_at"].timestamp()


def _births(layout: Mapping[str, Any]) -> dict[int, Segment]:
    """Return by id what tells a segment from one of another incarnation: hash range and creation time."""
    return {
        segment["segmentId"]: Segment(
            segment["segmentId"],
            segment["hashRange"]["start"],
            segment["hashRange"]["end"],
            created_at_ms=segment.get("createdAtMs", 0),
        )
        for segment in layout.get("segments", {}).values()
    }


def _overload(rates: SegmentRates | None, policy: Policy | None) -> float | None:
    return None if rates is None or policy is None else segment_overload(rates, policy)[0]


def _is_cold(rates: SegmentRates | None, policy: Policy | None) -> bool:
    return rates is not None and policy is not None and is_cold(rates, policy)


def _executor_view(row: StoredRow, now: datetime) -> ExecutorView:
    beat_at = row["beat_at"]
    is_silent = beat_at is not None and (now - beat_at).total_seconds() > row["seconds"]
    return ExecutorView(row["executor"], tuple(row["held"]), row["shards"], is_silent, beat_at)
