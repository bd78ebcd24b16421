"""The channel's pure rules: transitions, conflicts, lookups, reactions, recovery, at their boundaries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decisions.bundles.channel.conflicts import ConflictRefusal, refuse_record
from decisions.bundles.channel.records import IN_FLIGHT, LAST_VERSION, BundleRecord, State, Store
from tests.decisions.channel.protocol import (
    ChannelAnswer,
    ChannelClients,
    ChannelWrite,
    Lookup,
    advance_split,
    assign_bundle,
    is_to_be_removed,
    lookup_owner,
    react_to_record,
    split_bundle,
    unload_bundle,
)
from tests.decisions.channel.recovery import (
    Session,
    monitor_bundle,
    override_record,
    recovery_order,
    reowned_at,
    session_health,
)

TOPIC, METADATA = Store.TOPIC, Store.METADATA
OWNED = BundleRecord(State.OWNED, 2, "a")
MOVING = BundleRecord(State.RELEASING, 3, "b", "a")
SPLIT = BundleRecord(State.SPLITTING, 3, "", "a", children=(("l", ""), ("r", "c")))

brokers = st.sampled_from(["", "a", "b", "c"])
records = st.builds(
    BundleRecord,
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
        (None, BundleRecord(State.ASSIGNING, 1, "a"), None, None),
        (None, BundleRecord(State.OWNED, 1, "a"), None, None),
        (None, BundleRecord(State.OWNED, 7, "a"), None, ConflictRefusal.NOT_FIRST),
        (None, BundleRecord(State.INIT, 1), ConflictRefusal.TRANSITION, None),
        (OWNED, None, None, None),
        (OWNED, MOVING._replace(version=2), ConflictRefusal.STALE, ConflictRefusal.STALE),
        (OWNED, MOVING._replace(version=2, force=True), ConflictRefusal.STALE, ConflictRefusal.STALE),
        (OWNED, MOVING, None, None),
        (OWNED, MOVING._replace(version=4), None, ConflictRefusal.GAP),
        (OWNED, MOVING._replace(destination=""), None, None),
        (OWNED, MOVING._replace(destination="a"), ConflictRefusal.BROKERS, ConflictRefusal.BROKERS),
        (OWNED, MOVING._replace(source="c"), ConflictRefusal.BROKERS, ConflictRefusal.BROKERS),
        (OWNED, BundleRecord(State.FREE, 3, "", "a"), ConflictRefusal.TRANSITION, ConflictRefusal.TRANSITION),
        (OWNED, BundleRecord(State.FREE, 3, "", "a", force=True), None, None),
        (OWNED, SPLIT, None, None),
        (OWNED, SPLIT._replace(destination="b"), ConflictRefusal.BROKERS, ConflictRefusal.BROKERS),
        (MOVING, BundleRecord(State.ASSIGNING, 4, "b", "a"), None, None),
        (MOVING, BundleRecord(State.ASSIGNING, 4, "c", "a"), ConflictRefusal.BROKERS, ConflictRefusal.BROKERS),
        (
            MOVING._replace(destination=""),
            BundleRecord(State.ASSIGNING, 4, "", "a"),
            ConflictRefusal.BROKERS,
            ConflictRefusal.BROKERS,
        ),
        (BundleRecord(State.FREE, 4, "", "a"), BundleRecord(State.ASSIGNING, 5, "b"), None, None),
        (
            BundleRecord(State.FREE, 4, "", "a"),
            BundleRecord(State.ASSIGNING, 5, "b", "a"),
            ConflictRefusal.BROKERS,
            ConflictRefusal.BROKERS,
        ),
        (SPLIT, BundleRecord(State.DELETED, 4, "", "a"), None, None),
        (OWNED._replace(version=LAST_VERSION), MOVING._replace(version=-LAST_VERSION - 1), None, None),
    ],
)
def test_a_conflict_ends_as_upstreams_resolver_has_it(old, new, topic, metadata):
    assert (refuse_record(old, new, TOPIC), refuse_record(old, new, METADATA)) == (topic, metadata)


@given(maybe, records)
def test_nobody_takes_the_same_record_twice(old, new):
    for store in Store:
        assert refuse_record(new, new, store) is ConflictRefusal.STALE
        if old is not None and new.version <= old.version:
            assert refuse_record(old, new, store) is ConflictRefusal.STALE


@given(st.lists(maybe, max_size=8), st.data())
def test_compacted_reader_knows_as_much(messages, data):
    def folded(start, some):
        for one in some:
            start = start if refuse_record(start, one, TOPIC) else one
        return start

    cut = data.draw(st.integers(0, len(messages)))
    compacted = folded(None, messages[:cut])
    assert folded(None, [compacted, *messages[cut:]]) == folded(None, messages)


@given(maybe.filter(lambda record: record is None or record.source or record.destination), brokers, brokers)
def test_own_messages_accepted_after_any_record(record, me, to):
    if record is not None and record.state is State.OWNED and not record.destination:
        record = record._replace(destination="c")
    written = [
        unload_bundle(record, to, 0),
        override_record(record, "a", me, 0),
        monitor_bundle(record, {me}, me, 60_000),
    ]
    written += [one.record for one in react_to_record(me, "x", record, 0).writes if me]
    written += [split_bundle(record, [("l", "")], 0), assign_bundle(record, me or "a", 0)]
    for one in filter(None, written):
        assert refuse_record(record, one, TOPIC) is None


@pytest.mark.parametrize(
    ("record", "answer"),
    [
        (None, Lookup(ChannelAnswer.NOBODY)),
        (BundleRecord(State.FREE, 1, "", "a"), Lookup(ChannelAnswer.NOBODY)),
        (OWNED, Lookup(ChannelAnswer.OWNER, "a")),
        (SPLIT, Lookup(ChannelAnswer.OWNER, "a")),
        (BundleRecord(State.DELETED, 4, "", "a"), Lookup(ChannelAnswer.DELETED)),
        (MOVING, Lookup(ChannelAnswer.LATER, "b", 31_000)),
        (MOVING._replace(destination="c"), Lookup(ChannelAnswer.OWNER, "c")),
        (BundleRecord(State.ASSIGNING, 1, "b"), Lookup(ChannelAnswer.LATER, "b", 31_000)),
        (MOVING._replace(destination=""), Lookup(ChannelAnswer.NOBODY)),
    ],
)
def test_a_lookup_at_b_says_who_owns_or_waits_for_b(record, answer):
    assert lookup_owner(record, "b", 1_000) == answer


def test_transfer_fences_assigns_owns_and_closes():
    released = react_to_record("a", "x", MOVING, 7)
    assert released.clients is ChannelClients.FENCE
    assert react_to_record("a", "x", MOVING, 7, multi_phase=False).clients is ChannelClients.CLOSE
    assigning = released.writes[0].record
    assert assigning == BundleRecord(State.ASSIGNING, 4, "b", "a", at=7)
    assert not react_to_record("a", "x", assigning, 8).writes
    owned = react_to_record("b", "x", assigning, 8).writes[0].record
    assert owned == BundleRecord(State.OWNED, 5, "b", "a", at=8)
    assert [react_to_record(one, "x", owned, 9).clients for one in "ab"] == [ChannelClients.CLOSE, ChannelClients.SERVE]


def test_an_unload_without_destination_ends_free():
    [written] = react_to_record("a", "x", MOVING._replace(destination=""), 7).writes
    assert written == ChannelWrite("x", BundleRecord(State.FREE, 4, "", "a", at=7))


def test_split_writes_children_then_deletes_parent():
    left, right = (
        ChannelWrite("l", BundleRecord(State.OWNED, 1, "a", at=5)),
        ChannelWrite("r", BundleRecord(State.OWNED, 1, "a", at=5)),
    )
    assert advance_split("a", "x", SPLIT, {}, 5) == (left, right)
    assert advance_split("a", "x", SPLIT, {"l": left.record}, 5) == (right,)
    [gone] = advance_split("a", "x", SPLIT, {"l": left.record, "r": right.record}, 5)
    assert gone == ChannelWrite("x", BundleRecord(State.DELETED, 4, "", "a", at=5))
    assert advance_split("b", "x", SPLIT, {}, 5) == ()
    assert not is_to_be_removed(gone.record, 5 + 3_600_000)
    assert is_to_be_removed(gone.record, 6 + 3_600_000)


def test_lost_broker_trusted_by_session_health():
    healths = [
        session_health(False, 5, 9),
        session_health(True, 1_000, 180_999),
        session_health(True, 1_000, 181_000),
        session_health(True, 0, 1),
    ]
    assert healths == [Session.UNSTABLE, Session.JITTERY, Session.STABLE, Session.STABLE]
    assert [reowned_at(one, 10) for one in healths] == [None, 180_010, 10, 10]
    assert recovery_order(["pulsar/system/x", "z/z/x"]) == ["z/z/x", "pulsar/system/x"]


@pytest.mark.parametrize("state", sorted(IN_FLIGHT))
def test_the_monitor_leaves_a_change_thirty_seconds(state):
    record = BundleRecord(state, 3, "" if state is State.SPLITTING else "b", "a", at=1_000)
    assert monitor_bundle(record, {"a", "b"}, "c", 31_000) is None
    written = monitor_bundle(record, {"a", "b"}, "c", 31_001)
    now_at = {State.ASSIGNING: (State.OWNED, "c"), State.RELEASING: (State.OWNED, "a"), State.SPLITTING: (state, "")}
    assert (written.state, written.destination, written.version, written.force) == (*now_at[state], 4, True)


def test_dead_brokers_bundles_reassigned_or_freed():
    """Freed where there is no candidate."""
    assert monitor_bundle(OWNED, {"b"}, "b", 0) == BundleRecord(State.OWNED, 3, "b", "a", force=True)
    assert monitor_bundle(OWNED, {"b"}, "", 0) == BundleRecord(State.FREE, 3, "", "a", force=True)
    assert monitor_bundle(SPLIT, {"b"}, "b", 0) == SPLIT._replace(version=4, source="b", force=True)
    assert monitor_bundle(OWNED, {"a"}, "b", 10**6) is None


@pytest.mark.parametrize(("lost", "alive"), [("a", {"b", "c"}), ("b", {"a", "c"})])
def test_hand_over_overridden_if_a_side_is_lost(lost, alive):
    for record in (MOVING, MOVING._replace(state=State.ASSIGNING)):
        assert monitor_bundle(record, alive, "c", 0) == BundleRecord(State.OWNED, 4, "c", lost, force=True)
    # The source of what was handed over long ago concerns nobody.
    assert monitor_bundle(MOVING._replace(state=State.OWNED), {"b"}, "c", 0) is None


def test_only_unowned_bundles_removed_after_an_hour():
    assert is_to_be_removed(BundleRecord(State.FREE, 4, "", "a"), 3_600_001)
    assert not is_to_be_removed(OWNED, 10**9)
