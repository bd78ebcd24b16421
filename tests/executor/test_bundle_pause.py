"""A cluster whose executor is paused or down for ten minutes: what it applies afterwards makes no broker fuller.

Real are the job's cycles, the lake, the executor with its safeguards and its actor; the cluster is in memory.
"""

from __future__ import annotations

import json
import random
from datetime import datetime, timedelta, timezone
from itertools import product
from typing import Any

import pytest

from anabranch.admin.answers import Response
from anabranch.executor.bundles.actor import BundlesActor
from anabranch.executor.bundles.decision import SplitBundle, Unload
from schemas.kafka.messages import EXPIRED
from tests.engine.balancers import MINUTE, NOW, ended, report
from tests.engine.records import record, tick
from tests.engine.test_bundle_moves import NAMES, Fleet, at_once
from tests.examples import only_first
from tests.executor import bundle_orders, orders
from tests.executor.conftest import House
from tests.safeguards.test_brakes import say
from tests.waiting import wait_until

LIMITS = {"decision_max_age_seconds": 300, "waiting_max_age_seconds": 3600}
PAUSE_MINUTES = 10
BASE = f"/admin/v2/brokers/{bundle_orders.CLUSTER}"


class Noisy(Fleet):
    """A fleet with a load that varies from minute to minute, and the admin interface of its brokers."""

    def __init__(self, profile: str, seed: int) -> None:
        super().__init__(profile)
        self._random = random.Random(seed)

    def decide(self, number: int, *told: Any) -> list[dict[str, Any]]:
        """Return the unloads of a minute's cycle."""
        at, reports = NOW + number * MINUTE, []
        for name in NAMES:
            factor = self._random.uniform(0.88, 1.12)
            mine = {bundle: load * factor for bundle, load in self.loads.items() if self.owner[bundle] == name}
            reports.append(report(name, mine, at, cpu=sum(mine.values()) / 160 * 90))
        rows = self.bucket.batch(at + 1, *told, *reports, tick(number)).decisions
        return [row for row in rows if row["action"] == "unload"]

    def beside(self, broker: str) -> Noisy:
        """Return the interface of one broker: all have the same settings."""
        return self

    def exchange(self, method: str, path: str, query: Any = None, body: Any = None, headers: Any = None) -> Response:
        """Answer as brokers do."""
        if method == "PUT":
            self.owner["/".join(path.split("/")[-4:-1])] = query["destinationBroker"]
            return Response(204, "", b"", path)
        answers: dict[str, Any] = {
            "/admin/v2/brokers/configuration/runtime": {
                "clusterName": bundle_orders.CLUSTER,
                "loadBalancerSheddingEnabled": "false",
            },
            "/admin/v2/namespaces/acme/shop/bundles": {
                "boundaries": sorted({edge for name in self.owner for edge in name.rpartition("/")[2].split("_")})
            },
            "/admin/v2/brokers": NAMES,
        }
        for broker in NAMES:
            owned = {name: {"is_active": True} for name, owner in self.owner.items() if owner == broker}
            answers[f"{BASE}/{broker}/ownedNamespaces"] = owned
        return Response(200, "", json.dumps(answers[path]).encode(), path)


class Later:
    """A clock in the job's time, which the test moves."""

    def __init__(self) -> None:
        self.now = datetime.fromtimestamp(NOW / 1000, timezone.utc)

    def __call__(self) -> datetime:
        return self.now


def committed(house: House, rows: list[dict[str, Any]], number: int) -> None:
    """Commit the decisions of a minute."""
    at = datetime.fromtimestamp((NOW + number * MINUTE) / 1000, timezone.utc)
    fields = ("decision_id", "action", "arguments", "family")
    chosen = [{name: row[name] for name in fields} for row in rows]
    changed = {"subject": bundle_orders.CLUSTER, "decided_at": at, "day": at.date()}
    orders.commit(house.lake, [bundle_orders.of_columns(row | changed) for row in chosen])


def told(row: dict[str, Any], ends: list[dict[str, Any]]) -> Any:
    """Return what the executor says about the end of a decision."""
    [end] = [end for end in ends if end["decision_id"] == row["decision_id"]]
    body = json.loads(ended(row, end["status"]).value)
    body |= {"at": NOW + PAUSE_MINUTES * MINUTE} | ({"error": end["error"]} if end["error"] else {})
    return record("control-events", row["subject"], body)


def settle(fleet: Noisy, first: int, outcomes: list[Any]) -> None:
    """Decide for a quarter of an hour; an executor without delay carries all out."""
    for number in range(first, first + 15):
        rows = fleet.decide(number, *outcomes)
        fleet.make(rows)
        outcomes = [at_once(row, number) for row in rows]


@pytest.mark.parametrize(("profile", "is_down"), only_first(1, product(["default", "5.0", "4.x"], [True, False])))
def test_nothing_moves_to_hot_broker_after_pause(house: House, profile: str, is_down: bool):
    fleet, clock, rows = Noisy(profile, 1), Later(), list[dict[str, Any]]()
    before = fleet.highest()
    for number in range(PAUSE_MINUTES):
        decided = fleet.decide(number)
        committed(house, decided, number)
        rows += decided
    clock.now += timedelta(minutes=PAUSE_MINUTES)
    if not is_down:
        say(house, "executor", "pause", "all")
    with house.running(clock, actors={"bundles": BundlesActor(fleet)}, **LIMITS):
        if not is_down:
            say(house, "executor", "resume", "all")
        ends = wait_until(lambda: len(house.ends()) == len(rows) and house.ends(), 30)
    assert fleet.highest() <= before
    refused = [end for end in ends if end["status"] == "superseded"]
    assert refused
    assert all(end["error"].startswith(EXPIRED) for end in refused)
    # Told how all ended, the job decides again, and the cluster becomes as balanced as one without a pause.
    undisturbed = Noisy(profile, 1)
    settle(undisturbed, 0, [])
    settle(fleet, PAUSE_MINUTES + 1, [told(row, ends) for row in rows])
    assert fleet.highest() <= 1.1 * undisturbed.highest()


def test_move_rests_on_those_that_fill_its_source():
    move = Unload("b", "bundles", "test", "a/b/0x0_0x1", "one:1", "two:1")
    fills = Unload("a", "bundles", "test", "a/b/0x1_0x2", "three:1", "one:1")
    relieves = Unload("a", "bundles", "test", "a/b/0x1_0x2", "two:1", "three:1")
    beside = Unload("a", "bundles", "test", "a/b/0x1_0x2", "one:1", "two:1")
    assert move.rests_on(fills)
    assert move.rests_on(relieves)
    assert not move.rests_on(beside)
    assert not move.rests_on(SplitBundle("a", "bundles", "test", "a/b/0x1_0x2", ()))
