"""Moves that are decided and not made yet: they count, so that a pause of the executor empties no broker."""

from __future__ import annotations

import json

import pytest

from engine.bundles.clusters import ClusterState, OpenBundleDecision
from engine.bundles.codec import pack, unpack
from engine.bundles.cycle import run_cycle, snapshot_of
from engine.kernel.packed import StoredPart
from tests.engine.balancers import (
    MINUTE,
    NOW,
    balancing,
    bundle,
    clusters_of,
    ended,
    extensible,
    live,
    policies,
    report,
)
from tests.engine.records import record, tick
from tests.examples import only_first

NAMES = [f"broker-{number}:8080" for number in range(5)]
HOT = {bundle(number): 4.0 for number in range(40)}


class Fleet:
    """Five brokers, one of them with most of the load, and a bucket that balances them."""

    def __init__(self, profile, configuration=None):
        self.bucket, self.owner = balancing(), {}
        self.loads = dict(HOT)
        for place, name in enumerate(NAMES):
            mine = HOT if place == 0 else {bundle(100 + place * 10 + one): 1.0 for one in range(10)}
            self.loads |= mine
            self.owner |= dict.fromkeys(mine, name)
        self.bucket.batch(NOW, policies(NOW, configuration, profile=profile), live(NOW, *NAMES))

    def minute(self, number, *told):
        """The decisions of a minute's cycle, after all brokers have reported."""
        at = NOW + number * MINUTE
        reports = []
        for name in NAMES:
            mine = self.stats(name)
            reports.append(report(name, mine, at, cpu=sum(mine.values()) / 160 * 90))
        return self.bucket.batch(at + 1, *told, *reports, tick(number)).decisions

    def stats(self, name):
        """The load of a broker's bundles."""
        return {one: load for one, load in self.loads.items() if self.owner[one] == name}

    def make(self, rows):
        """Carries moves out as the executor does: where the source still has the bundle."""
        for row in rows:
            move = json.loads(row["arguments"])
            if row["action"] == "unload" and self.owner[move["bundle"]] == move["sourceBroker"]:
                self.owner[move["bundle"]] = move["destinationBroker"]

    def highest(self):
        return max(sum(load for one, load in self.loads.items() if self.owner[one] == name) for name in NAMES)


def at_once(row, minute):
    body = json.loads(ended(row).value) | {"at": NOW + minute * MINUTE + 2}
    return record("control-events", row["subject"], body)


@pytest.mark.parametrize("profile", only_first(2, ["default", "5.0", "4.x"]))
def test_a_pause_ends_as_balanced_as_none(profile):
    steady, paused, last, waiting = Fleet(profile), Fleet(profile), [], []
    for number in range(12):
        last = steady.minute(number, *(at_once(row, number - 1) for row in last))
        steady.make(last)
        waiting += paused.minute(number)
    paused.make(waiting)
    assert paused.highest() <= steady.highest() * 1.1
    assert len({json.loads(row["arguments"])["bundle"] for row in waiting}) == len(waiting)


def test_an_expired_move_is_decided_again():
    fleet = Fleet("4.x")
    rows = fleet.minute(0)
    told = [json.loads(ended(row, "superseded").value) | {"error": "expired: decided 412 s ago"} for row in rows]
    again = fleet.minute(1, *(record("control-events", "west", one) for one in told))
    assert {row["arguments"] for row in again} & {row["arguments"] for row in rows}


@pytest.mark.parametrize("status", ["failed", "superseded"])
def test_bundle_that_waits_is_not_counted_as_moved(status):
    """Its unload was not made: a cycle that picked it again would fit other moves to it."""
    fleet, rows, number = Fleet("default"), [], 0
    while not rows:
        rows, number = fleet.minute(number), number + 1
    fleet.minute(number, *(ended(row, status) for row in rows))
    (state,) = clusters_of(fleet.bucket.packed).values()
    waiting = {json.loads(row["arguments"])["bundle"] for row in rows}
    assert waiting <= state.open.keys()
    assert not waiting & state.memory.gain_shedder.moves.keys()
    assert not waiting & state.memory.recently_unloaded_bundles.keys()


@pytest.mark.parametrize("profile", ["default", "4.x"])
def test_bundle_that_waits_beyond_its_grace_is_not_picked(profile):
    """Four minutes of grace and no outcome, as in a pause: what is to go to one broker gets hot."""
    fleet, moves, picked = Fleet(profile, {"loadBalancerSheddingGracePeriodMinutes": 4}), [], set()
    for number in range(18):
        if number == 6:
            fleet.loads |= {move["bundle"]: 20.0 for move in moves if move["destinationBroker"] == NAMES[1]}
        moves += [json.loads(row["arguments"]) for row in fleet.minute(number)]
        (state,) = clusters_of(fleet.bucket.packed).values()
        waiting = set(state.open)
        cycle = run_cycle(state, NOW + (number + 1) * MINUTE)
        picked |= waiting & {decision.bundle for decision in cycle.shedding.decisions}
    assert waiting
    assert not picked


def projected_stats(state, broker):
    return snapshot_of(state, NOW + MINUTE, "shed").brokers[broker].last_stats


@pytest.mark.parametrize(
    ("status", "counts"), [("applied", True), ("observed", True), ("failed", False), ("superseded", False)]
)
def test_a_move_counts_until_reports_show_it(status, counts):
    fleet = Fleet("4.x")
    row = fleet.minute(0)[0]
    move = json.loads(row["arguments"])
    fleet.bucket.batch(NOW + 2, ended(row, status))
    (state,) = clusters_of(fleet.bucket.packed).values()
    assert (move["bundle"] in projected_stats(state, move["destinationBroker"])) is counts
    assert (move["bundle"] not in projected_stats(state, move["sourceBroker"])) is counts
    fleet.make([row])
    fleet.minute(16)
    (state,) = clusters_of(fleet.bucket.packed).values()
    assert (move["bundle"] in state.moves) is (status == "observed")
    assert pack(unpack(StoredPart(pack({"west": state})))) == pack({"west": state})


@pytest.mark.parametrize("load", [None, 0.0, 1.0], ids=["absent", "idle", "low"])
def test_move_counts_until_its_load_is_reported(load):
    """A broker that has just loaded topics reports little of them until it updates its statistics."""
    fleet = Fleet("4.x")
    row = fleet.minute(0)[0]
    move = json.loads(row["arguments"])
    moved, destination = move["bundle"], move["destinationBroker"]
    mine = {bundle: 1.0 for bundle, owner in fleet.owner.items() if owner == destination}
    mine |= {} if load is None else {moved: load}
    told, seen = [at_once(row, 0)], list[float | None]()
    for at in (NOW + MINUTE // 2, NOW + MINUTE // 2 + MINUTE):
        fleet.bucket.batch(at, *told, report(destination, mine, at, forced=True), tick(at))
        (state,) = clusters_of(fleet.bucket.packed).values()
        stats = projected_stats(state, destination).get(moved)
        seen.append(stats and stats.msg_rate_in)
    assert seen == [400.0, None if load is None else 100 * load]


def test_reported_load_of_open_move_is_not_replaced():
    """As in a shadow, where another balancer made the same move, or before the outcome has come."""
    fleet = Fleet("4.x")
    row = fleet.minute(0)[0]
    move = json.loads(row["arguments"])
    destination, at = move["destinationBroker"], NOW + MINUTE // 2
    told = report(destination, fleet.stats(destination) | {move["bundle"]: 3.0}, at, cpu=33, forced=True)
    fleet.bucket.batch(at, told, tick(1))
    (state,) = clusters_of(fleet.bucket.packed).values()
    assert move["bundle"] in state.moves
    assert projected_stats(state, destination)[move["bundle"]].msg_rate_in == 300.0
    assert move["bundle"] not in projected_stats(state, move["sourceBroker"])


def test_source_of_another_move_stays_unloaded():
    """One of its moves was not made: the other one still counts as an unload of the broker."""
    bundles, state = (bundle(0), bundle(1)), ClusterState("west")
    for name in bundles:
        state.open_decision(name, OpenBundleDecision(name, "unload", NOW), NAMES[0], NAMES[1])
    memory = {"recently_unloaded_bundles": dict.fromkeys(bundles, NOW), "recently_unloaded_brokers": {NAMES[0]: NOW}}
    state.memory = state.memory.model_copy(update=memory)
    left = []
    for name in bundles:
        state.cancel_move(name)
        left.append((state.memory.recently_unloaded_bundles, state.memory.recently_unloaded_brokers))
    assert left == [({bundle(1): NOW}, {NAMES[0]: NOW}), ({}, {})]


class Lagging(Fleet):
    """A fleet whose brokers report topics that they have just loaded without traffic, or not at all."""

    def __init__(self, profile, early_load):
        super().__init__(profile)
        self._early_load, self._fresh = early_load, set()

    def stats(self, name):
        return {
            bundle: self._early_load if bundle in self._fresh else load
            for bundle, load in super().stats(name).items()
            if bundle not in self._fresh or self._early_load is not None
        }

    def make(self, rows):
        before = dict(self.owner)
        super().make(rows)
        self._fresh = {bundle for bundle, owner in self.owner.items() if before[bundle] != owner}


def decide_with_delay(fleet):
    """Decide for a quarter of an hour; every decision is applied in the second minute after it."""
    waiting, decided = [[]], []
    for number in range(16):
        due = waiting.pop(0)
        fleet.make(due)
        rows = fleet.minute(number, *(at_once(row, number - 1) for row in due))
        waiting += [[]] * (1 - len(waiting)) + [rows]
        decided.append([row["arguments"] for row in rows])
    return decided


@pytest.mark.parametrize(
    ("profile", "early_load"), only_first(2, [("default", 0.0), ("5.0", None), ("default", None), ("5.0", 0.0)])
)
def test_lagging_statistics_change_no_decision(profile, early_load):
    assert decide_with_delay(Lagging(profile, early_load)) == decide_with_delay(Fleet(profile))


def test_projected_reports_keep_the_total_load():
    fleet = Fleet("4.x")
    fleet.minute(0)
    (state,) = clusters_of(fleet.bucket.packed).values()
    seen = snapshot_of(state, NOW + MINUTE, "shed").brokers
    assert len(state.moves) > 1
    assert sum(one.cpu.usage for one in seen.values()) == pytest.approx(sum(fleet.loads.values()) / 160 * 90)
    assert sorted(name for one in seen.values() for name in one.last_stats) == sorted(fleet.loads)


def test_open_moves_of_the_extensible_manager_count():
    bucket, decided = balancing(), []
    hot = {bundle(number): 20.0 for number in range(6)}
    conf = {"loadBalancerSheddingConditionHitCountThreshold": 0, "loadBalanceSheddingDelayInSeconds": 0}
    bucket.batch(NOW, live(NOW, *NAMES[:2]), policies(NOW, conf, loadManager="extensible"))
    for number in range(10):
        at = NOW + number * MINUTE
        reports = [
            extensible(NAMES[0], hot, at, usage=0.9),
            extensible(NAMES[1], {bundle(8): 1.0, bundle(9): 1.0}, at, usage=0.01),
        ]
        decided += bucket.batch(at, *reports, tick(number)).decisions
    assert 0 < len(decided) <= 4
    (state,) = clusters_of(bucket.packed).values()
    assert run_cycle(state, NOW + 11 * MINUTE).decided == ()
