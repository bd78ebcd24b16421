"""What a cycle works out once is what working it out each time gives; what is built unchecked would pass checks."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from decisions.bundles.averages import DEFAULT_BUNDLE, add_bundle_sample, broker_average
from decisions.bundles.candidates import isolated_brokers, namespace_of, owned_namespaces
from decisions.bundles.cluster import view_cluster
from decisions.bundles.usage import weighted_max
from schemas.bundles import BundleData, BundleReading, BundleSnapshot
from tests.decisions.bundles.clusters import answer, broker, bundle, cluster, snapshots, state_of

NAMES = [f"b{number}:8080" for number in range(6)]
NAMESPACES = ["t/n", "t/m", "t/o"]
_BROKERS = st.lists(st.sampled_from([*NAMES, "b[0-2]:.*", "b1"]), max_size=3)
_POLICIES = st.dictionaries(
    st.sampled_from("pqr"),
    st.builds(
        lambda namespaces, primary, secondary, least: {
            "namespaces": namespaces,
            "primary": primary,
            "secondary": secondary,
            "auto_failover_policy": {"policy_type": "min_available", "parameters": {"min_limit": str(least)}},
        },
        st.lists(st.sampled_from([*NAMESPACES, "t/.*"]), max_size=2),
        _BROKERS,
        _BROKERS,
        st.integers(0, 3),
    ),
)
_BUNDLES = st.builds(bundle, st.integers(0, 12), st.sampled_from(NAMESPACES))


def named(patterns: list[str], name: str) -> bool:
    return any(re.fullmatch(pattern, text) for pattern in patterns for text in (name, name.rpartition(":")[0]))


def allowed(policies: dict[str, dict], one: str, brokers: list[str]) -> list[str]:
    """The rule as it is written in Pulsar's documentation, for one bundle."""
    for policy in policies.values():
        if any(re.fullmatch(pattern, namespace_of(one)) for pattern in policy["namespaces"]):
            first = [name for name in brokers if named(policy["primary"], name)]
            if len(first) >= int(policy["auto_failover_policy"]["parameters"]["min_limit"]):
                return first
            return first + [name for name in brokers if named(policy["secondary"], name) and name not in first]
    return [name for name in brokers if not any(named(policy["primary"], name) for policy in policies.values())]


@given(_POLICIES, st.lists(st.tuples(_BUNDLES, st.sets(st.sampled_from(NAMES), min_size=1)), min_size=1, max_size=8))
def test_cached_candidates_match_rules_and_notes(policies, asked):
    reports = {name: broker(0, []) for name in NAMES}
    seen = view_cluster(BundleSnapshot.model_validate(cluster(reports, isolationPolicies=policies)))
    for one, some in [*asked, *asked]:
        before, brokers = len(seen.account.notes), sorted(some)
        kept = isolated_brokers(seen, one, brokers)
        assert kept == allowed(policies, one, brokers)
        notes = [(note[2], note[3]) for note in seen.account.notes[before:]]
        assert notes == [(name, one) for name in brokers if name not in kept]
        kept.clear()


@given(
    st.dictionaries(_BUNDLES, st.sampled_from(NAMES), max_size=12),
    st.booleans(),
    st.lists(st.tuples(st.sampled_from(NAMES), _BUNDLES), max_size=8),
)
def test_broker_namespaces_current_after_each_bundle(owners, by_report, given_away):
    reports = {
        name: {"lastStats": {one: {} for one, owner in owners.items() if owner == name and by_report}} for name in NAMES
    }
    more = {} if by_report else {"ownership": owners}
    seen = view_cluster(BundleSnapshot.model_validate(cluster(reports, **more)))
    expected = {name: {one for one, owner in owners.items() if owner == name} for name in NAMES}
    for name, one in [(NAMES[0], next(iter(owners), bundle(0))), *given_away]:
        for other in NAMES:
            counts = {of: sum(namespace_of(item) == of for item in expected[other]) for of in NAMESPACES}
            assert owned_namespaces(seen, other) == {of: count for of, count in counts.items() if count}
        seen.give(name, one, DEFAULT_BUNDLE)
        expected[name].add(one)
    assert all(sum(owned_namespaces(seen, name).values()) == len(expected[name]) for name in NAMES)


@given(snapshots())
def test_cached_rates_equal_report_rates(snapshot):
    seen = view_cluster(BundleSnapshot.model_validate(snapshot))
    for name, report in [*seen.reports.items(), *seen.reports.items()]:
        assert seen.weighted(name) == weighted_max(report.data, seen.configuration)
        assert seen.long_term(name) == broker_average(report.bundles, seen.bundles)


@given(snapshots())
def test_unchecked_construction_equals_checked(snapshot):
    seen = view_cluster(BundleSnapshot.model_validate(snapshot))
    for name, report in seen.reports.items():
        for one, stats in report.data.last_stats.items():
            data = add_bundle_sample(seen.bundles[one], stats)
            assert BundleData.model_validate(data.model_dump()) == data
            assert BundleData.model_validate_json(data.model_dump_json(by_alias=True)) == data
            assert list(data.model_dump()) == list(BundleData().model_dump()), name
    for reading in answer(snapshot).readings:
        assert BundleReading.model_validate(reading.model_dump()) == reading


def test_hit_counts_ordered_in_every_process():
    usages = {f"broker-{number:02}": float(number * 6) for number in range(16)}
    found = answer(cluster({name: broker(0, [], cpu=cpu) for name, cpu in usages.items()}, "AvgShedder"))
    ordered = sorted(usages)
    pairs = [name for place in range(7) for name in (ordered[place], ordered[-1 - place])]
    assert list(state_of(found).avg_shedder.broker_hit_count_for_low) == pairs
