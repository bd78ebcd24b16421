"""Synthetic fleets: the same fleet for the same name and seed.

Stage: beside `recorded`, which has fleets from the lake.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from anabranch.simulation.bundles.fleet import Broker, Fleet, Floats

MINUTES, PER_BROKER = 120, 20
_NOISE = 0.01


def _fleet(
    brokers: Sequence[Broker],
    weights: Floats,
    factors: Floats,
    *,
    seed: int,
    size: float = 1024.0,
    load: float = 0.4,
    fan_out: Floats | None = None,
) -> Fleet:
    """Return a fleet with bundles dealt to the first brokers, taking the share `load` of their CPU."""
    here = [broker for broker in brokers if broker.joins == 0]
    count = len(weights)
    total = load * sum(broker.messages for broker in here) / 2
    names = tuple(f"public/n{index % 4}/0x{index:08x}_0x{index + 1:08x}" for index in range(count))
    dealt = [here[index % len(here)].name for index in range(count)]
    return Fleet(
        tuple(brokers),
        names,
        tuple(dealt),
        factors * (weights / weights.sum() * total),
        np.full(count, size),
        np.ones(count) if fan_out is None else fan_out,
        noise=_NOISE,
        seed=seed,
    )


def _steady(count: int) -> Floats:
    return np.ones((MINUTES, count))


def _brokers(count: int) -> list[Broker]:
    return [Broker(f"broker-{index}") for index in range(count)]


def flat(seed: int) -> Fleet:
    """Bundles of very different size; nothing changes."""
    drawn = np.random.default_rng(seed).lognormal(0, 1, 6 * PER_BROKER)
    return _fleet(_brokers(6), drawn, _steady(len(drawn)), seed=seed)


def waves(seed: int) -> Fleet:
    """Bundles that rise and fall by the hour, each in its own phase."""
    random, count = np.random.default_rng(seed), 6 * PER_BROKER
    phase = random.uniform(0, 2 * np.pi, count)
    factors = 1 + 0.8 * np.sin(2 * np.pi * np.arange(MINUTES)[:, None] / 60 + phase)
    return _fleet(_brokers(6), random.lognormal(0, 0.5, count), factors, seed=seed)


def hot(seed: int) -> Fleet:
    """One bundle that takes as much as thirty after ten minutes."""
    count = 6 * PER_BROKER
    factors = _steady(count)
    factors[10:, int(np.random.default_rng(seed).integers(count))] = 30.0
    return _fleet(_brokers(6), np.ones(count), factors, seed=seed)


def join(seed: int) -> Fleet:
    """Five busy brokers, and an idle one after ten minutes."""
    drawn = np.random.default_rng(seed).lognormal(0, 0.3, 5 * PER_BROKER)
    return _fleet([*_brokers(5), Broker("new", joins=10)], drawn, _steady(len(drawn)), seed=seed, load=0.5)


def death(seed: int) -> Fleet:
    """Six brokers of which one dies after twenty minutes; a replacement comes ten minutes later."""
    drawn = np.random.default_rng(seed).lognormal(0, 0.5, 6 * PER_BROKER)
    brokers = [*_brokers(5), Broker("broker-5", dies=20), Broker("returned", joins=30)]
    return _fleet(brokers, drawn, _steady(len(drawn)), seed=seed)


def unequal(seed: int) -> Fleet:
    """Brokers of which two have half the capacity of the others."""
    drawn = np.random.default_rng(seed).lognormal(0, 0.5, 6 * PER_BROKER)
    brokers = [Broker(f"broker-{index}", messages=50_000.0 if index < 2 else 100_000.0) for index in range(6)]
    return _fleet(brokers, drawn, _steady(len(drawn)), seed=seed)


def bursts(seed: int) -> Fleet:
    """Three bundles that take as much as ten each, for three minutes in every twenty."""
    random, count = np.random.default_rng(seed), 6 * PER_BROKER
    factors = _steady(count)
    for begin in range(10, MINUTES, 20):
        factors[begin : begin + 3, random.integers(count, size=3)] = 10.0
    return _fleet(_brokers(6), random.lognormal(0, 0.3, count), factors, seed=seed)


def fan_out(seed: int) -> Fleet:
    """Bundles whose messages go to one consumer or to ten: outgoing network is the bottleneck."""
    random, count = np.random.default_rng(seed), 6 * PER_BROKER
    consumers = random.choice([1.0, 2.0, 10.0], count, p=[0.6, 0.3, 0.1])
    weights = random.lognormal(0, 0.5, count)
    return _fleet(_brokers(6), weights, _steady(count), seed=seed, size=2048.0, load=0.25, fan_out=consumers)


def noisy(seed: int) -> Fleet:
    """Bundles of similar size on brokers whose CPU readings are five points off, up or down."""
    drawn = np.random.default_rng(seed).lognormal(0, 0.3, 6 * PER_BROKER)
    return replace(_fleet(_brokers(6), drawn, _steady(len(drawn)), seed=seed), noise=0.05)


SHAPES: Mapping[str, Callable[[int], Fleet]] = MappingProxyType(
    {shape.__name__: shape for shape in (flat, waves, hot, join, death, unequal, bursts, fan_out, noisy)}
)
