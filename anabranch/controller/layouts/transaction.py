"""One change of a topic or namespace with its announcements, committed at once.

Stage: made by `anabranch.controller.layouts.store`, which commits it under the leader's term. Other modules write their
own records of a topic, like `anabranch.controller.operations.journal`, with `put` and `delete`.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence

from anabranch.controller.layouts.reader import LayoutReader
from anabranch.controller.metadata import store_paths
from anabranch.controller.metadata.base import ABSENT, Delete, MetadataStore, Op, Put, Stored
from anabranch.controller.metadata.records import ConsumerRegistration, SubscriptionRecord, same_life
from anabranch.controller.outbox.announcements import Announcement
from anabranch.controller.outbox.entries import append_entry
from schemas.kafka.messages import SubscriptionType
from schemas.metadata import AutoScalePolicyOverride, ScalableTopicMetadata

MAX_PART_BYTES, MAX_PART_NODES = 262_144, 500
"""Size limits of one commit of a large removal: ZooKeeper accepts a megabyte."""


class Transaction(LayoutReader):
    """Reader that also writes, and reads its own writes; all changes are committed, or none."""

    def __init__(self, nodes: MetadataStore) -> None:
        super().__init__(nodes)
        self._seen: dict[str, int] = {}
        """Versions that were read."""
        self._after: dict[str, bytes | None] = {}
        """Pending writes; None: deleted."""
        self._announcements: list[Announcement] = []
        self._bytes = 0
        """Size of paths, values and announcements so far."""
        self._ahead: dict[str, Stored | None] = {}
        self.layout_of: set[str] = set()
        """Topics whose layout this changes."""
        self.members_of: set[tuple[str, str]] = set()
        """Topic and name of the subscriptions whose consumers this may change."""

    def insert_topic(self, topic: str, metadata: ScalableTopicMetadata) -> bool:
        """Store a new topic; return False if one of that name exists."""
        if self.has_topic(topic):
            return False
        self._put_layout(topic, metadata.to_json().encode())
        return True

    def begin_creation(self, topic: str, metadata: ScalableTopicMetadata) -> None:
        """Record that the segments of a new topic are about to be created."""
        self.put(store_paths.creation_path(topic), metadata.to_json().encode())
        self.need_leader(topic)

    def end_creation(self, topic: str) -> None:
        """Record that all segments were created, or none remain; a no-op without a creation."""
        self.delete(store_paths.creation_path(topic))

    def replace_layout(self, topic: str, version: int, metadata: ScalableTopicMetadata) -> bool:
        """Compare-and-set: return False if the topic is no longer at `version`."""
        node = self.get(store_paths.topic_path(topic))
        if node is None or node.version != version:
            return False
        self._put_layout(topic, metadata.to_json().encode())
        return True

    def begin_deletion(self, topic: str, metadata: ScalableTopicMetadata) -> None:
        """Remove the layout, which hides the topic, and keep it for the remaining steps."""
        self._put_layout(topic, b"")
        self.put(store_paths.deletion_path(topic), metadata.to_json().encode())

    def delete_some_subscriptions(self, topic: str, announced: Callable[[str, SubscriptionType], Announcement]) -> bool:
        """Remove subscriptions with their sessions, up to the size of a commit; return True if some remain.

        Each is announced in the commit that removes it.
        """
        for name in sorted(store_paths.decode(name) for name in self.children(store_paths.subscriptions_path(topic))):
            consumers = store_paths.consumers_path(topic, name)
            for consumer in self.children(consumers):
                if self.is_full:
                    return True
                # It exists: there is no other writer in this term.
                self._write(f"{consumers}/{consumer}", None)
            if self.is_full:
                return True
            record = self.subscription_record(topic, name)
            self.delete_subscription(topic, name)
            if record is not None:
                self.announce(announced(name, record.type))
        return False

    def insert_subscription(self, topic: str, name: str, type: SubscriptionType) -> None:
        """Add a subscription to an existing topic."""
        record = SubscriptionRecord(type=type, life=uuid.uuid4().hex)
        self.put(store_paths.subscription_path(topic, name), record.to_json().encode())

    def delete_subscription(self, topic: str, name: str) -> None:
        """Remove a subscription with its sessions."""
        consumers = store_paths.consumers_path(topic, name)
        for consumer in self.children(consumers):
            self.delete(f"{consumers}/{consumer}")
        self.delete(consumers)
        self.delete(store_paths.subscription_path(topic, name))
        self.members_of.add((topic, name))

    def begin_leftover(self, topic: str, name: str) -> None:
        """Record that a deleted subscription must still be removed from the segments."""
        self.put(store_paths.leftover_path(topic, name), b"")
        self.need_leader(topic)

    def end_leftover(self, topic: str, name: str) -> None:
        """Record that it has been removed from all segments."""
        self.delete(store_paths.leftover_path(topic, name))

    def save_progress(
        self,
        topic: str,
        name: str,
        drained: Iterable[int],
        contested: Mapping[str, tuple[int, ...]] | None = None,
        life: str | None = None,
    ) -> None:
        """Store the sealed segments that a subscription has read to the end, if it exists.

        `contested`: segments that consumers without a connection keep from others; None: unchanged. `life`: incarnation
        of the subscription, None: unknown; progress of another incarnation is not stored.
        """
        record = self.subscription_record(topic, name)
        if record is not None and same_life(record.life, life):
            still_contested = record.contested if contested is None else dict(contested) or None
            after = record.model_copy(update={"drained": tuple(sorted(drained)), "contested": still_contested})
            self.put(store_paths.subscription_path(topic, name), after.to_json().encode())

    def insert_consumer(self, topic: str, subscription: str, name: str, session: bool = False) -> bool:
        """Add a consumer; return False if it exists. `session`: it needs a connection from now on."""
        path = store_paths.consumer_path(topic, subscription, name)
        node = self.get(path)
        if node is None or session:
            self.put(path, ConsumerRegistration(consumer_name=name, session=session).to_json().encode())
        if session:
            self.need_leader(topic)
        self.members_of.add((topic, subscription))
        return node is None

    def delete_consumer(self, topic: str, subscription: str, name: str) -> bool:
        """Remove a session; return False if there is none of that name."""
        self.members_of.add((topic, subscription))
        return self.delete(store_paths.consumer_path(topic, subscription, name))

    def insert_namespace(self, namespace: str) -> None:
        """Create a namespace, which then exists even without topics and policy."""
        path = store_paths.namespace_record_path(namespace)
        self.get(path)
        self.put(path, b"")

    def delete_namespace(self, namespace: str) -> bool:
        """Undo `insert_namespace`; return False if there is nothing to undo."""
        return self.delete(store_paths.namespace_record_path(namespace))

    def set_namespace_policy(self, namespace: str, policy: AutoScalePolicyOverride) -> None:
        """Replace the override of a namespace."""
        self.get(store_paths.policy_path(namespace))
        self.put(store_paths.policy_path(namespace), policy.to_json().encode())

    def remove_namespace_policy(self, namespace: str) -> bool:
        """Remove the override of a namespace; return False if there is none."""
        return self.delete(store_paths.policy_path(namespace))

    def announce(self, announcement: Announcement | None) -> None:
        """Put an announcement into the outbox; None is a no-op."""
        if announcement is not None:
            self._announcements.append(announcement)
            # It is embedded as a JSON string, where every quotation mark takes one more byte.
            self._bytes += len(announcement.value) + announcement.value.count(b'"') + len(announcement.key.encode())

    def ops(self) -> list[Op]:
        """Return the operations of the commit: deletions first, deepest first, then writes from the top."""
        deletions = sorted((path for path, value in self._after.items() if value is None), reverse=True)
        ops: list[Op] = [Delete(path, self._seen.get(path)) for path in deletions]
        for path, value in sorted(self._after.items()):
            if value is not None:
                ops.append(Put(path, value, self._seen.get(path)))
        return [*ops, append_entry(self._announcements)] if self._announcements else ops

    @property
    def is_empty(self) -> bool:
        """True if nothing has changed so far."""
        return not self._after

    @property
    def is_full(self) -> bool:
        """True if a change in several commits must continue in the next one; a few more nodes still fit."""
        return len(self._after) >= MAX_PART_NODES or self._bytes >= MAX_PART_BYTES

    def _put_layout(self, topic: str, value: bytes) -> None:
        self.put(store_paths.topic_path(topic), value)
        self.layout_of.add(topic)

    def need_leader(self, topic: str) -> None:
        """Mark the topic as needing a leader even without requests."""
        if self.get(store_paths.attended_path(topic)) is None:
            self.put(store_paths.attended_path(topic), b"")

    def get(self, path: str) -> Stored | None:
        """Return the node at a path as it will be after this, or None."""
        if path in self._after:
            value = self._after[path]
            return None if value is None else Stored(value, 0)
        node = self._ahead.pop(path) if path in self._ahead else self._nodes.get(path)
        self._seen[path] = node.version if node else ABSENT
        return node

    def children(self, path: str) -> list[str]:
        """Return the names below a path as they will be after this, sorted."""
        names = set(self._nodes.children(path))
        for changed, value in self._after.items():
            above, _, name = changed.rpartition("/")
            if above == path:
                names.discard(name) if value is None else names.add(name)
        return sorted(names)

    def put(self, path: str, value: bytes) -> None:
        """Write a node; if it was read before, the commit expects it unchanged."""
        self._write(path, value)

    def delete(self, path: str) -> bool:
        """Remove a node; return False if there is none."""
        if self.get(path) is None:
            return False
        if self._seen.get(path) == ABSENT:
            del self._after[path]
        else:
            self._write(path, None)
        return True

    def read_ahead(self, paths: Sequence[str]) -> None:
        """Prefetch nodes that are read one by one afterwards."""
        self._ahead.update(zip(paths, self._nodes.get_all(paths), strict=True))

    def _write(self, path: str, value: bytes | None) -> None:
        self._after[path] = value
        self._bytes += len(path) + len(value or b"")
