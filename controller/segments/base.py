"""What a store of segment topics does: create, subscribe, terminate, delete (PIP-468 "Segment Topic Management").

Stage: below the split and merge protocol, which knows segments by their names `segment://tenant/namespace/name/…` only.
Every operation can be repeated: what was done already is left as it is, so a caller that was killed does it again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from controller.errors import ControllerError, NotFound, PreconditionFailed
from decisions.topic.names import segment_descriptor, segment_topic_name
from schemas.metadata import HashRange

Position = Literal["earliest", "latest"]
"""Where a new subscription starts: at the first message that is kept, or behind the last one."""
Target = int | Literal["latest"]
"""Where a subscription is moved to: the first message of that time or later (ms since 1970), or behind the last one."""


class SegmentStoreError(ControllerError):
    """The store of segments does not answer or refuses; what was asked for may be done in part: do it again."""

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
class SegmentStats:
    """One segment topic: messages are at the positions `first` to `end` - 1; `backlog` counts by subscription."""

    terminated: bool
    first: int
    end: int
    backlog: Mapping[str, int]


def segment_name(topic: str, segment_id: int, hash_range: HashRange) -> str:
    """`segment://tenant/namespace/name/0000-7fff-1`; `ValueError` when `topic` is not the name of a scalable topic."""
    return segment_topic_name(topic, segment_descriptor(hash_range.start, hash_range.end, segment_id))


class SegmentStore(ABC):
    """Segment topics by their `segment://` names, in one life of their topic.

    Any operation raises `SegmentStoreError` when the store does not answer in time.
    """

    @abstractmethod
    def of_life(self, created_at: int | None) -> SegmentStore:
        """The segments of that life of a topic, `created_at_ms` of its layout; no other life's are touched through it.

        None: of a topic that an older controller made, and nothing else is.
        """

    @abstractmethod
    def answers(self) -> bool:
        """Whether the store answers at this moment; known within some seconds, and raises nothing."""

    @abstractmethod
    def check_topic(self, topic: str) -> None:
        """Raises `NameTooLong` when not every segment that the topic may ever have can be named in the store."""

    @abstractmethod
    def create(self, topic: str, segment_id: int, hash_range: HashRange, subscriptions: Iterable[str] = ()) -> str:
        """Make a segment topic with subscriptions at its beginning; answers its name (PIP-468 "Create Segment").

        What exists is left as it is: its messages, its subscriptions, where they are, and that it is terminated.
        """

    @abstractmethod
    def create_subscription(self, segment: str, subscription: str, position: Position = "earliest") -> None:
        """Make a subscription; one that exists stays where it is. `SegmentNotFound` without the segment.

        One whose consumers came before it was made begins where they do.
        """

    @abstractmethod
    def delete_subscription(self, segment: str, subscription: str) -> None:
        """Remove a subscription; none of that name, or no such segment, is fine. `SubscriptionInUse`."""

    @abstractmethod
    def check_unused(self, segment: str, subscription: str) -> None:
        """Raises `SubscriptionInUse` while consumers are connected; no such segment or subscription is fine."""

    @abstractmethod
    def seek(self, segment: str, subscription: str, target: Target) -> None:
        """Move a subscription, forward or back; without a message of that time or later it goes behind the last one.

        `SegmentNotFound`, `SubscriptionNotFound`, and `SubscriptionInUse`: then it is where it was.
        """

    @abstractmethod
    def subscriptions(self, segment: str) -> list[str]:
        """The names of a segment's subscriptions, sorted. `SegmentNotFound` without the segment."""

    @abstractmethod
    def terminate(self, segment: str) -> int:
        """Seal a segment and answer its end, the position behind its last message (PIP-468 "Terminate Segment").

        When this returns, no write is accepted any more and every write that was is below the end. Terminating again
        answers the same. `SegmentNotFound` without the segment.
        """

    @abstractmethod
    def is_terminated(self, segment: str) -> bool:
        """Whether a segment refuses all writes. `SegmentNotFound` without the segment."""

    @abstractmethod
    def delete(self, segment: str) -> None:
        """Remove a segment with its messages and subscriptions, in use or not; none of that name is fine (PIP-468)."""

    @abstractmethod
    def backlog(self, segment: str, subscription: str) -> int:
        """Messages that a subscription has not acknowledged; `SegmentNotFound`, `SubscriptionNotFound`."""

    @abstractmethod
    def unread(self, segment: str, subscriptions: Iterable[str]) -> Mapping[str, int | None]:
        """Messages that each subscription of a segment, and each of those, has not acknowledged.

        None: it has no position there, because it was never made there or because that was lost; so nobody can say.
        `SegmentNotFound` without the segment.
        """

    @abstractmethod
    def owners(self, segments: Sequence[str]) -> dict[str, str]:
        """`host:port` of the broker that owns each segment, by its name; those that nobody owns now are left out."""

    @abstractmethod
    def stats(self, segment: str) -> SegmentStats:
        """What is in a segment. `SegmentNotFound` without the segment."""
