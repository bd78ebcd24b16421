"""Sealed segments go once they are read and old enough (PIP-468 "SegmentLayout"; Pulsar's garbage collection).

Stage: called now and then by the housekeeper, for the topics that this node leads. A segment is removed when it has
been sealed for longer than the retention and every registered subscription is known to have read it to the end. One
without a position in the segment (its creation was interrupted, or Kafka has dropped the position) is not, unless it
was seen to have read it before; it gets a position at the beginning. CHECKPOINT subscriptions keep their positions
themselves: nobody knows what they have read, so they have a retention of their own. `Pruning.kept` says why a sealed
segment is still there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

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


class Retention(NamedTuple):
    """For how long sealed segments stay at least, seconds; below 0: for good."""

    sealed: float
    checkpoint: float
    """The same of a topic with a CHECKPOINT subscription."""


class Kept(NamedTuple):
    """A sealed segment that is still there."""

    segment: int
    sealed_at_ms: int
    reason: str


class Pruning:
    """What is sealed in the topics of this node."""

    def __init__(
        self,
        store: LayoutStore,
        leaders: Leaders,
        operations: OperationRunner,
        segments: SegmentStore,
        retention: Retention,
        now_ms: Callable[[], int],
    ) -> None:
        self._store, self._leaders, self._operations, self._segments = store, leaders, operations, segments
        self._retention = retention
        self._now_ms = now_ms
        self._changed: set[str] = set()
        self._oldest: dict[str, int] = {}
        """When the oldest sealed segment of a topic was sealed (ms)."""
        self._waits: dict[str, tuple[float, Backoff]] = {}
        """Of topics that were looked at in vain: when to look again (monotonic seconds)."""
        if not self.keeps_all:
            leaders.on_begun.append(self._changed.add)
            store.on_layout.append(self._changed.add)
            store.on_members.append(lambda topic, _: self._changed.add(topic))

    @property
    def keeps_all(self) -> bool:
        """Whether nothing is ever pruned."""
        return self._retention.sealed < 0

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
        until, pruned = self._now_ms() - int(self._retention.sealed * 1000), 0
        for topic, oldest in tuple(self._oldest.items()):
            due, backoff = self._waits.get(topic) or (0.0, Backoff(DELAY_SECONDS, MAX_DELAY_SECONDS, DELAY_SECONDS))
            if oldest > until or time.monotonic() < due or self._leaders.stopping.is_set():
                continue
            try:
                count = self._prune(topic)
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

    def kept(self, topic: str) -> list[Kept]:
        """Every sealed segment of a topic that is still there, and why, the oldest first; the first `MAX_PRUNED`."""
        layout = SegmentLayout.from_metadata(self._store.synced().existing_topic(topic).metadata)
        records = self._store.subscription_records(topic)
        segments = self._segments.of_life(layout.created_at_ms)
        sealed = sorted((one.sealed_at_ms, number) for number, one in layout.segments.items() if not one.is_active)
        return [
            Kept(number, at, self._too_young(at, records) or _kept_by(segments, topic, layout.segments[number], records)
                 or "it is removed in the next round")
            for at, number in sealed[:MAX_PRUNED]
        ]  # fmt: skip

    def _too_young(self, sealed_at: int, records: Mapping[str, SubscriptionRecord]) -> str | None:
        """Why a segment that was sealed then is kept whoever has read it; None: it is not."""
        by_checkpoint = [name for name, record in records.items() if record.type == "CHECKPOINT"]
        wanted = [("sealed_retention_seconds", self._retention.sealed, "")]
        if by_checkpoint:
            of = f": nobody knows what the CHECKPOINT subscription {by_checkpoint[0]} has read"
            wanted.append(("checkpoint_retention_seconds", self._retention.checkpoint, of))
        for key, seconds, because in wanted:
            if seconds < 0:
                return f"controller.{key} is negative{because}"
            if sealed_at > self._now_ms() - int(seconds * 1000):
                return f"it was sealed less than {seconds:g} s ago (controller.{key}){because}"
        return None

    def _prune(self, topic: str) -> int:
        if self._leaders.term(topic) is None:
            self._changed.add(topic)
            return 0
        with self._operations.locked(topic) as term:
            self._operations.finish_open(term)
            return self._prune_as_leader(term)

    def _prune_as_leader(self, term: Term) -> int:
        topic = term.topic
        stored = self._store.topic(topic)
        if stored is None:
            return 0
        layout = SegmentLayout.from_metadata(stored.metadata)
        records = self._store.subscription_records(topic)
        segments = self._segments.of_life(layout.created_at_ms)
        sealed = [
            segment for segment in layout.segments.values()
            if not segment.is_active and self._too_young(segment.sealed_at_ms, records) is None
        ]  # fmt: skip
        old = [one for one in sealed if _kept_by(segments, topic, one, records, repairs=True) is None][:MAX_PRUNED]
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


def _kept_by(
    segments: SegmentStore, topic: str, segment: Segment, records: Mapping[str, SubscriptionRecord],
    repairs: bool = False,
) -> str | None:  # fmt: skip
    """Why a sealed segment is kept by who reads it; None when every subscription is known to have read it to the end.

    `repairs`: who has lost its position gets one at the beginning.
    """
    name = segment_topic(topic, segment)
    registered = {name: record for name, record in records.items() if record.type != "CHECKPOINT"}
    try:
        unread = segments.unread(name, registered)
        lost = [
            subscription
            for subscription, left in unread.items()
            if left is None and segment.segment_id not in registered[subscription].drained
        ]
        for subscription in lost if repairs else ():
            segments.create_subscription(name, subscription)
    except SegmentNotFound:
        return None
    # One that has just got a position may have nothing to read: the next look finds that.
    if lost:
        return f"the subscription {lost[0]} has no position in it"
    return next((f"the subscription {who} has {left} messages of it to read" for who, left in unread.items() if left),
                None)  # fmt: skip
