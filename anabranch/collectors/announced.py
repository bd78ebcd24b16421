"""State announced by a collector, and the changes to announce now.

Only the difference is announced, and everything now and then.

Stage: between what was read and the publisher; pure: instants are arguments. Level-based: what could not be handed to
Kafka is taken back by `unsay` and comes out as a difference again, as it is then. A collector that starts says all,
and of topics that the one before it knew that they are gone; its `sender` is higher, so the job believes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from anabranch.collectors.announcements import KafkaRecord, consumers_record, layout_record, policy_record
from schemas.codecs.known_layouts import LayoutEntry
from schemas.codecs.plain_events import digest_of, layout_in
from schemas.ids import EVERY_TOPIC
from schemas.kafka.messages import ConsumerEventKind, LayoutCause, SubscriptionType
from schemas.metadata import AutoScalePolicyOverride, ScalableTopicMetadata, SegmentInfo

UNSAID = -1
"""In place of a number of consumers that did not get to Kafka."""


class Consumers(NamedTuple):
    """The consumers of one subscription."""

    type: SubscriptionType
    number: int


class Full(NamedTuple):
    """A layout that was said in full."""

    known: LayoutEntry
    at: int
    """ms."""

    @classmethod
    def of(cls, record: KafkaRecord, layout: ScalableTopicMetadata, announced_at: int) -> Full:
        """Return the full announcement that a record contains."""
        return cls(LayoutEntry(record.key, layout.epoch, digest_of(layout_in(record.value))), announced_at)


@dataclass
class Topic:
    """Announced state of one topic."""

    layout: ScalableTopicMetadata
    consumers: dict[str, Consumers] = field(default_factory=dict)
    is_said: bool = True
    """Whether the layout got to Kafka, as far as is known."""
    said_at: int = 0
    """When all of it was said last, ms; its layout maybe by the digest."""
    full: Full | None = None
    """How the layout was said in full last."""


@dataclass
class AnnouncedState:
    """Announced state of one collector; `sender` is its number."""

    sender: int
    topics: dict[str, Topic] = field(default_factory=dict)
    policies: dict[str, AutoScalePolicyOverride | None] = field(default_factory=dict)
    """Of namespaces; None: said that there is none."""
    too_large: set[str] = field(default_factory=set)
    """Topics whose layout does not fit into a record."""
    before: dict[str, ScalableTopicMetadata] = field(default_factory=dict)
    """Topics that a collector before this one knew and that were not seen yet, with their layouts."""
    subscriptions: dict[str, dict[str, SubscriptionType]] = field(default_factory=dict)
    """Subscriptions that a collector before this one announced, of topics that were not seen yet."""
    changes: int = 0
    """How often what is known of layouts and subscriptions has changed."""
    again: list[KafkaRecord] = field(default_factory=list)
    """What is gone, and this did not reach Kafka: it is said again as it is, before anything else."""

    def layout(self, topic: str, layout: ScalableTopicMetadata, now: int) -> list[KafkaRecord]:
        """Return the records for a layout that was read at `now` (ms)."""
        state = self.topics.get(topic)
        if state is not None and state.is_said and state.layout == layout:
            return []
        before = self.before.get(topic)
        if before is not None and compare_lives(before, layout) > 0:
            return [*self.gone(topic, now), *self.layout(topic, layout, now + 1)]
        life = compare_lives(state.layout, layout) if state is not None else 0
        if life > 0:
            return [*self.gone(topic, now), *self.layout(topic, layout, now + 1)]
        if state is not None and (life < 0 or layout.epoch < state.layout.epoch):
            return []  # a server whose memory is behind
        record = layout_record(
            topic, cause_of(state.layout if state and state.is_said else None, layout), layout, now, self.sender
        )
        if record is None:
            self.too_large.add(topic)
            return []
        self.too_large.discard(topic)
        self.before.pop(topic, None)
        self.changes += 1
        if state is None:
            state = self.topics[topic] = Topic(layout, said_at=now)
            before_this = self.subscriptions.pop(topic, {})
            state.consumers = {name: Consumers(type, UNSAID) for name, type in before_this.items()}
        state.layout, state.is_said, state.full = layout, True, Full.of(record, layout, now)
        return [record]

    def consumers(self, topic: str, consumers: Mapping[str, Consumers], now: int) -> list[KafkaRecord]:
        """Return records of a topic's consumers at `now` (ms); None without an announced layout."""
        state = self.topics.get(topic)
        if state is None:
            return []
        records = []
        for name, (type, count) in consumers.items():
            event: ConsumerEventKind
            before = state.consumers.get(name)
            if before == (type, count):
                continue
            if before is None or before.number == UNSAID:
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

    def unsay(self, record: KafkaRecord) -> None:
        """Forget what a record that did not reach Kafka had said, so that it is said again."""
        if record.is_end:
            self.again.append(record)
        elif record.key == EVERY_TOPIC:
            self.policies.clear()
        elif (state := self.topics.get(record.key)) is not None and record.source == "consumer-events":
            # Which subscriptions there were is still known: one that goes is said to be gone.
            state.consumers = {name: Consumers(consumer.type, UNSAID) for name, consumer in state.consumers.items()}
        elif state is not None:
            state.is_said = False

    def known(self, topic: str, now: int, full_ms: int) -> LayoutEntry | None:
        """Return the announced layout of a topic if its digest is enough, else None.

        It is when the layout was announced in full less than `full_ms` before `now` (ms), and reached Kafka as far as
        is known.
        """
        state = self.topics[topic]
        is_enough = state.is_said and state.full is not None and now - state.full.at < full_ms
        return state.full.known if is_enough and state.full else None

    def repeats(self, topic: str, now: int, with_layout: bool = True) -> Iterator[KafkaRecord]:
        """All that is known of a topic, once more; without the layout where that is said by its digest."""
        state = self.topics[topic]
        state.said_at = now
        record = layout_record(topic, "snapshot", state.layout, now, self.sender) if with_layout else None
        if record is not None:
            state.full = Full.of(record, state.layout, now)
            yield record
        for name, (type, count) in state.consumers.items():
            if count != UNSAID:
                yield consumers_record(topic, name, type, "snapshot", count, now, self.sender)

    def repeat_policies(self, now: int) -> Iterator[KafkaRecord]:
        """The overrides of all namespaces, once more."""
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


def compare_lives(before: ScalableTopicMetadata, after: ScalableTopicMetadata) -> int:
    """Compare the lives of two layouts of a topic: 0 for the same, 1 if `after` is later, -1 if earlier.

    A later life means that the topic was deleted and created again. Judged by the creation times of the segments, as
    ids and epochs begin anew.
    """
    for id, segment in after.segments.items():
        former = before.segments.get(id)
        if former is not None and former.created_at_ms != segment.created_at_ms:
            return 1 if segment.created_at_ms > former.created_at_ms else -1
    if before.segments.keys() & after.segments.keys() or after.epoch >= before.epoch:
        return 0
    oldest = min((segment.created_at_ms for segment in after.segments.values()), default=0)
    newest = max((segment.created_at_ms for segment in before.segments.values()), default=0)
    return 1 if oldest > newest else 0
