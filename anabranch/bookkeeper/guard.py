"""Checks repeated at the moment of acting: brokers are routed as declared, clusters are distinct.

Stage: over `metadata`, under `steps`. A snapshot may be older than what it allows: the orchestrator that takes over
carries out a step that another began and did not end, maybe days later, when brokers run again.
"""

from collections.abc import Callable
from itertools import combinations

from anabranch.bookkeeper.metadata import LedgerIds, MetadataRefused, PulsarMetadata
from anabranch.bookkeeper.registry import Registry
from decisions.bookkeeper.seen import routing_fault
from schemas.bookies import Routing

BROKERS = "/loadbalance/brokers"
"""Parent of a znode for each broker, which ends with the broker's session; the same for both load managers."""


class Unsafe(RuntimeError):
    """Error of an action that could lose data now, with reason and remedy; begun steps stay open."""


def registered_brokers(metadata: PulsarMetadata) -> list[str]:
    """Return the brokers that are registered now. Raises `MetadataUnreachable`, `MetadataRefused`."""
    return metadata.children(BROKERS)


class SwitchGuard:
    """Refuses to act under brokers that would lose something, and between two names of one cluster."""

    def __init__(self, metadata: PulsarMetadata, routing: Routing, ids: Callable[[str], LedgerIds]) -> None:
        """`ids` opens the metadata of a BookKeeper cluster by its metadata service URI."""
        self._metadata, self._routing, self._ids = metadata, routing, ids
        self._distinct: set[frozenset[str]] = set()

    def require_brokers(self) -> None:
        """Raise `Unsafe` when brokers are in the way; what `registered_brokers` raises otherwise."""
        if (fault := routing_fault(self._routing, self.running_brokers())) is not None:
            raise Unsafe(fault)

    def running_brokers(self) -> list[str]:
        """Return the brokers that are registered now."""
        return registered_brokers(self._metadata)

    def require_distinct(self, registry: Registry, *names: str | None) -> None:
        """Raise `Unsafe` when two of these clusters are one; asks once for each pair."""
        entries = {cluster.name: cluster for cluster in registry.clusters if cluster.name in names}
        for pair in combinations(sorted(entries), 2):
            if frozenset(pair) in self._distinct:
                continue
            instances = {name: self._instance(entries[name].metadata_service_uri, name) for name in pair}
            for name, instance in instances.items():
                recorded = entries[name].instance
                if recorded not in (None, instance):
                    raise Unsafe(f"{name} has the instance id {instance}, and was registered with {recorded}")
            if len(set(instances.values())) < len(pair):
                raise Unsafe(
                    f"{pair[0]} and {pair[1]} are one BookKeeper cluster, with the instance id {instances[pair[0]]}: a "
                    "copy would be its own source. Unregister one of them"
                )
            self._distinct.add(frozenset(pair))

    def _instance(self, uri: str, name: str) -> str:
        try:
            return self._ids(uri).instance()
        except (MetadataRefused, ValueError) as error:
            raise Unsafe(f"the instance id of {name} cannot be read: {error}") from error
