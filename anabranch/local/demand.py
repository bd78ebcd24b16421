"""Client demand of each scalable topic: a density over the 16-bit key space that moves with time.

`anabranch.local.samples` integrates this density over the hash ranges of the active segments and reports the result as
brokers would, so a split at the midpoint of a hot range really divides its load.

Pure and seeded: everything is a function of the settings, the topic and the instant, so a generator that was restarted
goes on where it would have been. One topic's demand is made of

- a wave (day and night): almost nothing for a third of the period, so that segments grow cold and merge;
- an even part over the whole key space, and hot ranges whose centres wander;
- bursts: short, on a narrow range of new keys;
- subscriptions whose consumers come and go, fewer at night.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from random import Random

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anabranch.local.story import SCRIPTS
from schemas.ids import topic_name
from schemas.kafka.messages import SubscriptionType
from schemas.settings.root import TrafficSettings

KEYS = 0x10000
MEAN_MESSAGE_BYTES = 1000
MEAN_FANOUT = 2.0
"""Messages out per message in."""
"""Size of the key space: hashes `0x0000..0xFFFF`."""

ROLLING_INTERVALS = 6
"""A broker's rates roll over six report intervals (PIP-483: 60 s over 10 s)."""

_NAMES = (
    "orders",
    "payments",
    "clicks",
    "shipments",
    "prices",
    "sessions",
    "invoices",
    "inventory",
    "searches",
    "reviews",
    "returns",
    "alerts",
)
_DAY_SHARE = 0.62
"""Part of the wave's period that is not night."""
_NIGHT = 0.01
"""Activity at night, as a part of the peak."""
_EVEN_SHARE = 0.3
"""Part of the demand that is spread evenly over the key space."""
_BURST_CHANCE = 0.6
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True)
class DemandedSubscription:
    """A subscription of a topic: its name and type."""

    name: str
    type: SubscriptionType


@dataclass(frozen=True)
class _HotRange:
    """A bump on the key space: keys are parts of the space, 0 to 1, and wrap around."""

    centre: float
    half_width: float
    share: float
    reach: float
    period: float
    phase: float

    def centre_at(self, t: float) -> float:
        turn = 2 * math.pi * t / self.period
        return self.centre + self.reach * (math.sin(turn + self.phase) + 0.3 * math.sin(2.7 * turn)) / 1.3


class TopicDemand:
    """The demand for one topic. Instants are seconds since 1970, keys hashes, rates per second."""

    def __init__(self, settings: TrafficSettings, index: int, origin: float = 0.0) -> None:
        """`origin`: the instant from which the demand counts its time, seconds since 1970."""
        self._settings, self._origin = settings, origin
        self._seed = f"{settings.seed}/{index}"
        tenant, namespace = settings.namespace.split("/", 1)
        name = _NAMES[index % len(_NAMES)] + (f"-{index // len(_NAMES)}" if index >= len(_NAMES) else "")
        self.topic = topic_name(tenant, namespace, name)
        self.initial_segments = 1 + index % 2
        """Segments that the topic is created with."""
        traits = self._random("traits")
        self._phase = (settings.seed * _GOLDEN + index * _GOLDEN) % 1.0
        # One topic in six is quiet: only its consumers ask for segments there.
        self._peak = settings.peak_msg_rate_in * traits.uniform(0.6, 1.0) * (0.15 if index % 6 == 4 else 1.0)
        self._message_bytes = MEAN_MESSAGE_BYTES * math.exp(traits.uniform(math.log(0.3), math.log(3.0)))
        self._fanout = MEAN_FANOUT * traits.uniform(0.5, 1.6)
        shares = [traits.uniform(0.5, 1.0) for _ in range(traits.choice((1, 2, 2, 3)))]
        self._hot = tuple(
            _HotRange(
                centre=traits.random(),
                half_width=traits.uniform(0.04, 0.14),
                share=(1 - _EVEN_SHARE) * share / sum(shares),
                reach=traits.uniform(0.05, 0.25),
                period=settings.wave_seconds * traits.uniform(1.5, 4.0),
                phase=traits.uniform(0, 2 * math.pi),
            )
            for share in shares
        )
        self.subscriptions = self._subscriptions(index)

    def activity(self, t: float) -> float:
        """Return the topic's level of activity, from 0.01 (night) to 1 (noon)."""
        position = (t / self._settings.wave_seconds + self._phase) % 1.0
        if position >= _DAY_SHARE:
            return _NIGHT
        return max(_NIGHT, float(math.sin(math.pi * position / _DAY_SHARE) ** 0.8))

    def rates(self, t: float, starts: ArrayLike, ends: ArrayLike) -> NDArray[np.float64]:
        """The four rates of each inclusive range `starts[i]..ends[i]` at `t`, as brokers measure them.

        Shape (n, 4): messages in, bytes in, messages out, bytes out, each per second, rolling over six report
        intervals. Over ranges that tile the key space, the rows add up to those of the whole space.
        """
        t -= self._origin
        first = np.asarray(starts, dtype=np.float64) / KEYS
        last = (np.asarray(ends, dtype=np.float64) + 1) / KEYS
        rate = np.zeros(first.shape)
        for interval in range(ROLLING_INTERVALS):
            rate += self._rate_in(t - interval * self._settings.report_seconds, first, last)
        rate /= ROLLING_INTERVALS
        size, fanout = self._message_bytes, self._fanout
        return np.stack([rate, rate * size, rate * fanout, rate * size * fanout], axis=-1)

    def momentary_rates(self, t: float, starts: ArrayLike, ends: ArrayLike) -> NDArray[np.float64]:
        """Return messages in per second of each inclusive range `starts[i]..ends[i]` at the instant `t`."""
        first = np.asarray(starts, dtype=np.float64) / KEYS
        return self._rate_in(t - self._origin, first, (np.asarray(ends, dtype=np.float64) + 1) / KEYS)

    def consumers(self, t: float) -> dict[str, int]:
        """The number of connected consumers of each subscription at `t`."""
        return {
            subscription.name: self._consumers_of(subscription.name, position, t - self._origin)
            for position, subscription in enumerate(self.subscriptions)
        }

    def _rate_in(self, t: float, first: NDArray[np.float64], last: NDArray[np.float64]) -> NDArray[np.float64]:
        mass = _EVEN_SHARE * (last - first)
        for hot in self._hot:
            mass = mass + hot.share * _bump(first, last, hot.centre_at(t), hot.half_width)
        rate = self._peak * self.activity(t) * mass
        slot = math.floor(t / self._settings.burst_seconds)
        for size, centre, half_width in (self._burst(slot, t), self._burst(slot - 1, t)):
            if size > 0:
                rate = rate + size * _bump(first, last, centre, half_width)
        return rate

    def _burst(self, slot: int, t: float) -> tuple[float, float, float]:
        """Messages per second, centre and half width of the burst that began in `slot`, as it is at `t`."""
        traits = _slot_traits(f"{self._seed}/burst/{slot}")
        length = self._settings.burst_seconds * (0.15 + 0.2 * traits[1])
        into = (t - (slot + traits[2]) * self._settings.burst_seconds) / length
        if traits[0] > _BURST_CHANCE or not 0 < into < 1:
            return 0.0, 0.0, 1.0
        size = self._peak * (0.4 + 0.6 * traits[3]) * math.sin(math.pi * into) ** 0.5
        return size, traits[4], 0.01 + 0.03 * traits[5]

    def _subscriptions(self, index: int) -> tuple[DemandedSubscription, ...]:
        stream, second = DemandedSubscription("billing", "STREAM"), DemandedSubscription("search", "STREAM")
        queue, checkpoint = DemandedSubscription("audit", "QUEUE"), DemandedSubscription("lakehouse", "CHECKPOINT")
        kinds = ((stream,), (stream, queue), (stream, second), (queue,), (checkpoint,), (stream, second, queue))
        return kinds[index % len(kinds)]

    def _consumers_of(self, subscription: str, position: int, t: float) -> int:
        # One change a slot and subscription, at a moment of its own: a topic then changes every consumer_seconds.
        length = self._settings.consumer_seconds * len(self.subscriptions)
        slot = math.floor(t / length)
        traits = _slot_traits(f"{self._seed}/{subscription}/{slot}")
        if t < (slot + 0.8 * traits[0]) * length:
            slot -= 1
            traits = _slot_traits(f"{self._seed}/{subscription}/{slot}")
        since = (slot + 0.8 * traits[0]) * length
        return round(self._settings.max_consumers * (0.4 + 0.6 * self.activity(since)) * traits[1])

    def _random(self, purpose: str) -> Random:
        return Random(f"{self._seed}/{purpose}")


class StoryDemand(TopicDemand):
    """The demand for one topic by the demonstration's script."""

    def __init__(self, settings: TrafficSettings, index: int, origin: float = 0.0) -> None:
        super().__init__(settings, index, origin)
        self._script = SCRIPTS[index % len(SCRIPTS)]
        self.initial_segments = self._script.segments
        self.subscriptions = (DemandedSubscription("billing", "STREAM"),)
        self._message_bytes, self._fanout = float(MEAN_MESSAGE_BYTES), MEAN_FANOUT

    def _rate_in(self, t: float, first: NDArray[np.float64], last: NDArray[np.float64]) -> NDArray[np.float64]:
        return self._settings.peak_msg_rate_in * self._script.rate_in(t, first, last)

    def _consumers_of(self, subscription: str, position: int, t: float) -> int:
        return self._script.consumers_at(t)


def demands(settings: TrafficSettings, origin: float = 0.0) -> list[TopicDemand]:
    """Return the demand of every topic of the settings; `origin` as in `TopicDemand`."""
    made = StoryDemand if settings.demand == "story" else TopicDemand
    return [made(settings, index, origin) for index in range(settings.topics)]


@lru_cache(maxsize=4096)
def _slot_traits(seed: str) -> tuple[float, ...]:
    traits = Random(seed)
    return tuple(traits.random() for _ in range(6))


def _bump(
    first: NDArray[np.float64], last: NDArray[np.float64], centre: float, half_width: float
) -> NDArray[np.float64]:
    """Return the mass, of 1, of a raised-cosine bump in each `[first, last)`; the space wraps at 1."""
    centre %= 1.0
    below = _mass_below((np.stack((first, last))[:, None] - centre - _TURNS) / half_width)
    mass = np.zeros(first.shape)
    for turn in range(len(_TURNS)):
        mass = mass + below[1, turn] - below[0, turn]
    return mass


_TURNS = np.array([[-1.0], [0.0], [1.0]])


def _mass_below(x: NDArray[np.float64]) -> NDArray[np.float64]:
    x = np.minimum(np.maximum(x, -1.0), 1.0)
    return 0.5 * (1 + x + np.sin(np.pi * x) / np.pi)
