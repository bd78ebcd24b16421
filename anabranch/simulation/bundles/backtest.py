"""Balancers on a cluster's recorded demand, beside its recorded moves. Source: as of `recorded`.

Stage: above `recorded` and `run`, under `anabranch whatif backtest --family bundles`. Each balancer's moves feed back:
it sees the usage that its own placement leads to. The record is measured by the same model.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anabranch.simulation.bundles.compare import Compared, read
from anabranch.simulation.bundles.events import Recorded
from anabranch.simulation.bundles.outcome import IDLE, OVER, BalancingOutcome
from anabranch.simulation.bundles.recorded import RecordedFleet, fleet_of
from anabranch.simulation.bundles.run import DEAD_SECONDS, SECONDS_A_CONNECTION, UNLOAD_SECONDS, simulate
from decisions.bundles.configuration import PROFILES

ON_RECORD, RAN = "on record", "policy that ran"
WITHIN = 2
"""Minutes between two moves of a bundle that are taken for the same."""
_RECONNECT = UNLOAD_SECONDS + 10 * SECONDS_A_CONNECTION


@dataclass(frozen=True)
class Backtested:
    """Results of a backtest."""

    rows: list[Compared]
    """`on record`, `policy that ran`, and each balancer."""
    recorded: RecordedFleet
    moved: int
    """Moves on record, of parts (`anabranch.simulation.bundles.recorded`)."""
    matched: int
    """Of those: the policy that ran made them too, within `WITHIN` minutes."""
    same_way: int
    """And to the same broker."""

    def to_json(self) -> dict[str, Any]:
        """Return the results for scripts."""
        return {
            "beganAt": self.recorded.began_at,
            "minutes": self.recorded.fleet.minutes,
            "brokers": len(self.recorded.fleet.brokers),
            "bundles": len(self.recorded.fleet.bundles),
            "bundlesSplit": self.recorded.split,
            "known": self.recorded.known,
            "cpuError": self.recorded.cpu_error,
            "agreement": {"moved": self.moved, "matched": self.matched, "sameDestination": self.same_way},
            "results": [row.to_json() for row in self.rows],
        }


def backtest(
    cluster: str,
    recorded: Recorded,
    balancers: Sequence[str],
    settings: Mapping[str, str],
    progress: Callable[[int, int], object] = lambda *_: None,
) -> Backtested:
    """Backtest every balancer on the record. `settings` are laid over those of each.

    Raises `ConfigurationError` for a balancer that cannot be read or simulated, and `NoRecord`.
    """
    policies = recorded.policies
    ran: dict[str, Any] = dict(policies.configuration) if policies else {}
    profile = policies.profile if policies else "4.x"
    wanted = {text: of_text(text, profile, ran, settings) for text in balancers}
    fleet = fleet_of(recorded)
    configurations = {RAN: (profile, {**ran, **settings}), **wanted}
    done, moves = outcome_on_record(fleet)
    rows = [Compared(cluster, ON_RECORD, (done,))]
    for text, (of_profile, configuration) in configurations.items():
        rows.append(Compared(cluster, text, (simulate(fleet.fleet, configuration, of_profile),)))
        progress(len(rows) - 1, len(configurations))
    matched, same_way = _agreement(moves, rows[1].outcomes[0].moves)
    return Backtested(rows, fleet, len(moves), matched, same_way)


def of_text(text: str, profile: str, ran: Mapping[str, Any], settings: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """Return a balancer's profile and settings, over a version's or what ran. Raises `ConfigurationError`."""
    if text.partition(",")[0] in PROFILES:
        return read(text, settings)
    named_profile, changed = read(text, settings)
    return (named_profile if "profile=" in text else profile), {**ran, **changed}


def outcome_on_record(recorded: RecordedFleet) -> tuple[BalancingOutcome, list[tuple[int, str, str, str]]]:
    """Return the recorded outcome, and the moves of the parts: minute, bundle, from, to."""
    fleet, owners, rates = recorded.fleet, recorded.owners, recorded.fleet.recorded
    assert rates is not None
    outcome, moves = BalancingOutcome(fleet.minutes), list[tuple[int, str, str, str]]()
    names = [broker.name for broker in fleet.brokers]
    for minute in range(fleet.minutes):
        live = np.array([broker.lives(minute) for broker in fleet.brokers])
        _measure(outcome, recorded, minute, live)
        if not minute:
            continue
        before, now = owners[minute - 1], owners[minute]
        counted = set[tuple[int, int, int]]()
        for index in np.flatnonzero((before != now) & (before >= 0)).tolist():
            source, destination = int(before[index]), int(now[index])
            found_dead = not live[source]
            key = (source, destination, int(recorded.whole[minute - 1, index]))
            if key not in counted:
                counted.add(key)
                outcome.unserved += _RECONNECT + (DEAD_SECONDS if found_dead else 0)
                if not found_dead:
                    outcome.moves.append((minute, str(key[2]), names[source], names[destination]))
            if not found_dead:
                moves.append((minute, fleet.bundles[index], names[source], names[destination]))
    return outcome, moves


def _measure(outcome: BalancingOutcome, recorded: RecordedFleet, minute: int, live: Any) -> None:
    """Add the measures of a minute, by the simulation's model."""
    fleet, rates = recorded.fleet, recorded.fleet.recorded
    assert rates is not None
    owned = recorded.owners[minute] >= 0
    of_brokers = np.array(
        [
            np.bincount(recorded.owners[minute][owned], rates[minute, owned, rate_index], len(fleet.brokers))
            for rate_index in range(4)
        ]
    )
    usages = [
        max(broker.idle + (rate + out) / broker.messages, received / broker.network, sent / broker.network)
        for broker, (rate, out, received, sent) in zip(fleet.brokers, of_brokers.T.tolist(), strict=True)
    ]
    here = np.array(usages)[live]
    mean = float(here.mean())
    outcome.deviations.append(float(here.std()))
    outcome.ratios.append(float(here.max()) / mean if mean > 0 else 1.0)
    outcome.over += int((here > OVER).sum())
    outcome.idle += int((here < IDLE * mean).sum())
    for broker, usage, is_here in zip(fleet.brokers, usages, live.tolist(), strict=True):
        if is_here and broker.joins and outcome.used_after.setdefault(broker.name, None) is None and usage >= mean / 2:
            outcome.used_after[broker.name] = minute - broker.joins


def _agreement(then: Sequence[tuple[int, str, str, str]], now: Sequence[tuple[int, str, str, str]]) -> tuple[int, int]:
    """Return the number of moves that were repeated, and of those to the same broker; each counts once."""
    left: dict[str, list[tuple[int, str]]] = {}
    for minute, bundle, _, destination in now:
        left.setdefault(bundle, []).append((minute, destination))
    matched = same_way = 0
    for minute, bundle, _, destination in then:
        if near := [candidate for candidate in left.get(bundle, []) if abs(candidate[0] - minute) <= WITHIN]:
            best = min(near, key=lambda candidate: (candidate[1] != destination, abs(candidate[0] - minute)))
            left[bundle].remove(best)
            matched += 1
            same_way += best[1] == destination
    return matched, same_way
