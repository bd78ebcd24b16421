"""Remove deleted subscriptions from segments that clients were still reading (PIP-468 "Admin API").

A subscription can be deleted while its consumers are connected: it is removed from the store at once, and its consumers
are unregistered. A segment can drop it only after the last of them has left (Kafka deletes no group with members).
Until then the name is recorded and cannot be reused: a new subscription would continue at the old position.
"""

import logging

from anabranch.controller.layouts.store import LayoutStore
from anabranch.controller.leadership.leaders import Term
from anabranch.controller.segments.base import SegmentStore, SubscriptionInUse
from decisions.topic.layout import SegmentLayout
from decisions.topic.segment import segment_topic

log = logging.getLogger(__name__)


class Leftovers:
    """Deleted subscriptions of all topics that this node leads."""

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
