"""Scripted demand of the demonstration: each topic repeats a round of five minutes with its own theme.

Stage: `anabranch.local.demand` plays these scripts if `[traffic] demand` is `story`. Pure. Seconds count from the
generator's first start, and rates are fractions of `[traffic] peak_msg_rate_in`. Loads stay clear of the thresholds of
conf/policies/story.toml and return to the same keys in each round, so what was split is needed again.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

ROUND_SECONDS = 300
RIPPLE = 0.05
"""Fraction by which an even load oscillates."""
RIPPLE_SECONDS = 40.0

Curve = Mapping[float, float]
"""Values at seconds of a round, interpolated linearly."""


@dataclass(frozen=True)
class HotKeys:
    """Additional load on the key range `[first, last)`, in fractions of the key space."""

    first: float
    last: float
    rate: Curve


@dataclass(frozen=True)
class Script:
    """Demand for one topic over a round."""

    even: Curve
    """Rate of messages in, spread evenly over the key space."""
    hot: HotKeys | None = None
    consumers: Curve = field(default_factory=lambda: {0: 1})
    """Number of consumers of the subscription, from each second on."""
    segments: int = 1
    """Number of segments at creation."""
    is_repeated: bool = True
    """False: the topic stays as it is at the end of the first round."""

    def rate_in(self, t: float, first: NDArray[np.float64], last: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the rate of messages in for each key range `[first, last)`, in fractions of the peak."""
        second = self._second(t)
        rate = (
            _interpolate(self.even, second) * (1 + RIPPLE * math.sin(2 * math.pi * t / RIPPLE_SECONDS)) * (last - first)
        )
        if self.hot is not None:
            overlap = np.minimum(last, self.hot.last) - np.maximum(first, self.hot.first)
            rate = rate + _interpolate(self.hot.rate, second) * np.maximum(overlap, 0.0) / (
                self.hot.last - self.hot.first
            )
        return rate

    def consumers_at(self, t: float) -> int:
        """Return the number of connected consumers."""
        second = self._second(t)
        return int(self.consumers[max(begin for begin in self.consumers if begin <= second)])

    def _second(self, t: float) -> float:
        if t < 0:
            return 0.0
        return t % ROUND_SECONDS if self.is_repeated else min(t, ROUND_SECONDS)


def _interpolate(curve: Curve, second: float) -> float:
    return float(np.interp(second, list(curve), list(curve.values())))


HOT_HASH = 40_503
"""Hash of the hot key."""
_KEY = HOT_HASH / 65_536
_RAMP = Script({0: 0.1, 10: 0.1, 100: 1.0, 200: 1.0, 240: 0.1, 300: 0.1})
_BURST = Script({0: 0.1}, hot=HotKeys(0.25, 0.5, {0: 0, 120: 0, 125: 0.5, 165: 0.5, 170: 0, 300: 0}))
_CONSUMERS = Script({0: 0.08}, consumers={0: 2, 50: 3, 90: 5, 150: 2, 200: 4, 260: 2})
_ONE_KEY = Script({0: 0.16}, hot=HotKeys(_KEY, _KEY + 1 / 65_536, {0: 0, 5: 0.75, 270: 0.75, 300: 0.75}))
_QUIET = Script({0: 0.8, 60: 0.8, 80: 0.02, 300: 0.02}, segments=4, is_repeated=False)
_STEADY = Script({0: 0.22})

SCRIPTS = (_RAMP, _BURST, _CONSUMERS, _ONE_KEY, _QUIET, _STEADY)
"""Scripts of the topics, in turn: a ramp, a burst, consumers that come and go, one hot key, a topic that falls quiet,
and one that gives no reason to act."""
