"""The busiest bundles that a TransferShedder sees of brokers that were asked by REST: those that may be shed."""

from __future__ import annotations

import json

import pytest

from engine.bundles.cycle import snapshot_of
from tests.engine.balancers import NOW, balancing, bundle, clusters_of, extensible, live, policies
from tests.engine.records import record, tick

NAMES = ("broker-1:8080", "broker-2:8080")
LIMIT = "loadBalancerMaxNumberOfBundlesInBundleLoadReport"
GROUPED = [bundle(number, "acme/grouped") for number in range(12)]
ISOLATED = [bundle(number, "acme/isolated") for number in range(12)]
FREE = [bundle(number) for number in range(12)]


def state_of(configuration, reports, **more):
    """A cluster after these reports, with a group and an isolation policy."""
    bucket = balancing()
    policy = {"namespaces": ["acme/iso.*"], "primary": ["broker-1.*"], "secondary": []}
    chosen = {"antiAffinityGroups": {"acme/grouped": "g"}, "isolationPolicies": {"p": policy}} | more
    message = policies(NOW, configuration, loadManager="extensible", **chosen)
    bucket.batch(NOW, live(NOW, *NAMES), message, *reports, tick(0))
    (state,) = clusters_of(bucket.packed).values()
    return state


def names_of(state, operation, broker=NAMES[0]):
    top = snapshot_of(state, NOW + 1, operation).top_bundles[broker]
    return [entry.bundle_name for entry in top.top_bundles_load_data]


def busy():
    """Bundles with policies are the busiest, and fill more than the ten places of a report."""
    loads = {name: 100.0 + number for number, name in enumerate(GROUPED + ISOLATED)}
    loads |= {name: 1.0 + number for number, name in enumerate(FREE)}
    return extensible(NAMES[0], loads, NOW, usage=0.9)


@pytest.mark.parametrize(
    ("configuration", "expected"),
    [
        ({}, FREE[2:]),
        ({LIMIT: "3"}, FREE[9:]),
        ({LIMIT: "30"}, FREE),
        ({LIMIT: "3", "loadBalancerSheddingBundlesWithPoliciesEnabled": "true"}, ISOLATED[9:]),
        ({"loadBalancerSheddingExcludedNamespaces": "acme/shop"}, []),
    ],
)
def test_bundles_that_stay_take_no_places(configuration, expected):
    state = state_of(configuration, [busy()])
    assert names_of(state, "shed") == expected
    assert names_of(state, "split") == FREE + GROUPED + ISOLATED


def test_published_reports_are_not_chosen_again():
    report = extensible(NAMES[0], dict.fromkeys(GROUPED, 1.0), NOW)
    body = report.value.decode() if isinstance(report.value, bytes) else report.value
    forced = record("broker-load", "west", json.loads(body) | {"forced": True})
    assert names_of(state_of({}, [forced]), "shed") == sorted(GROUPED)


def test_busy_isolated_bundles_leave_room_for_moves():
    settings = {"loadBalancerSheddingConditionHitCountThreshold": 0, "loadBalanceSheddingDelayInSeconds": 0}
    bucket = balancing()
    policy = {"namespaces": ["acme/iso.*"], "primary": ["broker-1.*"], "secondary": []}
    message = policies(NOW, settings, loadManager="extensible", isolationPolicies={"p": policy})
    loads = dict.fromkeys(ISOLATED, 30.0) | dict.fromkeys(FREE, 5.0)
    reports = [extensible(NAMES[0], loads, NOW, usage=0.9), extensible(NAMES[1], {bundle(99): 1.0}, NOW, usage=0.05)]
    rows = bucket.batch(NOW, live(NOW, *NAMES), message, *reports, tick(0)).decisions
    assert rows
    assert not any("acme/isolated" in row["arguments"] for row in rows)


def test_gain_shedder_keeps_all_bundles():
    state = state_of({}, [busy()], profile="default")
    assert len(names_of(state, "shed")) == len(FREE + GROUPED + ISOLATED)
