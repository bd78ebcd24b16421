"""Sealed segments go once they are read and old enough (PIP-468 "SegmentLayout"; Pulsar's garbage collection).

Stage: called now and then by the housekeeper, for the topics that this node leads. A segment is removed when it has
been sealed for longer than the retention and no subscription has anything left to read of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from controller.errors import ControllerError
from controller.layouts.store import LayoutStore
from controller.leadership.leaders import Leaders
from controller.metadata.base import StoreError
from controller.operations.runner import OperationRunner
from controller.outbox.announcements import layout_announcement
from controller.segments.base import SegmentNotFound, SegmentStore
from decisions.topic.layout import SegmentLayout
from decisions.topic.segment import segment_topic

log = logging.getLogger(__name__)


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
        if retention_seconds >= 0:
            leaders.on_begun.append(self._changed.add)
            store.on_layout.append(self._changed.add)

    @property
    def keeps_all(self) -> bool:
        """Whether nothing is ever pruned."""
        return self._retention_ms < 0

    def has_sealed(self, topic: str) -> bool:
        """Whether a topic of this node has segments that are to be pruned one day."""
        return topic in self._oldest or topic in self._changed

    def prune(self) -> int:
        """Remove what can be removed now; how many segments that were."""
        if self.keeps_all:
            return 0
        while self._changed and not self._leaders.stopping.is_set():
            topic = self._changed.pop()
            try:
                self._note(topic)
            except StoreError:
                self._changed.add(topic)
                raise
        until = self._now_ms() - self._retention_ms
        return sum(self._prune(topic, until) for topic, oldest in tuple(self._oldest.items()) if oldest <= until)

    def _note(self, topic: str) -> None:
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
        try:
            with self._operations.locked(topic) as term:
                stored = self._store.topic(topic)
                if stored is None:
                    return 0
                layout = SegmentLayout.from_metadata(stored.metadata)
                old = [
                    segment
                    for segment in layout.segments.values()
                    if not segment.is_active and segment.sealed_at_ms <= until
                    if self._is_drained(segment_topic(topic, segment))
                ]
                for segment in old:
                    self._segments.delete(segment_topic(topic, segment))
                    layout = layout.prune_segment(segment.segment_id)
                if not old:
                    return 0
                metadata = layout.to_metadata()
                with self._store.write(term) as transaction:
                    if not transaction.replace_layout(topic, stored.version, metadata):
                        return 0
                    transaction.announce(layout_announcement(topic, "prune", metadata, self._now_ms()))
                return len(old)
        except (ControllerError, StoreError) as error:
            log.info("%s is not pruned this time: %s", topic, error)
            return 0

    def _is_drained(self, segment: str) -> bool:
        try:
            return not any(self._segments.stats(segment).backlog.values())
        except SegmentNotFound:
            return True
