"""Part of a snapshot that one step of a switch was decided on, put on record with the step.

Stage: for `anabranch.bookkeeper.orchestrator`, which records it.
"""

from collections.abc import Iterable
from typing import TypeVar

from decisions.bookkeeper.seen import BookieView
from schemas.bookie_answers import Step
from schemas.bookies import BookieSnapshot, Failure, LedgerSeen, Progress, Promotion

Of = TypeVar("Of", Failure, Promotion)


class Reducer:
    """Reduces one snapshot to single steps."""

    def __init__(self, snapshot: BookieSnapshot) -> None:
        self._snapshot = snapshot
        self._schemas = {entry.path: entry for entry in snapshot.schemas}
        self._cursors = {entry.path: entry for entry in snapshot.cursors}
        self._seen = BookieView(snapshot)
        progress = snapshot.progress
        self._begun = frozenset(progress.begun)
        self._verified = {entry.ledger: entry for entry in progress.verified}
        self._failed, self._promoted = _by_object(progress.failed), _by_object(progress.promoted)
        self._of_topic: dict[str, list[str]] = {}
        for path in self._cursors:
            self._of_topic.setdefault(path.rpartition("/")[0], []).append(path)

    def reduced(self, step: Step) -> BookieSnapshot:
        """The snapshot with the records and ledgers that the step is about."""
        paths = {step.object, *(self._of_topic.get(step.object, ()) if step.kind == "topic" else ())}
        if step.ledger is not None:
            paths |= {item.object for item in self._seen.naming.get(step.ledger, ())}
        schemas = [self._schemas[path] for path in sorted(paths) if path in self._schemas]
        cursors = [self._cursors[path] for path in sorted(paths) if path in self._cursors]
        wanted = {entry.ledger for schema in schemas for entry in schema.positions} | {
            entry.ledger for entry in cursors
        }
        wanted |= set() if step.ledger is None else {step.ledger}
        return self._snapshot.model_copy(
            update={
                "schemas": schemas,
                "cursors": cursors,
                "topics": [],
                "progress": self._progress(paths, wanted),
                "ledgers": {name: self._ledgers(name, wanted) for name in self._snapshot.ledgers},
            }
        )

    def _ledgers(self, cluster: str, wanted: Iterable[int]) -> list[LedgerSeen]:
        return [seen for ledger in sorted(wanted) if (seen := self._seen.ledger(cluster, ledger)) is not None]

    def _progress(self, paths: set[str], wanted: set[int]) -> Progress:
        progress, objects, ledgers = self._snapshot.progress, sorted(paths), sorted(wanted)
        return progress.model_copy(
            update={
                "begun": [entry for entry in ledgers if entry in self._begun],
                "verified": [self._verified[entry] for entry in ledgers if entry in self._verified],
                "failed": [entry for path in objects for entry in self._failed.get(path, ())],
                "promoted": [entry for path in objects for entry in self._promoted.get(path, ())],
                "tries": {path: progress.tries[path] for path in objects if path in progress.tries},
                "in_flight": [],
            }
        )


def _by_object(entries: Iterable[Of]) -> dict[str, list[Of]]:
    by: dict[str, list[Of]] = {}
    for entry in entries:
        by.setdefault(entry.object, []).append(entry)
    return by
