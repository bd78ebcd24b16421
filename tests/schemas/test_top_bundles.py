"""The order in which brokers publish their busiest bundles, as Pulsar 4.0.7 compares them."""

from __future__ import annotations

import pytest

from schemas.bundles import NamespaceBundleStats, TopBundlesLoadData


def names(loads, most=10):
    stats = {name: NamespaceBundleStats.model_validate(load) for name, load in loads.items()}
    top = TopBundlesLoadData.of_busiest(stats, most).top_bundles_load_data
    assert all(entry.stats == stats[entry.bundle_name] for entry in top)
    return [entry.bundle_name for entry in top]


@pytest.mark.parametrize(
    ("lower", "higher"),
    [
        # Throughput in comes first, however much goes out.
        ({"msgThroughputIn": 1e6, "msgThroughputOut": 9e6}, {"msgThroughputIn": 2e6}),
        # Less than a step of 100 kB/s is no difference.
        ({"msgThroughputIn": 1.04e6, "msgThroughputOut": 0}, {"msgThroughputIn": 1e6, "msgThroughputOut": 2e5}),
        ({"msgThroughputIn": 49_999.0}, {"msgThroughputIn": 50_000.0}),
        ({"msgThroughputIn": 49_000.0, "msgRateIn": 10}, {"msgRateIn": 100, "msgRateOut": 60}),
        ({"msgRateIn": 40, "topics": 499}, {"topics": 400, "consumerCount": 60, "producerCount": 40}),
        ({"topics": 499, "cacheSize": 99_999}, {"cacheSize": 100_000}),
    ],
)
def test_busier_bundle_comes_later(lower, higher):
    assert names({"t/n/a": higher, "t/n/b": lower}) == ["t/n/b", "t/n/a"]


def test_equal_bundles_ordered_by_name():
    assert names({"t/n/b": {}, "t/n/a": {"msgThroughputIn": 49_999.0}, "t/n/c": {}}) == ["t/n/a", "t/n/b", "t/n/c"]


@pytest.mark.parametrize("most", [0, 1, 2, 9])
def test_busiest_bundles_are_kept(most):
    loads = {f"t/n/{name}": {"msgThroughputIn": load} for name, load in (("x", 3e6), ("y", 1e6), ("z", 2e6))}
    assert names(loads, most) == ["t/n/y", "t/n/z", "t/n/x"][3 - min(most, 3) :]
