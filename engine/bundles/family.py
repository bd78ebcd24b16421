"""The family `bundles` as the kernel drives it: its stages put together, nothing else.

Stage: the family's top. Its subjects are clusters: a bucket has those whose key falls into it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from engine.bundles.clusters import MAX_CLUSTERS, Clusters, ClusterState
from engine.bundles.codec import pack, pack_changes, unpack
from engine.bundles.cycle import FAMILY, Cycle, run_cycle
from engine.bundles.parsing import READINGS
from engine.bundles.recording import record_cycle
from engine.kernel.packed import Part, StoredPart
from engine.kernel.records import Output
from engine.kernel.settings import EngineSettings
from schemas.kafka import BROKER_EVENTS, BROKER_LOAD
from schemas.messages import OutcomeEvent, Rejected, RejectReason
from schemas.plain_events import PlainEvent

PART = "bundles"


class Bundles:
    """Pulsar's broker load balancer: bundles that are unloaded, placed and split."""

    name = FAMILY
    sources = (BROKER_EVENTS.name, BROKER_LOAD.name)
    parts = (PART,)
    readings = READINGS
    columns = None

    def opener(self, settings: EngineSettings) -> Callable[[Mapping[str, StoredPart]], BundlesState]:
        """Opens buckets."""
        return lambda parts: BundlesState(unpack(parts.get(PART, StoredPart())))


class ClustersPart:
    """The clusters as they are packed."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters
        self.gone: set[str] = set()

    @property
    def is_changed(self) -> bool:
        """Whether the stored form does not hold everything yet."""
        return bool(self.gone) or any(state.changes for state in self._clusters.values())

    def pack(self) -> bytes:
        """All of it, as a base."""
        self.gone.clear()
        return pack(self._clusters)

    def pack_changes(self) -> bytes:
        """What has changed, as an entry of the log."""
        entry = pack_changes(self._clusters, self.gone)
        self.gone.clear()
        return entry


class BundlesState:
    """What a bucket knows of its clusters."""

    def __init__(self, clusters: Clusters) -> None:
        self.clusters = clusters
        self.part = ClustersPart(clusters)
        self.parts: dict[str, Part] = {PART: self.part}

    def tell(self, output: Output) -> None:
        """Nobody watches clusters."""

    def begin(self, now: int, output: Output) -> BundlesBatch:
        """Begins a batch; `now` is its time in milliseconds."""
        return BundlesBatch(self, now, output)


class BundlesBatch:
    """One batch of one bucket."""

    def __init__(self, of: BundlesState, now: int, output: Output) -> None:
        self._of, self._now, self._output = of, now, output
        self.cycles: dict[str, Cycle] = {}
        """Those that were run, by cluster."""

    def is_known(self, plain: PlainEvent) -> bool:
        """The family takes no plain announcements."""
        return False

    def refuse(self, taken: Any) -> Rejected | None:
        """Why a message is not accepted as things stand: there is no room for what it is about."""
        if isinstance(taken, OutcomeEvent):
            return None
        known = self._of.clusters.get(taken.cluster)
        if known is None and len(self._of.clusters) >= MAX_CLUSTERS:
            return Rejected(
                RejectReason.TOO_MANY, f"{MAX_CLUSTERS} clusters are known in its bucket, no more are taken"
            )
        if known is not None and not known.has_room(taken):
            return Rejected(RejectReason.TOO_MANY, f"so many brokers or namespaces of {taken.cluster} are not taken")
        return None

    def is_news(self, taken: Any) -> bool:
        """Whether it says more than is known: not one that came twice, or late."""
        if isinstance(taken, OutcomeEvent):
            return True
        known = self._of.clusters.get(taken.cluster)
        return known is None or known.is_news(taken)

    def take(self, taken: Any) -> None:
        """Lays a message down for the next cycle, or ends an open decision."""
        if isinstance(taken, OutcomeEvent):
            if (known := self._of.clusters.get(taken.topic)) is not None:
                known.end(taken)
            return
        self._of.clusters.setdefault(taken.cluster, ClusterState(taken.cluster)).lay_down(taken)

    def wake(self, subject: str) -> None:
        """A tick of its own: the family asks for none, and a cycle of its own would be one more than the others had."""

    def take_samples(self, samples: Any) -> None:
        """The family has no samples in columns."""

    def evaluate(self, is_tick: bool) -> None:
        """At a tick, a cycle of every cluster."""
        if not is_tick:
            return
        for name, state in sorted(self._of.clusters.items()):
            if (cycle := run_cycle(state, self._now)) is not None:
                self.cycles[name] = cycle
                record_cycle(self._output, state, cycle)
                if cycle.fault is not None:
                    self._output.add_fault(FAMILY, name, cycle.fault)
            if _is_gone(state, self._now):
                del self._of.clusters[name]
                self._of.part.gone.add(name)


def _is_gone(state: ClusterState, now: int) -> bool:
    """Whether a cluster has neither brokers nor anybody who speaks of it."""
    said = [one.at for one in (state.brokers, state.policies) if one is not None]
    said += [one.at for one in state.ownership.values()]
    return not state.reports and now - max(said, default=0) > FORGOTTEN_AFTER_MS


FORGOTTEN_AFTER_MS = 24 * 3_600_000
"""A cluster without a broker is forgotten when nothing was said of it for so long."""

BUNDLES = Bundles()
