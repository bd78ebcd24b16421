"""The channel's pure rules: transitions, conflicts, lookups, reactions, recovery, at their boundaries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decisions.bundles.channel.conflicts import Refusal, refusal
from decisions.bundles.channel.protocol import (
    Answer,
    Clients,
    Lookup,
    Write,
    advance_split,
    assign,
    is_to_be_removed,
    lookup,
    react,
    split,
    unload,
)
from decisions.bundles.channel.records import IN_FLIGHT, LAST_VERSION, Record, State, Store
from decisions.bundles.channel.recovery import Session, monitor, override, recovery_order, reowned_at, session

TOPIC, METADATA = Store.TOPIC, Store.METADATA
OWNED = Record(State.OWNED, 2, "a")
MOVING = Record(State.RELEASING, 3, "b", "a")
SPLIT = Record(State.SPLITTING, 3, "", "a", children=(("l", ""), ("r", "c")))

brokers = st.sampled_from(["", "a", "b", "c"])
records = st.builds(
    Record,
    st.sampled_from([one for one in State if one is not State.INIT]),
    st.integers(1, 5),
    brokers,
    brokers,
    st.booleans(),
    st.just(()),
    st.just(0),
)
maybe = st.none() | records


@pytest.mark.parametrize(
    ("old", "new", "topic", "metadata"),
    [
        (None, Record(State.ASSIGNING, 1, "a"), None, None),
        (None, Record(State.OWNED, 1, "a"), None, None),
        (None, Record(State.OWNED, 7, "a"), None, Refusal.NOT_FIRST),
        (None, Record(State.INIT, 1), Refusal.TRANSITION, None),
        (OWNED, None, None, None),
        (OWNED, MOVING._replace(version=2), Refusal.STALE, Refusal.STALE),
        (OWNED, MOVING._replace(version=2, force=True), Refusal.STALE, Refusal.STALE),
        (OWNED, MOVING, None, None),
        (OWNED, MOVING._replace(version=4), None, Refusal.GAP),
        (OWNED, MOVING._replace(destination=""), None, None),
        (OWNED, MOVING._replace(destination="a"), Refusal.BROKERS, Refusal.BROKERS),
        (OWNED, MOVING._replace(source="c"), Refusal.BROKERS, Refusal.BROKERS),
        (OWNED, Record(State.FREE, 3, "", "a"), Refusal.TRANSITION, Refusal.TRANSITION),
        (OWNED, Record(State.FREE, 3, "", "a", force=True), None, None),
        (OWNED, SPLIT, None, None),
        (OWNED, SPLIT._replace(destination="b"), Refusal.BROKERS, Refusal.BROKERS),
        (MOVING, Record(State.ASSIGNING, 4, "b", "a"), None, None),
        (MOVING, Record(State.ASSIGNING, 4, "c", "a"), Refusal.BROKERS, Refusal.BROKERS),
        (MOVING._replace(destination=""), Record(State.ASSIGNING, 4, "", "a"), Refusal.BROKERS, Refusal.BROKERS),
        (Record(State.FREE, 4, "", "a"), Record(State.ASSIGNING, 5, "b"), None, None),
        (Record(State.FREE, 4, "", "a"), Record(State.ASSIGNING, 5, "b", "a"), Refusal.BROKERS, Refusal.BROKERS),
        (SPLIT, Record(State.DELETED, 4, "", "a"), None, None),
        (OWNED._replace(version=LAST_VERSION), MOVING._replace(version=-LAST_VERSION - 1), None, None),
    ],
)
def test_a_conflict_ends_as_upstreams_resolver_has_it(old, new, topic, metadata):
    assert (refusal(old, new, TOPIC), refusal(old, new, METADATA)) == (topic, metadata)


@given(maybe, records)
def test_nobody_takes_the_same_record_twice(old, new):
    for store in Store:
        assert refusal(new, new, store) is Refusal.STALE
        if old is not None and new.version <= old.version:
            assert refusal(old, new, store) is Refusal.STALE


@given(st.lists(maybe, max_size=8), st.data())
def test_compacted_reader_knows_as_much(messages, data):
    def folded(start, some):
        for one in some:
            start = start if refusal(start, one, TOPIC) else one
        return start

    cut = data.draw(st.integers(0, len(messages)))
    compacted = folded(None, messages[:cut])
    assert folded(None, [compacted, *messages[cut:]]) == folded(None, messages)


@given(maybe.filter(lambda record: record is None or record.source or record.destination), brokers, brokers)
def test_own_messages_accepted_after_any_record(record, me, to):
    if record is not None and record.state is State.OWNED and not record.destination:
        record = record._replace(destination="c")
    written = [unload(record, to, 0), override(record, "a", me, 0), monitor(record, {me}, me, 60_000)]
    written += [one.record for one in react(me, "x", record, 0).writes if me]
    written += [split(record, [("l", "")], 0), assign(record, me or "a", 0)]
    for one in filter(None, written):
        assert refusal(record, one, TOPIC) is None


@pytest.mark.parametrize(
    ("record", "answer"),
    [
        (None, Lookup(Answer.NOBODY)),
        (Record(State.FREE, 1, "", "a"), Lookup(Answer.NOBODY)),
        (OWNED, Lookup(Answer.OWNER, "a")),
        (SPLIT, Lookup(Answer.OWNER, "a")),
        (Record(State.DELETED, 4, "", "a"), Lookup(Answer.DELETED)),
        (MOVING, Lookup(Answer.LATER, "b", 31_000)),
        (MOVING._replace(destination="c"), Lookup(Answer.OWNER, "c")),
        (Record(State.ASSIGNING, 1, "b"), Lookup(Answer.LATER, "b", 31_000)),
        (MOVING._replace(destination=""), Lookup(Answer.NOBODY)),
    ],
)
def test_a_lookup_at_b_says_who_owns_or_waits_for_b(record, answer):
    assert lookup(record, "b", 1_000) == answer


def test_transfer_fences_assigns_owns_and_closes():
    released = react("a", "x", MOVING, 7)
    assert released.clients is Clients.FENCE
    assert react("a", "x", MOVING, 7, multi_phase=False).clients is Clients.CLOSE
    assigning = released.writes[0].record
    assert assigning == Record(State.ASSIGNING, 4, "b", "a", at=7)
    assert not react("a", "x", assigning, 8).writes
    owned = react("b", "x", assigning, 8).writes[0].record
    assert owned == Record(State.OWNED, 5, "b", "a", at=8)
    assert [react(one, "x", owned, 9).clients for one in "ab"] == [Clients.CLOSE, Clients.SERVE]


def test_an_unload_without_destination_ends_free():
    [written] = react("a", "x", MOVING._replace(destination=""), 7).writes
    assert written == Write("x", Record(State.FREE, 4, "", "a", at=7))


def test_split_writes_children_then_deletes_parent():
    left, right = Write("l", Record(State.OWNED, 1, "a", at=5)), Write("r", Record(State.OWNED, 1, "a", at=5))
    assert advance_split("a", "x", SPLIT, {}, 5) == (left, right)
    assert advance_split("a", "x", SPLIT, {"l": left.record}, 5) == (right,)
    [gone] = advance_split("a", "x", SPLIT, {"l": left.record, "r": right.record}, 5)
    assert gone == Write("x", Record(State.DELETED, 4, "", "a", at=5))
    assert advance_split("b", "x", SPLIT, {}, 5) == ()
    assert not is_to_be_removed(gone.record, 5 + 3_600_000)
    assert is_to_be_removed(gone.record, 6 + 3_600_000)


def test_lost_broker_trusted_by_session_health():
    healths = [session(False, 5, 9), session(True, 1_000, 180_999), session(True, 1_000, 181_000), session(True, 0, 1)]
    assert healths == [Session.UNSTABLE, Session.JITTERY, Session.STABLE, Session.STABLE]
    assert [reowned_at(one, 10) for one in healths] == [None, 180_010, 10, 10]
    assert recovery_order(["pulsar/system/x", "z/z/x"]) == ["z/z/x", "pulsar/system/x"]


@pytest.mark.parametrize("state", sorted(IN_FLIGHT))
def test_the_monitor_leaves_a_change_thirty_seconds(state):
    record = Record(state, 3, "" if state is State.SPLITTING else "b", "a", at=1_000)
    assert monitor(record, {"a", "b"}, "c", 31_000) is None
    written = monitor(record, {"a", "b"}, "c", 31_001)
    now_at = {State.ASSIGNING: (State.OWNED, "c"), State.RELEASING: (State.OWNED, "a"), State.SPLITTING: (state, "")}
    assert (written.state, written.destination, written.version, written.force) == (*now_at[state], 4, True)


def test_dead_brokers_bundles_reassigned_or_freed():
    """Freed where there is no candidate."""
    assert monitor(OWNED, {"b"}, "b", 0) == Record(State.OWNED, 3, "b", "a", force=True)
    assert monitor(OWNED, {"b"}, "", 0) == Record(State.FREE, 3, "", "a", force=True)
    assert monitor(SPLIT, {"b"}, "b", 0) == SPLIT._replace(version=4, source="b", force=True)
    assert monitor(OWNED, {"a"}, "b", 10**6) is None


@pytest.mark.parametrize(("lost", "alive"), [("a", {"b", "c"}), ("b", {"a", "c"})])
def test_hand_over_overridden_if_a_side_is_lost(lost, alive):
    for record in (MOVING, MOVING._replace(state=State.ASSIGNING)):
        assert monitor(record, alive, "c", 0) == Record(State.OWNED, 4, "c", lost, force=True)
    # The source of what was handed over long ago concerns nobody.
    assert monitor(MOVING._replace(state=State.OWNED), {"b"}, "c", 0) is None


def test_only_unowned_bundles_removed_after_an_hour():
    assert is_to_be_removed(Record(State.FREE, 4, "", "a"), 3_600_001)
    assert not is_to_be_removed(OWNED, 10**9)
