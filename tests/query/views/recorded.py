"""A small lake of four hours that the job's own engine made: topics that split, merge, flap, and wait for consumers.

Decisions are applied as the controller and the executor do it, two seconds later, but for those that fail here.
"""

from __future__ import annotations

import json
import math
from datetime import datetime, timedelta, timezone
from functools import cache
from pathlib import Path
from typing import Any

from deltalake import write_deltalake

from anabranch.executor.autoscale.decision import read_segment_decision
from anabranch.executor.autoscale.judge import describe
from decisions.topic.layout import SegmentLayout
from lake.brakes import ALL, BrakeLog, SafeguardAct
from lake.tables import create_lake
from schemas.tables.arrow import to_arrow
from schemas.tables.rows import BATCHES, DEAD_LETTERS, DECISIONS, EVENTS, HOLDS, OUTCOMES, SEGMENT_LOAD
from tests.engine.buckets import FORMER
from tests.engine.records import consumers, layout, outcome, record, stats, tick
from tests.engine.test_replay import RecordedBucket

START = int(datetime(2026, 11, 22, 10, 0, tzinfo=timezone.utc).timestamp() * 1000)
MINUTES = 200
ORDERS, CLICKS, AUDIT, GONE = (f"topic://acme/shop/{name}" for name in ("orders", "clicks", "audit", "gone"))
TABLES = (EVENTS, SEGMENT_LOAD, DECISIONS, HOLDS, DEAD_LETTERS, BATCHES)


def demand(topic: str, minute: int) -> float:
    """Messages a second into a topic."""
    if topic == ORDERS:
        return 42_000.0 if 60 <= minute < 160 else 4_000.0 + 500 * math.sin(minute / 7)
    if topic == CLICKS:
        # Hot for a quarter of an hour, cold for three: what it splits it merges again.
        return 30_000.0 if minute % 60 < 15 else 50.0
    return 20.0


class Story:
    """What happens, minute after minute; `lake` is where it is written."""

    def __init__(self) -> None:
        self.bucket = RecordedBucket(configured=FORMER)
        self.layouts: dict[str, SegmentLayout] = {}
        self.outcomes: list[dict[str, Any]] = []
        self.decided: list[dict[str, Any]] = []

    def run(self) -> Story:
        """All of it."""
        begun = []
        for topic, segments in ((ORDERS, 2), (CLICKS, 1), (AUDIT, 4), (GONE, 1)):
            self.layouts[topic] = SegmentLayout.create(segments, START)
            begun.append(layout(self.layouts[topic], at=START, topic=topic))
        self._batch(START, *begun, record("consumer-events", ORDERS, b"{"))
        for minute in range(1, MINUTES):
            now = START + minute * 60_000
            if happened := self._events(minute, now - 20_000):
                self._batch(now - 20_000, *happened)
            self._batch(now, *self._samples(minute, now - 10_000), tick(now))
        return self

    def _events(self, minute: int, at: int) -> list[Any]:
        found = []
        if minute in (30, 90, 150):
            found.append(consumers(minute // 30 * 2, at, topic=ORDERS, sub="billing"))
        if minute == 100:
            found.append(consumers(9, at, topic=AUDIT, sub="export", kind="CHECKPOINT"))
        if minute == 110:
            found.append(consumers(90, at, topic=AUDIT, sub="fan-out", kind="QUEUE"))
        if minute == 180:
            found.append(consumers(0, at, topic=AUDIT, sub="export", kind="CHECKPOINT", event="unregistered"))
        if minute == 120:
            found.append(layout(self.layouts.pop(GONE), "deleted", at=at, topic=GONE))
        return found

    def _samples(self, minute: int, at: int) -> list[Any]:
        found = []
        for topic, known in self.layouts.items():
            rates = {one.segment_id: demand(topic, minute) * one.width / 65_536 for one in known.active}
            found.append(stats(rates, at, topic))
        return found

    def _batch(self, now: int, *records: Any) -> None:
        decided = self.bucket.batch(now, *records).decisions
        told = [one for row in decided for one in self._applied(row, now)]
        if told:
            self._batch(now + 2_000, *told)

    def _applied(self, row: dict[str, Any], now: int) -> list[Any]:
        self.decided.append(row)
        topic, before = row["subject"], self.layouts[row["subject"]]
        segments = json.loads(row["arguments"])["segments"]
        fails = topic == AUDIT and row["seq"] == 2
        if fails:
            after, status = before, "failed"
        elif row["action"] == "split":
            after, status = before.split_segment(segments[0], now + 1_500), "applied"
        else:
            after, status = before.merge_segments(*segments, now + 1_500), "applied"
        decision = read_segment_decision(row)
        for number, (step, at, seen) in enumerate((("intent", now + 400, before), (status, now + 1_500, after))):
            when = datetime.fromtimestamp(at / 1000, timezone.utc)
            self.outcomes.append(
                {
                    "decision_id": row["decision_id"],
                    "family": "autoscale",
                    "subject": topic,
                    "status": step,
                    "attempt": number,
                    "at": when,
                    "layout_epoch": seen.epoch,
                    "seen": json.dumps(describe(decision, seen), separators=(",", ":")),
                    "error": "503 from the broker" if step == "failed" else None,
                    "executor": "e1",
                    "mode": "act",
                    "day": when.date(),
                }
            )
        said = [outcome(row["decision_id"], status, now + 1_500, topic)]
        if not fails:
            self.layouts[topic] = after
            said.insert(0, layout(after, row["action"], at=now + 1_500, topic=topic))
        return said

    def write(self, lake: Path) -> str:
        """The lake in a folder; all tables are made."""
        made = create_lake(lake)
        for table in TABLES:
            write_deltalake(made[table.name], self.bucket.table(table), mode="append")
        write_deltalake(made[OUTCOMES.name], to_arrow(OUTCOMES, self.outcomes), mode="append")
        BrakeLog(str(lake)).write(lambda _: self.acts())
        return str(lake)

    def acts(self) -> list[SafeguardAct]:
        """What people did about the executor, and the executor itself, a minute apart."""
        failed = next(row["decision_id"] for row in self.outcomes if row["status"] == "failed")
        done = [
            ("pause", "acme/shop", 1),
            ("pause", ALL, 0),
            ("stop", ALL, 0),
            ("resume", ALL, 0),
            ("pause", ORDERS, 0),
            ("pause", ORDERS, 0),
            ("pause", CLICKS, 600_000),
            ("resume", CLICKS, 0),
            ("approve", AUDIT, 0),
            ("pause", GONE, 50_000_000),
            ("reject", ORDERS, 0),
        ]
        ids = {8: failed, 10: "not-ended"}
        begun = datetime.fromtimestamp(START / 1000, timezone.utc)
        return [
            SafeguardAct(
                kind,
                subject,
                "a reason",
                "ann",
                begun + timedelta(minutes=place),
                decision_id=ids.get(place),
                until=begun + timedelta(minutes=place + length) if length else None,
            )  # type: ignore[arg-type]
            for place, (kind, subject, length) in enumerate(done)
        ]


@cache
def recorded_story() -> Story:
    """Return the story, told once in a process."""
    return Story().run()
