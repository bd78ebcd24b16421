"""The truth again, now and then: every namespace policy, layout and consumer count, so that a listener can heal.

Stage: asked by the publisher, page by page, after it has read the outbox to its end. A page is therefore never older
than an announcement that was sent before it; what changed while it was read is taken out of it and announced after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Set
from typing import NamedTuple

from controller.layouts.reader import LayoutReader, StoredSubscription, life_of
from controller.outbox.announcements import (
    Announcement,
    consumer_announcement,
    layout_announcement,
    policy_announcement,
)
from schemas.messages import Source
from schemas.metadata import AutoScalePolicyOverride, ScalableTopicMetadata

MAX_PAGE_TOPICS = 50


class SnapshotPage(NamedTuple):
    """What one look at the store gave; turned into records outside of the look."""

    at: int
    policies: dict[str, AutoScalePolicyOverride]
    layouts: list[tuple[str, bytes]]
    subscriptions: list[tuple[str, int | None, StoredSubscription]]
    """Topic, the life of it, and the subscription."""

    told: Set[tuple[Source, str]] = frozenset()
    """Keys that the page is silent about."""

    def without(self, told: Set[tuple[Source, str]]) -> SnapshotPage:
        """The page without what is announced after it anyway, by Kafka topic and key."""
        return self._replace(told=told)

    def records(self) -> Iterator[Announcement]:
        """The page as snapshot announcements."""
        return (record for record in self._all_records() if (record.source, record.key) not in self.told)

    def _all_records(self) -> Iterator[Announcement]:
        for namespace, policy in self.policies.items():
            yield policy_announcement(namespace, policy, self.at)
        for topic, layout in self.layouts:
            metadata = ScalableTopicMetadata.model_validate_json(layout)
            if record := layout_announcement(topic, "snapshot", metadata, self.at):
                yield record
        for topic, life, (name, type, consumers) in self.subscriptions:
            yield consumer_announcement(topic, name, type, "snapshot", consumers, self.at, life=life)


class Snapshots:
    """Rounds over the whole store: the first at once, then one every `every_seconds`."""

    def __init__(self, layouts: LayoutReader, every_seconds: float, now_ms: Callable[[], int]) -> None:
        self._layouts = layouts
        self._every_seconds = every_seconds
        self._now_ms = now_ms
        self._due = time.monotonic()
        self._left: list[str] = []
        """The topics that this round has not reached yet."""

    def due_in(self) -> float:
        """Seconds until there is a page to send; 0 in the middle of a round."""
        return 0.0 if self._left else max(0.0, self._due - time.monotonic())

    def restart(self) -> None:
        """Begin the round again: what was sent of it may be lost."""
        self._left = []
        self._due = time.monotonic()

    def next_page(self) -> SnapshotPage | None:
        """The next part of the round, None when none is due."""
        if self.due_in() > 0:
            return None
        policies: dict[str, AutoScalePolicyOverride] = {}
        if not self._left:
            self._due = time.monotonic() + self._every_seconds
            policies = self._layouts.namespace_policies()
            self._left = self._layouts.all_topics()
        layouts = list(self._layouts.layouts(self._left[:MAX_PAGE_TOPICS]))
        subscriptions = [
            (topic, life_of(layout), found) for topic, layout in layouts for found in self._layouts.subscriptions(topic)
        ]
        self._left = self._left[MAX_PAGE_TOPICS:]
        return SnapshotPage(self._now_ms(), policies, layouts, subscriptions)
