"""Shapes of demand for the comparison of profiles: six hours of one topic each, drawn from a seed.

Stage: under `anabranch.simulation.topics.table`. Loads are in split thresholds of messages in: 1 is the capacity of a
segment.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from anabranch.simulation.topics.timeline import STEP_MS, ConsumersFrom, Floats, Ints, Timeline, Window, even_slices
from decisions.topic.layout import SegmentLayout

STEPS = 6 * 3_600_000 // STEP_MS
SLICES = 256
THRESHOLD = 10_000.0
"""Messages a second: `splitMsgRateInThreshold` of both profiles."""
Random = np.random.Generator
_MINUTES: Floats = np.arange(STEPS) * STEP_MS / 60_000
_NOBODY = np.zeros(STEPS, np.int64)


class Demand(NamedTuple):
    """Demand of a topic, step by step."""

    rates: Floats
    """Steps x slices: messages in per second."""
    consumers: Ints
    """Sessions of one STREAM subscription at each step."""
    segments: int = 1
    """At the beginning."""


def _even(level: Floats, consumers: Ints = _NOBODY) -> Demand:
    """Return a demand of so many thresholds at each step, over the whole key space."""
    return Demand(np.repeat((level * THRESHOLD / SLICES)[:, None], SLICES, axis=1), consumers)


def _always(level: float) -> Floats:
    return np.full(STEPS, level)


def _with_range(base: float, load: float, width: int, begins: Ints) -> Demand:
    """Return a demand with a range of `width` slices that carries `load`.

    `base`: the load of the whole key space; `begins`: the first slice of the range at each step.
    """
    rates = np.full((STEPS, SLICES), base * THRESHOLD / SLICES)
    slices = (begins[:, None] + np.arange(width)[None, :]) % SLICES
    rates[np.arange(STEPS)[:, None], slices] += load * THRESHOLD / width
    return Demand(rates, _NOBODY)


def _moving(load: float, width: int, rounds: float) -> Callable[[Random], Demand]:
    def drawn(random: Random) -> Demand:
        begin = random.uniform(0, SLICES)
        return _with_range(0.1, load, width, (begin + np.arange(STEPS) / STEPS * SLICES * rounds).astype(np.int64))

    return drawn


def _still(load: float, width: int) -> Callable[[Random], Demand]:
    def drawn(random: Random) -> Demand:
        return _with_range(0.1, load, width, np.full(STEPS, width * int(random.integers(SLICES // width))))

    return drawn


def _come_and_go(random: Random) -> Demand:
    minutes = random.uniform(30, 60)
    return _even(_always(4e-4), np.where(_MINUTES // minutes % 2 == 0, 1, 4))


def _burst(random: Random) -> Demand:
    begin = random.uniform(30, 90)
    return _even(np.where((begin <= _MINUTES) & (begin + 20 > _MINUTES), 6.0, 0.05))


def _bursts(random: Random) -> Demand:
    begin, every = random.uniform(0, 60), random.uniform(60, 120)
    return _even(np.where((_MINUTES - begin) % every < 15, 4.0, 0.05))


def _noisy_and_idle(random: Random) -> Demand:
    level = 0.02 * np.exp(random.normal(0, 0.5, STEPS))
    for begin in random.integers(0, STEPS - 6, 3):
        level[begin : begin + 6] = 1.3
    return _even(level)


def _wave(random: Random) -> Demand:
    period, phase = random.uniform(40, 120), random.uniform(0, 1)
    return _even(1.2 + np.sin(2 * np.pi * (_MINUTES / period + phase)))


def _skewed(random: Random) -> Demand:
    weights = random.permutation(1 / np.arange(1, SLICES + 1))
    level = 6 * np.maximum(0.05, np.sin(np.pi * np.arange(STEPS) / STEPS))
    return Demand(level[:, None] * THRESHOLD * (weights / weights.sum())[None, :], _NOBODY)


SHAPES: Mapping[str, Callable[[Random], Demand]] = MappingProxyType(
    {
        "many consumers on a cold topic": lambda _: _even(_always(4e-4), np.full(STEPS, 8)),
        "consumers come and go": _come_and_go,
        "one hot key": _still(5.0, 1),
        "a narrow hot range": _still(5.0, 8),
        "a hot range that wanders": _moving(3.0, 32, 1),
        "the same, faster": _moving(3.0, 32, 2),
        "a narrow one that wanders": _moving(4.0, 16, 1),
        "a burst of 20 minutes": _burst,
        "bursts, every hour or two": _bursts,
        "spikes, every 20 minutes": lambda _: _even(np.where(_MINUTES % 20 < 2, 5.0, 0.1)),
        "a ramp to 20 and back": lambda _: _even(20 * np.maximum(0, 1 - np.abs(_MINUTES / 180 - 1))),
        "a day in six hours": lambda _: _even(0.1 + 4 * np.sin(np.pi * _MINUTES / 360)),
        "waves of 40 to 120 minutes": _wave,
        "noisy and idle": _noisy_and_idle,
        "noise around the split threshold": lambda random: _even(np.exp(random.normal(0, 0.08, STEPS))),
        "just above the threshold for ever": lambda _: _even(_always(1.05)),
        "a step to 8": lambda _: _even(np.where(_MINUTES > 120, 8.0, 0.5)),
        "a random walk": lambda random: _even(1.5 * np.exp(np.cumsum(random.normal(0, 0.02, STEPS)))),
        "skewed keys, up and down": _skewed,
    }
)


class ShapeDemand:
    """Demand of one shape: a topic for each seed."""

    def __init__(self, shape: str, seeds: Sequence[int], began_at: int) -> None:
        """`began_at`: milliseconds since 1970."""
        self.topics: Sequence[str] = [f"topic://shapes/six-hours/{seed}" for seed in seeds]
        self.began_at, self.step_ms, self.steps = began_at, STEP_MS, STEPS
        self._shape, self._seeds = shape, seeds

    def drawn(self, index: int) -> Demand:
        """Return the demand of the topic at an index."""
        return SHAPES[self._shape](np.random.default_rng(self._seeds[index]))

    def layouts(self, indices: range) -> list[SegmentLayout]:
        """See `Source`."""
        return [SegmentLayout.create(self.drawn(index).segments, self.began_at) for index in indices]

    def windows(self, indices: range) -> Iterator[Window]:
        """See `Source`: one window."""
        timelines = [timeline(self.drawn(index), self.began_at) for index in indices]
        yield Window(self.began_at, self.began_at + STEPS * STEP_MS, timelines)


def timeline(demand: Demand, began_at: int) -> Timeline:
    """Return a demand of messages in as the kernel reads it."""
    steps, consumers = np.arange(len(demand.rates)), demand.consumers
    changes = np.flatnonzero(np.diff(consumers, prepend=0))
    return Timeline(
        even_slices(demand.rates.shape[1]),
        demand.rates[:, :, None],
        began_at + steps * STEP_MS,
        steps,
        factors=np.array([1.0, 0.0, 0.0, 0.0]),
        consumers=[
            ConsumersFrom(began_at + step * STEP_MS, "consumers", "STREAM", count)
            for step, count in zip(changes.tolist(), consumers[changes].tolist(), strict=True)
        ],
    )
