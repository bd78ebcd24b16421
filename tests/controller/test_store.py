"""The store: compare-and-set, transactions, and what it refuses to open."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.announcements import consumer_record
from controller.errors import StartError
from controller.protocol import STEPS_SPLIT, Operation, Step
from controller.store import MAX_OPERATIONS, LayoutStore
from decisions.layout import SegmentLayout
from schemas.metadata import ScalableTopicMetadata

TOPIC = "topic://acme/shop/orders"
FIRST_FORMAT = """
CREATE TABLE topics (
    topic TEXT PRIMARY KEY,
    namespace TEXT NOT NULL,
    version INTEGER NOT NULL,
    oldest_sealed_ms INTEGER,
    metadata TEXT NOT NULL
);
CREATE INDEX topics_by_namespace ON topics (namespace, topic);
CREATE INDEX topics_by_oldest_sealed ON topics (oldest_sealed_ms) WHERE oldest_sealed_ms IS NOT NULL;
CREATE TABLE subscriptions (
    topic TEXT NOT NULL REFERENCES topics ON DELETE CASCADE,
    name TEXT NOT NULL,
    type TEXT NOT NULL,
    PRIMARY KEY (topic, name)
) WITHOUT ROWID;
CREATE TABLE consumers (
    topic TEXT NOT NULL,
    subscription TEXT NOT NULL,
    name TEXT NOT NULL,
    PRIMARY KEY (topic, subscription, name),
    FOREIGN KEY (topic, subscription) REFERENCES subscriptions ON DELETE CASCADE
) WITHOUT ROWID;
CREATE TABLE namespace_policies (namespace TEXT PRIMARY KEY, policy TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE outbox (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    source TEXT NOT NULL,
    key TEXT NOT NULL,
    value BLOB NOT NULL
);
CREATE TABLE last_version (value INTEGER NOT NULL);
INSERT INTO last_version VALUES (0);
PRAGMA user_version = 1;
"""
"""What the first controllers wrote."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LayoutStore]:
    opened = LayoutStore(tmp_path / "var" / "layouts.db")
    yield opened
    opened.close()


def layout(segments: int = 1) -> ScalableTopicMetadata:
    return SegmentLayout.create(segments, 1_000).to_metadata()


def version_of(store: LayoutStore) -> int:
    with store.read() as view:
        stored = view.topic(TOPIC)
    assert stored is not None
    return stored.version


def test_a_replacement_on_an_old_version_changes_nothing(store: LayoutStore) -> None:
    with store.write() as transaction:
        assert transaction.insert_topic(TOPIC, layout(1))
    version = version_of(store)
    with store.write() as transaction:
        assert transaction.replace_layout(TOPIC, version, layout(2))
    with store.write() as transaction:
        assert not transaction.replace_layout(TOPIC, version, layout(3))
    with store.read() as view:
        stored = view.topic(TOPIC)
    assert stored is not None
    assert len(stored.metadata.segments) == 2


def test_a_version_is_not_used_again_by_a_topic_created_anew(store: LayoutStore) -> None:
    with store.write() as transaction:
        transaction.insert_topic(TOPIC, layout(1))
    old = version_of(store)
    with store.write() as transaction:
        transaction.delete_topic(TOPIC)
        transaction.insert_topic(TOPIC, layout(2))
        assert not transaction.replace_layout(TOPIC, old, layout(3))
    assert version_of(store) > old


def test_what_raises_leaves_neither_the_change_nor_its_announcement(store: LayoutStore) -> None:
    def fail_half_way() -> None:
        with store.write() as transaction:
            transaction.insert_topic(TOPIC, layout())
            transaction.announce(consumer_record(TOPIC, "s", "STREAM", "snapshot", 0, 1))
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        fail_half_way()
    with store.read() as view:
        assert view.topic(TOPIC) is None
        assert view.outbox_length() == 0
    assert not store.announced.is_set()


def test_only_the_confirmed_beginning_of_the_outbox_is_dropped(store: LayoutStore) -> None:
    with store.write() as transaction:
        for number in range(5):
            transaction.announce(consumer_record(TOPIC, f"s{number}", "STREAM", "snapshot", 0, 1))
    with store.read() as view:
        entries = view.outbox_after(0, 10)
    assert store.announced.is_set()
    with store.write() as transaction:
        transaction.drop_outbox_until(entries[2].seq)
    with store.read() as view:
        assert view.outbox_after(0, 10) == entries[3:]


def test_deleting_a_topic_takes_its_subscriptions_and_sessions_along(store: LayoutStore) -> None:
    with store.write() as transaction:
        transaction.insert_topic(TOPIC, layout())
        transaction.insert_subscription(TOPIC, "s", "STREAM")
        transaction.insert_consumer(TOPIC, "s", "c")
        transaction.delete_topic(TOPIC)
        transaction.insert_topic(TOPIC, layout())
        assert transaction.subscriptions(TOPIC) == []
        transaction.insert_subscription(TOPIC, "s", "STREAM")
        assert transaction.insert_consumer(TOPIC, "s", "c")


def test_everything_is_there_after_reopening(tmp_path: Path) -> None:
    first = LayoutStore(tmp_path / "layouts.db")
    with first.write() as transaction:
        transaction.insert_topic(TOPIC, layout(4))
        transaction.insert_subscription(TOPIC, "s", "QUEUE")
        transaction.insert_consumer(TOPIC, "s", "c")
    first.close()
    second = LayoutStore(tmp_path / "layouts.db")
    with second.read() as view:
        stored = view.topic(TOPIC)
        assert stored is not None
        assert stored.metadata == layout(4)
        assert view.subscription(TOPIC, "s") == ("s", "QUEUE", 1)
    second.close()


def test_a_second_controller_on_the_same_file_is_refused(tmp_path: Path) -> None:
    first = LayoutStore(tmp_path / "layouts.db")
    with pytest.raises(StartError, match="in use by another controller"):
        LayoutStore(tmp_path / "layouts.db")
    first.close()
    LayoutStore(tmp_path / "layouts.db").close()


def test_a_file_of_the_first_format_is_brought_up_with_all_that_it_holds(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "layouts.db") as connection:
        connection.executescript(FIRST_FORMAT)
        connection.execute("INSERT INTO topics VALUES (?, 'acme/shop', 7, NULL, ?)", (TOPIC, layout(4).to_json()))
        connection.execute("INSERT INTO subscriptions VALUES (?, 's', 'QUEUE')", (TOPIC,))
        connection.execute("INSERT INTO consumers VALUES (?, 's', 'c')", (TOPIC,))
    connection.close()
    for _ in range(2):
        store = LayoutStore(tmp_path / "layouts.db")
        with store.read() as view:
            stored = view.topic(TOPIC)
            assert stored is not None
            assert (stored.version, stored.metadata) == (7, layout(4))
            assert view.subscription(TOPIC, "s") == ("s", "QUEUE", 1)
            assert view.open_operations() == []
        store.close()


def operation(id: str, step: Step = "create-children") -> Operation:
    return Operation(
        id=id, topic=TOPIC, kind="split", segments=("0000-ffff-0",), children=("0000-7fff-1", "8000-ffff-2"),
        step=step, epoch=0, started_at=1_000,
    )  # fmt: skip


def test_of_a_topic_one_operation_is_open_and_the_newest_ended_ones_are_kept(store: LayoutStore) -> None:
    with store.write() as transaction:
        transaction.insert_topic(TOPIC, layout())
    for number in range(MAX_OPERATIONS + 5):
        for step in STEPS_SPLIT:
            with store.write() as transaction:
                transaction.save_operation(operation(f"op{number}", step))
    with store.write() as transaction:
        transaction.save_operation(operation("open"))
    with pytest.raises(sqlite3.IntegrityError), store.write() as transaction:
        transaction.save_operation(operation("another"))
    with store.read() as view:
        assert view.open_operation(TOPIC) == operation("open")
        assert [found.id for found in view.operations(TOPIC)] == [
            "open", *(f"op{number}" for number in range(MAX_OPERATIONS + 4, 4, -1))
        ]  # fmt: skip
    with store.write() as transaction:
        transaction.delete_topic(TOPIC)
    with store.read() as view:
        assert view.operations(TOPIC) == view.open_operations() == [operation("open")]


def test_a_file_of_a_later_format_is_refused(tmp_path: Path) -> None:
    LayoutStore(tmp_path / "layouts.db").close()
    with sqlite3.connect(tmp_path / "layouts.db") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StartError, match="format 99"):
        LayoutStore(tmp_path / "layouts.db")


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "layouts.db").write_text("these are not the layouts " * 100)
    with pytest.raises(StartError, match="cannot use"):
        LayoutStore(tmp_path / "layouts.db")


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "var").write_text("a file in the way")
    with pytest.raises(StartError, match="cannot open"):
        LayoutStore(tmp_path / "var" / "layouts.db")
