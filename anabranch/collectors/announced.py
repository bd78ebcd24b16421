"""State announced by a collector, and the changes to announce now.

Stage: between what was read and the publisher; pure: instants are arguments. Only differences are announced, and
everything at intervals (`resync`). Level-based: `retract` takes back what did not reach Kafka, so it is a difference
again, with its value at that time. A collector that starts announces everything, and deletions of topics that only its
predecessor knew; its `sender` is higher, so the job believes it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from anabranch.collectors.announcements import KafkaRecord, consumers_record, layout_record, policy_record
from schemas.codecs.known_layouts import LayoutEntry
from schemas.codecs.plain_events import digest_of, layout_in
from schemas.ids import EVERY_TOPIC
from schemas.kafka.messages import ConsumerEventKind, LayoutCause, SubscriptionType
from schemas.metadata import AutoScalePolicyOverride, ScalableTopicMetadata, SegmentInfo

UNANNOUNCED = -1
"""Stands for a number of consumers that did not reach Kafka."""


class Consumers(NamedTuple):
    """Consumers of a subscription."""

    type: SubscriptionType
    number: int


class FullAnnouncement(NamedTuple):
    """Announcement of a whole layout."""

    known: LayoutEntry
    at: int
    """ms."""

    @classmethod
    def of(cls, record: KafkaRecord, layout: ScalableTopicMetadata, announced_at: int) -> "FullAnnouncement":
        """Return the full announcement that a record contains."""
        return cls(LayoutEntry(record.key, layout.epoch, digest_of(layout_in(record.value))), announced_at)


@dataclass
class Topic:
    """Announced state of one topic."""

    layout: ScalableTopicMetadata
    consumers: dict[str, Consumers] = field(default_factory=dict)
    is_announced: bool = True
    """False: the layout did not reach Kafka."""
    announced_at: int = 0
    """Time of the last announcement of everything, ms; the layout may have gone by digest."""
    full: FullAnnouncement | None = None
    """Last announcement of the whole layout."""


@dataclass
class AnnouncedState:
    """Announced state of one collector; `sender` is its number."""

    sender: int
    topics: dict[str, Topic] = field(default_factory=dict)
    policies: dict[str, AutoScalePolicyOverride | None] = field(default_factory=dict)
    """Announced overrides by namespace; None: it has none."""
    too_large: set[str] = field(default_factory=set)
    """Topics whose layout does not fit into a record."""
    before: dict[str, ScalableTopicMetadata] = field(default_factory=dict)
    """Layouts of topics that a previous collector knew and this one has not seen yet."""
    subscriptions: dict[str, dict[str, SubscriptionType]] = field(default_factory=dict)
    """Subscriptions announced by a previous collector, of topics that this one has not seen yet."""
    changes: int = 0
    """Number of changes of layouts and subscriptions."""
    again: list[KafkaRecord] = field(default_factory=list)
    """Deletions that did not reach Kafka; announced again unchanged, before anything else."""

    def layout(self, topic: str, layout: ScalableTopicMetadata, now: int) -> list[KafkaRecord]:
        """Return the records for a layout that was read at `now` (ms)."""
        state = self.topics.get(topic)
        if state is not None and state.is_announced and state.layout == layout:
            return []
        before = self.before.get(topic)
        if before is not None and compare_incarnations(before, layout) > 0:
            return [*self.gone(topic, now), *self.layout(topic, layout, now + 1)]
        life = compare_incarnations(state.layout, layout) if state is not None else 0
        if life > 0:
            return [*self.gone(topic, now), *self.layout(topic, layout, now + 1)]
        if state is not None and (life < 0 or layout.epoch < state.layout.epoch):
            return []  # a server with an outdated layout
        record = layout_record(
            topic, cause_of(state.layout if state and state.is_announced else None, layout), layout, now, self.sender
        )
        if record is None:
            self.too_large.add(topic)
            return []
        self.too_large.discard(topic)
        self.before.pop(topic, None)
        self.changes += 1
        if state is None:
            state = self.topics[topic] = Topic(layout, announced_at=now)
            before_this = self.subscriptions.pop(topic, {})
            state.consumers = {name: Consumers(type, UNANNOUNCED) for name, type in before_this.items()}
        state.layout, state.is_announced, state.full = layout, True, FullAnnouncement.of(record, layout, now)
        return [record]

    def consumers(self, topic: str, consumers: Mapping[str, Consumers], now: int) -> list[KafkaRecord]:
        """Return the records for a topic's consumers at `now` (ms); none without an announced layout."""
        if (state := self.topics.get(topic)) is None:
            return []
        records = []
        for name, (type, count) in consumers.items():
            event: ConsumerEventKind
            before = state.consumers.get(name)
            if before == (type, count):
                continue
            if before is None or before.number == UNANNOUNCED:
                event = "snapshot"
            else:
                event = "registered" if count > before.number else "unregistered"
            records.append(consumers_record(topic, name, type, event, count, now, self.sender))
        for name, (type, _) in state.consumers.items():
            if name not in consumers:
                records.append(consumers_record(topic, name, type, "deleted", 0, now, self.sender))
        self.changes += state.consumers.keys() != consumers.keys()
        state.consumers = dict(consumers)
        return records

    def gone(self, topic: str, now: int) -> list[KafkaRecord]:
        """Return the records for a topic that no longer exists at `now` (ms)."""
        self.too_large.discard(topic)
        before, state = self.before.pop(topic, None), self.topics.pop(topic, None)
        layout = state.layout if state else before
        self.changes += 1
        record = layout_record(topic, "deleted", layout, now, self.sender) if layout else None
        return [] if record is None else [record]

    def policy(self, namespace: str, policy: AutoScalePolicyOverride | None, now: int) -> list[KafkaRecord]:
        """Return the records for a namespace's override at `now` (ms)."""
        if namespace in self.policies and self.policies[namespace] == policy:
            return []
        self.policies[namespace] = policy
        return [policy_record(namespace, policy, now, self.sender)]

    def retract(self, record: KafkaRecord) -> None:
        """Take back a record that did not reach Kafka, so that its content is announced again."""
        if record.is_end:
            self.again.append(record)
        elif record.key == EVERY_TOPIC:
            self.policies.clear()
        elif (state := self.topics.get(record.key)) is not None and record.source == "consumer-events":
            # Keep the subscriptions, so that their deletion is still announced.
            state.consumers = {
                name: Consumers(consumer.type, UNANNOUNCED) for name, consumer in state.consumers.items()
            }
        elif state is not None:
            state.is_announced = False

    def known(self, topic: str, now: int, full_ms: int) -> LayoutEntry | None:
        """Return the announced layout of a topic if its digest is enough, else None.

        It is when the layout was announced in full less than `full_ms` before `now` (ms), and reached Kafka as far as
        is known.
        """
        state = self.topics[topic]
        is_enough = state.is_announced and state.full is not None and now - state.full.at < full_ms
        return state.full.known if is_enough and state.full else None

    def repeats(self, topic: str, now: int, with_layout: bool = True) -> Iterator[KafkaRecord]:
        """Yield everything known of a topic again; without the layout if its digest is announced."""
        state = self.topics[topic]
        state.announced_at = now
        record = layout_record(topic, "snapshot", state.layout, now, self.sender) if with_layout else None
        if record is not None:
            state.full = FullAnnouncement.of(record, state.layout, now)
            yield record
        for name, (type, count) in state.consumers.items():
            if count != UNANNOUNCED:
                yield consumers_record(topic, name, type, "snapshot", count, now, self.sender)

    def repeat_policies(self, now: int) -> Iterator[KafkaRecord]:
        """Yield the overrides of all namespaces again."""
        for namespace, policy in self.policies.items():
            yield policy_record(namespace, policy, now, self.sender)


def cause_of(before: ScalableTopicMetadata | None, after: ScalableTopicMetadata) -> LayoutCause:
    """Return the cause of a layout change, judged by the segments; `snapshot` for the first layout."""
    if before is None:
        return "snapshot"
    added = [segment for id, segment in after.segments.items() if id not in before.segments]
    if any(len(segment.parent_ids) > 1 for segment in added):
        return "merge"
    if added and all(_is_rebucketed(before, segment) for segment in added):
        return "rebucket"
    if added:
        return "split"
    if len(after.segments) < len(before.segments):
        return "prune"
    return "policy" if after.epoch == before.epoch else "snapshot"


def _is_rebucketed(before: ScalableTopicMetadata, segment: SegmentInfo) -> bool:
    parents = [before.segments[id] for id in segment.parent_ids if id in before.segments]
    return len(parents) == 1 and parents[0].hash_range == segment.hash_range


def compare_incarnations(before: ScalableTopicMetadata, after: ScalableTopicMetadata) -> int:
    """Compare incarnations of two layouts: 0 for the same, 1 if that of `after` is later, else -1.

    A topic that is deleted and created again has a later incarnation. Segments are compared by creation time, because
    ids and epochs start again.
    """
    for id, segment in after.segments.items():
        former = before.segments.get(id)
        if former is not None and former.created_at_ms != segment.created_at_ms:
            return 1 if segment.created_at_ms > former.created_at_ms else -1
    if before.segments.keys() & after.segments.keys() or after.epoch >= before.epoch:
        return 0
    oldest = min((segment.created_at_ms for segment in after.segments.values()), default=0)
    return 1 if oldest > max((segment.created_at_ms for segment in before.segments.values()), default=0) else 0
