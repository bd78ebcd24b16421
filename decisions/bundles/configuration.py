"""Settings of the balancer by their names in Pulsar's `broker.conf`, and the defaults of each version.

Stage: read once for each cycle. Source: Pulsar's `ServiceConfiguration`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from decisions.bundles.fixes import FIXES, profile_switches

OLD_UNIFORM = "UniformLoadShedder-21016"
"""UniformLoadShedder as it was before apache/pulsar#21025, with the fault of issue 21016."""
GAIN, LEAST_PROJECTED = "GainShedder", "LeastProjectedUsage"
"""Our own, of profile `default`."""

MAX_NUMBER = 1e12
"""Of any setting."""

DEFAULTS: Mapping[str, bool | int | float | str | tuple[str, ...]] = MappingProxyType(
    {
        "loadBalancerEnabled": True,
        "loadBalancerSheddingEnabled": True,
        "loadBalancerLoadSheddingStrategy": "ThresholdShedder",
        "loadBalancerLoadPlacementStrategy": "LeastLongTermMessageRate",
        "loadManagerClassName": "ModularLoadManagerImpl",
        "loadBalancerSheddingGracePeriodMinutes": 30,
        "loadBalancerBrokerMaxTopics": 50_000,
        "loadBalancerDistributeBundlesEvenlyEnabled": True,
        "loadBalancerSheddingExcludedNamespaces": (),
        "preferLaterVersions": False,
        "failureDomainsEnabled": False,
        "loadBalancerDebugModeEnabled": False,
        "loadBalancerCPUResourceWeight": 1.0,
        "loadBalancerMemoryResourceWeight": 1.0,
        "loadBalancerDirectMemoryResourceWeight": 0.0,
        "loadBalancerBandwidthInResourceWeight": 1.0,
        "loadBalancerBandwidthOutResourceWeight": 1.0,
        "loadBalancerHistoryResourcePercentage": 0.9,
        "loadBalancerBrokerOverloadedThresholdPercentage": 85.0,
        "loadBalancerBrokerThresholdShedderPercentage": 10.0,
        "loadBalancerBundleUnloadMinThroughputThreshold": 10.0,
        "lowerBoundarySheddingEnabled": False,
        "loadBalancerMsgRateDifferenceShedderThreshold": 50.0,
        "loadBalancerMsgThroughputMultiplierDifferenceShedderThreshold": 4.0,
        "minUnloadMessage": 1000,
        "minUnloadMessageThroughput": 1_048_576,
        "maxUnloadPercentage": 0.2,
        "maxUnloadBundleNumPerShedding": -1,
        "loadBalancerAvgShedderLowThreshold": 15.0,
        "loadBalancerAvgShedderHighThreshold": 40.0,
        "loadBalancerAvgShedderHitCountLowThreshold": 8,
        "loadBalancerAvgShedderHitCountHighThreshold": 2,
        "loadBalancerAverageResourceUsageDifferenceThresholdPercentage": 10.0,
        "loadBalancerAutoBundleSplitEnabled": True,
        "loadBalancerNamespaceBundleMaxTopics": 1000,
        "loadBalancerNamespaceBundleMaxSessions": 1000,
        "loadBalancerNamespaceBundleMaxMsgRate": 30_000,
        "loadBalancerNamespaceBundleMaxBandwidthMbytes": 100,
        "loadBalancerNamespaceMaximumBundles": 128,
        "defaultNamespaceBundleSplitAlgorithm": "range_equally_divide",
        "flowOrQpsDifferenceThresholdPercentage": 10.0,
        "loadBalancerBrokerLoadTargetStd": 0.25,
        "loadBalancerSheddingConditionHitCountThreshold": 3,
        "loadBalancerTransferEnabled": True,
        "loadBalancerMaxNumberOfBrokerSheddingPerCycle": 3,
        "loadBalanceSheddingDelayInSeconds": 180,
        "loadBalancerBrokerLoadDataTTLInSeconds": 1800,
        "loadBalancerMaxNumberOfBundlesToSplitPerCycle": 10,
        "loadBalancerNamespaceBundleSplitConditionHitCountThreshold": 3,
        "loadBalancerSheddingBundlesWithPoliciesEnabled": False,
        "gainShedderSpreadPercentage": 11.0,
        "gainShedderHitCount": 5,
        "gainShedderIdlePercentage": 25.0,
        "gainShedderRestPercentage": 6.0,
        "gainShedderMinGainPercentage": 0.5,
        "gainShedderMaxMovesPerCycle": 10,
    }
)
"""Of Pulsar 4.x."""

PROFILES: Mapping[str, Mapping[str, bool | int | float | str | tuple[str, ...]]] = MappingProxyType(
    {
        "2.10": {
            "loadBalancerDirectMemoryResourceWeight": 1.0,
            "loadBalanceSheddingDelayInSeconds": 600,
            "loadBalancerLoadSheddingStrategy": "ThresholdShedder",
        },
        "3.0": {"loadBalancerDirectMemoryResourceWeight": 1.0},
        "4.x": {},
        "5.0": {
            "loadBalancerLoadSheddingStrategy": "AvgShedder",
            "loadBalancerLoadPlacementStrategy": "AvgShedder",
            "maxUnloadPercentage": 0.5,
            "loadBalancerDistributeBundlesEvenlyEnabled": False,
        },
        "default": {
            "loadBalancerLoadSheddingStrategy": GAIN,
            "loadBalancerLoadPlacementStrategy": LEAST_PROJECTED,
            "loadBalancerDistributeBundlesEvenlyEnabled": False,
        },
    }
)
"""Defaults that a version has otherwise than 4.x; what it decides otherwise is in `fixes`."""

ALIASES = MappingProxyType(
    {
        "loadBalancerBandwithInResourceWeight": "loadBalancerBandwidthInResourceWeight",
        "loadBalancerBandwithOutResourceWeight": "loadBalancerBandwidthOutResourceWeight",
    }
)
SHEDDERS = (
    "OverloadShedder",
    "ThresholdShedder",
    "UniformLoadShedder",
    OLD_UNIFORM,
    "AvgShedder",
    "TransferShedder",
    "DeviationShedder",
    GAIN,
)
PLACEMENTS = (
    "LeastLongTermMessageRate",
    "LeastResourceUsageWithWeight",
    "AvgShedder",
    "RoundRobinBrokerSelector",
    LEAST_PROJECTED,
)


class ConfigurationError(ValueError):
    """A setting that cannot be read; the message names it."""


class Configuration:
    """The settings that hold in one cycle."""

    def __init__(self, settings: Mapping[str, Any], profile: str = "4.x", *, alone: bool = False) -> None:
        """Lays `settings` over the profile's defaults; `alone`: for one strategy. Raises `ConfigurationError`."""
        self.profile = profile
        self.values: dict[str, Any] = {**DEFAULTS, **PROFILES[profile], **profile_switches(profile)}
        self.ignored: list[str] = []
        self.given: set[str] = set()
        for name, value in settings.items():
            key = ALIASES.get(name, name)
            if key not in DEFAULTS and key not in FIXES:
                self.ignored.append(name)
                continue
            self.given.add(key)
            self.values[key] = _read_value(name, value, DEFAULTS.get(key, True))
        self._settle_strategies(alone)
        if not 0 <= float(self.values["loadBalancerHistoryResourcePercentage"]) <= 1:
            raise ConfigurationError("configuration.loadBalancerHistoryResourcePercentage: 0 to 1 is wanted")

    def _settle_strategies(self, alone: bool) -> None:
        shedder = "loadBalancerLoadSheddingStrategy"
        placement = "loadBalancerLoadPlacementStrategy"
        for name, strategies in ((shedder, SHEDDERS), (placement, PLACEMENTS)):
            self.values[name] = str(self.values[name]).rpartition(".")[2]
            if self.values[name] not in strategies:
                raise ConfigurationError(
                    f"configuration.{name}: {self.values[name][:80]!r} is none of {', '.join(strategies)}"
                )
        together = (self.values[shedder] == "AvgShedder", self.values[placement] == "AvgShedder")
        if together[0] != together[1] and not self.extensible and not alone:
            if self.profile == "5.0" and placement not in self.given:
                self.values[placement] = "LeastLongTermMessageRate"
            elif self.profile == "5.0":
                pass
            else:
                raise ConfigurationError(f"configuration: AvgShedder has to be both {shedder} and {placement}")

    @property
    def extensible(self) -> bool:
        """Tell if the extensible load manager is set."""
        return "Extensible" in str(self.values["loadManagerClassName"])

    def number(self, name: str) -> float:
        """A setting that is a number."""
        return float(self.values[name])

    def whole(self, name: str) -> int:
        """A setting that is a whole number."""
        return int(self.values[name])

    def on(self, name: str) -> bool:
        """A setting that is a switch."""
        return bool(self.values[name])

    def text(self, name: str) -> str:
        """A setting that is a name."""
        return str(self.values[name])

    def names(self, name: str) -> frozenset[str]:
        """A setting that is a list of names."""
        return frozenset(self.values[name])


def _read_value(name: str, value: Any, like: object) -> Any:
    if isinstance(like, tuple):
        items = value.split(",") if isinstance(value, str) else value
        if isinstance(items, list) and all(isinstance(item, str) for item in items):
            return tuple(item.strip() for item in items if item.strip())
        raise ConfigurationError(f"configuration.{name}: a list of names, or names with commas, is wanted")
    if isinstance(like, str):
        if isinstance(value, str):
            return value.strip()
        raise ConfigurationError(f"configuration.{name}: text is wanted")
    if isinstance(like, bool):
        text = str(value).strip().lower()
        if isinstance(value, (bool, str)) and text in ("true", "false"):
            return text == "true"
        raise ConfigurationError(f"configuration.{name}: true or false is wanted")
    return _read_number(name, value, isinstance(like, int))


def _read_number(name: str, value: Any, whole: bool) -> float:
    wanted = "a whole number" if whole else "a number"
    try:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ValueError
        number = float(value)
        if not abs(number) <= MAX_NUMBER or (whole and number != int(number)):
            raise ValueError
    except (ValueError, OverflowError):
        raise ConfigurationError(f"configuration.{name}: {wanted} is wanted, not {str(value)[:40]!r}") from None
    return int(number) if whole else number
