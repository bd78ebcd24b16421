"""Remove sealed segments that are read and old enough (PIP-468 "SegmentLayout").

A segment is removed when it has been sealed for longer than the retention, every registered subscription is known to
have read it to the end, and its parents are removed. A subscription without a position in the segment (its creation was
interrupted, or Kafka has dropped the position) blocks removal and gets a position at the beginning, unless it was seen
to have read the segment before. CHECKPOINT subscriptions keep their positions themselves, so their progress is unknown
and they have a separate retention. `Pruning.kept` explains why a sealed segment still exists.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from anabranch.controller.errors import ControllerError
from anabranch.controller.layouts.store import LayoutStore
from anabranch.controller.leadership.leaders import Leaders, Term
from anabranch.controller.metadata.base import StoreError
from anabranch.controller.metadata.records import SubscriptionRecord
from anabranch.controller.operations.journal import MAX_PRUNED
from anabranch.controller.operations.runner import OperationRunner
from anabranch.controller.outbox.announcements import layout_announcement
from anabranch.controller.segments.base import SegmentNotFound, SegmentStore, SegmentStoreError
from decisions.topic.layout import SegmentLayout
from decisions.topic.segment import Segment, segment_topic
from runtime.backoff import RetryBackoff

log = logging.getLogger(__name__)

_NEXT = "it is removed in the next round"
DELAY_SECONDS, MAX_DELAY_SECONDS = 10.0, 900.0
"""Delay before another look at a topic that had nothing to prune, or whose segments were unreachable."""


class Retention(NamedTuple):
    """Minimum time that sealed segments are kept, seconds; negative: forever."""

    sealed: float
    checkpoint: float
    """Retention in a topic with a CHECKPOINT subscription."""


class KeptSegment(NamedTuple):
    """A sealed segment that is still there."""

    segment: int
    sealed_at_ms: int
    reason: str


class Pruning:
    """Pruning of sealed segments in the topics of this node."""

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
        self._retention, self._now_ms = retention, now_ms
        self._changed: set[str] = set()
        self._oldest: dict[str, int] = {}
        """Time at which the oldest sealed segment of each topic was sealed (ms)."""
        self._waits: dict[str, tuple[float, RetryBackoff]] = {}
        """Next look (monotonic seconds) at topics whose last look removed nothing."""
        if not self.keeps_all:
            leaders.on_begun.append(self._changed.add)
            store.on_layout.append(self._changed.add)
            store.on_members.append(lambda topic, _: self._changed.add(topic))

    @property
    def keeps_all(self) -> bool:
        """True if nothing is ever pruned."""
        return self._retention.sealed < 0

    def has_sealed(self, topic: str) -> bool:
        """Return whether a topic of this node has segments to prune at some time."""
        return topic in self._oldest or topic in self._changed

    def look_again(self) -> None:
        """Cancel the delays of all topics: Kafka is reachable again."""
        self._waits.clear()

    def prune(self) -> int:
        """Remove what can be removed now; return the number of segments.

        Raises `SegmentStoreError` when Kafka is unreachable: the remaining topics are not tried.
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
            due, backoff = self._waits.get(topic) or (
                0.0,
                RetryBackoff(DELAY_SECONDS, MAX_DELAY_SECONDS, DELAY_SECONDS),
            )
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

    def kept(self, topic: str) -> list[KeptSegment]:
        """Return up to `MAX_PRUNED` sealed segments with the reason for keeping each, oldest first."""
        layout = SegmentLayout.from_metadata(self._store.synced().existing_topic(topic).metadata)
        records = self._store.subscription_records(topic)
        segments = self._segments.of_layout(layout)
        sealed = sorted(
            (segment.sealed_at_ms, number) for number, segment in layout.segments.items() if not segment.is_active
        )
        reasons: dict[int, str] = {}
        for sealed_at, number in sealed[:MAX_PRUNED]:
            segment = layout.segments[number]
            if (reason := self._too_young(sealed_at, records) or _kept_by(segments, topic, segment, records)) is None:
                kept = [f"its parent {parent} is kept" for parent in segment.parent_ids if reasons.get(parent) != _NEXT]
                reason = kept[0] if kept else _NEXT
            reasons[number] = reason
        return [KeptSegment(number, sealed_at, reasons[number]) for sealed_at, number in sealed[:MAX_PRUNED]]

    def _too_young(self, sealed_at: int, records: Mapping[str, SubscriptionRecord]) -> str | None:
        """Return why a segment sealed at this time is kept regardless of readers; None if it is old enough."""
        by_checkpoint = [name for name, record in records.items() if record.type == "CHECKPOINT"]
        wanted = [("sealed_retention_seconds", self._retention.sealed, "")]
        if by_checkpoint:
            unknown_progress = f": nobody knows what the CHECKPOINT subscription {by_checkpoint[0]} has read"
            wanted.append(("checkpoint_retention_seconds", self._retention.checkpoint, unknown_progress))
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
        if (stored := self._store.topic(topic)) is None:
            return 0
        layout = SegmentLayout.from_metadata(stored.metadata)
        records = self._store.subscription_records(topic)
        segments = self._segments.of_layout(layout)
        old: dict[int, Segment] = {}
        for number, segment in sorted(layout.segments.items()):
            if segment.is_active or self._too_young(segment.sealed_at_ms, records) is not None:
                continue
            is_read = _kept_by(segments, topic, segment, records, repairs=True) is None
            # Parents have lower ids. Without their child, readers would take them for segments yet to be read.
            if is_read and old.keys() >= {*segment.parent_ids} and len(old) < MAX_PRUNED:
                old[number] = segment
        if not old:
            return 0
        for number in old:
            layout = layout.prune_segment(number)
        metadata = layout.to_metadata()
        self._operations.mark_unsettled(topic)
        with self._store.write(term) as transaction:
            # A subscription created since is entitled to all segments that existed.
            if transaction.subscription_records(topic).keys() != records.keys():
                return 0
            if not transaction.replace_layout(topic, stored.version, metadata):
                return 0
            transaction.announce(layout_announcement(topic, "prune", metadata, self._now_ms()))
            descriptors = [segment.descriptor for segment in old.values()]
            self._operations.removal.begin_pruning(transaction, stored, descriptors)
        self._operations.finish_open(term)
        return len(old)


def _kept_by(
    segments: SegmentStore,
    topic: str,
    segment: Segment,
    records: Mapping[str, SubscriptionRecord],
    repairs: bool = False,
) -> str | None:
    """Return why readers keep a sealed segment; None if every subscription has read it to the end.

    `repairs`: a subscription that lost its position gets one at the beginning.
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
    # A subscription that has just got a position may have nothing to read: the next look detects that.
    if lost:
        return f"the subscription {lost[0]} has no position in it"
    return next(
        (f"the subscription {who} has {left} messages of it to read" for who, left in unread.items() if left), None
    )
