"""Interface of a store of segment topics (PIP-468 "Segment Topic Management").

Every operation is idempotent: a caller that was killed repeats it, and completed parts stay unchanged.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from anabranch.controller.errors import ControllerError, NotFound, PreconditionFailed
from decisions.topic.layout import SegmentLayout
from decisions.topic.names import segment_descriptor, segment_topic_name
from schemas.metadata import HashRange

Position = Literal["earliest", "latest"]
"""Start of a new subscription: the first retained message, or past the last one."""
Target = int | Literal["latest"]
"""Target of a seek: the first message at or after a time (ms since 1970), or past the last one."""


class SegmentStoreError(ControllerError):
    """The store does not answer or refuses; the operation may be partly done: repeat it."""

    status = 503


class SegmentNotFound(NotFound):
    """The segment topic does not exist."""

    def __init__(self, segment: str, where: str) -> None:
        super().__init__(f"Segment topic not found: {segment} in {where}; create it first")


class SubscriptionNotFound(NotFound):
    """The segment has no such subscription."""

    def __init__(self, segment: str, subscription: str, where: str) -> None:
        super().__init__(f"Subscription not found: {subscription} on {segment} in {where}; create it first")


class SubscriptionInUse(PreconditionFailed):
    """Consumers are connected to the subscription."""

    def __init__(self, segment: str, subscription: str, where: str) -> None:
        super().__init__(
            f"Subscription in use: {subscription} on {segment} in {where} has connected consumers; close them first"
        )


class NameTooLong(PreconditionFailed):
    """The store cannot hold segments of a topic of that name."""


@dataclass(frozen=True, slots=True)
class SegmentTopicStats:
    """State of a segment topic: messages at positions `first` to `end` - 1; `backlog` by subscription."""

    terminated: bool
    first: int
    end: int
    backlog: Mapping[str, int]


def segment_name(topic: str, segment_id: int, hash_range: HashRange) -> str:
    """Return `segment://tenant/namespace/name/0000-7fff-1`. Raises `ValueError` for no scalable topic."""
    return segment_topic_name(topic, segment_descriptor(hash_range.start, hash_range.end, segment_id))


class SegmentStore(ABC):
    """Segment topics by their `segment://` names, in one incarnation of their topic.

    Any operation raises `SegmentStoreError` when the store does not answer in time.
    """

    @abstractmethod
    def of_incarnation(self, created_at: int | None) -> "SegmentStore":
        """Return a store restricted to the incarnation of a topic that was created at `created_at`, in ms.

        None: only segments made by an older controller, which knew no incarnations.
        """

    def of_layout(self, layout: SegmentLayout) -> "SegmentStore":
        """Return a store restricted to the incarnation of a layout; it also knows the adopted segments."""
        return self.of_incarnation(layout.created_at_ms)

    @abstractmethod
    def answers(self) -> bool:
        """Return True if the store answers within some seconds; never raises."""

    @abstractmethod
    def check_topic(self, topic: str) -> None:
        """Raise `NameTooLong` unless the store can name every segment that the topic may ever have."""

    @abstractmethod
    def create(self, topic: str, segment_id: int, hash_range: HashRange, subscriptions: Iterable[str] = ()) -> str:
        """Create a segment topic with subscriptions at its start; return its name (PIP-468 "Create Segment").

        An existing one stays as it is: messages, subscriptions, positions and termination.
        """

    @abstractmethod
    def create_subscription(self, segment: str, subscription: str, position: Position = "earliest") -> None:
        """Create a subscription; an existing one keeps its position. Raises `SegmentNotFound`.

        If its consumers connected earlier, it starts at their position.
        """

    @abstractmethod
    def set_position(self, segment: str, subscription: str, position: int) -> None:
        """Move a subscription to a position, creating it there if it is missing. Raises `SegmentNotFound`."""

    @abstractmethod
    def delete_subscription(self, segment: str, subscription: str) -> None:
        """Remove a subscription; a missing subscription or segment is fine. Raises `SubscriptionInUse`."""

    @abstractmethod
    def check_unused(self, segment: str, subscription: str) -> None:
        """Raise `SubscriptionInUse` while consumers are connected; a missing segment or subscription is fine."""

    @abstractmethod
    def seek(self, segment: str, subscription: str, target: Target) -> None:
        """Move a subscription to a target; past the last message if none is that recent.

        Raises `SegmentNotFound`, `SubscriptionNotFound`, and `SubscriptionInUse`, leaving the position unchanged.
        """

    @abstractmethod
    def subscriptions(self, segment: str) -> list[str]:
        """Return the names of a segment's subscriptions, sorted. Raises `SegmentNotFound`."""

    @abstractmethod
    def terminate(self, segment: str) -> int:
        """Seal a segment; return its end, the position past its last message (PIP-468 "Terminate Segment").

        On return no further write is accepted and every accepted one is below the end. Repeating it returns the same
        end. Raises `SegmentNotFound`.
        """

    @abstractmethod
    def is_terminated(self, segment: str) -> bool:
        """Return whether a segment refuses all writes. Raises `SegmentNotFound`."""

    @abstractmethod
    def delete(self, segment: str) -> None:
        """Remove a segment with its messages and subscriptions, even in use; a missing one is fine (PIP-468)."""

    @abstractmethod
    def backlog(self, segment: str, subscription: str) -> int:
        """Return the number of unacknowledged messages. Raises `SegmentNotFound`, `SubscriptionNotFound`."""

    @abstractmethod
    def unread(self, segment: str, subscriptions: Iterable[str]) -> Mapping[str, int | None]:
        """Return unacknowledged messages by subscription: all of the segment, and those given.

        None: it has no position there, so its progress is unknown. Raises `SegmentNotFound`.
        """

    @abstractmethod
    def owners(self, segments: Sequence[str]) -> dict[str, str]:
        """Return `host:port` of each segment's owner, by name; segments without an owner are omitted."""

    @abstractmethod
    def stats(self, segment: str) -> SegmentTopicStats:
        """Return the state of a segment. Raises `SegmentNotFound`."""
