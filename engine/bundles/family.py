"""The family `bundles` as the kernel drives it: Pulsar's load balancer for the clusters of a bucket.

Stage: between the kernel's protocol (`engine.kernel.family`) and `cycle`, which decides; `clusters` has the state,
`codec` stores it. Its counterpart for topics is `engine.autoscale.family`.
"""

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
from schemas.codecs.plain_events import PlainEvent
from schemas.kafka.messages import OutcomeEvent, Rejected, RejectReason
from schemas.kafka.topics import BROKER_EVENTS, BROKER_LOAD

PART = "bundles"


class BundlesFamily:
    """Pulsar's broker load balancer: unloads, places and splits bundles."""

    name = FAMILY
    sources = (BROKER_EVENTS.name, BROKER_LOAD.name)
    parts = (PART,)
    readings = READINGS
    columns = None

    def opener(self, settings: EngineSettings) -> "Callable[[Mapping[str, StoredPart]], BundlesState]":
        """Return a function that opens buckets."""
        return lambda parts: BundlesState(unpack(parts.get(PART, StoredPart())))


class ClustersPart:
    """Stored part of the clusters."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters
        self.gone: set[str] = set()

    @property
    def is_changed(self) -> bool:
        """True if the stored form lacks some changes."""
        return bool(self.gone) or any(state.changes for state in self._clusters.values())

    def pack(self) -> bytes:
        """Pack everything as a base."""
        self.gone.clear()
        return pack(self._clusters)

    def pack_changes(self) -> bytes:
        """Pack the changes as a log entry."""
        entry = pack_changes(self._clusters, self.gone)
        self.gone.clear()
        return entry


class BundlesState:
    """State of the clusters of one bucket."""

    def __init__(self, clusters: Clusters) -> None:
        self.clusters = clusters
        self.part = ClustersPart(clusters)
        self.parts: dict[str, Part] = {PART: self.part}

    def tell(self, output: Output) -> None:
        """Emit nothing: no listener tracks clusters."""

    def begin(self, now: int, output: Output) -> "BundlesBatch":
        """Begin a batch at `now`, milliseconds."""
        return BundlesBatch(self, now, output)


class BundlesBatch:
    """One batch of one bucket."""

    def __init__(self, state: BundlesState, now: int, output: Output) -> None:
        self._of, self._now, self._output = state, now, output
        self.cycles: dict[str, Cycle] = {}
        """Cycles run in this batch, by cluster."""

    def is_known(self, plain: PlainEvent) -> bool:
        """Return False: the family has no plain announcements."""
        return False

    def refuse(self, message: Any) -> Rejected | None:
        """Return the refusal of a message whose subject exceeds a limit, or None."""
        if isinstance(message, OutcomeEvent):
            return None
        cluster = self._of.clusters.get(message.cluster)
        if cluster is None and len(self._of.clusters) >= MAX_CLUSTERS:
            return Rejected(
                RejectReason.TOO_MANY, f"{MAX_CLUSTERS} clusters are known in its bucket, no more are taken"
            )
        if cluster is not None and not cluster.has_room(message):
            return Rejected(RejectReason.TOO_MANY, f"so many brokers or namespaces of {message.cluster} are not taken")
        return None

    def is_news(self, message: Any) -> bool:
        """Return whether a message is newer than the known state."""
        if isinstance(message, OutcomeEvent):
            return True
        cluster = self._of.clusters.get(message.cluster)
        return cluster is None or cluster.is_news(message)

    def take(self, message: Any) -> None:
        """Store a message for the next cycle, or close an open decision."""
        if isinstance(message, OutcomeEvent):
            if (cluster := self._of.clusters.get(message.topic)) is not None:
                cluster.close_decision(message)
            return
        self._of.clusters.setdefault(message.cluster, ClusterState(message.cluster)).store_message(message)

    def wake(self, subject: str) -> None:
        """Do nothing: the family schedules no ticks of its own."""

    def take_samples(self, samples: Any) -> None:
        """Do nothing: the family has no samples in columns."""

    def evaluate(self, is_tick: bool) -> None:
        """Run a cycle of every cluster at a tick."""
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
    """Return whether a cluster has no brokers and has not been mentioned for `FORGOTTEN_AFTER_MS`."""
    mentioned_at = [message.at for message in (state.brokers, state.policies) if message is not None]
    mentioned_at += [message.at for message in state.ownership.values()]
    return not state.reports and now - max(mentioned_at, default=0) > FORGOTTEN_AFTER_MS


FORGOTTEN_AFTER_MS = 24 * 3_600_000
"""Time without any message after which a cluster without brokers is dropped."""

BUNDLES = BundlesFamily()
