"""Topics and their active segments, by the topics of Kafka and the controller's layouts.

Stage: under `collector`, which asks for the layout that is due. A segment's Kafka topic is made shortly before the
layout names it, so a topic with segments that its layout does not have is asked about again soon.
"""

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from anabranch.admin.answers import Answered, Refused, Reply

LAYOUT_SECONDS = 30.0
"""Between two readings of a layout without signs of a change."""
SOON_SECONDS, SOON_FOR_SECONDS = 1.0, 60.0
"""Between two readings of one whose segments have just changed, and how long it is read so often."""


class ListedSegment(Protocol):
    """A segment's Kafka topic, as the brokers list it."""

    @property
    def topic(self) -> str:
        """Return the scalable topic."""

    @property
    def created_at(self) -> int | None:
        """Return its incarnation."""

    @property
    def id(self) -> int:
        """Return the segment's id."""

    @property
    def kafka_topic(self) -> str:
        """Return the name of the Kafka topic."""

    @property
    def leader(self) -> str:
        """Return the broker that leads it, `host:port`; empty: none at present."""


class ActiveSegment(Protocol):
    """An active segment of a layout."""

    @property
    def segment_id(self) -> int:
        """Return its id."""


class AnsweredLayout(Protocol):
    """A layout as the controller answers it."""

    @property
    def active(self) -> Iterable[ActiveSegment]:
        """Return the active segments."""

    @property
    def segments(self) -> Container[int]:
        """Return the ids of all segments."""

    @property
    def created_at_ms(self) -> int | None:
        """Return the incarnation of the topic."""


@dataclass
class ListedTopic:
    """A topic with segments in Kafka."""

    name: str
    kafka: dict[tuple[int | None, int], ListedSegment] = field(default_factory=dict)
    """By incarnation and id."""
    layout: AnsweredLayout | None = None
    """None: not read, or not of this controller."""
    asked_at: float = float("-inf")
    read_at: float = float("-inf")
    """When the controller has answered last."""
    changed_at: float = float("-inf")
    """When Kafka has listed other segments than before."""
    trouble: str | None = None

    @property
    def is_foreign(self) -> bool:
        """Return whether the controller has answered that it has no such topic."""
        return self.layout is None and self.read_at > float("-inf")

    def due_at(self) -> float:
        """Return when the layout is to be asked for."""
        is_soon = self.trouble is not None or (
            self.asked_at < self.changed_at + SOON_FOR_SECONDS and not self._is_complete()
        )
        return self.asked_at + (SOON_SECONDS if is_soon else LAYOUT_SECONDS)

    def _is_complete(self) -> bool:
        """Return whether the layout is newer than Kafka's last change, with all segments of its incarnation."""
        layout = self.layout
        if layout is None or self.read_at < self.changed_at:
            return False
        return all(created_at != layout.created_at_ms or id in layout.segments for created_at, id in self.kafka)

    def active(self) -> Iterator[tuple[int, ListedSegment | None]]:
        """Yield the active segments with their Kafka topics, None where Kafka lists none."""
        if self.layout is not None:
            for segment in self.layout.active:
                yield segment.segment_id, self.kafka.get((self.layout.created_at_ms, segment.segment_id))


class ListedTopics:
    """All topics with segments in Kafka, of these namespaces or of all."""

    def __init__(self, namespaces: Iterable[str]) -> None:
        self._prefixes = tuple(f"topic://{namespace}/" for namespace in namespaces)
        self.known: dict[str, ListedTopic] = {}

    def update(self, segments: Iterable[ListedSegment], now: float) -> None:
        """Take over what Kafka lists."""
        listed: dict[str, dict[tuple[int | None, int], ListedSegment]] = {}
        for segment in segments:
            if not self._prefixes or segment.topic.startswith(self._prefixes):
                listed.setdefault(segment.topic, {})[segment.created_at, segment.id] = segment
        for name in self.known.keys() - listed.keys():
            del self.known[name]
        for name, kafka in listed.items():
            topic = self.known.setdefault(name, ListedTopic(name))
            if topic.kafka.keys() != kafka.keys():
                topic.changed_at = now
                # The layout is asked for at once.
                topic.asked_at = float("-inf")
            topic.kafka = kafka

    def next_due(self, now: float) -> ListedTopic | None:
        """Return the topic whose layout is due for longest, None if none is."""
        topic = min(self.known.values(), key=ListedTopic.due_at, default=None)
        return topic if topic is not None and topic.due_at() <= now else None

    def take_layout(self, topic: ListedTopic, reply: Reply[Any], now: float) -> None:
        """Take over the controller's answer."""
        topic.asked_at = now
        if isinstance(reply, Answered):
            topic.layout, topic.trouble, topic.read_at = reply.value, None, now
        elif isinstance(reply, Refused) and reply.status == 404 and reply.from_interface:
            topic.layout, topic.trouble, topic.read_at = None, None, now
        else:
            topic.trouble = f"the layout of {topic.name} cannot be read: {reply}"

    @property
    def unread(self) -> int:
        """Return the number of topics whose layout was never answered."""
        return sum(topic.read_at == float("-inf") for topic in self.known.values())
