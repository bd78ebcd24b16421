"""Periodic snapshots of all policies, layouts and consumer counts, so that a listener can recover.

Stage: called by the publisher, page by page, after it has read the outbox to its end. A page is therefore never older
than an announcement sent before it; anything that changed during the read is removed from it and announced after it.

A layout that is unchanged since the previous round is sent as a digest, a twentieth of the bytes and a tenth of the
work for the job. It is sent in full in the first round of a sender, when it has changed, and in one round of
`FULL_EVERY`.
"""

import time
from collections.abc import Callable, Iterator, Set
from typing import NamedTuple

import xxhash

from anabranch.controller.layouts.reader import LayoutReader, StoredSubscription, life_of
from anabranch.controller.outbox.announcements import (
    Announcement,
    consumer_announcement,
    known_announcements,
    layout_announcement,
    policy_announcement,
)
from schemas.codecs.known_layouts import FULL_EVERY, LayoutEntry
from schemas.codecs.plain_events import digest_of, layout_in
from schemas.kafka.messages import Source
from schemas.metadata import AutoScalePolicyOverride, ScalableTopicMetadata

MAX_PAGE_TOPICS = 50


class LayoutInFull(NamedTuple):
    """A layout that was announced in full."""

    stored: int
    """XXH3 of the bytes in the store."""
    known: LayoutEntry


class SnapshotPage(NamedTuple):
    """Result of one look at the store, converted to records later."""

    at: int
    policies: dict[str, AutoScalePolicyOverride]
    layouts: list[tuple[str, bytes]]
    """Layouts to send in full."""
    known: list[LayoutEntry]
    """Layouts to send as digests."""
    subscriptions: list[tuple[str, int | None, StoredSubscription]]
    """Topic, its incarnation, and the subscription."""

    note: Callable[[str, bytes, int, Announcement], None]
    """Called for each layout sent in full: topic, bytes in the store, epoch, and its announcement."""
    announced: Set[tuple[Source, str]] = frozenset()
    """Keys that the page omits."""

    def without(self, announced: Set[tuple[Source, str]]) -> "SnapshotPage":
        """Return the page without keys that are announced after it anyway, by Kafka topic and key."""
        return self._replace(announced=announced)

    def records(self) -> Iterator[Announcement]:
        """Return the page as snapshot announcements."""
        return (record for record in self._all_records() if (record.source, record.key) not in self.announced)

    def _all_records(self) -> Iterator[Announcement]:
        for namespace, policy in self.policies.items():
            yield policy_announcement(namespace, policy, self.at)
        for topic, layout in self.layouts:
            if ("control-events", topic) in self.announced:
                continue
            metadata = ScalableTopicMetadata.model_validate_json(layout)
            if record := layout_announcement(topic, "snapshot", metadata, self.at):
                self.note(topic, layout, metadata.epoch, record)
                yield record
        unannounced = [entry for entry in self.known if ("control-events", entry.topic) not in self.announced]
        yield from known_announcements(unannounced, self.at)
        for topic, created_at, (name, type, consumers) in self.subscriptions:
            yield consumer_announcement(topic, name, type, "snapshot", consumers, self.at, created_at=created_at)


class Snapshots:
    """Rounds over the whole store: the first at once, then one every `every_seconds`."""

    def __init__(self, layouts: LayoutReader, every_seconds: float, now_ms: Callable[[], int]) -> None:
        self._layouts, self._every_seconds = layouts, every_seconds
        self._now_ms = now_ms
        self._due = time.monotonic()
        self._left: list[str] = []
        """Topics that this round has not reached yet."""
        self._round = 0
        self._announced_before: dict[str, LayoutInFull] = {}
        """Layouts announced in the previous round that were announced in full since the last restart."""
        self._announced: dict[str, LayoutInFull] = {}
        """The same for this round."""

    def due_in(self) -> float:
        """Return seconds until a page is due; 0 in the middle of a round."""
        return 0.0 if self._left else max(0.0, self._due - time.monotonic())

    def restart(self) -> None:
        """Restart the round with everything in full: earlier messages may be lost, or from another sender."""
        self._left = []
        self._announced, self._announced_before = {}, {}
        self._due = time.monotonic()

    def next_page(self) -> SnapshotPage | None:
        """Return the next part of the round, None when none is due."""
        if self.due_in() > 0:
            return None
        policies: dict[str, AutoScalePolicyOverride] = {}
        if not self._left:
            self._due = time.monotonic() + self._every_seconds
            policies = self._layouts.namespace_policies()
            self._left = self._layouts.all_topics()
            self._round += 1
            self._announced_before, self._announced = self._announced, {}
        layouts = list(self._layouts.layouts(self._left[:MAX_PAGE_TOPICS]))
        subscriptions = [
            (topic, life_of(layout), subscription)
            for topic, layout in layouts
            for subscription in self._layouts.subscriptions(topic)
        ]
        self._left = self._left[MAX_PAGE_TOPICS:]
        unchanged = [announced for topic, layout in layouts if (announced := self._said_already(topic, layout))]
        self._announced.update((announced.known.topic, announced) for announced in unchanged)
        in_full = [(topic, layout) for topic, layout in layouts if topic not in self._announced]
        return SnapshotPage(
            self._now_ms(), policies, in_full, [announced.known for announced in unchanged], subscriptions, self._note
        )

    def _said_already(self, topic: str, layout: bytes) -> LayoutInFull | None:
        """Return the previous announcement of a topic if it is unchanged and not due in full."""
        announced = self._announced_before.get(topic)
        if announced is None or (xxhash.xxh3_64_intdigest(topic.encode()) + self._round) % FULL_EVERY == 0:
            return None
        return announced if announced.stored == xxhash.xxh3_64_intdigest(layout) else None

    def _note(self, topic: str, stored: bytes, epoch: int, record: Announcement) -> None:
        announced = LayoutEntry(topic, epoch, digest_of(layout_in(record.value)))
        self._announced[topic] = LayoutInFull(xxhash.xxh3_64_intdigest(stored), announced)
