"""Demand that is made up: a shape over time, hot ranges over the key space, consumers that come and go; seeded.

Stage: one of the demands of the loop. Every topic differs: its peak, its hot ranges, the hour of its noon.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

import numpy as np

from ledger.simulate.demand import SLICES, Consumers, Floats, Sliced, below_of

Shape = Literal["flat", "day", "step", "burst", "drift"]
SHAPES: tuple[Shape, ...] = get_args(Shape)
MEANINGS = {
    "flat": "the same all the time",
    "day": "a wave of 24 hours, almost nothing at night",
    "step": "a tenth, then all of it for the middle third of the time, then a tenth again",
    "burst": "a fifth, with ten minutes of five times that on a narrow range of keys, once in two hours",
    "drift": "as flat, with hot ranges that wander over the key space in eight hours",
}
DAY_MS, HOUR_MS = 86_400_000, 3_600_000
_CONSUMERS_EVERY_MS = 600_000
_EVEN = 0.3
"""Part of the demand that is spread evenly over the key space."""


class ShapedDemand:
    """The demand of `topics` topics of one shape; `peak` in messages per second of a topic."""

    def __init__(
        self, shape: Shape, topics: int, hours: float, *, began_at: int = 0, step_ms: int = 10_000,
        peak: float = 40_000.0, message_bytes: float = 1_000.0, fanout: float = 2.0, most_consumers: int = 4,
        seed: int = 1,
    ) -> None:  # fmt: skip
        """`fanout`: messages out for each in; `most_consumers`: of one STREAM subscription, at the peak."""
        random = np.random.default_rng(seed)
        self.topics = [f"topic://simulated/{shape}/t{number:04d}" for number in range(topics)]
        self.initial = [1 + number % 2 for number in range(topics)]
        self.began_at, self.step_ms = began_at, step_ms
        self.steps = max(1, round(hours * HOUR_MS / step_ms))
        self._shape = shape
        self._peak = peak * random.uniform(0.3, 1.0, topics)
        self._phase = random.uniform(0.0, 1.0, topics)
        self._narrow = random.uniform(0.0, 1.0, topics)
        self._profile = _profiles(topics, random)
        self._below = below_of(self._profile[:, :, None])
        self._most = most_consumers
        size, out = message_bytes * random.uniform(0.5, 2.0, topics), fanout * random.uniform(0.5, 1.5, topics)
        self._factors = np.stack([np.ones(topics), size, out, size * out], axis=1)
        self._told: list[int | None] = [None] * topics

    def advance(self, step: int) -> Sliced:
        """See `Demand`."""
        at = step * self.step_ms
        size = self._peak * self._level(at)
        if self._shape in ("drift", "burst"):
            rates = self._profile * size[:, None]
            if self._shape == "drift":
                turned = (np.arange(SLICES)[None, :] - self._turn(at)[:, None]) % SLICES
                rates = np.take_along_axis(rates, turned, axis=1)
            else:
                rates = rates + self._burst(at)
            return Sliced(below_of(rates[:, :, None]), self._factors)
        return Sliced(self._below, self._factors * size[:, None])

    def consumers(self, step: int) -> Iterable[Consumers]:
        """See `Demand`."""
        at = step * self.step_ms
        if at % _CONSUMERS_EVERY_MS >= self.step_ms:
            return
        for topic, level in enumerate(self._level(at).tolist()):
            count = round(self._most * level)
            if self._told[topic] != count:
                self._told[topic] = count
                yield Consumers(topic, "consumers", "STREAM", count)

    def _level(self, at: int) -> Floats:
        """Part of its peak that each topic is at, so many milliseconds after the beginning."""
        if self._shape == "day":
            position = (at / DAY_MS + self._phase) % 1.0
            return np.where(position < 0.62, np.maximum(np.sin(np.pi * position / 0.62), 0.01) ** 0.8, 0.01)
        if self._shape == "step":
            third = 3 * at / (self.steps * self.step_ms)
            return np.full(len(self.topics), 1.0 if 1 <= third < 2 else 0.1)
        return np.full(len(self.topics), 0.2 if self._shape == "burst" else 1.0)

    def _turn(self, at: int) -> np.ndarray:
        return np.floor((at / (8 * HOUR_MS) + self._phase) * SLICES).astype(np.int64)

    def _burst(self, at: int) -> Floats:
        into = (at / (2 * HOUR_MS) + self._phase) % 1.0
        size = np.where(into < 1 / 12, self._peak * np.sin(np.pi * np.minimum(into * 12, 1.0)), 0.0)
        distance = np.abs(np.arange(SLICES)[None, :] / SLICES - self._narrow[:, None])
        near = np.minimum(distance, 1 - distance) < 0.02
        found: Floats = near / near.sum(axis=1, keepdims=True) * size[:, None]
        return found


def _profiles(topics: int, random: np.random.Generator) -> Floats:
    """How each topic's demand lies over the key space, n x slices, each row adds up to 1: even, and two hot ranges."""
    place = np.arange(SLICES) / SLICES
    found = np.full((topics, SLICES), _EVEN / SLICES)
    for share in (0.6, 0.4):
        centre, width = random.uniform(0, 1, (topics, 1)), random.uniform(0.04, 0.14, (topics, 1))
        distance = np.abs(place[None, :] - centre)
        bump = np.clip(1 - np.minimum(distance, 1 - distance) / width, 0, None)
        found += (1 - _EVEN) * share * bump / bump.sum(axis=1, keepdims=True)
    return found
