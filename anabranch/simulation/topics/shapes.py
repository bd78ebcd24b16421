"""Synthetic demand: a shape over time, hot ranges over the key space, varying consumers; seeded.

Stage: one of the sources of a simulation (`--demand`). Every topic differs: its peak, its hot ranges, the hour of its
noon. The shapes by which profiles are compared (`--shapes`) are in `anabranch.simulation.topics.demands`.
"""

from collections.abc import Iterator
from typing import Literal, get_args

import numpy as np

from anabranch.simulation.topics.timeline import STEP_MS, ConsumersFrom, Floats, Ints, Timeline, Window, even_slices
from decisions.topic.layout import SegmentLayout

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
_CYCLE_MS, _BURST_MS = 2 * HOUR_MS, HOUR_MS // 6
_WINDOW_MS = 6 * HOUR_MS
SLICES = 256
"""Of the key space: 256 hashes each."""
_EVEN = 0.3
"""Part of the demand that is spread evenly over the key space."""
_MESSAGE_BYTES, _FANOUT, _MOST_CONSUMERS = 1_000.0, 2.0, 4
"""Of a message; messages out for each in; of one STREAM subscription, at the peak."""


class ShapedDemand:
    """Demand of `topics` topics of one shape; `peak` in messages per second of a topic."""

    def __init__(
        self, shape: Shape, topics: int, hours: float, *, began_at: int = 0, peak: float = 40_000.0, seed: int = 1
    ) -> None:
        random = np.random.default_rng(seed)
        self.topics = [f"topic://simulated/{shape}/t{number:04d}" for number in range(topics)]
        self.began_at, self.step_ms = began_at, STEP_MS
        self.steps = max(1, round(hours * HOUR_MS / STEP_MS))
        self._shape = shape
        self._peak = peak * random.uniform(0.3, 1.0, topics)
        self._phase = random.uniform(0.0, 1.0, topics)
        self._narrow = random.uniform(0.0, 1.0, topics)
        self._profile = _profiles(topics, random)
        size, out = _MESSAGE_BYTES * random.uniform(0.5, 2.0, topics), _FANOUT * random.uniform(0.5, 1.5, topics)
        self._factors = np.stack([np.ones(topics), size, out, size * out], axis=1)

    def layouts(self, indices: range) -> list[SegmentLayout]:
        """See `Source`: one segment or two."""
        return [SegmentLayout.create(1 + index % 2, self.began_at) for index in indices]

    def windows(self, indices: range) -> Iterator[Window]:
        """See `Source`."""
        until, announced = self.steps * self.step_ms, dict.fromkeys(indices, -1)
        length = max(1, _WINDOW_MS // self.step_ms) * self.step_ms
        for begin in range(0, until, length):
            end = min(begin + length, until)
            timelines = [self._timeline(index, begin, end, announced) for index in indices]
            yield Window(self.began_at + begin, self.began_at + end, timelines)

    def _timeline(self, index: int, begin: int, end: int, announced: dict[int, int]) -> Timeline:
        """Return a topic's timeline from `begin` to `end` (milliseconds); `announced`: last consumers."""
        profiles, instants, which, level = self._steps_of(index, begin, end)
        consumers = []
        times = np.arange(-(-begin // _CONSUMERS_EVERY_MS) * _CONSUMERS_EVERY_MS, end, _CONSUMERS_EVERY_MS)
        for instant, part in zip(times.tolist(), self._level(index, times).tolist(), strict=True):
            count = round(_MOST_CONSUMERS * part)
            if announced[index] != count:
                announced[index] = count
                consumers.append(ConsumersFrom(self.began_at + instant, "consumers", "STREAM", count))
        return Timeline(
            even_slices(SLICES),
            profiles[:, :, None],
            self.began_at + instants,
            which,
            level,
            self._factors[index],
            consumers,
        )

    def _steps_of(self, index: int, begin: int, end: int) -> tuple[Floats, Ints, Ints, Floats]:
        """Return profiles, the instants and the profile of each step, and its level."""
        instants = np.arange(begin, end, self.step_ms)
        profile, peak = self._profile[index], self._peak[index]
        if self._shape == "drift":
            turned = (np.arange(SLICES)[None, :] - np.arange(SLICES)[:, None]) % SLICES
            profiles = profile[turned]
            which = np.floor((instants / (8 * HOUR_MS) + self._phase[index]) * SLICES).astype(np.int64) % SLICES
        elif self._shape == "burst":
            # Every cycle is the same to the step: a profile for each step of a burst, and one for the time between.
            cycle, burst = _CYCLE_MS // self.step_ms, _BURST_MS // self.step_ms
            into = (instants // self.step_ms + int(self._phase[index] * cycle)) % cycle
            which = np.where(into < burst, into, burst)
            height = np.append(np.sin(np.pi * np.arange(burst) / burst), 0.0)
            profiles = 0.2 * profile[None, :] + height[:, None] * self._narrow_range(index)[None, :]
        else:
            profiles, which = profile[None, :], np.zeros(len(instants), np.int64)
        level = peak * (np.ones(len(instants)) if self._shape == "burst" else self._level(index, instants))
        changed = np.append(True, (which[1:] != which[:-1]) | (level[1:] != level[:-1]))
        return profiles, instants[changed], which[changed], level[changed]

    def _level(self, index: int, instants: Ints) -> Floats:
        """Return the demand of a topic as a share of its peak, so many milliseconds after the beginning."""
        if self._shape == "day":
            position = (instants / DAY_MS + self._phase[index]) % 1.0
            return np.where(position < 0.62, np.maximum(np.sin(np.pi * position / 0.62), 0.01) ** 0.8, 0.01)
        if self._shape == "step":
            third = 3 * instants / (self.steps * self.step_ms)
            return np.where((third >= 1) & (third < 2), 1.0, 0.1)
        return np.full(len(instants), 0.2 if self._shape == "burst" else 1.0)

    def _narrow_range(self, index: int) -> Floats:
        distance = np.abs(np.arange(SLICES) / SLICES - self._narrow[index])
        near = np.minimum(distance, 1 - distance) < 0.02
        share: Floats = near / near.sum()
        return share


def _profiles(topics: int, random: np.random.Generator) -> Floats:
    """Return each topic's distribution over the key space, n x slices: an even part and two hot ranges."""
    position = np.arange(SLICES) / SLICES
    profiles = np.full((topics, SLICES), _EVEN / SLICES)
    for share in (0.6, 0.4):
        centre, width = random.uniform(0, 1, (topics, 1)), random.uniform(0.04, 0.14, (topics, 1))
        distance = np.abs(position[None, :] - centre)
        bump = np.clip(1 - np.minimum(distance, 1 - distance) / width, 0, None)
        profiles += (1 - _EVEN) * share * bump / bump.sum(axis=1, keepdims=True)
    return profiles
