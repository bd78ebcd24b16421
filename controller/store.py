"""The layouts, subscriptions, sessions and policies in SQLite, and the outbox of what is still to be announced.

Stage: below the service. One process writes (a lock file keeps a second one out), one transaction at a time; a change
and its announcement are one transaction, so neither exists without the other, whatever is killed. A layout is replaced
by compare-and-set on its version; no version is used twice, not even by a topic that was deleted and created again.
"""

from __future__ import annotations

import fcntl
import json
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from controller.announcements import Record
from controller.errors import StartError
from controller.protocol import Operation
from schemas.ids import topic_parts
from schemas.messages import SubscriptionType
from schemas.metadata import AutoScalePolicyOverride, ScalableTopicMetadata

SCHEMA_VERSION = 3
MAX_OPERATIONS = 100
"""Operations of a topic that the journal keeps, the newest."""

_SCHEMA = """
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
"""
_JOURNAL = """
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
_SESSIONS = """
ALTER TABLE consumers ADD COLUMN session INTEGER NOT NULL DEFAULT 0;
CREATE INDEX consumers_with_session ON consumers (topic, subscription) WHERE session = 1;
"""
_UPGRADES = {0: _SCHEMA + _JOURNAL + _SESSIONS, 1: _JOURNAL + _SESSIONS, 2: _SESSIONS}
"""What brings a file of an older format to the present one; 0 is an empty file."""


class StoredTopic(NamedTuple):
    """A topic as it is in the store; `version` is what a compare-and-set compares."""

    topic: str
    version: int
    metadata: ScalableTopicMetadata


class StoredSubscription(NamedTuple):
    """A subscription and how many consumer sessions it has."""

    name: str
    type: SubscriptionType
    consumers: int


class StoredMembers(NamedTuple):
    """What of a subscription's coordinator is stored."""

    type: SubscriptionType
    drained: tuple[int, ...]
    """Ids of the sealed segments that it has read to the end."""
    consumers: dict[str, bool]
    """Its consumers by name; True: a session, which needs a connection to stay."""


class OutboxEntry(NamedTuple):
    """A record that waits for its delivery; entries are sent in the order of `seq`."""

    seq: int
    record: Record


class View:
    """One consistent look at the store."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def topic(self, topic: str) -> StoredTopic | None:
        """The topic with its layout, or None."""
        row = self._db.execute("SELECT topic, version, metadata FROM topics WHERE topic = ?", (topic,)).fetchone()
        return StoredTopic(row[0], row[1], ScalableTopicMetadata.model_validate_json(row[2])) if row else None

    def has_topic(self, topic: str) -> bool:
        """Whether there is a topic of that name."""
        return self._db.execute("SELECT 1 FROM topics WHERE topic = ?", (topic,)).fetchone() is not None

    def layout_json(self, topic: str) -> str | None:
        """The layout record as JSON, or None."""
        row = self._db.execute("SELECT metadata FROM topics WHERE topic = ?", (topic,)).fetchone()
        return str(row[0]) if row else None

    def topics_of(self, namespace: str) -> list[str]:
        """The names of a namespace's topics, sorted."""
        rows = self._db.execute("SELECT topic FROM topics WHERE namespace = ? ORDER BY topic", (namespace,))
        return [row[0] for row in rows]

    def properties_of(self, namespace: str) -> dict[str, dict[str, str]]:
        """The properties of a namespace's topics, by topic, sorted by name."""
        rows = self._db.execute(
            "SELECT topic, json_extract(metadata, '$.properties') FROM topics WHERE namespace = ? ORDER BY topic",
            (namespace,),
        )
        return {topic: json.loads(properties or "{}") for topic, properties in rows}

    def layouts_after(self, topic: str, limit: int) -> list[tuple[str, str]]:
        """The next `limit` topics in the order of their names, each with its layout record as JSON."""
        return self._db.execute(
            "SELECT topic, metadata FROM topics WHERE topic > ? ORDER BY topic LIMIT ?", (topic, limit)
        ).fetchall()

    def topics_sealed_until(self, instant_ms: int) -> list[str]:
        """Topics that hold a segment sealed at or before `instant_ms`."""
        rows = self._db.execute("SELECT topic FROM topics WHERE oldest_sealed_ms <= ?", (instant_ms,))
        return [row[0] for row in rows]

    def subscriptions(self, topic: str) -> list[StoredSubscription]:
        """The subscriptions of a topic with the number of their sessions, sorted by name."""
        rows = self._db.execute(
            "SELECT s.name, s.type, count(c.name) FROM subscriptions s"
            " LEFT JOIN consumers c ON c.topic = s.topic AND c.subscription = s.name"
            " WHERE s.topic = ? GROUP BY s.name, s.type ORDER BY s.name",
            (topic,),
        )
        return [StoredSubscription(*row) for row in rows]

    def subscription(self, topic: str, name: str) -> StoredSubscription | None:
        """One subscription with the number of its sessions, or None."""
        row = self._db.execute(
            "SELECT name, type, (SELECT count(*) FROM consumers c WHERE c.topic = s.topic AND c.subscription = s.name)"
            " FROM subscriptions s WHERE topic = ? AND name = ?",
            (topic, name),
        ).fetchone()
        return StoredSubscription(*row) if row else None

    def members(self, topic: str, name: str) -> StoredMembers | None:
        """Who reads a subscription and what it has drained, or None."""
        row = self._db.execute(
            "SELECT type, drained FROM subscriptions WHERE topic = ? AND name = ?", (topic, name)
        ).fetchone()
        if row is None:
            return None
        consumers = self._db.execute(
            "SELECT name, session FROM consumers WHERE topic = ? AND subscription = ?", (topic, name)
        )
        return StoredMembers(row[0], tuple(json.loads(row[1])), {name: bool(session) for name, session in consumers})

    def subscriptions_with_sessions(self) -> list[tuple[str, str]]:
        """Topic and name of every subscription that has a session."""
        return self._db.execute("SELECT DISTINCT topic, subscription FROM consumers WHERE session = 1").fetchall()

    def namespace_policy(self, namespace: str) -> AutoScalePolicyOverride | None:
        """The override of a namespace, or None."""
        row = self._db.execute("SELECT policy FROM namespace_policies WHERE namespace = ?", (namespace,)).fetchone()
        return AutoScalePolicyOverride.model_validate_json(row[0]) if row else None

    def namespace_policies(self) -> dict[str, AutoScalePolicyOverride]:
        """All overrides of namespaces."""
        rows = self._db.execute("SELECT namespace, policy FROM namespace_policies ORDER BY namespace")
        return {namespace: AutoScalePolicyOverride.model_validate_json(policy) for namespace, policy in rows}

    def open_operation(self, topic: str) -> Operation | None:
        """The operation of a topic that has not ended, or None."""
        row = self._db.execute("SELECT operation FROM operations WHERE topic = ? AND ended = 0", (topic,)).fetchone()
        return Operation.model_validate_json(row[0]) if row else None

    def open_operations(self) -> list[Operation]:
        """All operations that have not ended, the oldest first."""
        rows = self._db.execute("SELECT operation FROM operations WHERE ended = 0 ORDER BY seq")
        return [Operation.model_validate_json(row[0]) for row in rows]

    def operations(self, topic: str) -> list[Operation]:
        """The operations of a topic that the journal holds, the newest first."""
        rows = self._db.execute("SELECT operation FROM operations WHERE topic = ? ORDER BY seq DESC", (topic,))
        return [Operation.model_validate_json(row[0]) for row in rows]

    def outbox_after(self, seq: int, limit: int) -> list[OutboxEntry]:
        """The next `limit` entries of the outbox."""
        rows = self._db.execute(
            "SELECT seq, source, key, value FROM outbox WHERE seq > ? ORDER BY seq LIMIT ?", (seq, limit)
        )
        return [OutboxEntry(seq, Record(source, key, value)) for seq, source, key, value in rows]

    def outbox_length(self) -> int:
        """Entries whose delivery was not confirmed yet."""
        return int(self._db.execute("SELECT count(*) FROM outbox").fetchone()[0])


class Transaction(View):
    """A view that can change things; all of it is kept, or none."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        self.announces = False
        """Whether the outbox got something."""
        self.layouts: list[tuple[str, ScalableTopicMetadata | None]] = []
        """The layouts as they are after this, in order; None of a topic that is deleted."""
        self.members_of: list[tuple[str, str]] = []
        """Topic and name of the subscriptions whose consumers may be others after this."""

    def insert_topic(self, topic: str, metadata: ScalableTopicMetadata) -> bool:
        """Store a new topic; False when there is one of that name."""
        inserted = self._db.execute(
            "INSERT OR IGNORE INTO topics (topic, namespace, version, oldest_sealed_ms, metadata)"
            " VALUES (?, ?, ?, ?, ?)",
            (topic, topic_parts(topic).full_namespace, self._next_version(), *_columns(metadata)),
        )
        if inserted.rowcount == 1:
            self.layouts.append((topic, metadata))
        return inserted.rowcount == 1

    def replace_layout(self, topic: str, version: int, metadata: ScalableTopicMetadata) -> bool:
        """Compare-and-set: False when the topic is not at `version` any more."""
        updated = self._db.execute(
            "UPDATE topics SET version = ?, oldest_sealed_ms = ?, metadata = ? WHERE topic = ? AND version = ?",
            (self._next_version(), *_columns(metadata), topic, version),
        )
        if updated.rowcount == 1:
            self.layouts.append((topic, metadata))
        return updated.rowcount == 1

    def delete_topic(self, topic: str) -> None:
        """Remove a topic with its subscriptions and sessions."""
        self._db.execute("DELETE FROM topics WHERE topic = ?", (topic,))
        self._db.execute("DELETE FROM operations WHERE topic = ? AND ended = 1", (topic,))
        self.layouts.append((topic, None))

    def insert_subscription(self, topic: str, name: str, type: SubscriptionType) -> None:
        """Add a subscription to an existing topic."""
        self._db.execute("INSERT INTO subscriptions (topic, name, type) VALUES (?, ?, ?)", (topic, name, type))

    def delete_subscription(self, topic: str, name: str) -> None:
        """Remove a subscription with its sessions."""
        self._db.execute("DELETE FROM subscriptions WHERE topic = ? AND name = ?", (topic, name))
        self.members_of.append((topic, name))

    def save_drained(self, topic: str, name: str, drained: Iterable[int]) -> None:
        """Store which sealed segments a subscription has read to the end; none of that name is fine."""
        self._db.execute(
            "UPDATE subscriptions SET drained = ? WHERE topic = ? AND name = ?",
            (json.dumps(list(drained)), topic, name),
        )

    def insert_consumer(self, topic: str, subscription: str, name: str, session: bool = False) -> bool:
        """Add a consumer; False when there is one of that name, which `session` makes one that needs a connection."""
        inserted = self._db.execute(
            "INSERT OR IGNORE INTO consumers (topic, subscription, name, session) VALUES (?, ?, ?, ?)",
            (topic, subscription, name, session),
        )
        if inserted.rowcount == 0 and session:
            self._db.execute(
                "UPDATE consumers SET session = 1 WHERE topic = ? AND subscription = ? AND name = ?",
                (topic, subscription, name),
            )
        self.members_of.append((topic, subscription))
        return inserted.rowcount == 1

    def delete_consumer(self, topic: str, subscription: str, name: str) -> bool:
        """Remove a session; False when there is none of that name."""
        deleted = self._db.execute(
            "DELETE FROM consumers WHERE topic = ? AND subscription = ? AND name = ?", (topic, subscription, name)
        )
        self.members_of.append((topic, subscription))
        return deleted.rowcount == 1

    def set_namespace_policy(self, namespace: str, policy: AutoScalePolicyOverride) -> None:
        """Store the override of a namespace in place of the one before."""
        self._db.execute(
            "INSERT OR REPLACE INTO namespace_policies (namespace, policy) VALUES (?, ?)",
            (namespace, policy.to_json()),
        )

    def remove_namespace_policy(self, namespace: str) -> bool:
        """Remove the override of a namespace; False when there is none."""
        return self._db.execute("DELETE FROM namespace_policies WHERE namespace = ?", (namespace,)).rowcount == 1

    def save_operation(self, operation: Operation) -> None:
        """Store an operation in place of the one with its id; a second one that is open raises `IntegrityError`."""
        stored = (operation.id, operation.topic, operation.has_ended, operation.to_json())
        self._db.execute(
            "INSERT INTO operations (id, topic, ended, operation) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET ended = excluded.ended, operation = excluded.operation",
            stored,
        )
        if operation.has_ended:
            self._db.execute(
                "DELETE FROM operations WHERE topic = ? AND ended = 1 AND seq NOT IN"
                " (SELECT seq FROM operations WHERE topic = ? ORDER BY seq DESC LIMIT ?)",
                (operation.topic, operation.topic, MAX_OPERATIONS),
            )

    def announce(self, record: Record | None) -> None:
        """Put a record into the outbox; None (nothing to announce) is fine."""
        if record is not None:
            self.announces = True
            self._db.execute("INSERT INTO outbox (source, key, value) VALUES (?, ?, ?)", record)

    def drop_outbox_until(self, seq: int) -> None:
        """Forget the entries up to and with `seq`: their delivery was confirmed."""
        self._db.execute("DELETE FROM outbox WHERE seq <= ?", (seq,))

    def _next_version(self) -> int:
        self._db.execute("UPDATE last_version SET value = value + 1")
        return int(self._db.execute("SELECT value FROM last_version").fetchone()[0])


class LayoutStore:
    """The database file: opened by one process at a time, shared by its threads."""

    def __init__(self, file: Path) -> None:
        """Open or create `file`. Raises `StartError` when that is impossible or another process has it open."""
        self.file = file
        self.announced = threading.Event()
        """Set when the outbox got something; whoever waits for that clears it."""
        self.on_layout: list[Callable[[str, ScalableTopicMetadata | None], None]] = []
        """Told of every layout that was committed, in the order of the commits (None: deleted); must be short."""
        self.on_members: list[Callable[[str, str], None]] = []
        """Told of the topic and the name of every subscription whose consumers changed; must be short."""
        self._write_lock = threading.Lock()
        self._read_lock = threading.Lock()
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            self._lock_file = open(file.with_name(file.name + ".lock"), "w")  # noqa: SIM115 (held while the store is open)
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartError(f"{file} is in use by another controller; stop that one or choose another file") from None
        except OSError as error:
            raise StartError(f"cannot open the layouts in {file}: {error.strerror}") from error
        try:
            self._writer = self._connect()
            self._create_tables()
            self._reader = self._connect()
        except sqlite3.Error as error:
            self._lock_file.close()
            raise StartError(f"cannot use {file} as the database of layouts: {error}") from error
        except StartError:
            self._lock_file.close()
            raise

    @contextmanager
    def read(self) -> Iterator[View]:
        """A consistent view of what was committed."""
        with self._read_lock:
            self._reader.execute("BEGIN")
            try:
                yield View(self._reader)
            finally:
                self._reader.execute("COMMIT")

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        """A transaction: committed durably at the end of the block, undone when it raises."""
        with self._write_lock:
            try:
                self._writer.execute("BEGIN IMMEDIATE")
                transaction = Transaction(self._writer)
                yield transaction
                self._writer.execute("COMMIT")
            except BaseException:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise
            for topic, metadata in transaction.layouts:
                for tell_layout in self.on_layout:
                    tell_layout(topic, metadata)
            for changed in transaction.members_of:
                for tell_members in self.on_members:
                    tell_members(*changed)
        if transaction.announces:
            self.announced.set()

    def close(self) -> None:
        """Close the file; a store is not used afterwards."""
        with self._write_lock, self._read_lock:
            self._reader.close()
            self._writer.close()
            self._lock_file.close()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.file, timeout=10, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        # An epoch that Kafka has seen must not be taken back by a power cut: every commit waits for the disk.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        return connection

    def _create_tables(self) -> None:
        found = self._writer.execute("PRAGMA user_version").fetchone()[0]
        if found == SCHEMA_VERSION:
            return
        if found not in _UPGRADES:
            raise StartError(
                f"{self.file} has format {found}, this controller reads {SCHEMA_VERSION}; use the version that wrote it"
            )
        self._writer.executescript(
            f"BEGIN IMMEDIATE; {_UPGRADES[found]} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
        )


def _columns(metadata: ScalableTopicMetadata) -> tuple[int | None, str]:
    sealed = [segment.sealed_at_ms for segment in metadata.segments.values() if segment.state == "SEALED"]
    return min(sealed, default=None), metadata.to_json()
