"""Bundles of one cluster: one that does not settle holds up no other, nor stops the fleet."""

from __future__ import annotations

import json
from datetime import timedelta

from anabranch.admin.answers import Lost, NotConnected, Response
from anabranch.executor.bundles.actor import BundlesActor
from schemas.kafka.messages import EXPIRED
from tests.executor import bundle_orders, orders
from tests.executor.conftest import Clock, House
from tests.safeguards.test_brakes import say, waits
from tests.waiting import wait_until

AGES = {"decision_max_age_seconds": 300, "waiting_max_age_seconds": 3600, "give_up_seconds": 3600}
A, B = "127.0.0.1:18081", "127.0.0.1:18082"
RANGES = [f"0x{one}0000000_0x{one + 1}0000000" for one in range(8)]


class Unowned:
    """A cluster whose first bundle nobody serves after its unload; the others go where they are to."""

    def __init__(self) -> None:
        self.owners = {f"load/ns/{one}": A for one in RANGES}

    def beside(self, broker):
        return self

    def exchange(self, method, path, query=None, body=None, headers=None):
        if method == "PUT":
            name = "/".join(path.split("/")[-4:-1])
            self.owners[name] = query["destinationBroker"] if RANGES[0] not in path else ""
            return Response(204, "", b"", path)
        edges = [one.partition("_")[0] for one in RANGES] + ["0x80000000"]
        answers = {
            "/admin/v2/brokers/configuration/runtime": {"clusterName": "test", "loadBalancerSheddingEnabled": "false"},
            "/admin/v2/namespaces/load/ns/bundles": {"boundaries": edges},
            "/admin/v2/brokers": [A, B],
        } | {
            f"/admin/v2/brokers/test/{broker}/ownedNamespaces": {
                name: {"is_active": True} for name, owner in self.owners.items() if owner == broker
            }
            for broker in (A, B)
        }
        return Response(200, "", json.dumps(answers[path]).encode(), path)


def test_unserved_bundle_blocks_no_other(house: House):
    cluster = Unowned()
    rows = [bundle_orders.unload(f"move-{place}", f"load/ns/{one}", A, B) for place, one in enumerate(RANGES)]
    with house.running(actors={"bundles": BundlesActor(cluster)}):
        orders.commit(house.lake, rows)
        wait_until(lambda: len(house.ends()) == len(RANGES) - 1, 20)
        assert {end["decision_id"]: end["status"] for end in house.ends()} == {
            row.decision_id: "applied" for row in rows[1:]
        }
    assert set(cluster.owners.values()) == {"", B}


class Silent(Unowned):
    """A cluster with a broker whose settings nobody can read."""

    def beside(self, broker):
        return self if broker == A else Away()


class Away:
    """No connection."""

    def exchange(self, method, path, query=None, body=None, headers=None):
        return NotConnected(method, "refused")


def test_broker_outage_ends_decisions_without_a_failure(house: House):
    cluster, clock = Silent(), Clock()
    rows = [bundle_orders.unload(f"move-{place}", f"load/ns/{one}", A, B) for place, one in enumerate(RANGES)]
    with house.running(clock, actors={"bundles": BundlesActor(cluster)}, give_up_seconds=300) as executor:
        orders.commit(house.lake, rows)
        wait_until(lambda: len({row["decision_id"] for row in house.outcomes() if row["error"]}) == len(RANGES))
        assert house.ends() == []
        clock.now += timedelta(seconds=301)
        wait_until(lambda: len(house.ends()) == len(RANGES))
        assert executor.brakes.standing().failures == 0
    assert {end["status"] for end in house.ends()} == {"superseded"}
    assert all(end["error"].startswith(f"{EXPIRED}given up after 301 s: own-balancer") for end in house.ends())
    assert set(cluster.owners.values()) == {A}


def test_begun_move_expires_with_the_move_it_rests_on(house: House):
    """The second was to relieve the broker that the first was to fill; nobody has been called for either."""
    cluster, clock, rows = Silent(), Clock(), []
    cluster.owners[f"load/ns/{RANGES[1]}"] = B
    with house.running(clock, actors={"bundles": BundlesActor(cluster)}, give_up_seconds=300):
        for number, (source, destination) in enumerate([(A, B), (B, A)]):
            clock.now += timedelta(seconds=150 * number)
            row = bundle_orders.unload(f"move-{number}", f"load/ns/{RANGES[number]}", source, destination)
            rows.append(row.model_copy(update={"decided_at": clock.now}))
            orders.commit(house.lake, rows[-1:])
            wait_until(lambda: rows[-1].decision_id in {row["decision_id"] for row in house.outcomes() if row["error"]})
        clock.now += timedelta(seconds=151)
        wait_until(lambda: len(house.ends()) == 2)
    first, second = sorted(house.ends(), key=lambda end: end["decision_id"])
    assert first["error"].startswith(f"{EXPIRED}given up after 301 s")
    assert second["error"].startswith(f"{EXPIRED}it rests on unload load/ns/{RANGES[0]}")
    assert cluster.owners[f"load/ns/{RANGES[1]}"] == B


class Deaf(Unowned):
    """A cluster that loses every call; while `is_away`, it answers nothing."""

    def __init__(self):
        super().__init__()
        self.calls, self.is_away = 0, False

    def exchange(self, method, path, query=None, body=None, headers=None):
        self.calls += method == "PUT"
        if self.is_away or method == "PUT":
            return Lost(method, "reset", True) if method == "PUT" else NotConnected(method, "refused")
        return super().exchange(method, path, query, body, headers)


def test_silent_controller_url_expires_decisions(house: House):
    cluster, clock = Deaf(), Clock()
    cluster.is_away = True
    rows = [bundle_orders.unload(f"move-{place}", f"load/ns/{one}", A, B) for place, one in enumerate(RANGES)]
    with house.running(clock, actors={"bundles": BundlesActor(cluster)}, give_up_seconds=300) as executor:
        orders.commit(house.lake, rows)
        wait_until(lambda: len({row["decision_id"] for row in house.outcomes() if row["error"]}) == len(RANGES))
        clock.now += timedelta(seconds=301)
        wait_until(lambda: len(house.ends()) == len(RANGES))
        assert executor.brakes.standing().failures == 0
    assert all(end["error"].startswith(f"{EXPIRED}given up after 301 s") for end in house.ends())
    assert cluster.calls == 0


def test_sent_call_is_not_repeated_after_its_age_limit(house: House):
    cluster, clock = Deaf(), Clock()
    row = bundle_orders.unload("move", f"load/ns/{RANGES[1]}", A, B).model_copy(update={"decided_at": clock.now})
    with house.running(clock, actors={"bundles": BundlesActor(cluster)}, **AGES) as executor:
        orders.commit(house.lake, [row])
        wait_until(lambda: cluster.calls)
        say(house, "executor", "pause", "all")
        wait_until(lambda: waits(house))
        clock.now += timedelta(seconds=301)
        calls = cluster.calls
        say(house, "executor", "resume", "all")
        [end] = wait_until(house.ends)
        assert executor.brakes.standing().failures == 0
    assert (end["status"], end["error"][: len(EXPIRED)]) == ("superseded", EXPIRED)
    assert end["error"].endswith("(a call was sent, its outcome is unknown)")
    assert cluster.calls == calls


def test_old_intent_without_a_call_expires_after_a_restart(house: House):
    cluster, clock = Deaf(), Clock()
    cluster.is_away = True
    row = bundle_orders.unload("move", f"load/ns/{RANGES[1]}", A, B).model_copy(update={"decided_at": clock.now})
    with house.running(clock, actors={"bundles": BundlesActor(cluster)}, **AGES):
        orders.commit(house.lake, [row])
        wait_until(lambda: [step for step in house.outcomes() if step["error"]])
    cluster.is_away = False
    clock.now += timedelta(seconds=301)
    with house.running(clock, actors={"bundles": BundlesActor(cluster)}, **AGES):
        [end] = wait_until(house.ends)
    assert (end["status"], end["error"][: len(EXPIRED)]) == ("superseded", EXPIRED)
    assert end["error"].endswith("(a call may have been sent, its outcome is unknown)")
    assert cluster.calls == 0
