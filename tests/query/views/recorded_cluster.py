"""A small lake of three hours that the job's own engine made of a cluster with bundles.

Twelve bundles on two brokers, each with its own waves; after an hour a third broker joins. Moves are applied as an
executor does it, two seconds later, but for one that ends elsewhere and one that fails.
"""

from __future__ import annotations

import json
import math
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

from deltalake import write_deltalake

from lake.tables import create_lake
from schemas.tables.arrow import to_arrow
from schemas.tables.rows import BATCHES, DEAD_LETTERS, DECISIONS, EVENTS, HOLDS, OUTCOMES, SEGMENT_LOAD
from tests.engine.balancers import BOTH, EVENLY, bundle, live, policies, record, report
from tests.engine.records import tick
from tests.engine.test_replay import RecordedBucket

START = int(datetime(2026, 11, 22, 12, 0, tzinfo=timezone.utc).timestamp() * 1000)
MINUTES, BUNDLES, JOINS = 180, 12, 60
BROKERS = [f"broker-{number}:8080" for number in (1, 2, 3)]
ELSEWHERE, FAILS = 2, 5
"""Numbers of the decisions that do not end as they should."""
TABLES = (EVENTS, SEGMENT_LOAD, DECISIONS, HOLDS, DEAD_LETTERS, BATCHES)


def demand(number: int, minute: int) -> float:
    """MiB a second into a bundle."""
    if number == 0:
        # Hot for twenty minutes in forty: what was moved away for it comes back.
        return 60.0 if minute % 40 < 20 else 2.0
    return 8.0 + 6.0 * math.sin(2 * math.pi * minute / 90 + number)


class ClusterStory:
    """What happens, minute after minute."""

    def __init__(self) -> None:
        self.bucket = RecordedBucket(families=BOTH)
        self.owners = {bundle(number): BROKERS[number % 2] for number in range(BUNDLES)}
        self.outcomes: list[dict[str, Any]] = []

    def run(self) -> ClusterStory:
        """All of it."""
        settings = {
            EVENLY: False,
            "loadBalancerSheddingGracePeriodMinutes": 10,
            "loadBalancerBrokerThresholdShedderPercentage": 10,
        }
        self.bucket.batch(START, policies(START, settings))
        for minute in range(1, MINUTES):
            now, there = START + minute * 60_000, BROKERS[: 3 if minute >= JOINS else 2]
            reports = []
            for broker in there:
                own = {
                    name: demand(number, minute)
                    for number, name in enumerate(self.owners)
                    if self.owners[name] == broker
                }
                reports.append(report(broker, own, now - 10_000, cpu=4 + sum(own.values()) * 0.7))
            if minute == 100:
                reports.append(record("broker-load", "west", b"{"))
            decided = self.bucket.batch(now, live(now - 10_000, *there), *reports, tick(now)).decisions
            if told := [one for row in decided for one in self._applied(row, now)]:
                self.bucket.batch(now + 2_000, *told)
        return self

    def _applied(self, row: dict[str, Any], now: int) -> list[Any]:
        arguments = json.loads(row["arguments"])
        name, status, error = arguments["bundle"], "applied", None
        owner = arguments.get("destinationBroker") or arguments["sourceBroker"]
        if row["seq"] == ELSEWHERE:
            owner, status = arguments["sourceBroker"], "superseded"
            error = f"the bundle is at {owner}, not at the destination"
        if row["seq"] == FAILS:
            owner, status, error = arguments["sourceBroker"], "failed", "503 from the broker"
        for number, (step, at, who) in enumerate(
            (("intent", now + 400, arguments["sourceBroker"]), (status, now + 1_500, owner))
        ):
            when = datetime.fromtimestamp(at / 1000, timezone.utc)
            self.outcomes.append(
                {
                    "decision_id": row["decision_id"],
                    "family": "bundles",
                    "subject": "west",
                    "status": step,
                    "attempt": number,
                    "at": when,
                    "layout_epoch": None,
                    "seen": json.dumps({"bundles": [name], "cluster": "west", "owner": who}, separators=(",", ":")),
                    "error": None if step == "intent" else error,
                    "executor": "e1",
                    "mode": "act",
                    "day": when.date(),
                }
            )
        self.owners[name] = owner
        body = {
            "v": 1,
            "type": "outcome",
            "family": "bundles",
            "topic": "west",
            "status": status,
            "at": now + 1_500,
            "decisionId": row["decision_id"],
        }
        return [record("control-events", "west", body)]

    def write(self, lake: Path) -> str:
        """The lake in a folder; all tables are made."""
        made = create_lake(lake)
        for table in TABLES:
            write_deltalake(made[table.name], self.bucket.table(table), mode="append")
        write_deltalake(made[OUTCOMES.name], to_arrow(OUTCOMES, self.outcomes), mode="append")
        return str(lake)


@cache
def recorded_cluster() -> ClusterStory:
    """Return the story, told once in a process."""
    return ClusterStory().run()
