"""Sessions of a subscription: the cases of the PIP one by one, then any order of steps against a simple model."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from anabranch.controller.errors import Conflict
from anabranch.controller.metadata.records import ConsumerRegistration, SubscriptionRecord
from anabranch.controller.sessions.coordinator import (
    MAX_CONSUMERS,
    Away,
    Effects,
    Link,
    MembershipEvent,
    SubscriptionCoordinator,
    restore,
)
from decisions.topic.layout import SegmentLayout
from schemas.kafka.messages import SubscriptionType
from tests.controller.layout_strategies import sealed_ids, step
from tests.controller.sessions.stored import record_of, registrations
from tests.examples import examples

GRACE_MS = 60_000


def coordinator(
    segments: int = 4, type: SubscriptionType = "STREAM", layout: SegmentLayout | None = None
) -> SubscriptionCoordinator:
    return SubscriptionCoordinator("billing", type, GRACE_MS, layout or SegmentLayout.create(segments, 0))


def with_consumers(one: SubscriptionCoordinator, *names: str) -> SubscriptionCoordinator:
    """Each name on a connection of its own: the first on 1, with consumer id 0."""
    for connection, name in enumerate(names, start=1):
        one, _ = one.register(name, Link(connection, 0), one.type)
    return one


def held(one: SubscriptionCoordinator) -> dict[str, list[int]]:
    return {name: [segment.segment_id for segment in share] for name, share in one.assignment.items()}


def pushed(change: Effects) -> dict[str, list[int]]:
    return {push.consumer: [segment.segment_id for segment in push.segments] for push in change.pushes}


def test_new_consumer_counted_and_given_a_share() -> None:
    one = with_consumers(coordinator(), "a")
    after, change = one.register("b", Link(2, 7), "STREAM")
    assert change.events == (MembershipEvent("registered", "b", 2),)
    assert pushed(change) == {"a": [0, 2], "b": [1, 3]}
    assert change.pushes[1].link == Link(2, 7)
    assert held(after) == pushed(change)


def test_a_consumer_whose_list_stays_is_not_told() -> None:
    one = with_consumers(coordinator(segments=2), "a", "b")
    _, change = one.register("c", Link(3, 0), "STREAM")
    assert pushed(change) == {"c": []}


def test_return_within_grace_changes_nothing() -> None:
    one = with_consumers(coordinator(), "a", "b")
    away = one.disconnect(1, now_ms=1000)
    assert away.assignment == one.assignment
    assert away.due() == 1000 + GRACE_MS
    back, change = away.register("a", Link(9, 0), "STREAM")
    assert pushed(change) == {"a": [0, 2]}
    assert not change.events
    assert not change.drained_changed
    assert back.due() is None
    assert back.assignment == one.assignment


@pytest.mark.parametrize(("past", "there"), [(-1, {"a", "b"}), (0, {"b"}), (1, {"b"})])
def test_eviction_exactly_at_end_of_grace(past: int, there: set[str]) -> None:
    away = with_consumers(coordinator(), "a", "b").disconnect(1, now_ms=1000)
    after, change = away.expire(1000 + GRACE_MS + past)
    assert after.sessions.keys() == there
    if past >= 0:
        assert change.events == (MembershipEvent("unregistered", "a", 1),)
        assert pushed(change) == {"b": [0, 1, 2, 3]}


def test_return_before_eviction_always_wins() -> None:
    away = with_consumers(coordinator(), "a").disconnect(1, now_ms=0)
    back, _ = away.register("a", Link(2, 0), "STREAM")
    assert back.expire(10 * GRACE_MS) == (back, Effects())


def test_joint_evictions_rebalance_once() -> None:
    away = with_consumers(coordinator(), "a", "b", "c").disconnect(1, 0).disconnect(2, 0)
    _, change = away.expire(GRACE_MS)
    assert [(event.consumer, event.consumers) for event in change.events] == [("a", 2), ("b", 1)]
    assert pushed(change) == {"c": [0, 1, 2, 3]}


def test_disconnected_consumer_keeps_its_reading() -> None:
    """The segments go to no other consumer before it is back."""
    away = with_consumers(coordinator(), "a", "b").disconnect(1, 0)
    joined, change = away.register("aa", Link(3, 0), "STREAM")
    assert pushed(change) == {"aa": [1], "b": []}
    assert held(joined) == {"a": [0, 2, 3], "aa": [1], "b": []}
    assert joined.contested == {"a": (0, 2)}
    assert change.contested_changed
    back, change = joined.register("a", Link(4, 0), "STREAM")
    assert pushed(change) == {"a": [0, 3], "b": [2]}
    assert not back.contested
    evicted, change = joined.expire(GRACE_MS)
    assert pushed(change) == {"aa": [0, 2], "b": [1, 3]}
    assert not evicted.kept


def test_new_leader_knows_blocked_segments() -> None:
    joined, _ = with_consumers(coordinator(), "a", "b").disconnect(1, 0).register("aa", Link(3, 0), "STREAM")
    record = SubscriptionRecord.model_validate_json(record_of(joined).to_json())
    restored = restore("billing", record, registrations(joined), joined.layout, GRACE_MS, 1000)
    assert restored.assignment == joined.assignment
    _, change = restored.register("b", Link(7, 0), "STREAM")
    assert pushed(change) == {"b": []}


def test_pooled_connection_loss_hits_all_its_consumers() -> None:
    one = coordinator()
    for consumer_id, name in enumerate(("a", "b")):
        one, _ = one.register(name, Link(5, consumer_id), "STREAM")
    assert set(one.disconnect(5, 0).sessions.values()) == {Away(GRACE_MS)}


def test_a_leave_of_an_older_consumer_id_is_ignored() -> None:
    one, _ = coordinator().register("c1", Link(1, 1), "STREAM")
    one, change = one.register("c1", Link(1, 2), "STREAM")
    assert change.superseded == Link(1, 1)
    assert one.leave("c1", Link(1, 1)) == (one, Effects())
    left, change = one.leave("c1", Link(1, 2))
    assert not left.sessions
    assert change.events == (MembershipEvent("unregistered", "c1", 0),)


def test_old_connection_ignored_after_takeover() -> None:
    """A restarted process counts its consumer ids from 0 again: only the connection tells the two apart."""
    one = with_consumers(coordinator(), "a")
    taken, change = one.register("a", Link(2, 0), "STREAM")
    assert change.superseded == Link(1, 0)
    assert taken.disconnect(1, 0) == taken
    assert taken.leave("a", Link(1, 0)) == (taken, Effects())


def test_repeated_registration_changes_nothing() -> None:
    one = with_consumers(coordinator(), "a")
    again, change = one.register("a", Link(1, 0), "STREAM")
    assert again == one
    assert pushed(change) == {"a": [0, 1, 2, 3]}
    assert change.superseded is None


@pytest.mark.parametrize("wrong", ["CHECKPOINT", "QUEUE"])
def test_other_subscription_type_refused(wrong: SubscriptionType) -> None:
    with pytest.raises(Conflict, match=f"Subscription billing exists with type STREAM, not {wrong}"):
        coordinator().register("a", Link(1, 0), wrong)


def test_surplus_consumer_refused_and_known_admitted() -> None:
    full = replace(coordinator(), sessions={str(number): Away(0) for number in range(MAX_CONSUMERS)})
    with pytest.raises(Conflict, match="more are not accepted"):
        full.register("one more", Link(1, 0), "STREAM")
    assert full.register("7", Link(1, 0), "STREAM")[0].sessions["7"] == Link(1, 0)


def test_queue_consumers_counted_never_assigned() -> None:
    one = coordinator(type="QUEUE")
    after, change = one.register("a", Link(1, 0), "QUEUE")
    assert change.events == (MembershipEvent("registered", "a", 1),)
    assert pushed(change) == {"a": []}
    assert after.follow(after.layout.split_segment(0, 1))[1].pushes == ()


def test_children_assigned_when_parent_drained() -> None:
    one = with_consumers(coordinator(segments=1), "a", "b")
    split, change = one.follow(one.layout.split_segment(0, 1))
    assert held(split) == {"a": [0], "b": []}
    assert change == Effects()
    drained, change = split.drain([0])
    assert pushed(change) == {"a": [1], "b": [2]}
    assert change.drained_changed
    assert {push.epoch for push in change.pushes} == {1}
    assert drained.drain([0])[1] == Effects()


def test_checkpoint_gets_children_at_once() -> None:
    one = with_consumers(coordinator(segments=1, type="CHECKPOINT"), "a")
    _, change = one.follow(one.layout.split_segment(0, 1))
    assert pushed(change) == {"a": [1, 0, 2]}


def test_an_active_segment_does_not_drain() -> None:
    assert not coordinator().drain([0, 99])[0].drained


def test_seek_on_parent_holds_children_back() -> None:
    one = with_consumers(coordinator(layout=SegmentLayout.create(1, 0).split_segment(0, 1).split_segment(1, 2)), "a")
    drained, _ = one.drain([0, 1])
    assert pushed(drained.reset_drained([0])[1]) == {"a": [1, 2]}
    assert pushed(drained.reset_drained([1])[1]) == {"a": [0]}
    assert drained.reset_drained([0, 1, 2, 77]) == (drained, Effects())


def test_an_older_layout_is_passed_over() -> None:
    old = SegmentLayout.create(1, 0)
    one = coordinator(layout=old.split_segment(0, 1))
    assert one.follow(old) == (one, Effects())


def test_new_leader_keeps_segments_and_full_grace() -> None:
    one = with_consumers(coordinator(), "a", "b").disconnect(1, now_ms=5)
    fresh = one.fresh_grace(one.sessions, 1_000_000)
    assert fresh.assignment == one.assignment
    assert set(fresh.sessions.values()) == {Away(1_000_000 + GRACE_MS)}


@dataclass
class Member:
    """What the model knows of a session, and what its client was told last."""

    link: Link | None
    until: int
    told: list[int] | None = None
    keeps: frozenset[int] = frozenset()
    """Without a connection: what it reads on until it is back or evicted."""


names = st.sampled_from(["a", "b", "c", "d", "e"])
links = st.builds(Link, st.integers(1, 4), st.integers(0, 2))


class AnyOrder(RuleBasedStateMachine):
    """The model: a dictionary of members, the segments by a walk up the parents, round robin by index."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.members: dict[str, Member] = {}
        self.drained: set[int] = set()

    @initialize(segments=st.integers(1, 4), type=st.sampled_from(["STREAM", "CHECKPOINT", "QUEUE"]))
    def create(self, segments: int, type: SubscriptionType) -> None:
        self.one = coordinator(segments, type)

    @rule(name=names, link=links)
    def register(self, name: str, link: Link) -> None:
        before = self.members.get(name)
        self.members[name] = Member(link, 0, before.told if before else None)
        old = before.link if before else None
        after, change = self.one.register(name, link, self.one.type)
        assert change.superseded == (old if old != link else None)
        assert name in pushed(change)
        if before is not None:
            assert len(change.pushes) == 1 or before.keeps
        self.take(after, change, [] if before else [("registered", name)], answered=name)

    @rule(connection=st.integers(1, 4))
    def disconnect(self, connection: int) -> None:
        for member in self.members.values():
            if member.link is not None and member.link.connection == connection:
                member.link, member.until = None, self.now + GRACE_MS
                member.told, member.keeps = None, frozenset(member.told or ())
        self.take(self.one.disconnect(connection, self.now), Effects(), [])

    @rule(name=names, link=links)
    def leave(self, name: str, link: Link) -> None:
        gone = [name] if name in self.members and self.members[name].link == link else []
        self.forget(gone)
        self.take(*self.one.leave(name, link), [("unregistered", one) for one in gone])

    @rule(passed=st.sampled_from([0, 1, GRACE_MS // 2, GRACE_MS - 1, GRACE_MS]))
    def expire(self, passed: int) -> None:
        self.now += passed
        gone = sorted(name for name, one in self.members.items() if one.link is None and one.until <= self.now)
        self.forget(gone)
        self.take(*self.one.expire(self.now), [("unregistered", name) for name in gone])

    @rule(choice=st.integers(0, 100), merge=st.booleans())
    def change_layout(self, choice: int, merge: bool) -> None:
        if len(self.one.layout.segments) < 20:
            self.take(*self.one.follow(step(self.one.layout, choice, merge, self.now)), [])

    @rule(choice=st.integers(0, 100))
    def drain(self, choice: int) -> None:
        if sealed := sealed_ids(self.one.layout):
            self.drained.add(sealed[choice % len(sealed)])
            self.take(*self.one.drain([sealed[choice % len(sealed)]]), [])

    @rule(choice=st.integers(0, 100))
    def prune(self, choice: int) -> None:
        if sealed := sorted(self.drained & set(sealed_ids(self.one.layout))):
            self.drained.remove(sealed[choice % len(sealed)])
            self.take(*self.one.follow(self.one.layout.prune_segment(sealed[choice % len(sealed)])), [])

    @rule(choice=st.integers(0, 100))
    def seek(self, choice: int) -> None:
        sealed = sealed_ids(self.one.layout)
        self.drained = {number for place, number in enumerate(sealed) if choice >> place % 7 & 1}
        self.take(*self.one.reset_drained(self.drained), [])

    @rule(passed=st.integers(0, 2 * GRACE_MS))
    def fail_over(self, passed: int) -> None:
        """A new leader has the layout and what was stored, as JSON, and nothing else."""
        self.now += passed
        before = self.one.assignment
        for name, member in self.members.items():
            member.link, member.until, member.told = None, self.now + GRACE_MS, None
            member.keeps = frozenset(held(self.one)[name])
        record = record_of(self.one).to_json()
        names = [registration.to_json() for registration in registrations(self.one)]
        self.one = restore(
            self.one.name,
            SubscriptionRecord.model_validate_json(record),
            [ConsumerRegistration.model_validate_json(name) for name in names],
            self.one.layout,
            GRACE_MS,
            self.now,
        )
        assert self.one.assignment == before

    def forget(self, gone: list[str]) -> None:
        for name in gone:
            del self.members[name]

    def take(
        self,
        after: SubscriptionCoordinator,
        change: Effects,
        expected: list[tuple[str, str]],
        answered: str | None = None,
    ) -> None:
        assert [(event.event, event.consumer) for event in change.events] == expected
        if change.events:
            assert change.events[-1].consumers == len(self.members)
        assert change.drained_changed == (self.one.drained != after.drained)
        assert change.contested_changed == (self.one.contested != after.contested)
        for push in change.pushes:
            member, told = self.members[push.consumer], [segment.segment_id for segment in push.segments]
            assert push.link == member.link
            assert push.epoch == after.layout.epoch
            assert push.consumer == answered or told != member.told
            member.told = told
        self.one = after

    def expected(self) -> dict[str, list[int]]:
        segments = self.one.layout.segments
        if self.one.type == "STREAM":

            def overtakes(number: int) -> bool:
                parents = [parent for parent in segments[number].parent_ids if parent in segments]
                return any(parent not in self.drained or overtakes(parent) for parent in parents)

            chosen = [number for number in segments if number not in self.drained and not overtakes(number)]
        else:
            chosen = list(segments) if self.one.type == "CHECKPOINT" else []
        order = sorted(chosen, key=lambda number: (segments[number].start, segments[number].end, number))
        who = sorted(self.members)
        keepers = {one: name for name, member in self.members.items() for one in member.keeps}
        owners = {one: keepers.get(one, who[at % len(who)]) for at, one in enumerate(order) if who}
        return {name: [one for one in order if owners.get(one) == name] for name in who}

    @invariant()
    def no_segment_is_read_by_two(self) -> None:
        read = [one for member in self.members.values() for one in {*(member.told or ()), *member.keeps}]
        assert len(read) == len(set(read)) or self.one.type == "QUEUE"

    @invariant()
    def every_connected_consumer_was_told_what_it_holds(self) -> None:
        assert held(self.one) == self.expected()
        for name, member in self.members.items():
            assert member.link is None or member.told == held(self.one)[name]

    @invariant()
    def what_is_drained_is_that_of_the_model(self) -> None:
        assert self.one.drained == self.drained

    @invariant()
    def sessions_and_the_next_instant_are_those_of_the_model(self) -> None:
        away = [member.until for member in self.members.values() if member.link is None]
        assert self.one.due() == min(away, default=None)
        assert {name: one if isinstance(one, Link) else None for name, one in self.one.sessions.items()} == {
            name: member.link for name, member in self.members.items()
        }


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = examples(20, stateful_step_count=40)
