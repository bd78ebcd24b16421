"""One of possibly several nodes of the controller: its parts, assembled over a metadata store.

Stage: made by `anabranch.controller.server` and by tests; `anabranch.controller.app` serves it.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from anabranch.controller.housekeeping.failover import TopicFailover
from anabranch.controller.housekeeping.housekeeper import Housekeeper
from anabranch.controller.layouts.reader import LayoutReader
from anabranch.controller.layouts.store import LayoutStore
from anabranch.controller.leadership.known_nodes import KnownNodes
from anabranch.controller.leadership.leaders import Leaders
from anabranch.controller.leadership.node_registry import NodeRegistration
from anabranch.controller.loads import ReportedLoads
from anabranch.controller.metadata.base import MetadataStore
from anabranch.controller.namespaces import Namespaces
from anabranch.controller.operations.pruning import Pruning, Retention
from anabranch.controller.operations.runner import OperationRunner
from anabranch.controller.publishing.publisher import OutboxPublisher
from anabranch.controller.publishing.snapshots import Snapshots
from anabranch.controller.segments.base import SegmentStore
from anabranch.controller.segments.no_segments import NoSegments
from anabranch.controller.segments.owners import SegmentOwners
from anabranch.controller.segments.reach import SegmentReach
from anabranch.controller.service import Observed, ScalableTopicService
from anabranch.controller.sessions.registry import MAX_SUBSCRIPTIONS, SubscriptionRegistry
from decisions.autoscale.policy import ClusterPolicy
from schemas.kafka.connection import KafkaConnection


@dataclass(frozen=True)
class NodeSettings:
    """Settings of a node; the keys of `[controller]` with the same names."""

    url: str
    """Its own address for clients and other nodes."""
    kafka: KafkaConnection
    """Kafka cluster for announcements of every change."""
    policy: ClusterPolicy
    """Policy of the cluster: overrides that contradict it are refused."""
    retention: Retention
    snapshot_seconds: float
    session_seconds: float
    namespaces: Collection[str] = ()
    """`tenant/namespace` of those that exist without topics."""
    max_subscriptions: int = MAX_SUBSCRIPTIONS
    """Limit per topic."""
    known: KnownNodes | None = None
    """Trusted nodes for redirects; default: those of this machine, if this node is on loopback."""


class Node:
    """Parts of a node; `nodes` belongs to them until `close`."""

    def __init__(
        self, nodes: MetadataStore, segments: SegmentStore, settings: NodeSettings, now_ms: Callable[[], int]
    ) -> None:
        self.nodes, self.segments, self.url = nodes, segments, settings.url
        self.known = settings.known or KnownNodes(settings.url)
        self.leaders = Leaders(nodes, settings.url, self.known)
        self.store = LayoutStore(nodes)
        self.reach = SegmentReach(segments.answers)
        operations = OperationRunner(self.store, self.leaders, segments, now_ms)
        self.pruning = Pruning(self.store, self.leaders, operations, segments, settings.retention, now_ms)
        self.registry = SubscriptionRegistry(
            self.store, self.leaders, operations, segments, now_ms, settings.max_subscriptions
        )
        self.owners = None if isinstance(segments, NoSegments) else SegmentOwners(segments)
        observed = Observed(ReportedLoads(settings.kafka), self.owners)
        self.service = ScalableTopicService(
            self.store, self.leaders, operations, segments, self.pruning, settings.policy, observed, now_ms
        )
        self.namespaces = Namespaces(self.store, settings.namespaces, settings.policy, now_ms)
        self.failover = TopicFailover(self.store, self.leaders, operations, self.pruning)
        self.registration = NodeRegistration(nodes, settings.url, settings.session_seconds)
        self.housekeeper = Housekeeper(
            nodes,
            self.registration,
            self.leaders,
            operations,
            self.pruning,
            self.failover,
            self.reach,
            settings.session_seconds,
        )
        snapshots = Snapshots(LayoutReader(nodes), settings.snapshot_seconds, now_ms)
        self.publisher = OutboxPublisher(nodes, settings.kafka, snapshots, self.housekeeper.election)

    def close(self) -> None:
        """End the session in the metadata store: other nodes may lead this node's topics at once."""
        if self.owners is not None:
            self.owners.close()
        self.nodes.close()
