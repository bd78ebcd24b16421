"""What a fix of Pulsar's changes: the same snapshot decided by the release with it and by the one before it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decisions.bundles.averages import DEFAULT_BUNDLE, message_rate
from decisions.bundles.candidates import under_topic_cap, unload_spreads
from decisions.bundles.cluster import view_cluster
from decisions.bundles.configuration import PROFILES, Configuration
from decisions.bundles.fixes import FIXES, profile_switches, switches_table
from schemas.bundles import BundleAnswer, BundleSnapshot
from tests.decisions.bundles.clusters import answer, broker, bundle, cluster, failing, state_of

NAMES = ["a", "b", "c"]


def both(fix: str, snapshot: dict[str, Any]) -> tuple[BundleAnswer, BundleAnswer]:
    """With the fix and without it."""
    on, off = (
        answer(snapshot | {"configuration": snapshot["configuration"] | {fix: switch}}) for switch in (True, False)
    )
    return on, off


def test_profiles_imply_fixes_and_explicit_switch_wins():
    off = {profile: {name for name, on in profile_switches(profile).items() if not on} for profile in PROFILES}
    assert off["5.0"] == set()
    assert off["4.x"] == {"fix26246"}
    assert off["3.0"] == {"fix20822", "fix21025", "fix21214", "fix22888", "fix24954", "fix26246"}
    assert off["2.10"] == off["3.0"] | {"fix19559"}
    assert Configuration({"fix21025": "true"}, "2.10").on("fix21025")
    assert not Configuration({"fix13136": False}, "5.0").on("fix13136")
    assert Configuration({"fix99999": True}).ignored == ["fix99999"]


def test_table_of_fixes_is_documented():
    text = (Path(__file__).parents[3] / "docs" / "bundles.md").read_text()
    assert switches_table(tuple(PROFILES)) in text
    assert set(FIXES) == set(profile_switches("4.x"))


@pytest.mark.parametrize("topics", [0, 1])
def test_12527_small_bundle_not_split(topics):
    stats = {bundle(0): {"topics": topics, "producerCount": 2000}}
    brokers = {"a": {"lastStats": stats}, "b": broker(10, [])}
    brokers["a"]["lastStats"] = {"t/n/0x00000000_0x80000000": stats[bundle(0)]}
    on, off = both("fix12527", cluster(brokers, operation="split"))
    assert (len(on.decisions), len(off.decisions)) == (0, 1)
    assert failing(on, "two-topics") == [("a", "t/n/0x00000000_0x80000000")]


def test_13136_new_leader_uses_first_reading():
    brokers = {"a": broker(0, [100, 60, 40, 20], cpu=80), "b": broker(10, [1], cpu=20), "c": broker(20, [1], cpu=20)}
    on, off = both("fix13136", cluster(brokers))
    assert on.selected == {"a": [bundle(0)]}
    assert off.selected == {}
    assert off.state.broker_avg_resource_usage == pytest.approx({"a": 0.08, "b": 0.02, "c": 0.02})


def test_16552_split_respects_namespace_maximum():
    stats = {f"t/n/0x{at:08x}_0x{at + 16:08x}": {"topics": 2000} for at in range(0, 160, 16)}
    brokers = {"a": {"lastStats": stats}, "b": broker(1000, [])}
    given = cluster(brokers, operation="split", configuration={"loadBalancerNamespaceMaximumBundles": 13})
    on, off = both("fix16552", given)
    assert (len(on.decisions), len(off.decisions)) == (3, 10)


def test_19559_heap_memory_makes_no_broker_hot():
    hot = broker(0, [10, 20], cpu=10) | {"memory": {"usage": 95, "limit": 100}}
    on, off = both("fix19559", cluster({"a": hot, "b": broker(10, [1])}, "OverloadShedder"))
    assert on.selected == {}
    assert off.selected == {"a": [bundle(1)]}
    assert off.usage["a"]["maxUsageWithWeight"] == pytest.approx(0.95)


def test_20822_self_returning_bundle_not_unloaded():
    """apache/pulsar#21722: spreading evenly leaves only the owner."""
    brokers = {"a": broker(0, [100, 50], cpu=80), "b": broker(10, [1, 1, 1], cpu=10)}
    on, off = both("fix20822", cluster(brokers, configuration={"loadBalancerDistributeBundlesEvenlyEnabled": True}))
    assert on.decisions == []
    assert failing(on, "destination-differs") == [("a", bundle(0))]
    assert [(one.bundle, one.source_broker, one.destination_broker) for one in off.decisions] == [(bundle(0), "a", "a")]
    assert bundle(0) in off.state.recently_unloaded_bundles
    assert on.state.recently_unloaded_bundles == {}


def test_21025_uniform_shedder_picks_most_messages():
    """apache/pulsar#21016: who has more bytes takes the slot over, with its own lower rate."""
    brokers = {
        "most-messages": broker(0, [0.1] * 8, rates=[5000.0] * 8),
        "most-bytes": broker(10, [10] * 4, rates=[4000.0] * 4),
        "least": broker(20, [0.1], rates=[100.0]),
    }
    on, off = both("fix21025", cluster(brokers, "UniformLoadShedder"))
    assert set(on.selected) == {"most-messages"}
    assert set(off.selected) == {"most-bytes"}
    assert off.selected == answer(cluster(brokers, "UniformLoadShedder-21016")).selected


def test_21214_uniform_shedder_skips_idle_bundles():
    brokers = {"a": broker(0, [0, 0, 0], rates=[4000.0, 40_000.0, 0.0]), "b": broker(10, [0], rates=[1.0])}
    on, off = both("fix21214", cluster(brokers, "UniformLoadShedder"))
    assert on.selected == {"a": [bundle(0)]}
    assert off.selected == {"a": [bundle(0), bundle(2)]}


def test_22888_unweighted_resource_is_no_overload():
    """Placement does not regard such a broker as overloaded."""
    brokers = {"a": broker(0, [1]) | {"directMemory": {"usage": 99, "limit": 100}}, "b": broker(10, [9], rates=[999.0])}
    given = cluster(brokers, operation="assign", assign=[bundle(50)])
    on, off = both("fix22888", given)
    assert [one.destination_broker for one in on.decisions] == ["a"]
    assert [one.destination_broker for one in off.decisions] == ["b"]


def test_24954_avg_shedder_pairs_by_exact_scores():
    """Half a point apart is equal to the release before, which then goes by the order of names."""
    usages = {"a": 70.0, "b": 70.5, "c": 10.5, "d": 10.0}
    brokers = {name: broker(10 * place, [10], cpu=cpu) for place, (name, cpu) in enumerate(usages.items())}
    on, off = both("fix24954", cluster(brokers, "AvgShedder"))

    def pairs(found):
        return {(one.broker, one.detail) for one in found.readings if one.gate == "pair-difference"}

    assert pairs(on) == {("b", "against d"), ("a", "against c")}
    assert pairs(off) == {("b", "against c"), ("a", "against d")}


def planned(fix: bool, twins: bool) -> BundleAnswer:
    """Two pairs of brokers that fire; with `twins` the upper two have bundles with the same numbers."""
    brokers = {
        "high-1": broker(0, [40] * 4, cpu=90),
        "high-2": broker(10, [40 if twins else 41] * 4, cpu=80),
        "low-1": broker(20, [1], cpu=10),
        "low-2": broker(30, [2], cpu=11),
    }
    state = {"avgShedder": {"brokerHitCountForHigh": dict.fromkeys(brokers, 5)}}
    configuration = {"fix26246": fix, "maxUnloadPercentage": 0.5}
    return answer(cluster(brokers, "AvgShedder", state=state, configuration=configuration))


@pytest.mark.parametrize(
    ("fix", "twins", "receivers"),
    [
        (True, True, {"high-1": {"low-1"}, "high-2": {"low-2"}}),
        (True, False, {"high-1": {"low-1"}, "high-2": {"low-2"}}),
        (False, True, {"high-1": {"low-2"}, "high-2": {"low-2"}}),
        (False, False, {"high-1": {"low-1"}, "high-2": {"low-2"}}),
    ],
)
def test_26246_equal_bundles_keep_their_destinations(fix, twins, receivers):
    found = planned(fix, twins)
    went = {source: set() for source in receivers}
    for one in found.decisions:
        went[one.source_broker].add(one.destination_broker)
    assert went == receivers


def test_26246_plan_ends_with_cycle_or_next_report():
    assert planned(True, False).state.avg_shedder.bundle_broker_map == {}
    before = planned(False, False)
    assert set(before.state.avg_shedder.bundle_broker_map) == {one.bundle for one in before.decisions}
    gone, *others = before.state.avg_shedder.bundle_broker_map
    assert others
    reported = {"high-1": {"lastStats": {gone: {"msgRateIn": 1.0}}}}
    more = {"operation": "average", "state": state_of(before), "configuration": {"fix26246": False}}
    assert list(answer(cluster(reported, "AvgShedder", **more)).state.avg_shedder.bundle_broker_map) == others


@pytest.mark.parametrize(("fix", "chosen"), [(True, "healthy"), (False, "full")])
def test_26246_full_planned_destination_avoided(fix, chosen):
    brokers = {"full": broker(0, [1], cpu=95), "healthy": broker(10, [1], cpu=20), "too": broker(20, [1], cpu=90)}
    state = {"avgShedder": {"bundleBrokerMap": {bundle(50): "full"}}}
    given = cluster(
        brokers, "AvgShedder", operation="assign", assign=[bundle(50)], state=state, configuration={"fix26246": fix}
    )
    assert [one.destination_broker for one in answer(given).decisions] == [chosen]
    nobody = {name: one | {"cpu": {"usage": 95, "limit": 100}} for name, one in brokers.items()}
    assert [one.destination_broker for one in answer(given | {"brokers": nobody}).decisions] == ["full"]


@pytest.mark.parametrize(
    ("counts", "may_leave"),
    [
        ((1, 0, 0), True),
        ((1, 1, 1), False),
        ((2, 1, 1), True),
        ((1, 2, 1), True),
        ((2, 2, 2), False),
        ((0, 0, 0), True),
        ((0, 1, 1), True),
    ],
)
def test_anti_affinity_holds_on_equal_counts_only(counts, may_leave):
    """The group holds a bundle only where all candidates have the same number."""
    brokers = {
        name: {"lastStats": {bundle(0, f"t/{name}{place}"): {} for place in range(count)}}
        for name, count in zip(NAMES, counts, strict=True)
    }
    groups = {f"t/{name}{place}": "Group" if place else "group" for name in NAMES for place in range(2)} | {
        "t/x": "GROUP"
    }
    seen = view_cluster(BundleSnapshot.model_validate(cluster(brokers, antiAffinityGroups=groups)))
    assert unload_spreads(seen, bundle(9, "t/x"), "a", NAMES) is may_leave
    assert unload_spreads(seen, bundle(9, "t/of-no-group"), "a", NAMES)


def test_anti_affinity_ignores_excluded_brokers():
    """The owner is no candidate: what it has does not matter, and the others are equal."""
    brokers = {name: {"lastStats": {bundle(0, f"t/{name}"): {}}} for name in NAMES}
    brokers["a"]["lastStats"][bundle(0, "t/more")] = {}
    groups = dict.fromkeys([*(f"t/{name}" for name in NAMES), "t/more"], "group")
    seen = view_cluster(BundleSnapshot.model_validate(cluster(brokers, antiAffinityGroups=groups)))
    assert not unload_spreads(seen, bundle(0, "t/a"), "a", ["b", "c"])
    assert unload_spreads(seen, bundle(0, "t/a"), "a", NAMES)


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 8)), max_size=20), st.booleans())
def test_incremental_broker_sums_equal_full_sums(gifts, asked_before):
    seen = view_cluster(BundleSnapshot.model_validate(cluster({name: broker(0, []) for name in NAMES})))
    if asked_before:
        assert [seen.given(name) for name in NAMES] == [(0.0, 0)] * 3
        assert seen.preallocated_to(bundle(0)) is None
    for name, number in gifts:
        seen.give(name, bundle(number), DEFAULT_BUNDLE.model_copy(update={"topics": number}))
        if not asked_before:
            continue
        for other in NAMES:
            given_to = seen.memory.preallocated.get(other, {})
            rate = sum(message_rate(data.long_term_data) for data in given_to.values())
            assert seen.given(other) == (pytest.approx(rate), sum(data.topics for data in given_to.values()))
        first = min(other for other in NAMES if bundle(number) in seen.memory.preallocated.get(other, {}))
        assert seen.preallocated_to(bundle(number)) == first
    assert under_topic_cap(seen, bundle(99), NAMES) == NAMES
