"""Random streams through the job's own engine in which topics are deleted and created again, and what the engine knew.

Announcements say the incarnation that they are of, or do not, or some topics' do. Layouts and consumers of incarnations
that have ended are announced late. Announcers may take over from each other; then those replaced announce late what
they knew, with the present time. After every batch the engine's state is written down: the oracle of the views.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from deltalake import write_deltalake

from anabranch.executor.autoscale.decision import read_segment_decision
from anabranch.executor.autoscale.judge import describe
from decisions.topic.layout import SegmentLayout
from lake.tables import create_lake
from schemas.tables.arrow import to_arrow
from schemas.tables.rows import OUTCOMES
from tests.engine.records import consumers, layout, of_life, outcome, sent_by, stats, tick
from tests.engine.test_replay import RecordedBucket
from tests.query.views.recorded import TABLES

START = int(datetime(2026, 11, 22, 20, 0, tzinfo=timezone.utc).timestamp() * 1000)
MINUTE = 60_000
TOPICS = [
    f"topic://acme/anew/{name}" for name in ("orders", "q\"uote's", "back\\slash", "漢字", "percent%20%d", "plain")
]
SUBSCRIPTIONS = ("billing", "sub 'q\"\\", "漢")


@dataclass
class Known:
    """State of the engine after a batch, by topic."""

    at: datetime
    layouts: dict[str, tuple[int, frozenset[int]]]
    """Epoch and active segments."""
    loads: dict[tuple[str, int], float]
    """`msgRateIn` by topic and active segment."""
    waiting: dict[tuple[str, str], tuple[str, int]]
    """Type of the subscription, and consumers without a segment."""
    held: dict[str, str]
    """Binding gate."""


@dataclass
class Applied:
    """An action that was carried out, with the incarnation that it was carried out on."""

    decision_id: str
    topic: str
    incarnation: int
    action: str
    segments: frozenset[int]
    children: frozenset[int]
    at: datetime


@dataclass
class Incarnations:
    """What happens to the topics, minute after minute; `says_life` tells whether a topic's announcements say it."""

    seed: int
    says_life: str
    """`all`, `none` or `some` of the topics."""
    silent: float = 0.0
    """Share of the deletions that nobody announces, with a new topic at once; of topics that say their incarnation."""
    is_dated_late: bool = False
    """Late announcements are dated when they are made, after the deletion."""
    sender: int | None = None
    """Number of the first announcer; another one takes over every 20 minutes. None: announcements do not say it."""
    minutes: int = 80
    bucket: RecordedBucket = field(default_factory=RecordedBucket)
    layouts: dict[str, SegmentLayout] = field(default_factory=dict)
    known: list[Known] = field(default_factory=list)
    applied: list[Applied] = field(default_factory=list)
    outcomes: list[dict[str, Any]] = field(default_factory=list)
    late: int = 0
    """Announcements of incarnations that had ended, and of announcers that had been replaced."""

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._incarnation = dict.fromkeys(TOPICS, 0)
        self._created: dict[str, int | None] = {}
        self._said: dict[str, list[tuple[int, SegmentLayout, int | None]]] = {}
        self._former: list[tuple[str, int, SegmentLayout | None, int | None, int | None]] = []
        self._pending: list[dict[str, Any]] = []
        self._replaced: list[tuple[int, str, int | None, SegmentLayout]] = []
        self._wakes = random.Random(self.seed)

    def run(self) -> Incarnations:
        """All of it."""
        self._batch(START, [self._create(topic, START) for topic in TOPICS])
        for minute in range(1, self.minutes):
            now = START + minute * MINUTE
            said_again = self._take_over(now - 30_000) if self.sender is not None and minute % 20 == 0 else []
            self._batch(now - 30_000, [*said_again, *self._carry_out(now - 30_000), *self._events(now - 30_000)])
            self._batch(now, [*self._carry_out(now), *self._samples(minute, now), tick(now)])
        return self

    def write(self, lake: Path) -> str:
        """The lake in a folder, several files a table."""
        made = create_lake(lake)
        for table in TABLES:
            rows = self.bucket.table(table)
            for part in (rows.slice(0, len(rows) // 3), rows.slice(len(rows) // 3)):
                write_deltalake(made[table.name], part, mode="append")
        write_deltalake(made[OUTCOMES.name], to_arrow(OUTCOMES, self.outcomes), mode="append")
        return str(lake)

    def _batch(self, now: int, records: list[Any]) -> None:
        if not records:
            return
        self._pending += self.bucket.batch(now, *records).decisions
        topics, table = self.bucket.live()
        there = {name: topic for name, topic in topics.topics.items() if topic.known is not None}
        self.known.append(
            Known(
                instant(now),
                {name: (topic.known.epoch, topic.active_ids) for name, topic in there.items()},
                {
                    (name, number): load.rates[0]
                    for name, topic in there.items()
                    for number, load in table.loads_of(name).items()
                    if number in topic.active_ids
                },
                {
                    (name, subscription): (kind, count - len(topic.active_ids))
                    for name, topic in there.items()
                    for subscription, (kind, count) in topic.consumers.items()
                    if kind != "QUEUE" and count > len(topic.active_ids)
                },
                {name: topic.hold_gate for name, topic in there.items() if topic.hold_gate is not None},
            )
        )

    def _create(self, topic: str, at: int) -> Any:
        is_said = {"all": True, "none": False, "some": TOPICS.index(topic) % 2 == 0}[self.says_life]
        self.layouts[topic] = SegmentLayout.create(self._random.choice([1, 2, 3]), at)
        self._created[topic] = at if is_said else None
        self._incarnation[topic] += 1
        self._said[topic] = []
        return self._announce(topic, "created", at)

    def _announce(self, topic: str, cause: str, at: int) -> Any:
        self._said[topic].append((at, self.layouts[topic], self.sender))
        return self._of(self._created[topic], layout(self.layouts[topic], cause, at=at, topic=topic))

    def _of(self, created: int | None, announced: Any, sender: int | None = None) -> Any:
        sender = self.sender if sender is None else sender
        announced = announced if sender is None else sent_by(sender, announced)
        return announced if created is None else of_life(created, announced)

    def _events(self, now: int) -> list[Any]:
        found = []
        for topic in TOPICS:
            chance = self._random.random()
            if topic not in self.layouts:
                if chance < 0.3:
                    found.append(self._create(topic, now - 1_000))
            elif chance < 0.04:
                found += self._delete(topic, now)
            elif chance < 0.16:
                kind = self._random.choice(["STREAM", "STREAM", "CHECKPOINT", "QUEUE"])
                event = self._random.choice(["registered", "registered", "unregistered", "deleted"])
                number = 0 if event == "deleted" else self._random.randint(0, 9)
                told = consumers(
                    number, now - 5, topic=topic, sub=self._random.choice(SUBSCRIPTIONS), kind=kind, event=event
                )
                found.append(self._of(self._created[topic], told))
            elif chance < 0.2 and len(self.layouts[topic].active) < 12:
                at = now - 2_000
                segment = self._random.choice(self.layouts[topic].active).segment_id
                self.layouts[topic] = self.layouts[topic].split_segment(segment, at)
                found.append(self._announce(topic, "split", at))
        if self._former and self._random.random() < 0.5:
            found.append(self._late(now))
        if self._replaced and self._wakes.random() < 0.5:
            found.append(self._wake_up(now))
        return found

    def _take_over(self, now: int) -> list[Any]:
        """The next announcer says all layouts first."""
        assert self.sender is not None
        self._replaced += [(self.sender, topic, self._created[topic], known) for topic, known in self.layouts.items()]
        self.sender += 1
        return [self._announce(topic, "snapshot", now) for topic in self.layouts]

    def _wake_up(self, now: int) -> Any:
        """A layout, a deletion or a count of consumers by an announcer that another one has replaced."""
        self.late += 1
        sender, topic, created, known = self._wakes.choice(self._replaced)
        kind = self._wakes.choice(["snapshot", "deleted", "consumers"])
        if kind == "consumers":
            return self._of(created, consumers(9, now, topic=topic, sub=self._wakes.choice(SUBSCRIPTIONS)), sender)
        return self._of(created, layout(known, kind, at=now, topic=topic), sender)

    def _delete(self, topic: str, now: int) -> list[Any]:
        is_silent = self._created[topic] is not None and self.silent > 0 and self._random.random() < self.silent
        deleted = [self._of(self._created[topic], layout(self.layouts[topic], "deleted", at=now, topic=topic))]
        self._former += [(topic, at, said, self._created[topic], sender) for at, said, sender in self._said[topic]]
        if is_silent:
            return [self._create(topic, now - 500)]
        self._former.append((topic, now, None, self._created[topic], self.sender))
        del self.layouts[topic]
        # Sometimes at once again, in the same batch.
        return [*deleted, self._create(topic, now + 1)] if self._random.random() < 0.5 else deleted

    def _late(self, now: int) -> Any:
        """A layout, a deletion or a count of consumers of an incarnation that has ended."""
        self.late += 1
        topic, at, said, created, sender = self._random.choice(self._former)
        at = now if self.is_dated_late else at
        if said is None:
            late = layout(SegmentLayout.create(1, at), "deleted", at=at, topic=topic)
        elif self._random.random() < 0.3:
            late = consumers(9, at, topic=topic, sub=self._random.choice(SUBSCRIPTIONS))
        else:
            late = layout(said, "snapshot", at=at, topic=topic)
        return self._of(created, late, sender)

    def _samples(self, minute: int, now: int) -> list[Any]:
        found = []
        for topic, known in self.layouts.items():
            place = TOPICS.index(topic)
            rate = 35_000.0 if (minute + 7 * place) % (15 + 3 * place) < 6 else 40.0
            rates = {
                one.segment_id: rate * one.width / 65_536 * self._random.uniform(0.8, 1.2)
                for one in known.active
                if self._random.random() < 0.95
            }
            if rates:
                found.append(stats(rates, now - 200, topic))
        return found

    def _carry_out(self, now: int) -> list[Any]:
        """What an executor does with the decisions of the batches before: of another incarnation nothing."""
        pending, self._pending = self._pending, []
        return [one for row in pending for one in self._carry_out_one(row, now)]

    def _carry_out_one(self, row: dict[str, Any], now: int) -> list[Any]:
        topic, segments = row["subject"], json.loads(row["arguments"])["segments"]
        before, at = self.layouts.get(topic), now - 500
        is_right = before is not None and all(
            number in before.segments and before.segments[number].is_active for number in segments
        )
        if before is None or not is_right:
            self._step(row, "superseded", at, before)
            return [outcome(row["decision_id"], "superseded", at, topic)]
        if row["action"] == "split":
            after = before.split_segment(segments[0], at)
        else:
            after = before.merge_segments(*segments, at)
        self.layouts[topic] = after
        self._step(row, "intent", at - 100, before)
        self._step(row, "applied", at, after)
        children = frozenset(after.segments[segments[0]].child_ids)
        self.applied.append(
            Applied(
                row["decision_id"],
                topic,
                self._incarnation[topic],
                row["action"],
                frozenset(segments),
                children,
                instant(at),
            )
        )
        return [self._announce(topic, row["action"], at), outcome(row["decision_id"], "applied", at, topic)]

    def _step(self, row: dict[str, Any], status: str, at: int, seen: SegmentLayout | None) -> None:
        described = describe(read_segment_decision(row), seen)
        self.outcomes.append(
            {
                "decision_id": row["decision_id"],
                "family": "autoscale",
                "subject": row["subject"],
                "status": status,
                "attempt": int(status == "applied"),
                "at": instant(at),
                "layout_epoch": None if seen is None else seen.epoch,
                "seen": json.dumps(described, separators=(",", ":")),
                "error": None,
                "executor": "e1",
                "mode": "act",
                "day": instant(at).date(),
            }
        )


def instant(at: int) -> datetime:
    """Milliseconds since 1970 as an instant."""
    return datetime.fromtimestamp(at / 1000, timezone.utc)
