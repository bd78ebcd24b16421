"""The metadata store of a single controller: one SQLite file.

Stage: a `MetadataStore`. One process has the file open (a lock file keeps a second one out); its session lasts from
opening to closing, and what was ephemeral is dropped at both ends, so also after a kill. Every commit waits for the
disk. Watches are told by the process itself, since nobody else can write.
"""

from __future__ import annotations

import fcntl
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from controller.errors import StartError
from controller.metadata.base import (
    ABSENT,
    Kind,
    MetadataStore,
    Op,
    Put,
    Refused,
    Session,
    SessionCallback,
    SessionLost,
    Stored,
    StoreUnavailable,
    Subscription,
    WatchCallback,
    check_ops,
)
from controller.metadata.callbacks import Callbacks, SessionState
from controller.metadata.paths import ROOT, check_path, is_within, parent
from controller.metadata.plan import Action, Step, paths_to_read, plan

FORMAT = 1

_SCHEMA = """
CREATE TABLE nodes (
    path TEXT PRIMARY KEY,
    parent TEXT NOT NULL,
    value BLOB NOT NULL,
    version INTEGER NOT NULL,
    ephemeral INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX nodes_by_parent ON nodes (parent, path);
CREATE TABLE last_version (value INTEGER NOT NULL);
INSERT INTO last_version VALUES (0);
"""

Change = tuple[str, Kind]


class SqliteStore(MetadataStore):
    """The file, and who watches it."""

    def __init__(self, file: Path) -> None:
        """Open or create `file`. Raises `StartError` when that is impossible or another process has it open."""
        self.file = file
        self._lock = threading.RLock()
        self._watches: dict[object, tuple[str, WatchCallback]] = {}
        self._closed = False
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            self._lock_file = open(file.with_name(file.name + ".lock"), "w")  # noqa: SIM115 (held while it is open)
        except OSError as error:
            raise StartError(f"cannot open the metadata in {file}: {error.strerror}") from error
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._db = self._open()
        except BlockingIOError:
            self._lock_file.close()
            raise StartError(f"{file} is in use by another controller; stop that one or choose another file") from None
        except sqlite3.Error as error:
            self._lock_file.close()
            raise StartError(f"cannot use {file} as the database of metadata: {error}") from error
        except StartError:
            self._lock_file.close()
            raise
        self._callbacks = Callbacks("metadata-sqlite")
        self._session = SessionState(self._callbacks, Session.CONNECTED)

    def get(self, path: str) -> Stored | None:
        """See `MetadataStore`."""
        check_path(path)
        with self._using() as db:
            row = db.execute("SELECT value, version FROM nodes WHERE path = ?", (path,)).fetchone()
        return Stored(row[0], row[1]) if row else None

    def children(self, path: str) -> list[str]:
        """See `MetadataStore`."""
        if path != ROOT:
            check_path(path)
        with self._using() as db:
            rows = db.execute("SELECT path FROM nodes WHERE parent = ?", (path,)).fetchall()
        return sorted(row[0].rpartition("/")[2] for row in rows)

    def commit(self, *ops: Op) -> list[int]:
        """See `MetadataStore`."""
        check_ops(ops)
        if not ops:
            return []
        with self._writing() as changes:
            return self._apply(ops, changes)

    def create_ephemeral(self, path: str, value: bytes) -> int | None:
        """See `MetadataStore`."""
        check_path(path)
        with self._writing() as changes:
            found = self._db.execute("SELECT value, version, ephemeral FROM nodes WHERE path = ?", (path,)).fetchone()
            if found:
                return int(found[1]) if found[2] and found[0] == value else None
            version = self._apply((Put(path, value, ABSENT),), changes)[0]
            self._db.execute("UPDATE nodes SET ephemeral = 1 WHERE path = ?", (path,))
            return version

    def watch(self, path_prefix: str, callback: WatchCallback) -> Subscription:
        """See `MetadataStore`."""
        if path_prefix != ROOT:
            check_path(path_prefix)
        key = object()
        with self._using():
            self._watches[key] = (path_prefix, callback)
        return Subscription(lambda: self._forget(key))

    def on_session(self, callback: SessionCallback) -> Subscription:
        """See `MetadataStore`."""
        return self._session.listen(callback)

    @property
    def session(self) -> Session:
        """See `MetadataStore`."""
        return self._session.state

    @property
    def session_changes(self) -> int:
        """See `MetadataStore`."""
        return self._session.changes

    def close(self) -> None:
        """See `MetadataStore`."""
        with self._lock:
            if self._closed:
                return
            # Where that fails, the next opening does it.
            with suppress(StoreUnavailable), self._writing() as changes:
                self._drop_ephemerals(self._db, changes)
            self._closed = True
            self._db.close()
            self._lock_file.close()
        self._session.become(Session.LOST)
        self._callbacks.close()

    def _apply(self, ops: tuple[Op, ...], changes: list[Change]) -> list[int]:
        found: dict[str, int] = {}
        for path in paths_to_read(ops):
            row = self._db.execute("SELECT version FROM nodes WHERE path = ?", (path,)).fetchone()
            if row:
                found[path] = row[0]
        steps = plan(ops, found)
        self._db.execute("UPDATE last_version SET value = value + 1")
        version = int(self._db.execute("SELECT value FROM last_version").fetchone()[0])
        after = dict(found)
        for step in steps:
            self._take(step, version, changes)
            if step.action is Action.REMOVE:
                del after[step.path]
            elif step.action is not Action.KEEP:
                after[step.path] = version
        return [after.get(op.path, ABSENT) for op in ops]

    def _take(self, step: Step, version: int, changes: list[Change]) -> None:
        if step.action is Action.CREATE:
            above = parent(step.path)
            if self._db.execute("SELECT 1 FROM nodes WHERE path = ? AND ephemeral", (above,)).fetchone():
                raise Refused(step.path, "the node above is ephemeral and cannot have any below it")
            self._db.execute(
                "INSERT INTO nodes (path, parent, value, version, ephemeral) VALUES (?, ?, ?, ?, 0)",
                (step.path, above, step.value, version),
            )
            changes += [(step.path, Kind.CREATED), (above, Kind.CHILDREN)]
        elif step.action is Action.WRITE:
            self._db.execute("UPDATE nodes SET value = ?, version = ? WHERE path = ?", (step.value, version, step.path))
            changes.append((step.path, Kind.CHANGED))
        elif step.action is Action.REMOVE:
            if self._db.execute("SELECT 1 FROM nodes WHERE parent = ?", (step.path,)).fetchone():
                raise Refused(step.path, "it has nodes below it: delete those first")
            self._db.execute("DELETE FROM nodes WHERE path = ?", (step.path,))
            changes += [(step.path, Kind.DELETED), (parent(step.path), Kind.CHILDREN)]

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            if self._closed:
                raise SessionLost(f"the metadata store of {self.file} is closed")
            try:
                yield self._db
            except sqlite3.Error as error:
                raise StoreUnavailable(f"the metadata in {self.file} cannot be used: {error}") from error

    @contextmanager
    def _writing(self) -> Iterator[list[Change]]:
        """A transaction; what is put into the list is told to the watches once it is durable, in the same order."""
        with self._using() as db:
            changes: list[Change] = []
            db.execute("BEGIN IMMEDIATE")
            try:
                yield changes
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            for path, kind in changes:
                for key, (top, _) in self._watches.items():
                    if is_within(path, top):
                        self._callbacks.enqueue(self._telling(key, path, kind))

    def _telling(self, key: object, path: str, kind: Kind) -> Callable[[], None]:
        def tell() -> None:
            with self._lock:
                watch = self._watches.get(key)
            if watch:
                watch[1](path, kind)

        return tell

    def _forget(self, key: object) -> None:
        with self._lock:
            self._watches.pop(key, None)

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.file, timeout=10, isolation_level=None, check_same_thread=False)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            # A layout that a client has seen must not be taken back by a power cut: every commit waits for the disk.
            db.execute("PRAGMA synchronous = FULL")
            found = db.execute("PRAGMA user_version").fetchone()[0]
            if found not in (0, FORMAT):
                raise StartError(f"{self.file} has format {found}, this controller reads {FORMAT}; use what wrote it")
            if not found:
                db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {FORMAT}; COMMIT;")
            self._drop_ephemerals(db, [])
        except BaseException:
            db.close()
            raise
        return db

    @staticmethod
    def _drop_ephemerals(db: sqlite3.Connection, changes: list[Change]) -> None:
        for (path,) in db.execute("SELECT path FROM nodes WHERE ephemeral").fetchall():
            changes += [(path, Kind.DELETED), (parent(path), Kind.CHILDREN)]
        db.execute("DELETE FROM nodes WHERE ephemeral")
