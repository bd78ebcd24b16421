"""Databases of older controllers: upgraded once, with all their contents."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from anabranch.controller.metadata.sqlite import FORMAT, SqliteStore
from anabranch.controller.metadata.upgrade import UPGRADES
from anabranch.controller.operations.journal import Operation, list_operations, open_operation
from anabranch.controller.outbox.announcements import consumer_announcement
from decisions.topic.layout import SegmentLayout
from schemas.metadata import AutoScalePolicyOverride
from tests.controller.owned import OwnedStore

TOPIC = "topic://acme/shop/orders"
GONE = "topic://acme/shop/gone"
TABLES = """
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
INSERT INTO last_version VALUES (7);
"""
JOURNAL = """
CREATE TABLE operations (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    topic TEXT NOT NULL,
    ended INTEGER NOT NULL,
    operation TEXT NOT NULL
);
CREATE INDEX operations_by_topic ON operations (topic, seq);
CREATE UNIQUE INDEX one_open_operation ON operations (topic) WHERE ended = 0;
ALTER TABLE subscriptions ADD COLUMN drained TEXT NOT NULL DEFAULT '[]';
"""
SESSIONS = """
ALTER TABLE consumers ADD COLUMN session INTEGER NOT NULL DEFAULT 0;
CREATE INDEX consumers_with_session ON consumers (topic, subscription) WHERE session = 1;
"""
RECORDS = [consumer_announcement(TOPIC, "s", "STREAM", "snapshot", number, 1, created_at=None) for number in range(3)]
"""What older controllers wrote."""


def operation(id: str, topic: str, step: str) -> Operation:
    written = {
        "id": id,
        "topic": topic,
        "kind": "split",
        "segments": ["0000-ffff-0"],
        "children": ["0000-7fff-1", "8000-ffff-2"],
        "step": step,
        "epoch": 0,
        "startedAt": 1_000,
    }
    return Operation.model_validate(written, strict=False)


def write_old(file: Path, format: int) -> None:
    layout = SegmentLayout.create(1, 1_000).split_segment(0, 2_000).to_metadata()
    with sqlite3.connect(file) as db:
        db.executescript(TABLES + (JOURNAL if format >= 2 else "") + (SESSIONS if format >= 3 else ""))
        db.execute("INSERT INTO topics VALUES (?, 'acme/shop', 7, 2000, ?)", (TOPIC, layout.to_json()))
        db.execute("INSERT INTO subscriptions (topic, name, type) VALUES (?, 'a/b', 'STREAM')", (TOPIC,))
        db.execute("INSERT INTO consumers (topic, subscription, name) VALUES (?, 'a/b', 'c')", (TOPIC,))
        db.execute("INSERT INTO namespace_policies VALUES ('acme/shop', '{\"maxSegments\":4}')")
        for record in RECORDS:
            db.execute("INSERT INTO outbox (source, key, value) VALUES (?, ?, ?)", record)
        if format >= 2:
            db.execute("UPDATE subscriptions SET drained = '[0]'")
            for found in (operation("op", TOPIC, "done"), operation("late", GONE, "terminate-parent")):
                row = (found.id, found.topic, found.has_ended, found.to_json())
                db.execute("INSERT INTO operations (id, topic, ended, operation) VALUES (?, ?, ?, ?)", row)
        if format >= 3:
            db.execute("INSERT INTO consumers VALUES (?, 'a/b', 'd', 1)", (TOPIC,))
        db.execute(f"PRAGMA user_version = {format}")
    db.close()


@pytest.mark.parametrize("format", [1, 2, 3])
def test_older_format_upgraded_once_with_content(format: int, tmp_path: Path) -> None:
    file = tmp_path / "controller.db"
    write_old(file, format)
    for _ in range(2):
        store = OwnedStore(SqliteStore(file, UPGRADES))
        stored = store.topic(TOPIC)
        assert stored is not None
        assert (stored.version, stored.metadata.epoch, len(stored.metadata.segments)) == (7, 1, 3)
        assert [name for name, _ in store.topics_of("acme/shop")] == [TOPIC]
        members = store.members(TOPIC, "a/b")
        assert members is not None
        assert members.type == "STREAM"
        assert members.drained == ((0,) if format >= 2 else ())
        assert members.consumers == ({"c": False, "d": True} if format >= 3 else {"c": False})
        assert store.namespace_policies() == {"acme/shop": AutoScalePolicyOverride(max_segments=4)}
        assert store.announced() == RECORDS
        if format >= 2:
            assert list_operations(store, TOPIC) == [operation("op", TOPIC, "done")]
            assert open_operation(store, GONE) == operation("late", GONE, "terminate-parent")
        attended = ([GONE] if format >= 2 else []) + ([TOPIC] if format >= 3 else [])
        assert store.topics_needing_leader() == attended
        store.close()
    with sqlite3.connect(file) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (FORMAT,)
        assert db.execute("SELECT name FROM sqlite_master WHERE name = 'topics'").fetchall() == []
    db.close()


def test_announcements_after_upgrade_keep_order(tmp_path: Path) -> None:
    write_old(tmp_path / "controller.db", 3)
    store = OwnedStore(SqliteStore(tmp_path / "controller.db", UPGRADES))
    last = consumer_announcement(TOPIC, "s", "STREAM", "snapshot", 9, 1, created_at=None)
    with store.writing(TOPIC) as transaction:
        transaction.announce(last)
    assert store.announced() == [*RECORDS, last]
    store.close()
