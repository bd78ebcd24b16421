"""Remove segments and whole topics in repeatable steps (PIP-468 "Deletion", "SegmentLayout").

First one commit takes the segments out of the layout and puts the remaining work into the journal. So a node that has
lost the topic by then removes nothing, and whatever is removed later can no longer be found, subscribed to or assigned.

A deletion begins by hiding the topic from everyone: 404. Next go its subscriptions, each announced in the commit that
removes it, and with the last of them the topic is announced as deleted; then the segments; then the remaining records.
"""

import uuid
from collections.abc import Callable, Sequence

from anabranch.controller.errors import Conflict
from anabranch.controller.layouts.reader import StoredTopic
from anabranch.controller.layouts.store import LayoutStore
from anabranch.controller.layouts.transaction import MAX_PART_BYTES, Transaction
from anabranch.controller.leadership.leaders import Term
from anabranch.controller.operations.journal import STEPS_DELETE, STEPS_PRUNE, Operation, open_operation, save_operation
from anabranch.controller.outbox.announcements import Announcement, consumer_announcement, layout_announcement
from anabranch.controller.segments.base import SegmentStore
from decisions.topic.layout import SegmentLayout
from decisions.topic.names import segment_topic_name
from schemas.kafka.messages import SubscriptionType
from schemas.metadata import ScalableTopicMetadata


class Removal:
    """Removal of segments and topics that this node leads."""

    def __init__(self, store: LayoutStore, segments: SegmentStore, now_ms: Callable[[], int]) -> None:
        self._store, self._segments, self._now_ms = store, segments, now_ms

    def begin_deletion(self, term: Term) -> None:
        """Hide the topic and open its deletion. Raises `NotFound`.

        An open operation is superseded, and the segments that it created are deleted too.
        """
        topic = term.topic
        self._store.end_life(self._store.created_at(topic))
        with self._store.write(term) as transaction:
            metadata = transaction.existing_topic(topic).metadata
            if (before := open_operation(transaction, topic)) is not None:
                save_operation(transaction, before.model_copy(update={"step": "superseded"}))
            segments = before.segments + before.children if before is not None else ()
            transaction.begin_deletion(topic, metadata)
            save_operation(transaction, self._planned(topic, "delete", segments, metadata))

    def begin_pruning(self, transaction: Transaction, stored: StoredTopic, descriptors: Sequence[str]) -> None:
        """Journal the removal of sealed segments, in the commit that takes them out of the layout."""
        save_operation(transaction, self._planned(stored.topic, "prune", tuple(descriptors), stored.metadata))

    def resume(self, term: Term, operation: Operation, save: Callable[[Operation], None]) -> Operation:
        """Carry out the rest of a pruning or deletion, and return it as it ended; errors pass through."""
        if operation.kind == "prune":
            self._delete_segments(operation, self._store.created_at(term.topic))
            ended = operation.model_copy(update={"step": "done"})
            save(ended)
            return ended
        if operation.step != "clear":
            metadata = self._deleted(term.topic)
            if operation.step == "delete-subscriptions":
                operation = self._delete_subscriptions(term, operation, metadata)
            layout = SegmentLayout.from_metadata(metadata)
            descriptors = (segment.descriptor for segment in layout.segments.values())
            self._delete_segments(operation, metadata.created_at_ms, tuple(descriptors))
            operation = operation.model_copy(update={"step": "clear"})
            save(operation)
        self._store.clear(term)
        return operation.model_copy(update={"step": "done"})

    def _planned(
        self, topic: str, kind: str, descriptors: tuple[str, ...], metadata: ScalableTopicMetadata
    ) -> Operation:
        return Operation.model_validate(
            {
                "id": uuid.uuid4().hex,
                "topic": topic,
                "kind": kind,
                "segments": descriptors,
                "step": (STEPS_PRUNE if kind == "prune" else STEPS_DELETE)[0],
                "epoch": metadata.epoch,
                "started_at": self._now_ms(),
            }
        )

    def _delete_subscriptions(self, term: Term, operation: Operation, metadata: ScalableTopicMetadata) -> Operation:
        """Delete subscriptions in one commit after the other; the last one announces the topic's deletion."""
        topic, created_at, now = term.topic, metadata.created_at_ms, self._now_ms()
        last = layout_announcement(topic, "deleted", metadata, now)

        def announced(name: str, type: SubscriptionType) -> Announcement:
            return consumer_announcement(topic, name, type, "deleted", 0, now, created_at=created_at)

        while True:
            with self._store.write(term) as transaction:
                if transaction.delete_some_subscriptions(topic, announced):
                    continue
                if last is not None and len(last.value) > MAX_PART_BYTES and not transaction.is_empty:
                    continue
                transaction.announce(last)
                after = operation.model_copy(update={"step": "delete-segments"})
                save_operation(transaction, after)
            return after

    def _deleted(self, topic: str) -> ScalableTopicMetadata:
        if (metadata := self._store.open_deletion(topic)) is None:
            raise Conflict(f"the deletion of {topic} is in the journal, and the layout that it had is not in the store")
        return metadata

    def _delete_segments(self, operation: Operation, life: int | None, descriptors: Sequence[str] = ()) -> None:
        segments = self._segments.of_incarnation(life)
        for descriptor in dict.fromkeys((*descriptors, *operation.segments)):
            segments.delete(segment_topic_name(operation.topic, descriptor))
