"""Metadata store of a single controller: one SQLite file.

Stage: a `MetadataStore`. One process has the file open (a lock file keeps others out); its session lasts from opening
to closing, and ephemerals are dropped at both ends, so also after a kill. Every commit waits for the disk, except for
ephemerals. Readers do not wait for writers. The process itself runs watches, since no other can write.
"""

import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout

from anabranch.controller.errors import StartError
from anabranch.controller.metadata.base import (
    ABSENT,
    ROOT,
    CallbackHandle,
    ChangeKind,
    InvalidTreeChange,
    Op,
    Put,
    SessionLost,
    SessionState,
    Stored,
    StoreUnavailable,
    WatchCallback,
    ancestors,
    check_ops,
    check_path,
    parent,
)
from anabranch.controller.metadata.callbacks import Callbacks, SessionedStore, SessionListeners
from anabranch.controller.metadata.commit_plan import NodeAction, PlanStep, paths_to_read, plan

FORMAT = 4
"""Formats 1 to 3 had separate tables for layouts and sessions (`anabranch.controller.metadata.upgrade`)."""

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

NodeChange = tuple[str, ChangeKind]
Upgrade = Callable[[sqlite3.Connection], None]
"""Migrates a database of an older format to the tables of `create_tables`, inside a transaction."""


class SqliteStore(SessionedStore):
    """The file and its watches."""

    def __init__(self, file: Path, upgrades: Mapping[int, Upgrade] | None = None) -> None:
        """Open or create `file`. Raises `StartError` if that is impossible or another process has it open.

        `upgrades`: migrations by the older format that they read.
        """
        self.file = file
        self._upgrades = upgrades or {}
        self._lock, self._read_lock = threading.RLock(), threading.RLock()
        # Separate, so that starting or stopping a watch does not wait for the disk of a commit.
        self._watch_lock = threading.Lock()
        self._watches: dict[str, dict[object, tuple[WatchCallback, bool]]] = {}
        self._closed = False
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            # Any thread may close the store.
            self._file_lock = FileLock(file.with_name(file.name + ".lock"), blocking=False, thread_local=False)
            self._file_lock.acquire()
        except Timeout:
            raise StartError(f"{file} is in use by another controller; stop that one or choose another file") from None
        except OSError as error:
            raise StartError(f"cannot open the metadata in {file}: {error.strerror}") from error
        try:
            self._db = self._open()
            self._reader = self._connect()
        except sqlite3.Error as error:
            self._file_lock.release()
            raise StartError(f"cannot use {file} as the database of metadata: {error}") from error
        except StartError:
            self._file_lock.release()
            raise
        self._callbacks = Callbacks("metadata-sqlite")
        self._session = SessionListeners(self._callbacks, SessionState.CONNECTED)

    def get(self, path: str) -> Stored | None:
        """See `MetadataStore`."""
        return self.get_all([path])[0]

    def get_all(self, paths: Sequence[str]) -> list[Stored | None]:
        """See `MetadataStore`."""
        nodes: list[Stored | None] = []
        with self._using(self._reader, self._read_lock) as db:
            for path in paths:
                row = db.execute("SELECT value, version FROM nodes WHERE path = ?", (check_path(path),)).fetchone()
                nodes.append(Stored(*row) if row else None)
        return nodes

    def children(self, path: str) -> list[str]:
        """See `MetadataStore`."""
        if path != ROOT:
            check_path(path)
        with self._using(self._reader, self._read_lock) as db:
            rows = db.execute("SELECT path FROM nodes WHERE parent = ?", (path,)).fetchall()
        return sorted(row[0].rpartition("/")[2] for row in rows)

    def sync(self) -> None:
        """See `MetadataStore`; every read shows the last commit."""

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
        with self._writing(durable=False) as changes:
            row = self._db.execute("SELECT value, version, ephemeral FROM nodes WHERE path = ?", (path,)).fetchone()
            if row:
                return int(row[1]) if row[2] and row[0] == value else None
            version = self._apply((Put(path, value, ABSENT),), changes)[0]
            self._db.execute("UPDATE nodes SET ephemeral = 1 WHERE path = ?", (path,))
            return version

    def watch(self, path: str, callback: WatchCallback, below: bool = True) -> CallbackHandle:
        """See `MetadataStore`."""
        if path != ROOT:
            check_path(path)
        key = object()
        with self._watch_lock:
            if self._closed:
                raise SessionLost(f"the metadata store of {self.file} is closed")
            self._watches.setdefault(path, {})[key] = (callback, below)
        return CallbackHandle(lambda: self._forget(path, key))

    def close(self) -> None:
        """See `MetadataStore`."""
        with self._lock, self._read_lock:
            if self._closed:
                return
            # If that fails, the next opening of the file does it.
            with suppress(StoreUnavailable), self._writing() as changes:
                self._drop_ephemerals(self._db, changes)
            self._closed = True
            self._reader.close()
            self._db.close()
            self._file_lock.release()
        self._session.become(SessionState.LOST)
        self._callbacks.close()

    def _apply(self, ops: tuple[Op, ...], changes: list[NodeChange]) -> list[int]:
        versions: dict[str, int] = {}
        for path in paths_to_read(ops):
            if row := self._db.execute("SELECT version FROM nodes WHERE path = ?", (path,)).fetchone():
                versions[path] = row[0]
        steps = plan(ops, versions)
        self._db.execute("UPDATE last_version SET value = value + 1")
        version = int(self._db.execute("SELECT value FROM last_version").fetchone()[0])
        after = dict(versions)
        for step in steps:
            self._take(step, version, changes)
            if step.action is NodeAction.REMOVE:
                del after[step.path]
            elif step.action not in (NodeAction.KEEP, NodeAction.APPEND):
                after[step.path] = version
        return [after.get(op.path, ABSENT) for op in ops]

    def _take(self, step: PlanStep, version: int, changes: list[NodeChange]) -> None:
        if step.action in (NodeAction.CREATE, NodeAction.APPEND):
            path = f"{step.path}/n-{version:010d}" if step.action is NodeAction.APPEND else step.path
            above = parent(path)
            if self._db.execute("SELECT 1 FROM nodes WHERE path = ? AND ephemeral", (above,)).fetchone():
                raise InvalidTreeChange(path, "the node above is ephemeral and cannot have any below it")
            self._db.execute(
                "INSERT INTO nodes (path, parent, value, version, ephemeral) VALUES (?, ?, ?, ?, 0)",
                (path, above, step.value, version),
            )
            changes += [(path, ChangeKind.CREATED), (above, ChangeKind.CHILDREN)]
        elif step.action is NodeAction.WRITE:
            self._db.execute("UPDATE nodes SET value = ?, version = ? WHERE path = ?", (step.value, version, step.path))
            changes.append((step.path, ChangeKind.CHANGED))
        elif step.action is NodeAction.REMOVE:
            if self._db.execute("SELECT 1 FROM nodes WHERE parent = ?", (step.path,)).fetchone():
                raise InvalidTreeChange(step.path, "it has nodes below it: delete those first")
            self._db.execute("DELETE FROM nodes WHERE path = ?", (step.path,))
            changes += [(step.path, ChangeKind.DELETED), (parent(step.path), ChangeKind.CHILDREN)]

    @contextmanager
    def _using(self, db: sqlite3.Connection, lock: threading.RLock) -> Iterator[sqlite3.Connection]:
        with lock:
            if self._closed:
                raise SessionLost(f"the metadata store of {self.file} is closed")
            try:
                yield db
            except sqlite3.Error as error:
                raise StoreUnavailable(f"the metadata in {self.file} cannot be used: {error}") from error

    @contextmanager
    def _writing(self, durable: bool = True) -> Iterator[list[NodeChange]]:
        """Run a transaction; after the commit, watches are called for the listed changes in order."""
        with self._using(self._db, self._lock) as db:
            changes: list[NodeChange] = []
            if not durable:
                db.execute("PRAGMA synchronous = NORMAL")
            try:
                db.execute("BEGIN IMMEDIATE")
                yield changes
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            finally:
                if not durable:
                    db.execute("PRAGMA synchronous = FULL")
            with self._watch_lock:
                for path, kind in changes:
                    for top in {path, ROOT, *ancestors(path)} & self._watches.keys():
                        for key, (_, below) in self._watches[top].items():
                            if below or path == top:
                                self._callbacks.enqueue(partial(self._tell, top, key, path, kind))

    def _tell(self, top: str, key: object, path: str, kind: ChangeKind) -> None:
        with self._watch_lock:
            watch = self._watches.get(top, {}).get(key)
        if watch:
            watch[0](path, kind)

    def _forget(self, top: str, key: object) -> None:
        with self._watch_lock:
            watches = self._watches.get(top, {})
            watches.pop(key, None)
            if not watches:
                self._watches.pop(top, None)

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.file, timeout=10, isolation_level=None, check_same_thread=False)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            # A power cut must not revert a layout that a client has seen: every commit waits for the disk.
            db.execute("PRAGMA synchronous = FULL")
        except BaseException:
            db.close()
            raise
        return db

    def _open(self) -> sqlite3.Connection:
        db = self._connect()
        try:
            file_format = db.execute("PRAGMA user_version").fetchone()[0]
            if file_format not in (0, FORMAT, *self._upgrades):
                raise StartError(
                    f"{self.file} has format {file_format}, this controller reads {FORMAT}; use what wrote it"
                )
            if file_format != FORMAT:
                db.execute("BEGIN EXCLUSIVE")
                if file_format:
                    self._upgrades[file_format](db)
                else:
                    create_tables(db)
                db.execute(f"PRAGMA user_version = {FORMAT}")
                db.execute("COMMIT")
            self._drop_ephemerals(db, [])
        except BaseException:
            db.close()
            raise
        return db

    @staticmethod
    def _drop_ephemerals(db: sqlite3.Connection, changes: list[NodeChange]) -> None:
        for (path,) in db.execute("SELECT path FROM nodes WHERE ephemeral").fetchall():
            changes += [(path, ChangeKind.DELETED), (parent(path), ChangeKind.CHILDREN)]
        db.execute("DELETE FROM nodes WHERE ephemeral")


def create_tables(db: sqlite3.Connection) -> None:
    """Create the tables of an empty store, inside a transaction."""
    for statement in filter(str.strip, _SCHEMA.split(";")):
        db.execute(statement)
