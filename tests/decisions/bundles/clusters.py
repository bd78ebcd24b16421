"""Clusters for the tests of the family `bundles`: written by hand, and any that hypothesis can think of."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from decisions.bundles.decide import decide
from schemas.bundles import BundleAnswer, BundleSnapshot

MIB = 1_048_576
NOW = 1_700_000_000_000
SHEDDERS = ["OverloadShedder", "ThresholdShedder", "UniformLoadShedder", "UniformLoadShedder-21016", "DeviationShedder"]


def bundle(number: int, namespace: str = "t/n") -> str:
    """A bundle's name, one for each number."""
    return f"{namespace}/0x{number:08x}_0x{number + 1:08x}"


def broker(first: int, loads: list[float], cpu: float = 0.0, rates: list[float] | None = None, **more: Any) -> Any:
    """A broker with a bundle for each throughput (MiB/s), numbered from `first`; cpu in percent."""
    stats = {
        bundle(first + index): {"msgThroughputIn": load * MIB, "msgRateIn": rates[index] if rates else 0.0, "topics": 5}
        for index, load in enumerate(loads)
    }
    return {"cpu": {"usage": cpu, "limit": 100.0}, "lastStats": stats} | more


def cluster(brokers: dict[str, Any], strategy: str = "ThresholdShedder", **more: Any) -> dict[str, Any]:
    """A snapshot as it stands in a file."""
    configuration = {
        "loadBalancerLoadSheddingStrategy": strategy,
        "loadBalancerDistributeBundlesEvenlyEnabled": False,
        "loadBalancerLoadPlacementStrategy": "AvgShedder" if strategy == "AvgShedder" else "LeastLongTermMessageRate",
    }
    return {
        "family": "bundles",
        "now": NOW,
        "brokers": brokers,
        **more,
        "configuration": configuration | more.get("configuration", {}),
    }


def answer(snapshot: dict[str, Any]) -> BundleAnswer:
    """What is decided on it."""
    return decide(BundleSnapshot.model_validate(snapshot))


def failing(answered: BundleAnswer, gate: str) -> list[tuple[str | None, str | None]]:
    """Broker and bundle of each reading of a gate that did not pass."""
    return [(one.broker, one.bundle) for one in answered.readings if one.gate == gate and not one.passed]


def state_of(answered: BundleAnswer) -> Any:
    """The state for the next snapshot, through JSON."""
    return type(answered.state).model_validate_json(answered.state.model_dump_json(by_alias=True))


_AMOUNTS = st.floats(0, 1e12) | st.sampled_from([0.0, 1.0, 1000.0, 1e15])
_USAGES = st.builds(
    lambda usage, limit: {"usage": usage, "limit": limit},
    st.floats(0, 200) | _AMOUNTS,
    st.sampled_from([100.0, 0.0, -1.0, 1e-30, 1e6]),
)
_STATS = st.fixed_dictionaries(
    {},
    optional={
        "msgRateIn": _AMOUNTS,
        "msgRateOut": _AMOUNTS,
        "msgThroughputIn": _AMOUNTS,
        "msgThroughputOut": _AMOUNTS,
        "topics": st.integers(0, 60_000),
        "consumerCount": st.integers(0, 2000),
        "producerCount": st.integers(0, 2000),
    },
)


def _gain_states(names: list[str], bundles: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    """What GainShedder may remember."""
    brokers, at = st.sampled_from(names), st.sampled_from([0, NOW - 120_000, NOW])
    move = st.fixed_dictionaries(
        {"source": st.none() | brokers, "destination": brokers, "at": at, "messages": _AMOUNTS, "bytesIn": _AMOUNTS}
    )
    cost = st.fixed_dictionaries({"cost": _AMOUNTS, "samples": st.integers(1, 10), "lastUpdate": at})
    return st.fixed_dictionaries(
        {
            "hits": st.integers(0, 6),
            "costs": st.dictionaries(brokers, cost, max_size=3),
            "moves": st.dictionaries(st.sampled_from(bundles), move, max_size=3),
        }
    )


@st.composite
def snapshots(draw: st.DrawFn, operation: str = "shed") -> dict[str, Any]:
    """Clusters of both load managers, with any load, state and strategy."""
    names = [f"b{number}:8080" for number in range(draw(st.integers(0, 6)))]
    sizes = {name: draw(st.integers(0, 5)) for name in names}
    owned, first = dict[str, list[str]](), 0
    for name, size in sizes.items():
        owned[name] = [bundle(first + index, draw(st.sampled_from(["t/n", "t/m"]))) for index in range(size)]
        first += size
    every = [one for bundles in owned.values() for one in bundles]
    strategy = draw(st.sampled_from([*SHEDDERS, "AvgShedder", "GainShedder"]))
    lately = st.dictionaries(st.sampled_from(every or [bundle(0)]), st.integers(0, NOW))
    counts = st.dictionaries(st.sampled_from(names or ["b"]), st.integers(0, 10))
    found = cluster(
        {
            name: {
                "lastStats": {one: draw(_STATS) for one in owned[name]},
                "cpu": draw(_USAGES),
                "bandwidthIn": draw(_USAGES),
            }
            for name in names
        },
        strategy,
        operation=operation,
        seed=draw(st.integers(0, 9)),
        assign=every[:2],
        state={
            "recentlyUnloadedBundles": draw(lately),
            "avgShedder": {"brokerHitCountForLow": draw(counts), "brokerHitCountForHigh": draw(counts)},
            "unloadConditionHitCount": draw(st.integers(0, 5)),
            "gainShedder": None if strategy != "GainShedder" else draw(_gain_states(names or ["b"], every or ["t/n"])),
        },
        deviationLoads={name: {one: draw(_AMOUNTS) for one in owned[name]} for name in names},
        configuration={
            "lowerBoundarySheddingEnabled": draw(st.booleans()),
            "loadBalancerDistributeBundlesEvenlyEnabled": draw(st.booleans()),
            "maxUnloadBundleNumPerShedding": draw(st.sampled_from([-1, 0, 2])),
        },
    )
    if strategy == "GainShedder":
        found["configuration"]["loadBalancerLoadPlacementStrategy"] = "LeastProjectedUsage"
    if draw(st.booleans()):
        found["loadManager"] = "extensible"
        found["brokerLoadData"] = {
            name: {
                "weightedMaxEMA": draw(st.floats(0, 2)),
                "updatedAt": NOW - draw(st.sampled_from([0, 1_900_000])),
                "msgThroughputIn": draw(_AMOUNTS),
                "msgThroughputEMA": draw(_AMOUNTS),
            }
            for name in names
        }
        found["topBundles"] = {
            name: {"topBundlesLoadData": [{"bundleName": one, "stats": draw(_STATS)} for one in owned[name]]}
            for name in names
        }
    return found
