"""History of a cluster's brokers: the usage of each, and the bundles that moved between them.

Stage: under `anabranch bundles history`, beside `picture`. It rests on the brokers' reports, so it shows moves by
anyone: the job's executor, the cluster's own balancer, or a person.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from anabranch.simulation.bundles.backtest import outcome_on_record
from anabranch.simulation.bundles.events import read
from anabranch.simulation.bundles.recorded import MINUTE_MS, RecordedFleet, fleet_of

BARS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Move:
    """Move of a bundle to another broker."""

    at: int
    """Milliseconds; the minute in which a report showed it."""
    bundle: str
    source: str
    destination: str


@dataclass(frozen=True)
class BundleNow:
    """Bundle at the end of the record."""

    bundle: str
    broker: int
    """Place of its broker."""
    load: float
    """Share that it takes of that broker's fullest resource."""


@dataclass(frozen=True)
class ClusterHistory:
    """History of a cluster in a period."""

    cluster: str
    since: int
    """Milliseconds."""
    until: int
    brokers: Sequence[str]
    usage: NDArray[np.float64]
    """By minute and broker, of its fullest resource, as a fraction; NaN: it was not there."""
    moves: Sequence[Move]
    now: Sequence[BundleNow] = ()
    """The bundles at its end; those that nobody has are left out."""


def history(lake: str, cluster: str, since: datetime | None = None, until: datetime | None = None) -> ClusterHistory:
    """Return the history. Raises `NoRecord`, and what Delta raises.

    Brokers with the extensible manager name only their busiest bundles: moves of other bundles are not seen.
    """
    recorded = fleet_of(read(lake, cluster, since, until, with_partial=True))
    _, moves = outcome_on_record(recorded)
    begin = recorded.began_at
    return ClusterHistory(
        cluster,
        begin,
        begin + recorded.fleet.minutes * MINUTE_MS,
        [broker.name for broker in recorded.fleet.brokers],
        _usage(recorded),
        [Move(begin + minute * MINUTE_MS, *fields) for minute, *fields in moves],
        _now(recorded),
    )


def _usage(recorded: RecordedFleet) -> NDArray[np.float64]:
    fleet, rates = recorded.fleet, recorded.fleet.recorded
    assert rates is not None
    usage = np.full((fleet.minutes, len(fleet.brokers)), np.nan)
    for minute in range(fleet.minutes):
        owners = recorded.owners[minute]
        owned = owners >= 0
        sums = [
            np.bincount(owners[owned], rates[minute, owned, rate_index], len(fleet.brokers)) for rate_index in range(4)
        ]
        for index, broker in enumerate(fleet.brokers):
            if broker.lives(minute):
                rate, out, received, sent = (float(total[index]) for total in sums)
                cpu = broker.idle + (rate + out) / broker.messages
                usage[minute, index] = max(cpu, received / broker.network, sent / broker.network)
    return usage


def _now(recorded: RecordedFleet) -> list[BundleNow]:
    fleet, rates = recorded.fleet, recorded.fleet.recorded
    assert rates is not None
    bundles = []
    for name, owner, (into, out, received, sent) in zip(
        fleet.bundles, recorded.owners[-1].tolist(), rates[-1].tolist(), strict=True
    ):
        if owner >= 0:
            broker = fleet.brokers[owner]
            load = max((into + out) / broker.messages, received / broker.network, sent / broker.network)
            bundles.append(BundleNow(name, owner, load))
    return bundles


def columns(usage: NDArray[np.float64], most: int) -> NDArray[np.float64]:
    """Return at most `most` means over time for each broker; NaN while it was not there at all."""
    groups = np.array_split(usage, min(most, len(usage)))
    there = [np.isfinite(group).sum(axis=0) for group in groups]
    sums = [np.nansum(group, axis=0) for group in groups]
    return np.array(
        [np.where(count > 0, total / np.maximum(count, 1), np.nan) for total, count in zip(sums, there, strict=True)]
    )


def bars(values: Sequence[float]) -> str:
    """Return a character for each value: `·` for NaN, a full bar from 1.0 on."""
    text = ""
    for value in values:
        level = 0 if np.isnan(value) else 1 + int(min(max(value, 0.0), 0.999) * (len(BARS) - 1))
        text += "·" if np.isnan(value) else BARS[level]
    return text
