"""Sessions of one subscription (PIP-468 "SubscriptionCoordinator", "Consumer Session Lifecycle").

A coordinator is a value: each step returns the next coordinator and its messages, so the leader makes the step durable
before it adopts the next coordinator. All instants are milliseconds of one monotonic clock; nothing here reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple, TypeVar

from anabranch.controller.errors import Conflict
from anabranch.controller.metadata.records import ConsumerRegistration, SubscriptionRecord, same_life
from anabranch.controller.sessions.assignment import Assignment, assign, assignable, changed, keeping, replayable
from decisions.topic.layout import SegmentLayout
from decisions.topic.segment import Segment
from schemas.kafka.messages import SubscriptionType

Value = TypeVar("Value")

MAX_CONSUMERS = 10_000
"""Maximum number of sessions of a subscription."""


class Link(NamedTuple):
    """Address of a connected consumer: a connection, and the protocol's id of the consumer on it."""

    connection: int
    """Unique during the life of the leader: protocol ids start again on each connection."""
    consumer_id: int


class Away(NamedTuple):
    """A consumer without a connection; it keeps its segments until `until_ms`."""

    until_ms: int


Session = Link | Away


class MembershipEvent(NamedTuple):
    """A session came or went; `consumers` is the count after it."""

    event: Literal["registered", "unregistered"]
    consumer: str
    consumers: int


class Push(NamedTuple):
    """Whole assignment of a connected consumer, to be sent to its link."""

    consumer: str
    link: Link
    epoch: int
    segments: tuple[Segment, ...]
    topic_created_at: int | None = None
    """Incarnation of the topic."""


@dataclass(frozen=True, slots=True)
class Effects:
    """Effects of a step: make it durable with its announcements in one commit, then send the pushes."""

    events: tuple[MembershipEvent, ...] = ()
    """Each also puts or deletes the stored registration of its consumer."""
    drained_changed: bool = False
    """True if the stored drained segments are outdated."""
    contested_changed: bool = False
    """True if the stored contested segments are outdated: a new leader could not derive them."""
    pushes: tuple[Push, ...] = ()
    superseded: Link | None = None
    """Link that lost its consumer to a newer one: it can be closed."""


NOTHING = Effects()


@dataclass(frozen=True)
class SubscriptionCoordinator:
    """Consumers and segments of one subscription. Consumers of a QUEUE are counted, but get no segments."""

    name: str
    type: SubscriptionType
    grace_ms: int
    """Time for which a consumer that lost its connection keeps its segments, milliseconds."""
    layout: SegmentLayout
    sessions: Mapping[str, Session] = field(default_factory=dict)
    drained: frozenset[int] = frozenset()
    """Ids of the sealed segments that this subscription has read to the end."""
    kept: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Ids of the segments last sent to each consumer without a connection, if any."""
    life: str | None = None
    """Incarnation of the subscription; None: unknown, as it was not stored yet."""

    @cached_property
    def assignment(self) -> Assignment:
        """Segments of every consumer, including those within their grace period."""
        return keeping(self._wanted, self.kept) if self.kept else self._wanted

    @property
    def contested(self) -> dict[str, tuple[int, ...]]:
        """Segments kept by consumers, for those that keep a segment which would otherwise be another's."""
        return {
            name: tuple(sorted(held))
            for name, held in sorted(self.kept.items())
            if held - {segment.segment_id for segment in self._wanted[name]}
        }

    @cached_property
    def _wanted(self) -> Assignment:
        """Assignment if every consumer could be notified."""
        if self.type == "QUEUE":
            segments: tuple[Segment, ...] = ()
        elif self.type == "CHECKPOINT":
            segments = replayable(self.layout)
        else:
            segments = assignable(self.layout, self.drained)
        return assign(segments, self.sessions)

    def due(self) -> int | None:
        """Return when `expire` next has something to do; None when all consumers are connected."""
        return min((session.until_ms for session in self.sessions.values() if isinstance(session, Away)), default=None)

    def register(self, consumer: str, link: Link, type: SubscriptionType) -> tuple[SubscriptionCoordinator, Effects]:
        """Register a consumer; its assignment is always sent.

        A new name is a new session. A known one keeps its segments, disturbs no other consumer, and the newest link
        wins. Raises `Conflict` for another type than the subscription's, like Pulsar's "Subscription is of different
        type", and above `MAX_CONSUMERS`.
        """
        if type != self.type:
            raise Conflict(f"Subscription {self.name} exists with type {self.type}, not {type}")
        if consumer not in self.sessions:
            if len(self.sessions) >= MAX_CONSUMERS:
                raise Conflict(f"Subscription {self.name} has {MAX_CONSUMERS} consumers, more are not accepted")
            joined = replace(self, sessions={**self.sessions, consumer: link})
            return joined, self._effects(joined, (MembershipEvent("registered", consumer, len(joined.sessions)),))
        before = self.sessions[consumer]
        after = replace(self, sessions={**self.sessions, consumer: link}, kept=_without(self.kept, {consumer}))
        superseded = before if isinstance(before, Link) and before != link else None
        if consumer not in self.kept:
            # No assignment changes, so keep the cached ones: ten thousand consumers may come back like this.
            after.__dict__.update(assignment=self.assignment, _wanted=self._wanted)
            return after, Effects(pushes=(after._push(consumer, link),), superseded=superseded)
        other_pushes = (push for push in self._pushes(after) if push.consumer != consumer)
        return after, Effects(
            contested_changed=after.contested != self.contested,
            pushes=(after._push(consumer, link), *other_pushes),
            superseded=superseded,
        )

    def disconnect(self, connection: int, now_ms: int) -> SubscriptionCoordinator:
        """Start the grace period of the consumers on a lost connection."""
        away = Away(now_ms + self.grace_ms)
        disconnected = [name for name, session in self.sessions.items() if _is_on(session, connection)]
        after = replace(
            self, sessions={**self.sessions, **dict.fromkeys(disconnected, away)}, kept=self._keep(disconnected)
        )
        after.__dict__.update(assignment=self.assignment, _wanted=self._wanted)
        return after

    def leave(self, consumer: str, link: Link) -> tuple[SubscriptionCoordinator, Effects]:
        """Remove a consumer on its link; a no-op if that is no longer its link (Pulsar #26433)."""
        return self.remove([consumer]) if self.sessions.get(consumer) == link else (self, NOTHING)

    def expire(self, now_ms: int) -> tuple[SubscriptionCoordinator, Effects]:
        """Evict every consumer whose grace period ended at or before `now_ms`, with one rebalance for all."""
        sessions = self.sessions.items()
        return self.remove(
            name for name, session in sessions if isinstance(session, Away) and session.until_ms <= now_ms
        )

    def remove(self, consumers: Iterable[str]) -> tuple[SubscriptionCoordinator, Effects]:
        """End sessions by name, connected or not; unknown names are ignored."""
        if not (ending := set(consumers) & self.sessions.keys()):
            return self, NOTHING
        left = replace(self, sessions=_without(self.sessions, ending), kept=_without(self.kept, ending))
        count = len(self.sessions)
        events = tuple(
            MembershipEvent("unregistered", name, count - 1 - index) for index, name in enumerate(sorted(ending))
        )
        return left, self._effects(left, events)

    def admit(self, sessions: Mapping[str, Session]) -> tuple[SubscriptionCoordinator, Effects]:
        """Add sessions that were registered elsewhere, with one rebalance; known names are ignored."""
        return self._with(replace(self, sessions={**sessions, **self.sessions})) if sessions else (self, NOTHING)

    def follow(self, layout: SegmentLayout) -> tuple[SubscriptionCoordinator, Effects]:
        """Adopt a newer layout (PIP-468 "onLayoutChange"); an older one is ignored.

        Drained segments are forgotten once they are pruned.
        """
        if layout.epoch < self.layout.epoch:
            return self, NOTHING
        drained = self.drained & layout.segments.keys()
        return self._with(replace(self, layout=layout, drained=drained))

    def catch_up(self, stored: SubscriptionCoordinator) -> tuple[SubscriptionCoordinator, Effects]:
        """Adopt the stored layout and members, whoever changed them; links stay."""
        after, first = self.follow(stored.layout)
        after, second = after.remove(after.sessions.keys() - stored.sessions.keys())
        after, third = after.admit(stored.sessions)
        last = {push.consumer: push for push in (*first.pushes, *second.pushes, *third.pushes)}
        pushes = tuple(push for push in last.values() if push.consumer in after.sessions)
        effects = replace(self._effects(after), pushes=pushes)
        return replace(after, life=stored.life or self.life), effects

    def is_of(self, other: SubscriptionCoordinator) -> bool:
        """Return whether both are the same incarnation of the subscription and of its topic."""
        return self.layout.created_at_ms == other.layout.created_at_ms and same_life(self.life, other.life)

    def drain(self, segments: Iterable[int]) -> tuple[SubscriptionCoordinator, Effects]:
        """Mark sealed segments as read to the end; others are ignored."""
        by_number = self.layout.segments
        sealed = {number for number in segments if number in by_number and not by_number[number].is_active}
        return self._with(replace(self, drained=self.drained | sealed))

    def reset_drained(self, segments: Iterable[int]) -> tuple[SubscriptionCoordinator, Effects]:
        """Replace the drained segments by these sealed ones, after a seek.

        A parent with unread messages comes before its children again, which Pulsar 5 does not ensure.
        """
        moved, _ = replace(self, drained=frozenset()).drain(segments)
        return self._with(moved)

    def fresh_grace(self, consumers: Iterable[str], now_ms: int) -> SubscriptionCoordinator:
        """Mark all consumers as away with a full grace period, as a new leader does (PIP-468 "failover")."""
        away = replace(self, sessions=dict.fromkeys(consumers, Away(now_ms + self.grace_ms)))
        return replace(away, kept=away._keep(away.sessions))

    def _with(self, after: SubscriptionCoordinator) -> tuple[SubscriptionCoordinator, Effects]:
        return after, self._effects(after)

    def _effects(self, after: SubscriptionCoordinator, events: tuple[MembershipEvent, ...] = ()) -> Effects:
        """Return the effects of the step to `after`."""
        return Effects(
            events,
            drained_changed=after.drained != self.drained,
            contested_changed=after.contested != self.contested,
            pushes=self._pushes(after),
        )

    def _keep(self, consumers: Iterable[str]) -> Mapping[str, frozenset[int]]:
        """Return the kept segments after these consumers lose their connections."""
        has = {name: frozenset(segment.segment_id for segment in self.assignment[name]) for name in consumers}
        return {**self.kept, **{name: segments for name, segments in has.items() if segments}}

    def _pushes(self, after: SubscriptionCoordinator) -> tuple[Push, ...]:
        """Return the pushes of the step to `after`; consumers without a connection get theirs on return."""
        pushes = []
        for name in changed(self.assignment, after.assignment):
            session = after.sessions[name]
            if isinstance(session, Link):
                pushes.append(after._push(name, session))
        return tuple(pushes)

    def _push(self, consumer: str, link: Link) -> Push:
        return Push(consumer, link, self.layout.epoch, self.assignment[consumer], self.layout.created_at_ms)


def restore(
    name: str,
    record: SubscriptionRecord,
    consumers: Iterable[ConsumerRegistration],
    layout: SegmentLayout,
    grace_ms: int,
    now_ms: int,
) -> SubscriptionCoordinator:
    """Return a new leader's coordinator: all consumers away, full grace period (PIP-468 "failover").

    `layout` may be newer than the record; drained segments that it lacks, or that are not sealed, are dropped.
    """
    empty = SubscriptionCoordinator(name, record.type, grace_ms, layout)
    drained, _ = empty.drain(record.drained)
    names = [consumer.consumer_name for consumer in consumers]
    registered = set(names)
    held = {name: frozenset(ids) for name, ids in (record.contested or {}).items() if name in registered}
    return replace(drained, kept=held, life=record.life).fresh_grace(names, now_ms)


def _without(mapping: Mapping[str, Value], names: AbstractSet[str]) -> dict[str, Value]:
    return {name: value for name, value in mapping.items() if name not in names}


def _is_on(session: Session, connection: int) -> bool:
    return isinstance(session, Link) and session.connection == connection
