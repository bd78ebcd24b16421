"""Splits and merges carried out: planned, written into the journal, run step by step, resumed after any failure.

Stage: between the service and `controller.protocol`, whose order of steps is the guarantee. An operation is in the
journal before its first step and saved after each; what a crash or a store without an answer leaves open is resumed at
the start, now and then, and by the next caller who wants to change segments of the same topic. One operation of a topic
is open at a time.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal
from weakref import WeakValueDictionary

from controller.announcements import layout_record
from controller.errors import Conflict, ControllerError, NotFound
from controller.protocol import Operation, StoredLayout, plan_merge, plan_split, resume
from controller.segments.base import SegmentStore
from controller.store import LayoutStore
from decisions.layout import LayoutError, SegmentLayout

log = logging.getLogger(__name__)


class Operations:
    """The splits and merges of the topics in `store` on their segments in `segments`. Any number of threads."""

    def __init__(self, store: LayoutStore, segments: SegmentStore, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._segments = segments
        self._now_ms = now_ms
        self._layouts = StoredLayouts(store, now_ms)
        self._locks: WeakValueDictionary[str, _TopicLock] = WeakValueDictionary()
        self._locks_lock = threading.Lock()

    @contextmanager
    def alone(self, topic: str) -> Iterator[None]:
        """Nobody else in this process changes segments of the topic meanwhile; others wait, other topics do not."""
        with self._locks_lock:
            own = self._locks.get(topic)
            if own is None:
                own = self._locks[topic] = _TopicLock()
        with own.lock:
            yield

    def run(
        self, topic: str, kind: Literal["split", "merge"], segments: Sequence[int], decision_id: str | None = None
    ) -> None:
        """Split one segment or merge two, to the end.

        `NotFound` and `Conflict` when the layout does not allow it; then nothing was changed. `SegmentStoreError` when
        the segments cannot be reached: what was begun is resumed later, and asking again joins it.
        """
        with self.alone(topic):
            resumed = self.finish_open(topic)
            if resumed is not None and _is_same(resumed, kind, segments, decision_id):
                _must_be_done(resumed)
                return
            stored = self._layouts.read(topic)
            if stored is None:
                raise NotFound(f"Scalable topic not found: {topic}")
            planned = self._plan(topic, kind, segments, stored.layout, decision_id)
            self._segments.check_topic(topic)
            self.save(planned)
            _must_be_done(self._resume(planned))

    def resume_open(self) -> None:
        """Carry on with every operation that is open, each as far as it comes; failures are logged."""
        with self._store.read() as view:
            topics = [operation.topic for operation in view.open_operations()]
        for topic in topics:
            try:
                with self.alone(topic):
                    resumed = self.finish_open(topic)
            except ControllerError as error:
                log.warning("an operation on %s stays open: %s", topic, error)
            else:
                if resumed is not None:
                    log.info("resumed the %s %s of %s: %s", resumed.kind, resumed.id, topic, resumed.step)

    def save(self, operation: Operation) -> None:
        """Put an operation into the journal in place of what is there under its id."""
        with self._store.write() as transaction:
            transaction.save_operation(operation)

    def _plan(
        self,
        topic: str,
        kind: Literal["split", "merge"],
        segments: Sequence[int],
        layout: SegmentLayout,
        decision_id: str | None,
    ) -> Operation:
        for segment in segments:
            if segment not in layout.segments:
                raise NotFound(f"Segment not found: {segment} of {topic}")
        id, now = uuid.uuid4().hex, self._now_ms()
        try:
            if kind == "split":
                return plan_split(topic, layout, segments[0], id, now, decision_id)
            return plan_merge(topic, layout, segments[0], segments[1], id, now, decision_id)
        except LayoutError as error:
            raise Conflict(str(error)) from None

    def finish_open(self, topic: str) -> Operation | None:
        """Carry on with the operation of a topic that is open, within `alone`; None when there is none."""
        with self._store.read() as view:
            found = view.open_operation(topic)
        return None if found is None else self._resume(found)

    def _resume(self, operation: Operation) -> Operation:
        return resume(operation, self._segments, self._layouts, self.save)


class StoredLayouts:
    """The `Layouts` of the protocol in a `LayoutStore`."""

    def __init__(self, store: LayoutStore, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._now_ms = now_ms

    def read(self, topic: str) -> StoredLayout | None:
        """See `Layouts`."""
        with self._store.read() as view:
            stored = view.topic(topic)
        return StoredLayout(stored.version, SegmentLayout.from_metadata(stored.metadata)) if stored else None

    def replace(self, operation: Operation, version: int, layout: SegmentLayout) -> bool:
        """See `Layouts`; whoever watches is told by the store."""
        metadata = layout.to_metadata()
        record = layout_record(operation.topic, operation.kind, metadata, self._now_ms(), operation.decision_id)
        with self._store.write() as transaction:
            if not transaction.replace_layout(operation.topic, version, metadata):
                return False
            transaction.announce(record)
            return True

    def subscriptions(self, topic: str) -> Sequence[str]:
        """See `Layouts`: those that have positions in segments, which a CHECKPOINT has not."""
        with self._store.read() as view:
            return [found.name for found in view.subscriptions(topic) if found.type != "CHECKPOINT"]

    def notify(self, operation: Operation, layout: SegmentLayout) -> None:
        """See `Layouts`: consumers follow what the store commits, like everyone who watches; nothing is left to do."""


class _TopicLock:
    """A lock that can be referred to weakly."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


def _is_same(operation: Operation, kind: str, segments: Sequence[int], decision_id: str | None) -> bool:
    parents = [int(descriptor.rpartition("-")[2]) for descriptor in operation.segments]
    return (operation.kind, parents, operation.decision_id) == (kind, list(segments), decision_id)


def _must_be_done(operation: Operation) -> None:
    if operation.step != "done":
        raise Conflict(f"the {operation.kind} of {operation.topic} was superseded: the topic or its segments are gone")
