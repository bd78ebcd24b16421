"""Subscriptions of a topic and the consumers that are registered with them (PIP-468 "SubscriptionCoordinator").

Stage: beside `controller.service`, between the interfaces and the store, for the leader of the topic. What is stored is
told to the sessions by the store; `controller.sessions.manager` runs them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from controller.errors import Conflict, NotFound
from controller.layouts.reader import StoredMembers, StoredSubscription
from controller.layouts.store import LayoutStore
from controller.layouts.transaction import Transaction
from controller.leadership.leaders import Leaders
from controller.operations.runner import OperationRunner
from controller.outbox.announcements import consumer_announcement
from controller.segments.base import SegmentNotFound, SegmentStore, SubscriptionNotFound, Target
from controller.segments.no_segments import NoSegments
from decisions.topic.layout import SegmentLayout
from decisions.topic.segment import segment_topic
from schemas.messages import SubscriptionType

MAX_CONCURRENT_SEEKS = 8
"""Segments on which a subscription is moved at the same time: most of the time is spent waiting."""


class SubscriptionRegistry:
    """The subscriptions of the topics that `leaders` leads. Any number of threads."""

    def __init__(
        self,
        store: LayoutStore,
        leaders: Leaders,
        operations: OperationRunner,
        segments: SegmentStore,
        now_ms: Callable[[], int],
    ) -> None:
        self.leaders = leaders
        self._store, self._operations, self._segments = store, operations, segments
        self._now_ms = now_ms

    def lead(self, topic: str) -> None:
        """Lead an existing topic: `NotFound`, `NotLeader`, `Unavailable`."""
        self._store.check_topic(topic)
        self.leaders.lead(topic)

    def leads(self, topic: str) -> bool:
        """Whether this node leads a topic just now."""
        return self.leaders.term(topic) is not None

    def create_subscription(self, topic: str, subscription: str, type: SubscriptionType) -> None:
        """Create a subscription at the beginning of every segment; one of the same type stays where it is."""
        with self._writing(topic) as transaction:
            transaction.check_topic(topic)
            found = transaction.subscription(topic, subscription)
            if found is None:
                transaction.insert_subscription(topic, subscription, type)
                transaction.announce(consumer_announcement(topic, subscription, type, "snapshot", 0, self._now_ms()))
            else:
                _same_type(found, type)
        self._subscribe_segments(topic, subscription, type)

    def delete_subscription(self, topic: str, subscription: str) -> None:
        """Delete a subscription with its sessions; `SubscriptionInUse` while clients read a segment with it."""
        self._store.check_topic(topic)
        with self._operations.locked(topic) as term:
            self._store.existing_subscription(topic, subscription)
            layout = SegmentLayout.from_metadata(self._store.existing_topic(topic).metadata)
            for segment in layout.segments.values():
                self._segments.delete_subscription(segment_topic(topic, segment), subscription)
            with self._store.write(term) as transaction:
                found = transaction.existing_subscription(topic, subscription)
                transaction.delete_subscription(topic, subscription)
                transaction.announce(
                    consumer_announcement(topic, subscription, found.type, "deleted", 0, self._now_ms())
                )

    def seek(self, topic: str, subscription: str, target: Target) -> None:
        """Move a subscription on every segment, sealed ones too; nothing counts as drained after it.

        `Conflict` for one without positions, and `SubscriptionInUse` while clients read a segment with it: then nothing
        was moved. A failure later leaves it moved on some of the segments: do it again. Segments that are made
        meanwhile, by nobody but another leader, hold only what is newer, and it begins at their start.
        """
        self._store.check_topic(topic)
        with self._operations.locked(topic) as term:
            found = self._store.existing_subscription(topic, subscription)
            if found.type == "CHECKPOINT":
                raise Conflict(
                    f"Subscription {subscription} is CHECKPOINT: its consumers keep their positions themselves"
                )
            if isinstance(self._segments, NoSegments):
                raise Conflict(
                    'this controller keeps no messages (controller.segments = "none"), so it knows no positions: '
                    f"move {subscription} where the messages are"
                )
            layout = SegmentLayout.from_metadata(self._store.existing_topic(topic).metadata)
            segments = [segment_topic(topic, segment) for segment in layout.segments.values()]
            with ThreadPoolExecutor(MAX_CONCURRENT_SEEKS) as pool:
                list(pool.map(lambda segment: self._segments.check_unused(segment, subscription), segments))
                # Before the first is moved: the next leader must not believe that it was read.
                with self._store.write(term) as transaction:
                    transaction.save_drained(topic, subscription, ())
                list(pool.map(lambda segment: self._seek_segment(segment, subscription, target), segments))

    def register_consumer(
        self, topic: str, subscription: str, consumer: str, type: SubscriptionType, session: bool = False
    ) -> None:
        """Register a consumer, with its subscription when that is missing; a known name stays registered.

        `session`: it is unregistered when it has no connection for too long.
        """
        with self._writing(topic) as transaction:
            transaction.check_topic(topic)
            found = transaction.subscription(topic, subscription)
            if found is None:
                transaction.insert_subscription(topic, subscription, type)
                found = StoredSubscription(subscription, type, 0)
            _same_type(found, type)
            if transaction.insert_consumer(topic, subscription, consumer, session):
                count = found.consumers + 1
                transaction.announce(
                    consumer_announcement(topic, subscription, type, "registered", count, self._now_ms(), consumer)
                )
        self._subscribe_segments(topic, subscription, type)

    def unregister_consumer(self, topic: str, subscription: str, consumer: str) -> None:
        """Remove a consumer session; its subscription stays."""
        with self._writing(topic) as transaction:
            found = transaction.existing_subscription(topic, subscription)
            if not transaction.delete_consumer(topic, subscription, consumer):
                raise NotFound(f"Consumer not found: {consumer} of {subscription} on {topic}")
            count = found.consumers - 1
            transaction.announce(
                consumer_announcement(topic, subscription, found.type, "unregistered", count, self._now_ms(), consumer)
            )

    def unregister_consumers(self, topic: str, subscription: str, consumers: Iterable[str]) -> None:
        """Remove consumers in one step; names that are not registered, or no such subscription, are fine."""
        if not self._store.has_topic(topic):
            return
        with self._writing(topic) as transaction:
            found = transaction.subscription(topic, subscription)
            if found is None:
                return
            count, now = found.consumers, self._now_ms()
            for consumer in consumers:
                if transaction.delete_consumer(topic, subscription, consumer):
                    count -= 1
                    transaction.announce(
                        consumer_announcement(topic, subscription, found.type, "unregistered", count, now, consumer)
                    )

    def membership(self, topic: str, subscription: str) -> tuple[SegmentLayout, StoredMembers | None]:
        """The layout of a topic, and who reads the subscription; `NotFound` without the topic."""
        stored = self._store.existing_topic(topic)
        members = self._store.members(topic, subscription)
        return SegmentLayout.from_metadata(stored.metadata), members

    def subscriptions_with_sessions(self, topic: str) -> list[str]:
        """The subscriptions of a topic that have a session."""
        found = [(one.name, self._store.members(topic, one.name)) for one in self._store.subscriptions(topic)]
        return [name for name, members in found if members and any(members.consumers.values())]

    def save_drained(self, topic: str, subscription: str, drained: Iterable[int]) -> None:
        """Store which sealed segments a subscription has read to the end."""
        with self._writing(topic) as transaction:
            transaction.save_drained(topic, subscription, drained)

    def drained_of(self, subscription: str, segments: Mapping[int, str]) -> set[int]:
        """Which of these sealed segments, names by id, the subscription has read to the end; `SegmentStoreError`."""
        return {id for id, segment in segments.items() if self._has_read(subscription, segment)}

    def _has_read(self, subscription: str, segment: str) -> bool:
        try:
            return self._segments.backlog(segment, subscription) == 0
        except SegmentNotFound:
            return True
        except SubscriptionNotFound:
            return False

    def _seek_segment(self, segment: str, subscription: str, target: Target) -> None:
        """Move it on one segment; a pruned or lost one is passed over."""
        with contextlib.suppress(SegmentNotFound):
            try:
                self._segments.seek(segment, subscription, target)
            except SubscriptionNotFound:
                # Its creation was interrupted.
                self._segments.create_subscription(segment, subscription)
                self._segments.seek(segment, subscription, target)

    def _subscribe_segments(self, topic: str, subscription: str, type: SubscriptionType) -> None:
        """The subscription was registered first, so a split that does not see it here creates it on the children."""
        if type == "CHECKPOINT" or isinstance(self._segments, NoSegments):
            return
        layout = SegmentLayout.from_metadata(self._store.existing_topic(topic).metadata)
        for segment in layout.segments.values():
            with contextlib.suppress(SegmentNotFound):
                self._segments.create_subscription(segment_topic(topic, segment), subscription, "earliest")

    @contextmanager
    def _writing(self, topic: str) -> Iterator[Transaction]:
        """A change of an existing topic, as its leader."""
        self._store.check_topic(topic)
        with self._store.write(self.leaders.lead(topic)) as transaction:
            yield transaction


def _same_type(found: StoredSubscription, type: SubscriptionType) -> None:
    if found.type != type:
        raise Conflict(f"Subscription {found.name} exists with type {found.type}, not {type}")
