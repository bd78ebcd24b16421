"""Run operations on segments: plan, journal, run step by step, resume after any failure.

Stage: between the service and `anabranch.controller.operations.protocol` (splits, merges, rebuckets) and `removal`
(prunings, deletions), whose order of steps is the guarantee. An operation is in the journal before its first step and
saved after each one. Operations left open by a crash or an unreachable store are resumed by the next leader when its
term begins, by the housekeeper in its rounds, and by the next caller who wants to change segments of the same topic.
One operation of a topic is open at a time. A term that has ended saves nothing, so its node stops after one step.
"""

import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from anabranch.controller.errors import Conflict, ControllerError, NotFound, PreconditionFailed
from anabranch.controller.layouts.reader import life_of, no_topic
from anabranch.controller.layouts.store import LayoutStore
from anabranch.controller.leadership.leaders import Leaders, Term
from anabranch.controller.locks import NamedLocks
from anabranch.controller.metadata.base import StoreError
from anabranch.controller.operations.journal import Operation, open_operation, save_operation
from anabranch.controller.operations.protocol import Kind, StoredLayout, plan, resume
from anabranch.controller.operations.removal import Removal
from anabranch.controller.outbox.announcements import layout_announcement
from anabranch.controller.segments.base import SegmentStore, SegmentStoreError, SubscriptionInUse
from decisions.topic.layout import LayoutError, SegmentLayout
from decisions.topic.segment import segment_topic

log = logging.getLogger(__name__)


class OperationRunner:
    """Operations on the topics that `leaders` leads. Thread-safe."""

    def __init__(self, store: LayoutStore, leaders: Leaders, segments: SegmentStore, now_ms: Callable[[], int]) -> None:
        self._store, self._leaders = store, leaders
        self._segments = segments
        self.removal = Removal(store, segments, now_ms)
        self._now_ms = now_ms
        self._leftovers = Leftovers(store, segments)
        self._locks = NamedLocks()
        self._unsettled: set[str] = set()
        """Topics of this node that may have an open operation."""
        self._perhaps_left: list[tuple[str, int | None, tuple[str, ...]]] = []
        """Topic, incarnation and children of operations that this node could not continue."""
        self._littered: set[str] = set()
        """Topics of this node that may have leftovers of subscriptions."""
        leaders.on_begun += [self._unsettled.add, self._littered.add]

    @contextmanager
    def locked(self, topic: str) -> Iterator[Term]:
        """Lock the segments of a topic as its leader. Raises `NotLeader` and `Unavailable`."""
        with self._locks.locked(topic):
            yield self._leaders.lead(topic)

    def run(
        self,
        topic: str,
        kind: Kind,
        segments: Sequence[int],
        decision_id: str | None = None,
        meant_for: str | None = None,
        bucket_count: int | None = None,
    ) -> None:
        """Split or rebucket one segment or merge two, to the end; `bucket_count` as in `protocol.plan`.

        `meant_for` is the tag of a layout: on any other one raises `Conflict` and changes nothing. So a delayed call,
        or one decided on by an overtaken executor, has no effect once anything has happened. Raises `NotFound` and
        `PreconditionFailed` when the layout does not allow it (no such segment, not active, not adjacent, a single
        hash); nothing was changed then. Raises `SegmentStoreError` when the segments are unreachable: the operation is
        resumed later, and a repeated call joins it.
        """
        self._store.check_topic(topic)
        with self.locked(topic) as term:
            resumed = self.finish_open(term)
            is_same = resumed is not None and _is_same(resumed, kind, segments, decision_id)
            if resumed is not None and is_same and (kind != "rebucket" or resumed.bucket_count == bucket_count):
                _must_be_done(resumed)
                return
            if (stored := StoredLayouts(self._store, term, self._now_ms).read(topic)) is None:
                raise no_topic(topic)
            if meant_for is not None and meant_for != stored.layout.tag:
                raise Conflict(
                    f"{topic}: the {kind} is meant for the layout {meant_for}, this one is {stored.layout.tag}"
                )
            planned = self._plan(topic, kind, segments, stored.layout, decision_id, bucket_count)
            self._segments.of_incarnation(stored.layout.created_at_ms).check_topic(topic)
            self._unsettled.add(topic)
            self.save(term, planned)
            _must_be_done(self._resume(term, planned))
            self._unsettled.discard(topic)

    def delete(self, topic: str) -> None:
        """Delete a topic, or continue its deletion. Raises `NotFound`.

        Raises `SegmentStoreError` when the segments are unreachable: the topic is gone, and the rest is resumed later.
        """
        if self._store.open_deletion(topic) is None:
            self._store.check_topic(topic)
        with self.locked(topic) as term:
            if self._store.open_deletion(topic) is None:
                self._unsettled.add(topic)
                self.removal.begin_deletion(term)
            self.finish_open(term)
            # Remains left by an older controller.
            self._store.clear(term)

    def resume_open(self) -> None:
        """Continue every open operation of this node as far as possible; failures are logged.

        Raises `SegmentStoreError` when the segments are entirely unreachable: the rest is not tried.
        """
        if not self._leaders.stopping.is_set():
            self._remove_left()
        for topic in self._unsettled | self._littered:
            if self._leaders.stopping.is_set():
                return
            if self._leaders.term(topic) is None:
                # Another node leads it by now, or this one will again once the store is reachable.
                if topic not in self._leaders.topics():
                    self._unsettled.discard(topic)
                    self._littered.discard(topic)
                continue
            try:
                with self.locked(topic) as term:
                    resumed = self.finish_open(term)
                    self.remove_leftovers(term)
            except (ControllerError, StoreError) as error:
                log.warning("an operation on %s stays open: %s", topic, error)
                if isinstance(error, SegmentStoreError) and not self._segments.answers():
                    raise
            else:
                if resumed is not None:
                    log.info("resumed the %s %s of %s: %s", resumed.kind, resumed.id, topic, resumed.step)

    def remove_leftovers(self, term: Term) -> None:
        """Remove deleted subscriptions from the segments, within `locked`; `resume_open` continues the rest."""
        self._littered.add(term.topic)
        if self._leftovers.remove(term):
            self._littered.discard(term.topic)

    def mark_unsettled(self, topic: str) -> None:
        """Make `resume_open` look at a topic of this node on which work was begun."""
        self._unsettled.add(topic)

    def is_settled(self, topic: str) -> bool:
        """Return whether a topic of this node has neither an open operation nor leftovers."""
        return topic not in self._unsettled and topic not in self._littered

    def save(self, term: Term, operation: Operation) -> None:
        """Put an operation into the journal, replacing the one with its id."""
        with self._store.write(term) as transaction:
            save_operation(transaction, operation)

    def _plan(
        self,
        topic: str,
        kind: Kind,
        segments: Sequence[int],
        layout: SegmentLayout,
        decision_id: str | None,
        bucket_count: int | None,
    ) -> Operation:
        for segment in segments:
            if segment not in layout.segments:
                raise NotFound(f"Segment not found: {segment} of {topic}")
        id, now = uuid.uuid4().hex, self._now_ms()
        try:
            # The maximum of a merge concerns only entry buckets: without them the journal omits it.
            buckets = bucket_count if kind == "rebucket" or layout.has_buckets else None
            planned, after = plan(kind, topic, layout, segments, id, now, decision_id, buckets)
            metadata = after.to_metadata()
            self._store.check_fits(topic, metadata, layout_announcement(topic, kind, metadata, now, decision_id))
            return planned
        except LayoutError as error:
            raise PreconditionFailed(str(error)) from None

    def finish_open(self, term: Term) -> Operation | None:
        """Continue the open operation of a topic, within `locked`; return None if there is none.

        An interrupted creation is undone: no client was told that the topic exists.
        """
        self._undo_creation(term)
        operation = open_operation(self._store, term.topic)
        ended = None if operation is None else self._resume(term, operation)
        self._unsettled.discard(term.topic)
        return ended

    def _undo_creation(self, term: Term) -> None:
        if (begun := self._store.open_creation(term.topic)) is None:
            return
        segments = self._segments.of_incarnation(begun.created_at_ms)
        for segment in SegmentLayout.from_metadata(begun).segments.values():
            segments.delete(segment_topic(term.topic, segment))
        self._store.end_life(begun.created_at_ms)
        with self._store.write(term) as transaction:
            transaction.end_creation(term.topic)
        log.info("undid the creation of %s, which was interrupted", term.topic)

    def _resume(self, term: Term, operation: Operation) -> Operation:
        if operation.kind in ("prune", "delete"):
            return self.removal.resume(term, operation, lambda after: self.save(term, after))
        layouts = StoredLayouts(self._store, term, self._now_ms)
        stored = layouts.read(term.topic)
        life = stored.layout.created_at_ms if stored else None
        segments = self._segments.of_layout(stored.layout) if stored else self._segments.of_incarnation(None)
        try:
            return resume(operation, segments, layouts, lambda after: self.save(term, after))
        except (ControllerError, StoreError):
            # Another node may lead by now, and may have deleted the topic before this one created the last child.
            self._perhaps_left.append((term.topic, life, operation.child_topics))
            raise

    def _remove_left(self) -> None:
        """Delete children that this node created for an ended incarnation: no other node knows of them."""
        for left in tuple(self._perhaps_left):
            topic, life, children = left
            layout = self._store.synced().layout_json(topic)
            if layout is None or life_of(layout) != life:
                for child in children:
                    self._segments.of_incarnation(life).delete(child)
            self._perhaps_left.remove(left)


class StoredLayouts:
    """The protocol's `Layouts` on a `LayoutStore`, for the leader of a topic in one term."""

    def __init__(self, store: LayoutStore, term: Term, now_ms: Callable[[], int]) -> None:
        self._store, self._term = store, term
        self._now_ms = now_ms

    def read(self, topic: str) -> StoredLayout | None:
        """See `Layouts`."""
        self._store.confirm(self._term)
        stored = self._store.topic(topic)
        return StoredLayout(stored.version, SegmentLayout.from_metadata(stored.metadata)) if stored else None

    def replace(self, operation: Operation, version: int, layout: SegmentLayout) -> bool:
        """See `Layouts`; the store notifies watchers."""
        metadata = layout.to_metadata()
        assert operation.kind in ("split", "merge", "rebucket")
        record = layout_announcement(operation.topic, operation.kind, metadata, self._now_ms(), operation.decision_id)
        with self._store.write(self._term) as transaction:
            if not transaction.replace_layout(operation.topic, version, metadata):
                return False
            transaction.announce(record)
            return True

    def subscriptions(self, topic: str) -> Sequence[str]:
        """See `Layouts`: those with positions in segments, so all except CHECKPOINT."""
        return [
            subscription.name for subscription in self._store.subscriptions(topic) if subscription.type != "CHECKPOINT"
        ]

    def notify(self, operation: Operation, layout: SegmentLayout) -> None:
        """See `Layouts`: a no-op, because consumers follow the store's commits like all watchers."""


def _is_same(operation: Operation, kind: str, segments: Sequence[int], decision_id: str | None) -> bool:
    parents = [int(descriptor.rpartition("-")[2]) for descriptor in operation.segments]
    return (operation.kind, parents, operation.decision_id) == (kind, list(segments), decision_id)


def _must_be_done(operation: Operation) -> None:
    if operation.step != "done":
        raise Conflict(f"the {operation.kind} of {operation.topic} was superseded: the topic or its segments are gone")


class Leftovers:
    """Deleted subscriptions in segments that clients still read, of the topics that this node leads (PIP-468).

    A deleted subscription leaves the store at once, and its consumers are unregistered. A segment can drop it only
    after the last of them has left (Kafka deletes no group with members). Until then the name is recorded and cannot be
    reused: a new subscription would continue at the old position.
    """

    def __init__(self, store: LayoutStore, segments: SegmentStore) -> None:
        self._store, self._segments = store, segments

    def remove(self, term: Term) -> bool:
        """Remove what can be removed from segments; True: nothing is left. Raises `SegmentStoreError`."""
        return not [name for name in self._store.leftovers(term.topic) if not self._remove(term, name)]

    def _remove(self, term: Term, subscription: str) -> bool:
        if (stored := self._store.topic(term.topic)) is not None:
            layout = SegmentLayout.from_metadata(stored.metadata)
            segments = self._segments.of_layout(layout)
            try:
                for segment in layout.segments.values():
                    self._store.confirm(term)
                    segments.delete_subscription(segment_topic(term.topic, segment), subscription)
            except SubscriptionInUse as error:
                log.info("%s of %s was deleted, and goes from the segments later: %s", subscription, term.topic, error)
                return False
        with self._store.write(term) as transaction:
            transaction.end_leftover(term.topic, subscription)
        return True
