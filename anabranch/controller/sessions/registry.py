"""Subscriptions of a topic and their registered consumers (PIP-468 "SubscriptionCoordinator").

The store notifies the sessions of changes; `anabranch.controller.sessions.manager` runs them.
"""

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice

from anabranch.controller.errors import Conflict, NotFound, PreconditionFailed, TooMany
from anabranch.controller.layouts.reader import StoredMembers, StoredSubscription
from anabranch.controller.layouts.store import LayoutStore
from anabranch.controller.layouts.transaction import MAX_PART_NODES, Transaction
from anabranch.controller.leadership.leaders import Leaders
from anabranch.controller.metadata.store_paths import consumer_path, consumers_path, encode, subscriptions_path
from anabranch.controller.operations.runner import OperationRunner
from anabranch.controller.outbox.announcements import consumer_announcement
from anabranch.controller.segments.base import (
    SegmentNotFound,
    SegmentStore,
    SegmentStoreError,
    SubscriptionNotFound,
    Target,
)
from anabranch.controller.segments.no_segments import NoSegments
from decisions.topic.layout import SegmentLayout
from decisions.topic.segment import Segment, segment_topic
from schemas.kafka.messages import ConsumerEventKind, SubscriptionType

log = logging.getLogger(__name__)

MAX_SUBSCRIPTIONS = 1_000
"""Default limit per topic."""
MAX_SUBSCRIPTIONS_BYTES = 200_000
"""Limit on the encoded names of all subscriptions of a topic; ten thousand names of twenty characters."""
MAX_CONCURRENT_MOVES = 8
"""Segments on which a subscription is created or moved concurrently: the work is mostly waiting."""


class SubscriptionRegistry:
    """Subscriptions of the topics that `leaders` leads. Thread-safe."""

    def __init__(
        self,
        store: LayoutStore,
        leaders: Leaders,
        operations: OperationRunner,
        segments: SegmentStore,
        now_ms: Callable[[], int],
        max_subscriptions: int = MAX_SUBSCRIPTIONS,
    ) -> None:
        """`max_subscriptions`: per topic."""
        self.leaders, self._max_subscriptions = leaders, max_subscriptions
        self._store, self._operations, self._segments = store, operations, segments
        self._now_ms = now_ms

    def lead(self, topic: str) -> None:
        """Lead an existing topic. Raises `NotFound`, `NotLeader` and `Unavailable`."""
        self._store.check_topic(topic)
        self.leaders.lead(topic)

    def sync(self) -> None:
        """Block until reads show all earlier commits of all nodes."""
        self._store.synced()

    def leads(self, topic: str) -> bool:
        """Return whether this node leads a topic now."""
        return self.leaders.term(topic) is not None

    def create_subscription(self, topic: str, subscription: str, type: SubscriptionType) -> None:
        """Run `add_subscription`, then `position`."""
        self.add_subscription(topic, subscription, type)
        self.position(topic, subscription)

    def add_subscription(self, topic: str, subscription: str, type: SubscriptionType) -> bool:
        """Register a subscription; one of the same type is unchanged. Return True if it is new."""
        self._clear_name(topic, subscription)
        with self._writing(topic) as transaction:
            transaction.check_topic(topic)
            if (stored := transaction.subscription(topic, subscription)) is None:
                self._check_room(transaction, topic, subscription)
                _insert(transaction, topic, subscription, type)
                self._announce(transaction, topic, subscription, type, "snapshot", 0)
            else:
                _same_type(stored, type)
            return stored is None

    def delete_subscription(self, topic: str, subscription: str) -> None:
        """Delete a subscription with its sessions (PIP-468 "Admin API"): its consumers are unregistered.

        Segments that clients still read drop it after the clients have left.
        """
        self._store.check_topic(topic)
        with self._operations.locked(topic) as term:
            # Segments that a split is about to publish would keep the subscription.
            self._operations.finish_open(term)
            self._store.existing_subscription(topic, subscription)
            members = self._store.members(topic, subscription)
            if members is not None and len(members.consumers) > MAX_PART_NODES:
                # May exceed one commit.
                self.unregister_consumers(topic, subscription, members.consumers)
            with self._store.write(term) as transaction:
                stored = transaction.existing_subscription(topic, subscription)
                transaction.delete_subscription(topic, subscription)
                if stored.type != "CHECKPOINT" and not isinstance(self._segments, NoSegments):
                    transaction.begin_leftover(topic, subscription)
                self._announce(transaction, topic, subscription, stored.type, "deleted", 0)
            try:
                self._operations.remove_leftovers(term)
            except SegmentStoreError as error:
                log.warning("%s of %s was deleted, and goes from the segments later: %s", subscription, topic, error)

    def seek(self, topic: str, subscription: str, target: Target) -> None:
        """Move a subscription on every segment, including sealed ones; none counts as drained afterwards.

        Raises `Conflict` for one without positions, and `SubscriptionInUse` while clients read a segment with it;
        nothing was moved then. A later failure leaves it moved on some of the segments: repeat the call. Segments
        created meanwhile, which only another leader could do, contain only newer messages, and it starts at their
        beginning.
        """
        self._store.check_topic(topic)
        with self._operations.locked(topic) as term:
            if self._store.existing_subscription(topic, subscription).type == "CHECKPOINT":
                raise Conflict(
                    f"Subscription {subscription} is CHECKPOINT: its consumers keep their positions themselves"
                )
            if isinstance(self._segments, NoSegments):
                raise Conflict(
                    'this controller keeps no messages (controller.segments = "none"), so it knows no positions: '
                    f"move {subscription} where the messages are"
                )
            layout = SegmentLayout.from_metadata(self._store.existing_topic(topic).metadata)
            segments = self._segments.of_layout(layout)
            names = [segment_topic(topic, segment) for segment in layout.segments.values()]
            with ThreadPoolExecutor(MAX_CONCURRENT_MOVES) as pool:
                list(pool.map(lambda segment: segments.check_unused(segment, subscription), names))
                # Before the first move: the next leader must not consider segments as read.
                with self._store.write(term) as transaction:
                    transaction.save_progress(topic, subscription, ())

                def move(segment: str) -> None:
                    self._store.confirm(term)
                    _seek_segment(segments, segment, subscription, target)

                list(pool.map(move, names))

    def register_consumer(
        self, topic: str, subscription: str, consumer: str, type: SubscriptionType, session: bool = False
    ) -> None:
        """Run `add_consumer`, then `position`."""
        self.add_consumer(topic, subscription, consumer, type, session)
        self.position(topic, subscription)

    def add_consumer(
        self, topic: str, subscription: str, consumer: str, type: SubscriptionType, session: bool = False
    ) -> bool:
        """Register a consumer; a known name stays registered. Return True if its subscription is new.

        `session`: it is unregistered after too long without a connection.
        """
        self._clear_name(topic, subscription)
        with self._writing(topic) as transaction:
            transaction.check_topic(topic)
            if (record := transaction.subscription_record(topic, subscription)) is None:
                self._check_room(transaction, topic, subscription)
                _insert(transaction, topic, subscription, type)
            else:
                _same_type(StoredSubscription(subscription, record.type, 0), type)
            if transaction.insert_consumer(topic, subscription, consumer, session):
                # Count for new consumers only: ten thousand returning ones would each read all names.
                count = len(transaction.children(consumers_path(topic, subscription)))
                self._announce(transaction, topic, subscription, type, "registered", count, consumer)
        return record is None

    def unregister_consumer(self, topic: str, subscription: str, consumer: str) -> None:
        """Remove a consumer session; its subscription stays."""
        with self._writing(topic) as transaction:
            stored = transaction.existing_subscription(topic, subscription)
            if not transaction.delete_consumer(topic, subscription, consumer):
                raise NotFound(f"Consumer not found: {consumer} of {subscription} on {topic}")
            count = stored.consumers - 1
            self._announce(transaction, topic, subscription, stored.type, "unregistered", count, consumer)

    def unregister_consumers(self, topic: str, subscription: str, consumers: Iterable[str]) -> None:
        """Remove consumers, each with its announcement, in as many commits as needed.

        Unregistered names or a missing subscription are fine, so it can be repeated by any caller.
        """
        left = deque(consumers)
        while left and self._store.has_topic(topic):
            with self._writing(topic) as transaction:
                if (stored := transaction.subscription(topic, subscription)) is None:
                    return
                some = list(islice(left, MAX_PART_NODES))
                transaction.read_ahead([consumer_path(topic, subscription, consumer) for consumer in some])
                count, now, created_at = stored.consumers, self._now_ms(), transaction.created_at(topic)
                for consumer in some:
                    if transaction.is_full:
                        break
                    left.popleft()
                    if transaction.delete_consumer(topic, subscription, consumer):
                        count -= 1
                        transaction.announce(
                            consumer_announcement(
                                topic,
                                subscription,
                                stored.type,
                                "unregistered",
                                count,
                                now,
                                consumer,
                                created_at=created_at,
                            )
                        )

    def membership(self, topic: str, subscription: str) -> tuple[SegmentLayout, StoredMembers | None]:
        """Return a topic's layout and the subscription's members. Raises `NotFound` without the topic."""
        stored = self._store.existing_topic(topic)
        members = self._store.members(topic, subscription)
        return SegmentLayout.from_metadata(stored.metadata), members

    def life(self, topic: str, subscription: str) -> str | None:
        """Return the incarnation of a subscription (`SubscriptionRecord`)."""
        record = self._store.subscription_record(topic, subscription)
        return None if record is None else record.life

    def subscriptions_with_sessions(self, topic: str) -> list[str]:
        """Return the subscriptions of a topic that have a session."""
        memberships = [
            (stored.name, self._store.members(topic, stored.name)) for stored in self._store.subscriptions(topic)
        ]
        return [name for name, members in memberships if members and any(members.consumers.values())]

    def save_progress(
        self,
        topic: str,
        subscription: str,
        drained: Iterable[int],
        contested: Mapping[str, tuple[int, ...]],
        life: str | None,
    ) -> None:
        """Store drained and contested segments, unless another incarnation (`life`) has the name by now."""
        with self._writing(topic) as transaction:
            transaction.save_progress(topic, subscription, drained, contested, life)

    @property
    def has_positions(self) -> bool:
        """True if subscriptions have positions in segments, so not where the controller keeps no messages."""
        return not isinstance(self._segments, NoSegments)

    def backlogs(self, subscription: str, segments: Mapping[int, str], layout: SegmentLayout) -> dict[int, int]:
        """Return a subscription's unread messages by id of these segments (id to name).

        Raises `SegmentStoreError`.

        A missing segment has none. One where the subscription has no position is omitted, and gets one at its
        beginning.
        """
        store = self._segments.of_layout(layout)
        unread = {id: _backlog(store, segment, subscription) for id, segment in segments.items()}
        return {id: left for id, left in unread.items() if left is not None}

    def position(self, topic: str, subscription: str) -> None:
        """Give a registered subscription a position in every segment where it has none.

        That is the beginning, or the end of a drained segment. It was registered before, so a split that this call does
        not see sees the subscription and creates it on the children.
        """
        record = self._store.subscription_record(topic, subscription) if self.has_positions else None
        if record is None or record.type == "CHECKPOINT":
            return
        layout = SegmentLayout.from_metadata(self._store.existing_topic(topic).metadata)
        segments, drained = self._segments.of_layout(layout), set(record.drained)

        def start(segment: Segment) -> None:
            is_read = segment.segment_id in drained and not segment.is_active
            with contextlib.suppress(SegmentNotFound):
                segments.create_subscription(
                    segment_topic(topic, segment), subscription, "latest" if is_read else "earliest"
                )

        with ThreadPoolExecutor(MAX_CONCURRENT_MOVES) as pool:
            list(pool.map(start, layout.segments.values()))

    def _check_room(self, transaction: Transaction, topic: str, subscription: str) -> None:
        """Raise `TooMany` for too many subscriptions, `PreconditionFailed` for too long names in total.

        A split or merge stores all names with each of its steps.
        """
        names = transaction.children(subscriptions_path(topic))
        if len(names) >= self._max_subscriptions:
            raise TooMany(f"{topic} has {self._max_subscriptions} subscriptions already: delete one first", 60)
        size = sum(map(len, names)) + len(encode(subscription))
        if size > MAX_SUBSCRIPTIONS_BYTES:
            raise PreconditionFailed(
                f"{topic} has {len(names)} subscriptions, whose names and that of another have {size} bytes in the "
                f"metadata store; at most {MAX_SUBSCRIPTIONS_BYTES} are possible: delete some that nobody uses any more"
            )

    def _clear_name(self, topic: str, subscription: str) -> None:
        """Remove what a deleted subscription of that name has left in segments."""
        if not isinstance(self._segments, NoSegments) and self._store.is_leftover(topic, subscription):
            with self._operations.locked(topic) as term:
                self._operations.remove_leftovers(term)

    def _announce(
        self,
        transaction: Transaction,
        topic: str,
        subscription: str,
        type: SubscriptionType,
        event: ConsumerEventKind,
        consumers: int,
        consumer: str | None = None,
    ) -> None:
        now, created_at = self._now_ms(), transaction.created_at(topic)
        transaction.announce(
            consumer_announcement(topic, subscription, type, event, consumers, now, consumer, created_at=created_at)
        )

    @contextmanager
    def _writing(self, topic: str) -> Iterator[Transaction]:
        """Change an existing topic, as its leader."""
        self._store.check_topic(topic)
        with self._store.write(self.leaders.lead(topic)) as transaction:
            yield transaction


def _insert(transaction: Transaction, topic: str, subscription: str, type: SubscriptionType) -> None:
    """Add a subscription. Raises `PreconditionFailed` while consumers read with an earlier namesake."""
    if transaction.is_leftover(topic, subscription):
        raise PreconditionFailed(
            f"Subscription {subscription} of {topic} was deleted, and consumers still read with it; close them first"
        )
    transaction.insert_subscription(topic, subscription, type)


def _backlog(segments: SegmentStore, segment: str, subscription: str) -> int | None:
    try:
        return segments.backlog(segment, subscription)
    except SegmentNotFound:
        return 0
    except SubscriptionNotFound:
        # Its creation was interrupted, or Kafka has dropped the position: its progress is unknown.
        with contextlib.suppress(SegmentNotFound):
            segments.create_subscription(segment, subscription)
        return None


def _seek_segment(segments: SegmentStore, segment: str, subscription: str, target: Target) -> None:
    """Move a subscription on one segment; a pruned or lost segment is skipped."""
    with contextlib.suppress(SegmentNotFound):
        try:
            segments.seek(segment, subscription, target)
        except SubscriptionNotFound:
            # Its creation was interrupted.
            segments.create_subscription(segment, subscription)
            segments.seek(segment, subscription, target)


def _same_type(stored: StoredSubscription, type: SubscriptionType) -> None:
    if stored.type != type:
        raise Conflict(f"Subscription {stored.name} exists with type {stored.type}, not {type}")
