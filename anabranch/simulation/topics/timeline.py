"""Contract of a simulation: demand of each topic, as steps over time and over the key space.

Stage: under the kernel. A demand, synthetic or recorded, is a `Source`: topics with their first layouts, and window
after window of their demand. Memory holds one window of some topics at a time, so a source of a month yields days.

    Source.layouts(indices)   the layouts of some topics at the beginning
    Source.windows(indices)   Window, Window, …: consecutive, from the beginning to the end
    Window.timelines          a Timeline for each of these topics, in their order

A source is sent to the processes that simulate: it has to be picklable, and refers to a file or a table by its name.
All instants are milliseconds since 1970, rates per second in the PIP's order (`schemas.metadata.RATES`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from decisions.topic.layout import HASH_SPACE, SegmentLayout
from schemas.kafka.messages import SubscriptionType

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
STEP_MS = 10_000
"""Brokers report every ten seconds (PIP-483)."""


class ConsumersFrom(NamedTuple):
    """Sessions of a subscription from an instant on; 0 if it is gone."""

    at: int
    subscription: str
    kind: SubscriptionType
    sessions: int


@dataclass(frozen=True)
class Timeline:
    """Demand of one topic in a window of time.

    From `at[i]` until `at[i + 1]` slice s of the key space carries `profiles[which[i], s] * level[i] * factors`; within
    a slice demand is even. Where every instant has rates of its own, `which` counts up and `level` is 1; where the
    same distribution goes up and down, one profile and many levels are many times as fast.
    """

    edges: Ints
    """k + 1 bounds of the slices, ascending, from 0 to `HASH_SPACE`: slice s is hashes `edges[s]..edges[s + 1] - 1`."""
    profiles: Floats
    """p x k x 4: the four rates of each slice. Or p x k x 1, of all four up to `factors`."""
    at: Ints
    """n instants, strictly ascending. The first is at or before the beginning of the window."""
    which: Ints
    """n: the profile that holds from then on."""
    level: Floats | None = None
    """n: times so much; None: 1."""
    factors: Floats | None = None
    """The four rates to the one of a profile; None: 1 each."""
    consumers: Sequence[ConsumersFrom] = ()
    """Changes in the window, ascending by `at`; the first window begins with the state before it."""


class Window(NamedTuple):
    """Demand of some topics for a period."""

    begin: int
    end: int
    """Exclusive; the next window begins here."""
    timelines: Sequence[Timeline]


class Source(Protocol):
    """Demand of some topics."""

    @property
    def topics(self) -> Sequence[str]:
        """Names of the topics."""
        ...

    began_at: int
    step_ms: int
    """Between two samples of a segment's load."""
    steps: int
    """Samples of each segment: instants `began_at + i * step_ms`. A change counts from the first of them that is at or
    after it."""

    def layouts(self, indices: range) -> list[SegmentLayout]:
        """Return the first layouts of the topics at these indices. A layout has the topic's own override."""

    def windows(self, indices: range) -> Iterator[Window]:
        """Yield these topics' demand in consecutive windows of whole steps, of `steps` in all."""


def step_for(tick_ms: int) -> int:
    """Return the step, milliseconds: a sixth of a tick (PIP-483) in whole seconds, at most `STEP_MS`."""
    return max(1_000, min(STEP_MS, tick_ms // 6_000 * 1_000))


def even_slices(count: int) -> Ints:
    """Return the bounds of so many slices of the key space, as equal as possible."""
    edges: Ints = np.arange(count + 1, dtype=np.int64) * HASH_SPACE // count
    return edges
