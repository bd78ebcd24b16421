"""Rows of `decisions` of the family `bundles`: a bundle to move to another broker, or to split.

Stage: under `actor`, which the kernel calls to read rows. The row's subject is the Pulsar cluster.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from anabranch.admin.bundles import BUNDLE_PATTERN
from anabranch.executor.kernel.family import Decision, MalformedDecision
from schemas.addresses import read_authority

_CLUSTER = re.compile(r"[^/\s*+]{1,256}")


@dataclass(frozen=True)
class _BundleDecision(Decision):
    bundle: str
    """`tenant/namespace/0x00000000_0x40000000`."""
    repeats_late = False
    """An owner may have come back, and the load that a change was for may be gone."""

    @property
    def namespace(self) -> str:
        """Return `tenant/namespace`."""
        return self.bundle.rpartition("/")[0]

    @property
    def range(self) -> str:
        """Return the range of hashes, like `0x00000000_0x40000000`."""
        return self.bundle.rpartition("/")[2]


@dataclass(frozen=True)
class Unload(_BundleDecision):
    """Move of a bundle from one broker, `host:port`, to another."""

    source: str
    destination: str
    own_switches: ClassVar = ("loadBalancerEnabled", "loadBalancerSheddingEnabled")
    """Settings with which, all of them on, brokers move bundles themselves."""

    def rests_on(self, earlier: Decision) -> bool:
        """Return whether an earlier move was counted as made in a way that speaks for this one.

        It was to fill the broker that this move relieves, or to relieve the one that this move fills.
        """
        return isinstance(earlier, Unload) and (
            earlier.destination == self.source or earlier.source == self.destination
        )

    def __str__(self) -> str:
        return f"unload {self.bundle} from {self.source} to {self.destination}"


@dataclass(frozen=True)
class SplitBundle(_BundleDecision):
    """Split of a bundle."""

    positions: tuple[int, ...]
    """Hashes at which to split; empty: Pulsar's own algorithm chooses."""
    own_switches: ClassVar = ("loadBalancerAutoBundleSplitEnabled",)
    """Setting with which brokers split bundles themselves; the modular manager asks for no other."""

    def __str__(self) -> str:
        return f"split {self.bundle}"


Action: TypeAlias = Literal["unload", "split"]
BundleChange: TypeAlias = Unload | SplitBundle


def read_bundle_decision(row: Mapping[str, Any]) -> BundleChange:
    """Read the decision in a row. Raises `MalformedDecision` and nothing else, whatever the content."""
    if not _CLUSTER.fullmatch(row["subject"] or ""):
        raise MalformedDecision(f"subject {row['subject']!r} is no name of a cluster")
    arguments = _object(row["arguments"])
    bundle = arguments.get("bundle")
    if not isinstance(bundle, str) or not re.fullmatch(BUNDLE_PATTERN, bundle):
        raise MalformedDecision(f"bundle {str(bundle)[:200]!r} is not like tenant/namespace/0x00000000_0x40000000")
    named = (row["decision_id"], row["family"], row["subject"], bundle)
    if row["action"] == "unload":
        source, destination = _broker(arguments, "sourceBroker"), _broker(arguments, "destinationBroker")
        if source == destination:
            raise MalformedDecision(f"source and destination are both {source}")
        return Unload(*named, source, destination)
    if row["action"] == "split":
        return SplitBundle(*named, _positions(bundle, arguments.get("positions")))
    raise MalformedDecision(f"action {row['action']!r} is neither unload nor split")


def _object(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise MalformedDecision(f"arguments is no JSON: {error}") from None
    if not isinstance(content, dict):
        raise MalformedDecision("arguments is no JSON object")
    return content


def _broker(arguments: Mapping[str, Any], name: str) -> str:
    broker = arguments.get(name)
    if not isinstance(broker, str) or read_authority(broker) is None:
        # Without a destination, no look could show that the call was made, and it could be made twice.
        raise MalformedDecision(f"{name} {str(broker)[:200]!r} is no broker, host:port")
    return broker


def _positions(bundle: str, listed: Any) -> tuple[int, ...]:
    if listed is None:
        return ()
    low, high = (int(edge, 16) for edge in bundle.rpartition("/")[2].split("_"))
    try:
        positions = tuple(int(text, 16) for text in listed)
    except (TypeError, ValueError):
        raise MalformedDecision(f'positions must be like ["0x20000000"], not {str(listed)[:200]}') from None
    if not all(low < position < high for position in positions):
        raise MalformedDecision(f"positions {str(listed)[:200]} are not all inside of {bundle}")
    return positions
