"""Record of what clients saw of several controllers, as values. Judged by `tests.harness.chaos.checker`.

Stage: filled by `tests.harness.chaos.clients` and `tests.harness.chaos.run`, emptied after every round, so that an hour
takes no more memory than a minute. All instants are seconds of one clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Range = tuple[int, int]


@dataclass(frozen=True)
class SeenLayout:
    """A layout that a client got."""

    topic: str
    epoch: int
    active: Mapping[int, Range]
    """Hash range by segment id."""
    known: Mapping[int, Range]
    """The same of all segments, sealed ones too."""
    by: str
    """One watch session, or one caller; its layouts never go back."""
    asked_at: float
    seen_at: float
    life: int = 0
    """How often the topic was deleted and created again before; a client writes it into the topic's properties."""

    @property
    def version(self) -> tuple[int, int]:
        """Version that never goes back: the life, and the epoch in it."""
        return self.life, self.epoch

    @property
    def where(self) -> str:
        """Epoch and life in words."""
        return named(self.life, self.epoch)


@dataclass(frozen=True)
class SeenAbsent:
    """A client was told that there is no such topic, which it had been told of."""

    topic: str
    by: str
    exists_since: float
    """The creation was answered then, and nobody asked for a deletion until the answer."""
    asked_at: float


@dataclass(frozen=True)
class Call:
    """A call; `status` None: no answer came, so it may have taken effect or not."""

    topic: str
    kind: Literal["split", "merge", "register", "unregister"]
    what: str
    """The segments; or the subscription and the consumer."""
    status: int | None
    life: int = 0
    """The only one in which it can have taken effect; when it may have in several, each has a call without status."""


@dataclass(frozen=True)
class AnnouncedLayout:
    """A layout that was announced; `segments`: how many it has, sealed ones too."""

    topic: str
    epoch: int
    cause: str
    segments: int
    life: int = 0


@dataclass(frozen=True)
class AnnouncedCount:
    """Announced number of a subscription's consumers."""

    topic: str
    subscription: str
    consumers: int
    deleted: bool = False
    """The subscription is gone, with however many it had."""


@dataclass(frozen=True)
class Held:
    """Period in which a consumer believed that it owned a segment.

    It begins with the assignment and ends with another assignment, a message from the controller, or a grace period
    without any sign of life from the controller.
    """

    topic: str
    life: int
    subscription: str
    segment: int
    consumer: str
    since: float
    until: float
    ended_by: str = ""
    """What took the belief away, and at which node it was connected, in words for those who look for the cause."""


@dataclass(frozen=True)
class Delivery:
    """Messages of one life of a topic: those confirmed to the producer, and those read by consumers."""

    topic: str
    life: int
    sent: frozenset[int]
    received: frozenset[int]


@dataclass(frozen=True)
class SeenAssignment:
    """The segments of each consumer of one subscription, at a moment when nothing moved."""

    topic: str
    subscription: str
    wanted: frozenset[int]
    """The segments that are to be read."""
    held: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class LostSession:
    """A consumer that was evicted although it was never away for the grace period."""

    topic: str
    subscription: str
    consumer: str
    reason: str


@dataclass(frozen=True)
class End:
    """Contents of a topic's store at the end."""

    layout: SeenLayout
    open_operations: tuple[str, ...]
    consumers: Mapping[str, frozenset[str]]
    """By subscription."""
    segment_topics: Mapping[str, bool] | None = None
    """The segment topics in Kafka, and whether each is terminated; None: segments have no topics of their own."""
    segments: Mapping[str, bool] = field(default_factory=dict)
    """What the layout says of them: `segment://` name to whether it is sealed."""


@dataclass
class ClientHistory:
    """One run, or a part of it at whose end no call is open."""

    layouts: list[SeenLayout] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    absences: list[SeenAbsent] = field(default_factory=list)
    assignments: list[SeenAssignment] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    lost: list[LostSession] = field(default_factory=list)
    announced: list[AnnouncedLayout | AnnouncedCount] = field(default_factory=list)
    """In the order in which they are sent, without snapshots."""
    ends: list[End] = field(default_factory=list)

    def clear(self) -> None:
        """Forget all of it."""
        for seen in vars(self).values():
            seen.clear()


def named(life: int, epoch: int) -> str:
    """An epoch in words, with the life that it is of unless that is the first."""
    return f"epoch {epoch} of life {life}" if life else f"epoch {epoch}"
