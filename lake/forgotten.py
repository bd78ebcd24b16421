"""Marks in the logs of tables: before which day rows were forgotten on purpose, everywhere or of one namespace.

Stage: under `lake.retention`, which leaves them, and all that says what can no longer be known. A mark is a Delta app
transaction whose version is a day, so it comes with the commit that forgets.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import date, datetime, time, timedelta, timezone

from deltalake import DeltaTable, Transaction

from lake.tables import open_table
from schemas.tables import DECISIONS, EVENTS, HOLDS, SEGMENT_LOAD

EVERYWHERE = "anabranch-forgotten-before"
"""Names the mark of all rows, as days since 1970. Older releases left it for a namespace too."""
_OF_NAMESPACE = f"{EVERYWHERE}:"
_ANYWHERE = "anabranch-forgotten-somewhere-before"
"""The newest of a table's marks: delta-rs does not list them."""
_EPOCH = date(1970, 1, 1)
_NEEDED = (SEGMENT_LOAD, EVENTS, HOLDS, DECISIONS)
"""Tables whose old rows a replay needs."""
_TOPIC = "topic://"


class Retained:
    """From when on a lake has all rows that a replay needs, as it is when this is made."""

    def __init__(self, lake: str) -> None:
        """Raises what Delta raises."""
        self._tables = [delta for table in _NEEDED if (delta := open_table(lake, table)) is not None]
        self._of_namespace: dict[str, datetime | None] = {}
        self.everywhere = self._newest(EVERYWHERE)
        """The midnight before which rows of all topics and clusters are forgotten; None: there is none."""
        self.anywhere = self._newest(EVERYWHERE, _ANYWHERE)
        """The midnight before which rows of some topics are forgotten; None: there is none."""

    def of_namespace(self, namespace: str) -> datetime | None:
        """The midnight before which rows of a namespace (`tenant/namespace`) are forgotten; None: there is none."""
        if namespace not in self._of_namespace:
            self._of_namespace[namespace] = self._newest(EVERYWHERE, _OF_NAMESPACE + namespace)
        return self._of_namespace[namespace]

    def of(self, subject: str) -> datetime | None:
        """The same of a topic, by its full name, or of a cluster."""
        namespace = namespace_of(subject)
        return self.everywhere if namespace is None else self.of_namespace(namespace)

    def of_all(self, subjects: Collection[str] | None) -> datetime | None:
        """The latest of several subjects; None: of all that are on record."""
        if subjects is None:
            return self.anywhere
        return max((at for at in map(self.of, subjects) if at is not None), default=self.everywhere)

    def _newest(self, *names: str) -> datetime | None:
        days = [delta.transaction_version(name) for delta in self._tables for name in names]
        return max((_midnight(_EPOCH + timedelta(days=day)) for day in days if day is not None), default=None)


def retained_from(lake: str, subjects: Collection[str] | None = None) -> datetime | None:
    """The midnight before which rows are forgotten that a replay of these subjects needs (None: of all of them).

    None: there is none. Raises what Delta raises.
    """
    return Retained(lake).of_all(subjects)


def forgotten_before(delta: DeltaTable) -> date | None:
    """The day before which some rows of a table may be missing on purpose; None: there is none."""
    days = [day for name in (EVERYWHERE, _ANYWHERE) if (day := delta.transaction_version(name)) is not None]
    return _EPOCH + timedelta(days=max(days)) if days else None


def is_marked(delta: DeltaTable, before: date, namespaces: Collection[str] = ()) -> bool:
    """Whether rows before a day were forgotten already, of all these namespaces (none: everywhere)."""
    day = (before - _EPOCH).days
    if (delta.transaction_version(EVERYWHERE) or 0) >= day:
        return True
    of_each = [delta.transaction_version(_OF_NAMESPACE + namespace) or 0 for namespace in namespaces]
    return bool(of_each) and min(of_each) >= day


def marks(delta: DeltaTable, before: date, namespaces: Collection[str]) -> list[Transaction]:
    """The marks that a commit leaves which forgets rows before a day; no mark goes back."""
    names = [_ANYWHERE, *([_OF_NAMESPACE + namespace for namespace in namespaces] or [EVERYWHERE])]
    day = (before - _EPOCH).days
    return [Transaction(name, max(day, delta.transaction_version(name) or 0)) for name in names]


def namespace_of(subject: str) -> str | None:
    """`tenant/namespace` of a topic by its full name; None: it is no topic."""
    parts = subject.removeprefix(_TOPIC).split("/")
    return "/".join(parts[:2]) if subject.startswith(_TOPIC) and len(parts) > 2 else None


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), timezone.utc)
