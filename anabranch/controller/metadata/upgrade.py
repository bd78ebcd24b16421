"""Migrate databases of older controllers: from their tables to the nodes of the current format.

Stage: below `anabranch.controller.server`. Runs once, inside the transaction that changes the format of the file: after
a crash the file has either the old format or the new.
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator

from anabranch.controller.metadata import store_paths
from anabranch.controller.metadata.base import ancestors, parent
from anabranch.controller.metadata.records import MAX_OPERATIONS, ConsumerRegistration, SubscriptionRecord
from anabranch.controller.metadata.sqlite import Upgrade, create_tables

_NodeRow = tuple[str, bytes, int]
"""Path, value and version."""


def _upgrade(db: sqlite3.Connection, has_journal: bool, has_sessions: bool) -> None:
    version = int(db.execute("SELECT value FROM last_version").fetchone()[0]) + 1
    rows = list(_topics(db))
    rows += [(path, value, version) for path, value in _others(db, has_journal, has_sessions)]
    # The name of an announcement determines its position in the order.
    for (seq,) in db.execute("SELECT seq FROM outbox ORDER BY seq"):
        version += 1
        source, key, value = db.execute("SELECT source, key, value FROM outbox WHERE seq = ?", (seq,)).fetchone()
        texts = json.dumps([(source, key, bytes(value).decode())], ensure_ascii=False, separators=(",", ":"))
        rows.append((f"{store_paths.OUTBOX}/n-{version:010d}", texts.encode(), version))
    tables = ["consumers", "subscriptions", "topics", "namespace_policies", "outbox", "last_version"]
    for table in [*(["operations"] if has_journal else []), *tables]:
        db.execute(f"DROP TABLE {table}")
    create_tables(db)
    db.execute("UPDATE last_version SET value = ?", (version,))
    _insert(db, rows, version)


def _topics(db: sqlite3.Connection) -> Iterator[_NodeRow]:
    for topic, version, metadata in db.execute("SELECT topic, version, metadata FROM topics"):
        yield store_paths.topic_path(topic), metadata.encode(), version


def _others(db: sqlite3.Connection, has_journal: bool, has_sessions: bool) -> Iterator[tuple[str, bytes]]:
    attended: set[str] = set()
    drained = "drained" if has_journal else "'[]'"
    for topic, name, type, read in db.execute(f"SELECT topic, name, type, {drained} FROM subscriptions"):
        record = SubscriptionRecord(type=type, drained=tuple(sorted(json.loads(read))))
        yield store_paths.subscription_path(topic, name), record.to_json().encode()
    session_of = "session" if has_sessions else "0"
    for topic, name, consumer, session in db.execute(f"SELECT topic, subscription, name, {session_of} FROM consumers"):
        registration = ConsumerRegistration(consumer_name=consumer, session=bool(session))
        yield store_paths.consumer_path(topic, name, consumer), registration.to_json().encode()
        if session:
            attended.add(topic)
    for namespace, policy in db.execute("SELECT namespace, policy FROM namespace_policies"):
        yield store_paths.policy_path(namespace), policy.encode()
    journals: dict[str, list[tuple[int, str]]] = {}
    rows = db.execute("SELECT topic, ended, operation FROM operations ORDER BY seq") if has_journal else ()
    for topic, ended, operation in rows:
        journals.setdefault(topic, []).append((ended, operation))
    for topic, operations in journals.items():
        for number, (ended, operation) in enumerate(operations[-MAX_OPERATIONS:], start=1):
            yield f"{store_paths.operations_path(topic)}/{number:010d}", operation.encode()
            if not ended:
                attended.add(topic)
    for topic in attended:
        yield store_paths.attended_path(topic), b""


def _insert(db: sqlite3.Connection, rows: Iterable[_NodeRow], version: int) -> None:
    insert = "INSERT OR IGNORE INTO nodes (path, parent, value, version, ephemeral) VALUES (?, ?, ?, ?, 0)"
    above: set[str] = set()
    for path, value, own_version in rows:
        db.execute(insert, (path, parent(path), value, own_version))
        above.update(ancestors(path))
    for path in above:
        db.execute(insert, (path, parent(path), b"", version))


def _from(format: int) -> Upgrade:
    return lambda db: _upgrade(db, has_journal=format >= 2, has_sessions=format >= 3)


UPGRADES = {format: _from(format) for format in (1, 2, 3)}
"""By the format that they migrate: 1 had no journal, 2 no sessions."""
