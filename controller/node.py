"""One node of the controller: its parts put together over a metadata store, of which there may be several nodes.

Stage: made by `controller.server` and by tests; `controller.app` serves it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from controller.housekeeping import Housekeeping
from controller.leaders import Leaders
from controller.metadata.base import MetadataStore
from controller.presence import Presence
from controller.publisher import Publisher
from controller.segments.base import SegmentStore
from controller.service import ScalableTopicService
from controller.snapshots import Snapshots
from controller.store import LayoutStore
from decisions.autoscale.policy import ClusterPolicy


@dataclass(frozen=True)
class NodeSettings:
    """What a node is told; the keys of `[controller]` with the same names."""

    url: str
    """Its own address, by which clients and other nodes reach it."""
    bootstrap: str
    """The Kafka that is told of every change."""
    policy: ClusterPolicy
    """The cluster's policy: overrides that contradict it are refused."""
    sealed_retention_seconds: float
    snapshot_seconds: float
    session_seconds: float


class Node:
    """The parts; `nodes` is theirs until `close`."""

    def __init__(
        self, nodes: MetadataStore, segments: SegmentStore, settings: NodeSettings, now_ms: Callable[[], int]
    ) -> None:
        self.nodes, self.segments, self.url = nodes, segments, settings.url
        self.leaders = Leaders(nodes, settings.url)
        self.store = LayoutStore(nodes)
        self.service = ScalableTopicService(
            self.store, self.leaders, segments, settings.policy, settings.sealed_retention_seconds, now_ms
        )
        self.presence = Presence(nodes, settings.url, settings.session_seconds)
        self.housekeeping = Housekeeping(nodes, self.presence, settings.session_seconds)
        snapshots = Snapshots(settings.snapshot_seconds, now_ms)
        self.publisher = Publisher(nodes, settings.bootstrap, snapshots, self.housekeeping.election)

    def close(self) -> None:
        """End the session in the metadata store: others may lead at once what this node has led."""
        self.nodes.close()
