"""One change of a topic or a namespace with its announcements: what it reads, and the one commit that it becomes.

Stage: made by `controller.layouts.store`, which commits it under the leader's term. What others keep of a topic, as
`controller.operations.journal` does, is written with `put` and `delete`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence

from controller.layouts.reader import LayoutReader
from controller.metadata import store_paths
from controller.metadata.base import ABSENT, Delete, MetadataStore, Op, Put, Stored
from controller.metadata.records import ConsumerRegistration, SubscriptionRecord, same_life
from controller.outbox.announcements import Announcement
from controller.outbox.entries import append_entry
from schemas.messages import SubscriptionType
from schemas.metadata import AutoScalePolicyOverride, ScalableTopicMetadata

MAX_PART_BYTES, MAX_PART_NODES = 262_144, 500
"""Of one of several commits that remove what does not fit into one: ZooKeeper takes a megabyte."""


class Transaction(LayoutReader):
    """A reader that also writes, and reads what it has written; all of its changes are committed, or none."""

    def __init__(self, nodes: MetadataStore) -> None:
        super().__init__(nodes)
        self._seen: dict[str, int] = {}
        """The versions that were read."""
        self._after: dict[str, bytes | None] = {}
        """What is to be written; None: deleted."""
        self._announcements: list[Announcement] = []
        self._bytes = 0
        """Of paths, values and announcements so far."""
        self._ahead: dict[str, Stored | None] = {}
        self.layout_of: set[str] = set()
        """Topics whose layout is another one after this."""
        self.members_of: set[tuple[str, str]] = set()
        """Topic and name of the subscriptions whose consumers may be others after this."""

    def insert_topic(self, topic: str, metadata: ScalableTopicMetadata) -> bool:
        """Store a new topic; False when there is one of that name."""
        if self.has_topic(topic):
            return False
        self._put_layout(topic, metadata.to_json().encode())
        return True

    def begin_creation(self, topic: str, metadata: ScalableTopicMetadata) -> None:
        """Note that the segments of a new topic are about to be made."""
        self.put(store_paths.creation_path(topic), metadata.to_json().encode())
        self.need_leader(topic)

    def end_creation(self, topic: str) -> None:
        """All of its segments were made, or none is left; nothing begun is fine."""
        self.delete(store_paths.creation_path(topic))

    def replace_layout(self, topic: str, version: int, metadata: ScalableTopicMetadata) -> bool:
        """Compare-and-set: False when the topic is not at `version` any more."""
        found = self.get(store_paths.topic_path(topic))
        if found is None or found.version != version:
            return False
        self._put_layout(topic, metadata.to_json().encode())
        return True

    def begin_deletion(self, topic: str, metadata: ScalableTopicMetadata) -> None:
        """Remove the layout, so that nobody finds the topic any more, and keep it for what is still to be done."""
        self._put_layout(topic, b"")
        self.put(store_paths.deletion_path(topic), metadata.to_json().encode())

    def delete_some_subscriptions(self, topic: str, announced: Callable[[str, SubscriptionType], Announcement]) -> bool:
        """Remove subscriptions with their sessions, as much as one commit takes; True: something is left.

        Each is announced in the commit that removes it.
        """
        for name in sorted(store_paths.decode(name) for name in self.children(store_paths.subscriptions_path(topic))):
            consumers = store_paths.consumers_path(topic, name)
            for consumer in self.children(consumers):
                if self.is_full:
                    return True
                # Known to be there: nobody else writes in this term.
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
        """Note that a deleted subscription is to go from the segments too."""
        self.put(store_paths.leftover_path(topic, name), b"")
        self.need_leader(topic)

    def end_leftover(self, topic: str, name: str) -> None:
        """It is in no segment any more."""
        self.delete(store_paths.leftover_path(topic, name))

    def save_progress(
        self,
        topic: str,
        name: str,
        drained: Iterable[int],
        contested: Mapping[str, tuple[int, ...]] | None = None,
        life: str | None = None,
    ) -> None:
        """Store which sealed segments a subscription has read to the end; none of that name is fine.

        `contested`: what consumers without a connection keep from others; None: as it is. `life`: of that subscription,
        None: not known; what is of another one is not stored.
        """
        record = self.subscription_record(topic, name)
        if record is not None and same_life(record.life, life):
            kept = record.contested if contested is None else dict(contested) or None
            after = record.model_copy(update={"drained": tuple(sorted(drained)), "contested": kept})
            self.put(store_paths.subscription_path(topic, name), after.to_json().encode())

    def insert_consumer(self, topic: str, subscription: str, name: str, session: bool = False) -> bool:
        """Add a consumer; False when it exists: `session` then has it need a connection from now on."""
        path = store_paths.consumer_path(topic, subscription, name)
        found = self.get(path)
        if found is None or session:
            self.put(path, ConsumerRegistration(consumer_name=name, session=session).to_json().encode())
        if session:
            self.need_leader(topic)
        self.members_of.add((topic, subscription))
        return found is None

    def delete_consumer(self, topic: str, subscription: str, name: str) -> bool:
        """Remove a session; False when there is none of that name."""
        self.members_of.add((topic, subscription))
        return self.delete(store_paths.consumer_path(topic, subscription, name))

    def insert_namespace(self, namespace: str) -> None:
        """Have a namespace exist, also without topics and policy."""
        path = store_paths.namespace_record_path(namespace)
        self.get(path)
        self.put(path, b"")

    def delete_namespace(self, namespace: str) -> bool:
        """Undo `insert_namespace`; False when there is nothing to undo."""
        return self.delete(store_paths.namespace_record_path(namespace))

    def set_namespace_policy(self, namespace: str, policy: AutoScalePolicyOverride) -> None:
        """Store the override of a namespace in place of the one before."""
        self.get(store_paths.policy_path(namespace))
        self.put(store_paths.policy_path(namespace), policy.to_json().encode())

    def remove_namespace_policy(self, namespace: str) -> bool:
        """Remove the override of a namespace; False when there is none."""
        return self.delete(store_paths.policy_path(namespace))

    def announce(self, announcement: Announcement | None) -> None:
        """Put an announcement into the outbox; None (nothing to announce) is fine."""
        if announcement is not None:
            self._announcements.append(announcement)
            # As text in JSON again: every quotation mark of it takes one more byte.
            self._bytes += len(announcement.value) + announcement.value.count(b'"') + len(announcement.key.encode())

    def ops(self) -> list[Op]:
        """What a commit has to do: the deepest deletions first, then the rest from the top."""
        deletions = sorted((path for path, value in self._after.items() if value is None), reverse=True)
        ops: list[Op] = [Delete(path, self._seen.get(path)) for path in deletions]
        for path, value in sorted(self._after.items()):
            if value is not None:
                ops.append(Put(path, value, self._seen.get(path)))
        return [*ops, append_entry(self._announcements)] if self._announcements else ops

    @property
    def is_empty(self) -> bool:
        """Whether nothing is changed so far."""
        return not self._after

    @property
    def is_full(self) -> bool:
        """Whether a change of several commits goes on in the next one; this one has room for a few more nodes."""
        return len(self._after) >= MAX_PART_NODES or self._bytes >= MAX_PART_BYTES

    def _put_layout(self, topic: str, value: bytes) -> None:
        self.put(store_paths.topic_path(topic), value)
        self.layout_of.add(topic)

    def need_leader(self, topic: str) -> None:
        """From now on the topic needs a leader even if nobody asks for anything."""
        if self.get(store_paths.attended_path(topic)) is None:
            self.put(store_paths.attended_path(topic), b"")

    def get(self, path: str) -> Stored | None:
        """The node at a path as it is after this, or None."""
        if path in self._after:
            value = self._after[path]
            return None if value is None else Stored(value, 0)
        found = self._ahead.pop(path) if path in self._ahead else self._nodes.get(path)
        self._seen[path] = found.version if found else ABSENT
        return found

    def children(self, path: str) -> list[str]:
        """The names below a path as they are after this, sorted."""
        names = set(self._nodes.children(path))
        for changed, value in self._after.items():
            above, _, name = changed.rpartition("/")
            if above == path:
                names.discard(name) if value is None else names.add(name)
        return sorted(names)

    def put(self, path: str, value: bytes) -> None:
        """Write a node; expected to be as it was read, if it was."""
        self._write(path, value)

    def delete(self, path: str) -> bool:
        """Remove a node; False when there is none."""
        if self.get(path) is None:
            return False
        if self._seen.get(path) == ABSENT:
            del self._after[path]
        else:
            self._write(path, None)
        return True

    def read_ahead(self, paths: Sequence[str]) -> None:
        """Read nodes at once that are asked for one by one afterwards."""
        self._ahead.update(zip(paths, self._nodes.get_all(paths), strict=True))

    def _write(self, path: str, value: bytes | None) -> None:
        self._after[path] = value
        self._bytes += len(path) + len(value or b"")
