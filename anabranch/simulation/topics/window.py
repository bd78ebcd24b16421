"""Window of timelines in columns: loads of any ranges of hashes at any change, many looked up at once.

Stage: between `timeline` and the kernel. Profiles are cumulative over the key space, so that a range costs two look-ups
however many slices it spans. Changes are numbered by steps; of several in one step the last one counts.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from anabranch.simulation.topics.timeline import ConsumersFrom, Floats, Ints, Timeline, Window
from decisions.autoscale.snapshot import required_segments, sharing_consumers, unshared_consumers
from decisions.topic.layout import HASH_SPACE

NO_STEP = 2**62
"""A step that never comes."""
_LAST_STEP = 2**40
_END = -1
"""Stands for the profile behind the last change of a topic."""
Subscriptions = dict[str, tuple[str, int]]
"""Subscription to (type, sessions)."""


class Bounds(NamedTuple):
    """Positions of ranges of hashes among the slices of their topics."""

    low: Ints
    low_part: Floats
    high: Ints
    high_part: Floats


class DemandChanges(NamedTuple):
    """Changes of all topics, one topic after the other, each with a final entry that never takes effect."""

    first: Ints
    """By topic: where its changes begin."""
    step: Ints
    which: Ints
    level: Floats


class WindowColumns:
    """Demand of some topics in a window."""

    def __init__(self, window: Window, began_at: int, step_ms: int, subscriptions: list[Subscriptions]) -> None:
        """`subscriptions`: those of each topic before the window; they are advanced to its end."""
        timelines = window.timelines
        self.begin, self.end = (-(-(bound - began_at) // step_ms) for bound in (window.begin, window.end))
        """Steps."""
        for timeline in timelines:
            _check(timeline, window)
        lengths = [len(timeline.edges) for timeline in timelines]
        self._stride = np.array(lengths)
        self._edges = np.concatenate([timeline.edges for timeline in timelines])
        self._first_edge = np.array([0, *accumulate(lengths)][:-1])
        self._keys = np.repeat(np.arange(len(timelines)), lengths) * (HASH_SPACE + 1) + self._edges
        self._factors = np.array(
            [np.ones(4) if timeline.factors is None else timeline.factors for timeline in timelines]
        )
        width = max(timeline.profiles.shape[2] for timeline in timelines)
        sizes = [len(timeline.profiles) * length for timeline, length in zip(timelines, lengths, strict=True)]
        self._first_below = np.array([0, *accumulate(sizes)][:-1])
        self._below = np.zeros((sum(sizes), width))
        for first, size, timeline in zip(self._first_below.tolist(), sizes, timelines, strict=True):
            below = self._below[first : first + size].reshape(len(timeline.profiles), -1, width)
            below[:, 1:] = np.cumsum(timeline.profiles, axis=1)
        steps = [self._steps_of(timeline.at, began_at, step_ms) for timeline in timelines]
        kept_steps = [np.flatnonzero(np.append(step[1:] != step[:-1], True) & (step < self.end)) for step in steps]
        self.changes = DemandChanges(
            np.array([0, *accumulate(len(indices) + 1 for indices in kept_steps)][:-1]),
            np.concatenate([[*step[indices], NO_STEP] for step, indices in zip(steps, kept_steps, strict=True)]),
            np.concatenate(
                [[*timeline.which[indices], _END] for timeline, indices in zip(timelines, kept_steps, strict=True)]
            ),
            np.concatenate(
                [
                    [*(np.ones(len(indices)) if timeline.level is None else timeline.level[indices]), 0.0]
                    for timeline, indices in zip(timelines, kept_steps, strict=True)
                ]
            ),
        )
        self._instants = np.minimum(self.changes.step, _LAST_STEP - 1)
        self._instants += (
            np.repeat(np.arange(len(kept_steps)), [len(indices) + 1 for indices in kept_steps]) * _LAST_STEP
        )
        self._take_consumers([timeline.consumers for timeline in timelines], began_at, step_ms, subscriptions)

    def locate(self, topic: Ints, start: Ints, end: Ints) -> Bounds:
        """Return the positions of ranges of hashes, ends inclusive, in their topics."""
        return Bounds(*self._place(topic, start), *self._place(topic, end + 1))

    def in_force(self, topic: Ints, step: Ints) -> Ints:
        """Return the index of the change of a topic that is in force at a step."""
        change: Ints = np.searchsorted(self._instants, topic * _LAST_STEP + step, side="right") - 1
        return change

    def carried(self, topic: Ints, which: Ints, bounds: Bounds) -> Floats:
        """Return the four rates of each range (m x 4) under a profile of its topic, at level 1."""
        first = self._first_below[topic] + which * self._stride[topic]
        # Sums of many floats: what cancels out may be a little below nothing.
        sums = self._under(first + bounds.high, bounds.high_part) - self._under(first + bounds.low, bounds.low_part)
        rates: Floats = np.maximum(sums, 0.0) * self._factors.take(topic, axis=0)
        return rates

    def _under(self, edge: Ints, part: Floats) -> Floats:
        low = self._below.take(edge, axis=0)
        sums: Floats = low + (self._below.take(edge + 1, axis=0) - low) * part[:, None]
        return sums

    def _place(self, topic: Ints, hashes: Ints) -> tuple[Ints, Floats]:
        first = self._first_edge[topic]
        position = np.searchsorted(self._keys, topic * (HASH_SPACE + 1) + hashes, side="right") - 1
        position = np.minimum(position, first + self._stride[topic] - 2)
        low = self._edges[position]
        return position - first, (hashes - low) / (self._edges[position + 1] - low)

    def _steps_of(self, instants: Ints, began_at: int, step_ms: int) -> Ints:
        """Return the step from which each change counts."""
        return np.maximum(-(-(np.asarray(instants) - began_at) // step_ms), self.begin)

    def _take_consumers(
        self,
        changes: Sequence[Sequence[ConsumersFrom]],
        began_at: int,
        step_ms: int,
        subscriptions_before: list[Subscriptions],
    ) -> None:
        firsts: list[int] = []
        steps: list[int] = []
        wanted: list[tuple[int, int, int]] = []
        for of_topic, subscriptions in zip(changes, subscriptions_before, strict=True):
            firsts.append(len(steps))
            for announced_at, subscription, kind, sessions in of_topic:
                step = max(-(-(announced_at - began_at) // step_ms), self.begin)
                if step >= self.end or subscriptions.get(subscription) == (kind, sessions):
                    continue
                subscriptions[subscription] = kind, sessions
                if len(steps) > firsts[-1] and steps[-1] == step:
                    wanted.pop()
                else:
                    steps.append(step)
                sharing, unshared = sharing_consumers(subscriptions), unshared_consumers(subscriptions)
                wanted.append((required_segments(subscriptions), sharing, unshared))
            steps.append(NO_STEP)
            wanted.append((0, 0, 0))
        self.consumers_first, self.consumers_step = np.array(firsts), np.array(steps)
        self.consumers_required = np.array(wanted).T
        """From that step on: segments that a topic's consumers need, consumers that can share segments by their entry
        buckets, and consumers that cannot; each of the largest subscription."""


def _check(timeline: Timeline, window: Window) -> None:
    """Raise `ValueError` for an invalid timeline of the window."""
    edges, profiles = timeline.edges, timeline.profiles
    if edges[0] != 0 or edges[-1] != HASH_SPACE or (np.diff(edges) <= 0).any():
        raise ValueError(f"edges have to ascend from 0 to {HASH_SPACE}")
    if profiles.ndim != 3 or profiles.shape[1] != len(edges) - 1 or profiles.shape[2] not in (1, 4):
        raise ValueError(f"profiles have to be p x {len(edges) - 1} x 4 or 1, not {profiles.shape}")
    if not len(timeline.at) or timeline.at[0] > window.begin or (np.diff(timeline.at) <= 0).any():
        raise ValueError("instants have to ascend, the first of them at or before the beginning of the window")
