"""GainShedder and LeastProjectedUsage, of profile `default`: what moves where, when, and that it comes to rest."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decisions.bundles.configuration import DEFAULTS
from schemas.bundles import BundleAnswer
from tests.decisions.bundles.clusters import NOW, answer, bundle, failing, state_of

MINUTE = 60_000
HITS = int(str(DEFAULTS["gainShedderHitCount"]))
MOVES = int(str(DEFAULTS["gainShedderMaxMovesPerCycle"]))
Owned = dict[str, dict[str, float]]
"""Broker to bundles, each with the points of CPU that it takes; a point is 1,000 messages a second."""


def owned(loads: dict[str, list[float]]) -> Owned:
    found, first = {}, 0
    for name, points in loads.items():
        found[name] = {bundle(first + place): float(one) for place, one in enumerate(points)}
        first += len(points)
    return found


def report(bundles: dict[str, float], at: int, cpu: float | None = None) -> dict[str, Any]:
    stats = {name: {"msgRateIn": points * 1000, "topics": 5} for name, points in bundles.items()}
    used = sum(bundles.values()) if cpu is None else cpu
    return {"cpu": {"usage": used, "limit": 100}, "lastStats": stats, "lastUpdate": at}


def snapshot(cluster: Owned, minute: int = 0, state: Any = None, **more: Any) -> dict[str, Any]:
    now = NOW + minute * MINUTE
    reports = {name: report(bundles, now) for name, bundles in cluster.items()}
    found = {"family": "bundles", "profile": "default", "now": now, "brokers": reports, **more}
    return found if state is None else found | {"state": state}


def extensible(cluster: Owned, minute: int = 0, **more: Any) -> dict[str, Any]:
    now, loads, top = NOW + minute * MINUTE, {}, {}
    for name, bundles in cluster.items():
        points = sum(bundles.values())
        loads[name] = {
            "cpu": {"usage": points, "limit": 100},
            "msgRateIn": points * 1000,
            "bundleCount": len(bundles),
            "updatedAt": now,
        }
        ordered = sorted(bundles.items(), key=lambda one: one[1])
        top[name] = {
            "topBundlesLoadData": [{"bundleName": one, "stats": {"msgRateIn": load * 1000}} for one, load in ordered]
        }
    return {"family": "bundles", "profile": "default", "now": now, "brokerLoadData": loads, "topBundles": top, **more}


def moves(found: BundleAnswer) -> list[tuple[str, str | None, str | None]]:
    return [(one.bundle, one.source_broker, one.destination_broker) for one in found.decisions]


def applied(cluster: Owned, found: BundleAnswer) -> Owned:
    after = {name: dict(bundles) for name, bundles in cluster.items()}
    for one in found.decisions:
        after[str(one.destination_broker)][one.bundle] = after[str(one.source_broker)].pop(one.bundle)
    return after


@pytest.mark.parametrize("made", [snapshot, extensible])
def test_idle_broker_filled_until_balanced(made):
    cluster = owned({"a": [10] * 5, "b": [10] * 5, "c": []})
    found = answer(made(cluster))
    assert found.action == "unload"
    after = applied(cluster, found)
    assert sorted(sum(one.values()) for one in after.values()) == [30, 30, 40]
    assert {one.destination_broker for one in found.decisions} == {"c"}


@pytest.mark.parametrize("made", [snapshot, extensible])
def test_distant_brokers_move_after_enough_cycles(made):
    cluster, state = owned({"a": [10] * 5, "b": [10] * 3}), None
    for minute in range(HITS - 1):
        found = answer(made(cluster, minute, **({"state": state} if state else {})))
        assert (found.action, found.gate) == ("hold", "hit-count")
        state = state_of(found)
    assert moves(answer(made(cluster, HITS, state=state))) == [(bundle(0), "a", "b")]


def test_balanced_cycle_resets_the_count():
    apart, close, state = owned({"a": [10] * 5, "b": [10] * 3}), owned({"a": [10] * 4, "b": [10] * 4}), None
    for minute, cluster in enumerate([apart] * (HITS - 1) + [close] + [apart] * (HITS - 1)):
        found = answer(snapshot(cluster, minute, state))
        assert found.action == "hold"
        state = state_of(found)


@pytest.mark.parametrize(("points", "gate"), [(10.9, "spread"), (11.1, "hit-count")])
def test_brokers_within_eleven_points_left_alone(points, gate):
    found = answer(snapshot(owned({"a": [20, 20, points], "b": [20, 20]})))
    assert (found.action, found.gate) == ("hold", gate)
    spread = next(one for one in found.readings if one.gate == "spread" and one.broker == "a")
    assert spread.measured == pytest.approx(points / 100)
    assert spread.detail == "above b"


@pytest.mark.parametrize(("points", "action"), [(84.0, "hold"), (86.0, "unload")])
def test_an_overloaded_broker_gives_at_once(points, action):
    assert answer(snapshot(owned({"a": [points / 6] * 6, "b": [10] * 4}))).action == action


def test_overloaded_broker_sheds_only_its_excess():
    """There were not enough cycles yet for a full move."""
    cluster = owned({"a": [9] * 10, "b": [10] * 4})
    assert len(answer(snapshot(cluster)).decisions) == 1
    assert len(answer(snapshot(cluster, configuration={"gainShedderHitCount": 1})).decisions) == 3


def test_chosen_move_minimizes_the_fuller_broker():
    cluster = owned({"a": [44, 30, 14, 2], "b": [40], "c": [20, 20, 10]})
    # 30 to b leaves a with 60 and b with 70; 14 to b leaves 76 and 54; to c, which is fuller, 76 and 64.
    assert moves(answer(snapshot(cluster)))[0] == (bundle(1), "a", "b")


def test_last_bundle_and_heartbeat_never_move():
    alone = {"a": {bundle(1): 90.0}, "b": {bundle(2): 10.0}}
    found = answer(snapshot(alone))
    assert (found.action, failing(found, "more-than-one-bundle")) == ("hold", [("a", None)])
    watched = {"a": {"pulsar/west/a:8080/0x00000000_0xffffffff": 45.0, bundle(1): 45.0}, "b": {bundle(2): 10.0}}
    assert [one[0] for one in moves(answer(snapshot(watched)))] == [bundle(1)]


def test_hot_bundle_stays_and_small_ones_leave():
    """It would only make another broker as hot."""
    cluster = owned({"a": [80, 3, 3, 3], "b": [10] * 3, "c": [10] * 3})
    found = answer(snapshot(cluster, configuration={"gainShedderHitCount": 1}))
    assert sorted(one[0] for one in moves(found)) == [bundle(1), bundle(2), bundle(3)]
    assert ("a", bundle(0)) in failing(found, "gain")


def test_old_reports_do_not_make_the_same_move_again():
    cluster = owned({"a": [10] * 5, "b": [10] * 5, "c": []})
    first = answer(snapshot(cluster))
    again = answer(snapshot(cluster, 0, state_of(first)) | {"now": NOW + MINUTE})
    assert again.action == "hold"
    assert again.gate == "spread"


def test_move_missing_from_new_reports_expires():
    cluster = owned({"a": [10] * 5, "b": [10] * 5, "c": []})
    state = state_of(answer(snapshot(cluster)))
    assert len(state.gain_shedder.moves) == len(state.recently_unloaded_bundles) > 0
    later = answer(snapshot(cluster, 5, state))
    assert not set(state.gain_shedder.moves) & {one.bundle for one in later.decisions}
    assert set(later.state.gain_shedder.moves) == {one.bundle for one in later.decisions} != set()


def test_noise_moves_nothing_costly_broker_relieved():
    even = owned({name: [8] * 5 for name in "abcd"})
    noisy = snapshot(even)
    noisy["brokers"]["a"] = report(even["a"], NOW, cpu=47)
    noisy["brokers"]["b"] = report(even["b"], NOW, cpu=33)
    assert answer(noisy).gate == "spread"
    dear = snapshot(even)
    dear["brokers"]["a"] = report(even["a"], NOW, cpu=88)
    assert {one[1] for one in moves(answer(dear))} == {"a"}


def test_unreported_assignment_keeps_bundle():
    assigned = {"source": None, "destination": "b", "at": NOW - MINUTE // 2, "messages": 30_000.0, "bytesIn": 0.0}
    state = {"gainShedder": {"hits": HITS, "costs": {}, "moves": {bundle(0): assigned}}}
    found = answer(snapshot(owned({"a": [30, 30, 30], "b": [2], "c": [2]}), state=state))
    assert [one.bundle for one in found.decisions] == [bundle(1)]
    # By now the report of the first broker is from after that: the assignment has ended there.
    assigned["at"] = NOW - 2 * MINUTE
    found = answer(snapshot(owned({"a": [30, 30, 30], "b": [2], "c": [2]}), state=state))
    assert found.decisions[0].bundle == bundle(0)


def test_isolation_and_anti_affinity_respected():
    cluster = {"a": {f"t/iso/0x{place}0000000_0x{place + 1}0000000": 15.0 for place in range(4)}, "b": {}, "c": {}}
    policy = {"namespaces": ["t/iso"], "primary": ["a", "c"], "secondary": []}
    found = answer(snapshot(cluster, isolationPolicies={"one": policy}))
    assert {one[2] for one in moves(found)} == {"c"}
    groups = {"t/one": "g", "t/two": "g"}
    full = {"a": {bundle(1, "t/one"): 20.0, bundle(2, "t/x"): 26.0}, "b": {bundle(3, "t/two"): 4.0}}
    assert moves(answer(snapshot(full))) == [(bundle(1, "t/one"), "a", "b")]
    held = answer(snapshot(full, antiAffinityGroups=groups))
    assert moves(held) == [(bundle(2, "t/x"), "a", "b")]
    assert ("a", bundle(1, "t/one")) in failing(held, "anti-affinity")


def test_dead_brokers_bundles_spread_not_piled():
    cluster = owned({"a": [10, 10, 10], "b": [10, 10, 10], "c": [10, 10]})
    orphans = [bundle(100 + place) for place in range(7)]
    for made in (snapshot, extensible):
        found = answer(made(cluster, operation="assign", assign=orphans))
        got = [one.destination_broker for one in found.decisions]
        assert {name: got.count(name) for name in "abc"} == {"a": 2, "b": 2, "c": 3}


def test_oversized_bundle_split_after_four_cycles():
    """It takes more than brokers use on average."""
    wide = "t/n/0x00000000_0x80000000"
    cluster = {"a": {wide: 60.0, bundle(1, "t/m"): 5.0}} | owned({"b": [20, 10], "c": [20, 10]})
    settings, state, seen = {"loadBalancerNamespaceBundleMaxMsgRate": 10**6}, None, []
    for minute in range(4):
        found = answer(snapshot(cluster, minute, state, operation="split", configuration=settings))
        seen.append([(one.bundle, one.reason) for one in found.decisions])
        state = state_of(found)
    assert seen == [[], [], [], [(wide, "Usage")]]
    upstream = snapshot(cluster, operation="split", configuration=settings) | {"profile": "4.x"}
    assert answer(upstream).gate == "split-needed"


def test_upstream_strategies_keep_no_own_state():
    cluster = owned({"a": [10] * 9, "b": []})
    for profile in ("2.10", "3.0", "4.x", "5.0"):
        assert answer(snapshot(cluster) | {"profile": profile}).state.gain_shedder is None


CLUSTERS = st.lists(st.lists(st.floats(0.1, 12), max_size=8), min_size=2, max_size=5).map(
    lambda loads: owned({f"b{place}": one for place, one in enumerate(loads)})
)


@given(CLUSTERS)
def test_constant_load_settles_in_few_useful_moves(cluster):
    now, after_grace = cluster, 40
    state, last, moved_at, heights = None, 0, dict[str, int](), list[list[float]]()
    for minute in range(after_grace + 35):
        found = answer(snapshot(now, minute, state))
        assert len(found.decisions) <= MOVES
        for one in found.decisions:
            source, destination = str(one.source_broker), str(one.destination_broker)
            before = sum(now[source].values())
            assert len(now[source]) > 1
            assert minute - moved_at.get(one.bundle, -31) > 30
            now = {name: dict(own) for name, own in now.items()}
            now[destination][one.bundle] = now[source].pop(one.bundle)
            assert max(sum(now[source].values()), sum(now[destination].values())) <= before - 0.49
            moved_at[one.bundle], last = minute, minute
        heights.append(sorted((sum(own.values()) for own in now.values()), reverse=True))
        state = state_of(found)
    assert heights == sorted(heights, reverse=True)
    assert last < after_grace
