"""Sealed segments go once they are read and old enough (PIP-468 "SegmentLayout"; Pulsar's garbage collection).

Stage: called now and then by the housekeeper, for the topics that this node leads. A segment is removed when it has
been sealed for longer than the retention and every registered subscription is known to have read it to the end. One
without a position in the segment (its creation was interrupted, or Kafka has dropped the position) is not, unless it
was seen to have read it before; it gets a position at the beginning. CHECKPOINT subscriptions keep their positions
themselves: nobody knows what they have read, and only the retention protects what they have not.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from controller.errors import ControllerError
from controller.layouts.store import LayoutStore
from controller.leadership.leaders import Leaders, Term
from controller.metadata.base import StoreError
from controller.metadata.records import SubscriptionRecord
from controller.operations.journal import MAX_PRUNED
from controller.operations.runner import OperationRunner
from controller.outbox.announcements import layout_announcement
from controller.retries import Backoff
from controller.segments.base import SegmentNotFound, SegmentStore, SegmentStoreError
from decisions.topic.layout import SegmentLayout
from decisions.topic.segment import Segment, segment_topic

log = logging.getLogger(__name__)

DELAY_SECONDS, MAX_DELAY_SECONDS = 10.0, 900.0
"""Until a topic is looked at again that had nothing to prune, or whose segments could not be reached."""


class Pruning:
    """What is sealed in the topics of this node."""

    def __init__(
        self,
        store: LayoutStore,
        leaders: Leaders,
        operations: OperationRunner,
        segments: SegmentStore,
        retention_seconds: float,
        now_ms: Callable[[], int],
    ) -> None:
        """`retention_seconds` below 0: sealed segments are never pruned."""
        self._store, self._leaders, self._operations, self._segments = store, leaders, operations, segments
        self._retention_ms = int(retention_seconds * 1000)
        self._now_ms = now_ms
        self._changed: set[str] = set()
        self._oldest: dict[str, int] = {}
        """When the oldest sealed segment of a topic was sealed (ms)."""
        self._waits: dict[str, tuple[float, Backoff]] = {}
        """Of topics that were looked at in vain: when to look again (monotonic seconds)."""
        if retention_seconds >= 0:
            leaders.on_begun.append(self._changed.add)
            store.on_layout.append(self._changed.add)
            store.on_members.append(lambda topic, _: self._changed.add(topic))

    @property
    def keeps_all(self) -> bool:
        """Whether nothing is ever pruned."""
        return self._retention_ms < 0

    def has_sealed(self, topic: str) -> bool:
        """Whether a topic of this node has segments that are to be pruned one day."""
        return topic in self._oldest or topic in self._changed

    def look_again(self) -> None:
        """Kafka is back: no topic waits any longer because it was looked at in vain."""
        self._waits.clear()

    def prune(self) -> int:
        """Remove what can be removed now; how many segments that were.

        Raises `SegmentStoreError` when Kafka is away: the topics that are left are not tried.
        """
        if self.keeps_all:
            return 0
        while self._changed and not self._leaders.stopping.is_set():
            topic = self._changed.pop()
            try:
                self._note(topic)
            except StoreError:
                self._changed.add(topic)
                raise
        until, pruned = self._now_ms() - self._retention_ms, 0
        for topic, oldest in tuple(self._oldest.items()):
            due, backoff = self._waits.get(topic) or (0.0, Backoff(DELAY_SECONDS, MAX_DELAY_SECONDS, DELAY_SECONDS))
            if oldest > until or time.monotonic() < due or self._leaders.stopping.is_set():
                continue
            try:
                count = self._prune(topic, until)
            except (ControllerError, StoreError) as error:
                log.info("%s is not pruned this time: %s", topic, error)
                count = 0
                if isinstance(error, SegmentStoreError) and not self._segments.answers():
                    raise
            if count == 0:
                self._waits[topic] = time.monotonic() + backoff.delay(), backoff
            pruned += count
        return pruned

    def _note(self, topic: str) -> None:
        self._waits.pop(topic, None)
        stored = self._store.topic(topic)
        segments = stored.metadata.segments.values() if stored else ()
        sealed = [segment.sealed_at_ms for segment in segments if segment.state == "SEALED"]
        if sealed and topic in self._leaders.topics():
            self._oldest[topic] = min(sealed)
        else:
            self._oldest.pop(topic, None)

    def _prune(self, topic: str, until: int) -> int:
        if self._leaders.term(topic) is None:
            self._changed.add(topic)
            return 0
        with self._operations.locked(topic) as term:
            self._operations.finish_open(term)
            return self._prune_as_leader(term, until)

    def _prune_as_leader(self, term: Term, until: int) -> int:
        topic = term.topic
        stored = self._store.topic(topic)
        if stored is None:
            return 0
        layout = SegmentLayout.from_metadata(stored.metadata)
        records = self._store.subscription_records(topic)
        segments = self._segments.of_life(layout.created_at_ms)
        sealed = [
            segment for segment in layout.segments.values() if not segment.is_active and segment.sealed_at_ms <= until
        ]
        old = [segment for segment in sealed if _is_drained(segments, topic, segment, records)][:MAX_PRUNED]
        if not old:
            return 0
        for segment in old:
            layout = layout.prune_segment(segment.segment_id)
        metadata = layout.to_metadata()
        self._operations.mark_unsettled(topic)
        with self._store.write(term) as transaction:
            # Who has subscribed since has a right to everything that was there.
            if transaction.subscription_records(topic).keys() != records.keys():
                return 0
            if not transaction.replace_layout(topic, stored.version, metadata):
                return 0
            transaction.announce(layout_announcement(topic, "prune", metadata, self._now_ms()))
            self._operations.removal.begin_pruning(transaction, stored, [segment.descriptor for segment in old])
        self._operations.finish_open(term)
        return len(old)


def _is_drained(
    segments: SegmentStore, topic: str, segment: Segment, records: Mapping[str, SubscriptionRecord]
) -> bool:
    """Whether every subscription is known to have read a sealed segment to the end."""
    name = segment_topic(topic, segment)
    registered = {name: record for name, record in records.items() if record.type != "CHECKPOINT"}
    try:
        unread = segments.unread(name, registered)
        lost = [
            subscription
            for subscription, left in unread.items()
            if left is None and segment.segment_id not in registered[subscription].drained
        ]
        for subscription in lost:
            segments.create_subscription(name, subscription)
        # One that has just got a position may have nothing to read: the next look finds that.
        return not lost and not any(unread.values())
    except SegmentNotFound:
        return True
