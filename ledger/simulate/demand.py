"""Demand over the key space, kept per slice, so that it can be added up under any layout. Pure.

Stage: under the loop. What clients want does not depend on how the topic is cut into segments; what a segment carries
is the sum over its hashes. Within a slice demand is even: a segment that is narrower than one has its part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from decisions.topic.layout import HASH_SPACE
from schemas.messages import SubscriptionType

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
SLICES = 256
"""Of the key space: 256 hashes each."""
STEP_MS = 10_000
"""Brokers report every ten seconds (PIP-483)."""


class Consumers(NamedTuple):
    """The sessions of a subscription, from an instant on."""

    topic: int
    """Its place among the demand's topics."""
    subscription: str
    kind: SubscriptionType
    sessions: int


class Demand(Protocol):
    """The demand of some topics, step after step, in order."""

    topics: Sequence[str]
    initial: Sequence[int]
    """Segments that each topic begins with."""
    began_at: int
    """Milliseconds since 1970."""
    step_ms: int
    """Between two samples of a segment's load."""
    steps: int

    def advance(self, step: int) -> Sliced:
        """What is wanted at a step; asked for each once, in order."""

    def consumers(self, step: int) -> Iterable[Consumers]:
        """What has changed of subscriptions since the step before."""


class Sliced:
    """What n topics want at an instant."""

    def __init__(self, below: Floats, factors: Floats | None = None) -> None:
        """`below`: what lies under the lower edge of each slice and under the end, n x (slices + 1) x 4, per second; or
        x 1, with `factors`, n x 4, of all four rates to that."""
        self._below, self.factors = below, factors
        self._width = HASH_SPACE / (below.shape[1] - 1)

    def rates_of(self, topic: Ints, start: Ints, end: Ints) -> Floats:
        """The four rates of each segment, m x 4: of the topic at that place, hashes `start` to `end`, inclusive."""
        found = self._under(topic, end + 1) - self._under(topic, start)
        # Sums of many floats: what cancels out may be a little below nothing.
        found = np.maximum(found, 0.0)
        return found if self.factors is None else found * self.factors[topic]

    def _under(self, topic: Ints, hashes: Ints) -> Floats:
        """What lies under a hash."""
        place = hashes / self._width
        whole = np.minimum(place.astype(np.int64), self._below.shape[1] - 2)
        low = self._below[topic, whole]
        found: Floats = low + (self._below[topic, whole + 1] - low) * (place - whole)[:, None]
        return found


def below_of(rates: Floats) -> Floats:
    """What lies under each edge, for rates of each slice: n x slices x k."""
    found = np.zeros((rates.shape[0], rates.shape[1] + 1, rates.shape[2]))
    np.cumsum(rates, axis=1, out=found[:, 1:])
    return found
