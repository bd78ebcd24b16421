"""A balancer on a fleet, minute by minute: reports, a shedding cycle, unloads, deaths and joins.

Stage: above `fleet` and `reports`; the family's own `decide` decides, with its state carried from cycle to cycle.
"""

from collections.abc import Mapping
from statistics import fmean, pstdev
from typing import Any

import numpy as np

from anabranch.simulation.bundles.fleet import Broker, Fleet
from anabranch.simulation.bundles.outcome import IDLE, OVER, BalancingOutcome
from anabranch.simulation.bundles.reports import BUSIEST, is_due, load_data, report, stats, usage
from decisions.bundles.averages import add_bundle_sample
from decisions.bundles.configuration import Configuration, ConfigurationError
from decisions.bundles.decide import decide
from schemas.bundles import (
    BalancerState,
    BrokerLoadData,
    BrokerLookupData,
    BundleData,
    BundleSnapshot,
    LocalBrokerData,
    NamespaceBundleStats,
    Operation,
    TopBundlesLoadData,
)

START = 1_700_000_000_000
UNLOAD_SECONDS, SECONDS_A_CONNECTION, DEAD_SECONDS = 3.0, 0.01, 30.0
"""Without an owner: of an unload, more for each connection that comes back, and until a death is noticed."""


def balancer(text: str) -> tuple[str, dict[str, Any]]:
    """Return profile and settings from `Shedder+Placement,setting=value,…`; `profile=` may be among them.

    Without names of strategies they are the profile's.
    """
    names, *settings = text.split(",")
    configuration: dict[str, Any] = {}
    if "=" in names:
        settings.insert(0, names)
    else:
        shedder, _, placement = names.partition("+")
        configuration["loadBalancerLoadSheddingStrategy"] = shedder
        if placement:
            configuration["loadBalancerLoadPlacementStrategy"] = placement
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"{text[:80]!r}: a setting is NAME=VALUE")
        configuration[name] = value
    return str(configuration.pop("profile", "4.x")), configuration


def check_simulated(configuration: Mapping[str, Any]) -> None:
    """Raise `ConfigurationError` for a strategy that is not simulated."""
    if _shedder(configuration) == "DeviationShedder":
        raise ConfigurationError("DeviationShedder is not simulated: upstream ships no load that it goes by")


def _shedder(configuration: Mapping[str, Any]) -> str:
    return str(configuration.get("loadBalancerLoadSheddingStrategy")).rpartition(".")[2]


def simulate(fleet: Fleet, configuration: Mapping[str, Any], profile: str = "4.x") -> BalancingOutcome:
    """Return a balancer's outcome on a fleet. Raises `ConfigurationError`, for unsimulated strategies too."""
    return _Run(fleet, dict(configuration), profile).run()


class _Run:
    def __init__(self, fleet: Fleet, configuration: dict[str, Any], profile: str) -> None:
        check_simulated(configuration)
        if _shedder(configuration) == "TransferShedder":
            configuration.setdefault("loadManagerClassName", "ExtensibleLoadManagerImpl")
        self.fleet, self.configuration, self.profile = fleet, configuration, profile
        self.owner = dict(zip(fleet.bundles, fleet.owners, strict=True))
        self.random = np.random.default_rng(fleet.seed)
        self.settings = Configuration(configuration, profile)
        self.reports: dict[str, LocalBrokerData] = {}
        self.loads: dict[str, BrokerLoadData] = {}
        """Of the extensible manager: every broker's of this minute; what it published stands in `published`."""
        self.published: dict[str, BrokerLoadData] = {}
        self.busiest: dict[str, TopBundlesLoadData] = {}
        self.bundles: dict[str, BundleData] = {}
        self.state = BalancerState()
        self.outcome = BalancingOutcome(fleet.minutes)
        connections = fleet.connections if len(fleet.connections) else np.full(len(fleet.bundles), 10.0)
        self.reconnect = {
            name: UNLOAD_SECONDS + SECONDS_A_CONNECTION * float(count)
            for name, count in zip(fleet.bundles, connections, strict=True)
        }

    def run(self) -> BalancingOutcome:
        for minute in range(self.fleet.minutes):
            live = {broker.name: broker for broker in self.fleet.brokers if broker.lives(minute)}
            counted = stats(self.fleet, minute)
            now = START + minute * 60_000
            self._bury(live, now)
            own = self._owned(live, counted)
            self._measure(minute, live, own)
            self._report(live, own, now)
            self._cycle(minute, now)
        return self.outcome

    def _owned(
        self, live: Mapping[str, Broker], counted: Mapping[str, NamespaceBundleStats]
    ) -> dict[str, dict[str, NamespaceBundleStats]]:
        own: dict[str, dict[str, NamespaceBundleStats]] = {name: {} for name in live}
        for bundle, broker in self.owner.items():
            if broker in own:
                own[broker][bundle] = counted[bundle]
            else:
                self.outcome.unserved += 60
        return own

    def _snapshot(self, now: int, operation: Operation, assign: list[str]) -> BundleSnapshot:
        fields = {
            "now": now,
            "seed": self.fleet.seed + now // 60_000,
            "operation": operation,
            "profile": self.profile,
            "assign": assign,
            "configuration": self.configuration,
            "brokers": self.reports,
            "bundles": self.bundles,
            "state": self.state,
            **self.fleet.rules,
        }
        if self.settings.extensible:
            fields |= {
                "brokers": {},
                "bundles": {},
                "broker_load_data": self.published,
                "top_bundles": self.busiest,
                "available_brokers": dict.fromkeys(self.published, BrokerLookupData()),
                "ownership": self.owner,
            }
        return BundleSnapshot.model_validate(fields)

    def _bury(self, live: Mapping[str, Broker], now: int) -> None:
        """Place the bundles of brokers that are gone; they had no owner until that was noticed."""
        if not (orphans := [bundle for bundle, broker in self.owner.items() if broker not in live]):
            return
        self.reports = {name: data for name, data in self.reports.items() if name in live}
        self.published = {name: data for name, data in self.published.items() if name in live}
        self.busiest = {name: data for name, data in self.busiest.items() if name in live}
        kept_data = {name: data for name, data in self.state.preallocated_bundle_data.items() if name in live}
        self.state = self.state.model_copy(update={"preallocated_bundle_data": kept_data})
        answer = decide(self._snapshot(now, "assign", orphans))
        self.state = answer.state
        for decision in answer.decisions:
            self.owner[decision.bundle] = str(decision.destination_broker)
            self.outcome.unserved += DEAD_SECONDS + self.reconnect[decision.bundle]

    def _report(
        self, live: Mapping[str, Broker], own: Mapping[str, Mapping[str, NamespaceBundleStats]], now: int
    ) -> None:
        preallocated = dict(self.state.preallocated_bundle_data)
        for name, broker in live.items():
            new = report(broker, own[name], now, self.fleet.noise, self.random)
            if self.settings.extensible:
                self.loads[name] = load_data(self.loads.get(name), new, self.settings)
                self.busiest[name] = TopBundlesLoadData.of_busiest(own[name], BUSIEST)
                if is_due(self.reports.get(name), new):
                    self.reports[name], self.published[name] = new, self.loads[name]
                continue
            if is_due(self.reports.get(name), new):
                self.reports[name] = new
                preallocated[name] = {
                    bundle: data for bundle, data in preallocated.get(name, {}).items() if bundle not in own[name]
                }
                for bundle, counted in own[name].items():
                    self.bundles[bundle] = add_bundle_sample(self.bundles.get(bundle), counted)
        self.state = self.state.model_copy(update={"preallocated_bundle_data": preallocated})

    def _cycle(self, minute: int, now: int) -> None:
        answer = decide(self._snapshot(now, "shed", []))
        self.state = answer.state
        for decision in answer.decisions:
            source, destination = (
                str(decision.source_broker),
                decision.destination_broker or self._anywhere(decision.bundle, now),
            )
            self.owner[decision.bundle] = destination
            self.outcome.moves.append((minute, decision.bundle, source, destination))
            self.outcome.unserved += self.reconnect[decision.bundle]

    def _anywhere(self, bundle: str, now: int) -> str:
        """Return the broker for a bundle that was unloaded without a destination."""
        answer = decide(self._snapshot(now, "assign", [bundle]))
        self.state = answer.state
        return str(answer.decisions[0].destination_broker) if answer.decisions else self.owner[bundle]

    def _measure(
        self, minute: int, live: Mapping[str, Broker], own: Mapping[str, Mapping[str, NamespaceBundleStats]]
    ) -> None:
        usages = {name: max(usage(broker, own[name])) for name, broker in live.items()}
        mean, outcome = fmean(usages.values()), self.outcome
        outcome.deviations.append(pstdev(usages.values()))
        outcome.ratios.append(max(usages.values()) / mean)
        outcome.over += sum(value > OVER for value in usages.values())
        outcome.idle += sum(value < IDLE * mean for value in usages.values())
        for name, broker in live.items():
            if broker.joins and outcome.used_after.setdefault(name, None) is None and usages[name] >= mean / 2:
                outcome.used_after[name] = minute - broker.joins
