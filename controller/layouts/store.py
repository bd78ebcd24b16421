"""Layouts, subscriptions, sessions, policies and the journal of operations in the metadata store.

Stage: below the service, on any `MetadataStore`. A change and its announcement are one commit, so neither exists
without the other, whatever is killed. Every write of a topic names the term in which its leader makes it: one leader,
and one writer of a topic at a time within it, is what makes a read and the commit after it one step. A namespace's
policy has no leader; its write is compared with the version that was read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from controller.errors import Conflict, PreconditionFailed, Unavailable
from controller.layouts.reader import LayoutReader
from controller.leadership.leaders import Term
from controller.locks import NamedLocks
from controller.metadata import store_paths
from controller.metadata.base import ABSENT, Delete, InvalidTreeChange, MetadataStore, Op, Put, Stored, VersionConflict
from controller.operations.journal import Operation
from controller.outbox.announcements import Announcement
from controller.outbox.entries import append_entry
from controller.sessions.records import ConsumerRegistration, SubscriptionRecord
from schemas.messages import SubscriptionType
from schemas.metadata import AutoScalePolicyOverride, ScalableTopicMetadata

MAX_OPERATIONS = 20
"""Operations of a topic that the journal keeps, the newest; ZooKeeper has all of them in memory."""
_CLEARED_AT_ONCE = 500


class Transaction(LayoutReader):
    """A view that can change things and sees its own changes; all of it is kept, or none."""

    def __init__(self, nodes: MetadataStore) -> None:
        super().__init__(nodes)
        self._seen: dict[str, int] = {}
        """The versions that were read."""
        self._after: dict[str, bytes | None] = {}
        """What is to be written; None: deleted."""
        self._records: list[Announcement] = []
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
        self._put(store_paths.creation_path(topic), metadata.to_json().encode())
        self._attend(topic)

    def end_creation(self, topic: str) -> None:
        """All of its segments were made, or none is left; nothing begun is fine."""
        self._delete(store_paths.creation_path(topic))

    def replace_layout(self, topic: str, version: int, metadata: ScalableTopicMetadata) -> bool:
        """Compare-and-set: False when the topic is not at `version` any more."""
        found = self._get(store_paths.topic_path(topic))
        if found is None or found.version != version:
            return False
        self._put_layout(topic, metadata.to_json().encode())
        return True

    def delete_topic(self, topic: str) -> None:
        """Remove the layout; what else there was of the topic is `LayoutStore.clear`ed after it."""
        self._put_layout(topic, b"")

    def insert_subscription(self, topic: str, name: str, type: SubscriptionType) -> None:
        """Add a subscription to an existing topic."""
        self._put(store_paths.subscription_path(topic, name), SubscriptionRecord(type=type).to_json().encode())

    def delete_subscription(self, topic: str, name: str) -> None:
        """Remove a subscription with its sessions."""
        consumers = store_paths.consumers_path(topic, name)
        for consumer in self._children(consumers):
            self._delete(f"{consumers}/{consumer}")
        self._delete(consumers)
        self._delete(store_paths.subscription_path(topic, name))
        self.members_of.add((topic, name))

    def save_drained(self, topic: str, name: str, drained: Iterable[int]) -> None:
        """Store which sealed segments a subscription has read to the end; none of that name is fine."""
        record = self._record(topic, name)
        if record is not None:
            after = SubscriptionRecord(type=record.type, drained=tuple(sorted(drained)))
            self._put(store_paths.subscription_path(topic, name), after.to_json().encode())

    def insert_consumer(self, topic: str, subscription: str, name: str, session: bool = False) -> bool:
        """Add a consumer; False when there is one of that name, which `session` makes one that needs a connection."""
        path = store_paths.consumer_path(topic, subscription, name)
        found = self._get(path)
        if found is None or session:
            self._put(path, ConsumerRegistration(consumer_name=name, session=session).to_json().encode())
        if session:
            self._attend(topic)
        self.members_of.add((topic, subscription))
        return found is None

    def delete_consumer(self, topic: str, subscription: str, name: str) -> bool:
        """Remove a session; False when there is none of that name."""
        self.members_of.add((topic, subscription))
        return self._delete(store_paths.consumer_path(topic, subscription, name))

    def set_namespace_policy(self, namespace: str, policy: AutoScalePolicyOverride) -> None:
        """Store the override of a namespace in place of the one before."""
        self._get(store_paths.policy_path(namespace))
        self._put(store_paths.policy_path(namespace), policy.to_json().encode())

    def remove_namespace_policy(self, namespace: str) -> bool:
        """Remove the override of a namespace; False when there is none."""
        return self._delete(store_paths.policy_path(namespace))

    def save_operation(self, operation: Operation) -> None:
        """Store an operation in place of the one with its id; `Conflict` for a second one that is open."""
        number, newest = self._newest_operation(operation.topic)
        if newest is not None and newest.id != operation.id and not newest.has_ended:
            raise Conflict(f"{operation.topic}: the {newest.kind} {newest.id} is open")
        if newest is None or newest.id != operation.id:
            number += 1
            self._attend(operation.topic)
        journal = store_paths.operations_path(operation.topic)
        self._put(f"{journal}/{number:010d}", operation.to_json().encode())
        if operation.has_ended:
            for name in self._children(journal)[:-MAX_OPERATIONS]:
                self._delete(f"{journal}/{name}")

    def announce(self, record: Announcement | None) -> None:
        """Put a record into the outbox; None (nothing to announce) is fine."""
        if record is not None:
            self._records.append(record)

    def ops(self) -> list[Op]:
        """What a commit has to do: the deepest deletions first, then the rest from the top."""
        deletions = sorted((path for path, value in self._after.items() if value is None), reverse=True)
        ops: list[Op] = [Delete(path, self._seen.get(path)) for path in deletions]
        for path, value in sorted(self._after.items()):
            if value is not None:
                ops.append(Put(path, value, self._seen.get(path)))
        return [*ops, append_entry(self._records)] if self._records else ops

    def _put_layout(self, topic: str, value: bytes) -> None:
        self._put(store_paths.topic_path(topic), value)
        self.layout_of.add(topic)

    def _attend(self, topic: str) -> None:
        if self._get(store_paths.attended_path(topic)) is None:
            self._put(store_paths.attended_path(topic), b"")

    def _get(self, path: str) -> Stored | None:
        if path in self._after:
            value = self._after[path]
            return None if value is None else Stored(value, 0)
        found = self._nodes.get(path)
        self._seen[path] = found.version if found else ABSENT
        return found

    def _children(self, path: str) -> list[str]:
        names = set(self._nodes.children(path))
        for changed, value in self._after.items():
            above, _, name = changed.rpartition("/")
            if above == path:
                names.discard(name) if value is None else names.add(name)
        return sorted(names)

    def _put(self, path: str, value: bytes) -> None:
        self._after[path] = value

    def _delete(self, path: str) -> bool:
        """False when there is no such node."""
        if self._get(path) is None:
            return False
        if self._seen.get(path) == ABSENT:
            del self._after[path]
        else:
            self._after[path] = None
        return True


class LayoutStore(LayoutReader):
    """All topics; shared by any number of threads."""

    def __init__(self, nodes: MetadataStore) -> None:
        super().__init__(nodes)
        self.on_layout: list[Callable[[str], None]] = []
        """Told of every topic whose layout this node has changed: look again; must be short."""
        self.on_members: list[Callable[[str, str], None]] = []
        """Told of topic and name of every subscription whose consumers this node has changed; must be short."""
        self._alone = NamedLocks()

    @contextmanager
    def write(self, term: Term) -> Iterator[Transaction]:
        """A change of a topic: durable at the end of the block, undone when it raises.

        Raises `Unavailable` when the term has ended, `StoreUnavailable` when it may have happened or not.
        """
        with self._alone.alone(term.topic):
            transaction = Transaction(self._nodes)
            yield transaction
            ops = transaction.ops()
            if ops:
                self._commit(term, ops)
        for topic in transaction.layout_of:
            for tell_layout in self.on_layout:
                tell_layout(topic)
        for changed in transaction.members_of:
            for tell_members in self.on_members:
                tell_members(*changed)

    @contextmanager
    def write_policy(self) -> Iterator[Transaction]:
        """A change of a namespace, by any node: `Conflict` when somebody else has made one at the same moment."""
        transaction = Transaction(self._nodes)
        yield transaction
        try:
            self._nodes.commit(*transaction.ops())
        except VersionConflict:
            raise Conflict("somebody else changed it at the same moment; try again") from None

    def clear(self, term: Term) -> None:
        """Remove what is left of a topic that was deleted; some of it at a time, as it may be much."""
        top = store_paths.topic_path(term.topic)
        found = [path for name in self._nodes.children(top) if name != "controller" for path in self._below(top, name)]
        with self._alone.alone(term.topic):
            for start in range(0, len(found), _CLEARED_AT_ONCE):
                self._commit(term, [Delete(path) for path in found[start : start + _CLEARED_AT_ONCE]])

    def _below(self, above: str, name: str) -> list[str]:
        """All paths from there on, the deepest first."""
        path = f"{above}/{name}"
        return [*(found for child in self._nodes.children(path) for found in self._below(path, child)), path]

    def _commit(self, term: Term, ops: list[Op]) -> None:
        try:
            self._nodes.commit(term.check, *ops)
        except VersionConflict as conflict:
            if conflict.path == term.check.path:
                raise Unavailable(f"this node does not lead {term.topic} any more; ask again") from None
            raise Conflict(f"somebody else changed {term.topic} at the same moment; try again") from None
        except InvalidTreeChange as refused:
            raise PreconditionFailed(f"{term.topic}: {refused}") from None
