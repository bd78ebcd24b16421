"""The store on both kinds of metadata stores: compare-and-set, fenced transactions, outbox, journal."""

from __future__ import annotations

import pytest

from anabranch.controller.errors import Conflict, NotLeader, PreconditionFailed, Unavailable
from anabranch.controller.leadership.leaders import Leaders
from anabranch.controller.metadata import store_paths
from anabranch.controller.metadata.commit_size import MAX_COMMIT_BYTES
from anabranch.controller.metadata.records import MAX_OPERATIONS
from anabranch.controller.operations.journal import (
    STEPS_SPLIT,
    Operation,
    OperationStep,
    list_operations,
    open_operation,
    save_operation,
)
from anabranch.controller.outbox.announcements import consumer_announcement
from anabranch.controller.outbox.entries import StoredOutbox
from decisions.topic.layout import SegmentLayout
from schemas.metadata import AutoScalePolicyOverride, ScalableTopicMetadata
from tests.controller.owned import OwnedStore
from tests.controller.places import Place

TOPIC = "topic://acme/shop/orders"
ODD_NAMES = ["a/b", ".", "..", "ü %2F", "x y", "controller", "#?&", "日本"]


@pytest.fixture
def store(place: Place) -> OwnedStore:
    return OwnedStore(place.open())


def layout(segments: int = 1) -> ScalableTopicMetadata:
    return SegmentLayout.create(segments, 1_000).to_metadata()


def version_of(store: OwnedStore) -> int:
    stored = store.topic(TOPIC)
    assert stored is not None
    return stored.version


def test_replacement_of_old_version_ignored(store: OwnedStore) -> None:
    with store.writing(TOPIC) as transaction:
        assert transaction.insert_topic(TOPIC, layout(1))
        assert not transaction.insert_topic(TOPIC, layout(7))
    version = version_of(store)
    with store.writing(TOPIC) as transaction:
        assert transaction.replace_layout(TOPIC, version, layout(2))
    with store.writing(TOPIC) as transaction:
        assert not transaction.replace_layout(TOPIC, version, layout(3))
    stored = store.topic(TOPIC)
    assert stored is not None
    assert len(stored.metadata.segments) == 2


def test_recreated_topic_gets_unused_version(store: OwnedStore) -> None:
    with store.writing(TOPIC) as transaction:
        transaction.insert_topic(TOPIC, layout(1))
    old = version_of(store)
    with store.writing(TOPIC) as transaction:
        transaction.begin_deletion(TOPIC, layout())
    assert store.topic(TOPIC) is None
    with store.writing(TOPIC) as transaction:
        transaction.insert_topic(TOPIC, layout(2))
        assert not transaction.replace_layout(TOPIC, old, layout(3))
    assert version_of(store) > old


def test_exception_discards_change_and_announcement(store: OwnedStore) -> None:
    def fail_half_way() -> None:
        with store.writing(TOPIC) as transaction:
            transaction.insert_topic(TOPIC, layout())
            transaction.announce(consumer_announcement(TOPIC, "s", "STREAM", "snapshot", 0, 1, created_at=None))
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        fail_half_way()
    assert store.topic(TOPIC) is None
    assert store.announced() == []


def test_announcements_keep_commit_order_and_fence(store: OwnedStore) -> None:
    """They leave in the order of the commits, and only with the fence."""
    records = [
        consumer_announcement(TOPIC, f"s{number}", "STREAM", "snapshot", 0, 1, created_at=None) for number in range(12)
    ]
    for number in range(0, 12, 2):
        with store.writing(f"{TOPIC}{number % 3}") as transaction:
            transaction.announce(records[number])
            transaction.announce(None)
            transaction.announce(records[number + 1])
    assert store.announced() == records
    outbox = StoredOutbox(store.nodes)
    names = outbox.names()
    assert len(names) == 6
    outbox.drop(names[:2], store.leaders.lead(TOPIC).check)
    assert store.announced() == records[4:]
    assert outbox.names(after=names[3]) == names[4:]


def test_topic_deletion_removes_its_subscriptions(store: OwnedStore) -> None:
    with store.writing(TOPIC) as transaction:
        transaction.insert_topic(TOPIC, layout())
        transaction.insert_subscription(TOPIC, "s", "STREAM")
        transaction.insert_consumer(TOPIC, "s", "c")
        assert transaction.subscription(TOPIC, "s") == ("s", "STREAM", 1)
    with store.writing(TOPIC) as transaction:
        transaction.begin_deletion(TOPIC, layout())
    store.clear(store.leaders.lead(TOPIC))
    with store.writing(TOPIC) as transaction:
        transaction.insert_topic(TOPIC, layout())
        assert transaction.subscriptions(TOPIC) == []
        transaction.insert_subscription(TOPIC, "s", "STREAM")
        assert transaction.insert_consumer(TOPIC, "s", "c")
    assert store.leaders.release(TOPIC)
    assert store.nodes.get(store_paths.topic_path(TOPIC))


def test_released_deleted_topic_leaves_nothing(store: OwnedStore) -> None:
    with store.writing(TOPIC) as transaction:
        transaction.insert_topic(TOPIC, layout())
        transaction.insert_subscription(TOPIC, "s", "STREAM")
        transaction.insert_consumer(TOPIC, "s", "c", session=True)
        save_operation(transaction, operation("op", "done"))
    assert store.topics_needing_leader() == [TOPIC]
    with store.writing(TOPIC) as transaction:
        transaction.begin_deletion(TOPIC, layout())
    store.clear(store.leaders.lead(TOPIC))
    assert store.leaders.release(TOPIC)
    assert store.all_topics() == store.topics_needing_leader() == store.leaders.topics() == []


def test_repeated_release_of_no_topic_leaves_nothing(store: OwnedStore) -> None:
    for _ in range(50):
        store.leaders.lead(TOPIC)
        assert store.leaders.release(TOPIC)
        assert store.all_topics() == store.leaders.topics() == []


def test_everything_is_there_after_reopening(place: Place) -> None:
    store = OwnedStore(place.open())
    with store.writing(TOPIC) as transaction:
        transaction.insert_topic(TOPIC, layout(4))
        transaction.insert_subscription(TOPIC, "s", "QUEUE")
        transaction.insert_consumer(TOPIC, "s", "c")
    with store.write_policy() as transaction:
        transaction.set_namespace_policy("acme/shop", AutoScalePolicyOverride(max_segments=4))
    store.close()
    again = OwnedStore(place.open())
    stored = again.topic(TOPIC)
    assert stored is not None
    assert stored.metadata == layout(4)
    assert again.subscription(TOPIC, "s") == ("s", "QUEUE", 1)
    assert again.namespace_policies() == {"acme/shop": AutoScalePolicyOverride(max_segments=4)}
    assert again.leaders.leader(TOPIC) is None


def test_any_name_is_one_name_of_a_path(store: OwnedStore) -> None:
    topic = "topic://acme/sh%op/%2F"
    with store.writing(topic) as transaction:
        transaction.insert_topic(topic, layout())
        for name in ODD_NAMES:
            transaction.insert_subscription(topic, name, "STREAM")
            for consumer in ODD_NAMES:
                assert transaction.insert_consumer(topic, name, consumer, session=True)
    assert [found.name for found in store.subscriptions(topic)] == sorted(ODD_NAMES)
    for name in ODD_NAMES:
        members = store.members(topic, name)
        assert members is not None
        assert members.consumers == dict.fromkeys(ODD_NAMES, True)
    assert [name for name, _ in store.topics_of("acme/sh%op")] == [topic]
    assert store.all_topics() == store.topics_needing_leader() == [topic]


def test_a_term_that_has_ended_commits_nothing(place: Place) -> None:
    nodes = place.open()
    old, new = OwnedStore(nodes, "http://old"), Leaders(nodes, "http://new")
    term = old.leaders.lead(TOPIC)
    with pytest.raises(NotLeader) as refused:
        new.lead(TOPIC)
    assert refused.value.url == "http://old"
    assert old.leaders.release(TOPIC)
    assert new.lead(TOPIC).version != term.version
    with pytest.raises(Unavailable, match="does not lead"), old.write(term) as transaction:
        transaction.insert_topic(TOPIC, layout())
    assert old.topic(TOPIC) is None


def test_concurrent_policy_changes_one_refused(store: OwnedStore) -> None:
    def change() -> None:
        with store.write_policy() as first:
            first.set_namespace_policy("a/b", AutoScalePolicyOverride(max_segments=1))
            with store.write_policy() as second:
                second.set_namespace_policy("a/b", AutoScalePolicyOverride(max_segments=2))

    with pytest.raises(Conflict):
        change()
    assert store.namespace_policy("a/b") == AutoScalePolicyOverride(max_segments=2)


def operation(id: str, step: OperationStep = "create-children") -> Operation:
    return Operation(
        id=id,
        topic=TOPIC,
        kind="split",
        segments=("0000-ffff-0",),
        children=("0000-7fff-1", "8000-ffff-2"),
        step=step,
        epoch=0,
        started_at=1_000,
    )


def test_one_open_operation_per_topic(store: OwnedStore) -> None:
    """The newest ended operations are kept."""
    with store.writing(TOPIC) as transaction:
        transaction.insert_topic(TOPIC, layout())
    for number in range(MAX_OPERATIONS + 2):
        for step in (STEPS_SPLIT[0], STEPS_SPLIT[-1]):
            with store.writing(TOPIC) as transaction:
                save_operation(transaction, operation(f"op{number}", step))
    assert open_operation(store, TOPIC) is None
    with store.writing(TOPIC) as transaction:
        save_operation(transaction, operation("open"))
    with pytest.raises(Conflict, match="open"), store.writing(TOPIC) as transaction:
        save_operation(transaction, operation("another"))
    assert open_operation(store, TOPIC) == operation("open")
    assert store.topics_needing_leader() == [TOPIC]
    kept = [f"op{number}" for number in range(MAX_OPERATIONS + 1, 1, -1)]
    assert [found.id for found in list_operations(store, TOPIC)] == ["open", *kept]


def test_layout_too_large_for_zookeeper_refused(place: Place) -> None:
    if place.zookeeper is None:
        return
    store = OwnedStore(place.open())
    with pytest.raises(PreconditionFailed, match=str(MAX_COMMIT_BYTES)), store.writing(TOPIC) as transaction:
        transaction.insert_topic(TOPIC, layout(8_000))
    with store.writing(TOPIC) as transaction:
        assert transaction.insert_topic(TOPIC, layout(1_000))
