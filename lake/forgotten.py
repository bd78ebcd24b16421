"""Retention marks in the logs of tables: the day before which rows were removed.

Stage: under `lake.retention`, which writes them, and every query that must know its limits. A mark concerns all rows
or a namespace. It is a Delta app transaction whose version is a day, so it is written by the commit that removes the
rows.
"""

from collections.abc import Collection
from datetime import date, datetime, time, timedelta, timezone

from deltalake import DeltaTable, Transaction

from lake.tables import open_table
from schemas.tables.rows import DECISIONS, EVENTS, HOLDS, SEGMENT_LOAD

EVERYWHERE = "anabranch-forgotten-before"
"""Name of the mark for all rows, in days since 1970. Older releases used it for namespaces too."""
_OF_NAMESPACE = f"{EVERYWHERE}:"
_ANYWHERE = "anabranch-forgotten-somewhere-before"
"""Name of the newest mark of a table: delta-rs does not list them."""
_EPOCH = date(1970, 1, 1)
_NEEDED = (SEGMENT_LOAD, EVENTS, HOLDS, DECISIONS)
"""Tables whose old rows a replay needs."""
_TOPIC = "topic://"


class Retained:
    """Time from which a lake has all rows for a replay, as of the creation of this object."""

    def __init__(self, lake: str) -> None:
        """Read the marks. Raises what Delta raises."""
        self._tables = [delta for table in _NEEDED if (delta := open_table(lake, table)) is not None]
        self._of_namespace: dict[str, datetime | None] = {}
        self.everywhere = self._latest_mark(EVERYWHERE)
        """Midnight before which rows of all topics and clusters are removed, or None."""
        self.anywhere = self._latest_mark(EVERYWHERE, _ANYWHERE)
        """Midnight before which rows of some topics are removed, or None."""

    def of_namespace(self, namespace: str) -> datetime | None:
        """Return the midnight before which rows of a namespace (`tenant/namespace`) are removed, or None."""
        if namespace not in self._of_namespace:
            self._of_namespace[namespace] = self._latest_mark(EVERYWHERE, _OF_NAMESPACE + namespace)
        return self._of_namespace[namespace]

    def of(self, subject: str) -> datetime | None:
        """Return the same for a topic, by its full name, or a cluster."""
        namespace = namespace_of(subject)
        return self.everywhere if namespace is None else self.of_namespace(namespace)

    def of_all(self, subjects: Collection[str] | None) -> datetime | None:
        """Return the latest for several subjects; None: all recorded ones."""
        if subjects is None:
            return self.anywhere
        return max((instant for instant in map(self.of, subjects) if instant is not None), default=self.everywhere)

    def _latest_mark(self, *names: str) -> datetime | None:
        days = [delta.transaction_version(name) for delta in self._tables for name in names]
        return max((midnight_of(_EPOCH + timedelta(days=day)) for day in days if day is not None), default=None)


def retained_from(lake: str, subjects: Collection[str] | None = None) -> datetime | None:
    """Return the midnight before which rows of `subjects` (None: all) are removed. Raises Delta's errors."""
    return Retained(lake).of_all(subjects)


def forgotten_before(delta: DeltaTable) -> date | None:
    """Return the day before which rows of a table may have been removed, or None."""
    days = [day for name in (EVERYWHERE, _ANYWHERE) if (day := delta.transaction_version(name)) is not None]
    return _EPOCH + timedelta(days=max(days)) if days else None


def is_marked(delta: DeltaTable, before: date, namespaces: Collection[str] = ()) -> bool:
    """Return whether rows before a day were removed already, of all these namespaces (none: everywhere)."""
    day = (before - _EPOCH).days
    if (delta.transaction_version(EVERYWHERE) or 0) >= day:
        return True
    of_each = [delta.transaction_version(_OF_NAMESPACE + namespace) or 0 for namespace in namespaces]
    return bool(of_each) and min(of_each) >= day


def retention_marks(delta: DeltaTable, before: date, namespaces: Collection[str]) -> list[Transaction]:
    """Return the marks for a commit that removes rows before a day; no mark goes back."""
    names = [_ANYWHERE, *([_OF_NAMESPACE + namespace for namespace in namespaces] or [EVERYWHERE])]
    day = (before - _EPOCH).days
    return [Transaction(name, max(day, delta.transaction_version(name) or 0)) for name in names]


def namespace_of(subject: str) -> str | None:
    """Return `tenant/namespace` of a full topic name; None for any other subject."""
    parts = subject.removeprefix(_TOPIC).split("/")
    return "/".join(parts[:2]) if subject.startswith(_TOPIC) and len(parts) > 2 else None


def midnight_of(day: date) -> datetime:
    """Return the beginning of a day in UTC."""
    return datetime.combine(day, time(), timezone.utc)
