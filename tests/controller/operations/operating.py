"""Real parts for the tests of the protocol: layouts in SQLite, a journal in a file, and a death after any change.

Run as `python -m tests.controller.operations.operating BOOTSTRAP FOLDER CHANGES` it resumes the operation in the
journal and kills itself with -9 after this many changes.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from anabranch.controller.metadata.sqlite import SqliteStore
from anabranch.controller.operations.journal import Operation
from anabranch.controller.operations.protocol import Layouts, StoredLayout, resume
from anabranch.controller.outbox.announcements import layout_announcement
from anabranch.controller.segments.base import SegmentStore
from anabranch.controller.segments.kafka import KafkaSegments
from decisions.topic.layout import SegmentLayout
from schemas.kafka.connection import KafkaConnection
from tests.controller.owned import OwnedStore

CHANGES = {"create", "create_subscription", "delete_subscription", "terminate", "delete", "replace", "notify", "save"}


class RecordingLayouts:
    """The `Layouts` of a store; notifications are kept."""

    def __init__(self, store: OwnedStore) -> None:
        self._store = store
        self.notified: list[int] = []

    def read(self, topic: str) -> StoredLayout | None:
        stored = self._store.topic(topic)
        return StoredLayout(stored.version, SegmentLayout.from_metadata(stored.metadata)) if stored else None

    def replace(self, operation: Operation, version: int, layout: SegmentLayout) -> bool:
        metadata = layout.to_metadata()
        with self._store.writing(operation.topic) as transaction:
            if not transaction.replace_layout(operation.topic, version, metadata):
                return False
            transaction.announce(layout_announcement(operation.topic, operation.kind, metadata, operation.started_at))
        return True

    def subscriptions(self, topic: str) -> Sequence[str]:
        return [subscription.name for subscription in self._store.subscriptions(topic)]

    def notify(self, operation: Operation, layout: SegmentLayout) -> None:
        self.notified.append(layout.epoch)


class FileJournal:
    """One operation in a file."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "operation.json"

    def save(self, operation: Operation) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(operation.to_json())
        new.replace(self._file)

    def read(self) -> Operation:
        return Operation.model_validate_json(self._file.read_text())


class Deadly:
    """Counts the changes made through it and calls `die` right after the chosen one."""

    def __init__(self, after: int, die: Callable[[], None]) -> None:
        self._left, self._die = after, die
        self.made: list[str] = []

    def __call__(self, part: object) -> Any:
        """The same part, with every change counted."""
        return _Watched(part, self)

    def count(self, name: str, real: Callable[..., Any], *arguments: Any) -> Any:
        answer = real(*arguments)
        self.made.append(name)
        self._left -= 1
        if self._left == 0:
            self._die()
        return answer


class _Watched:
    def __init__(self, part: object, deadly: Deadly) -> None:
        self._part, self._deadly = part, deadly

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._part, name)
        return partial(self._deadly.count, name, real) if name in CHANGES else real


def resume_until(deadly: Deadly, journal: FileJournal, segments: SegmentStore, layouts: Layouts) -> Operation:
    """Resume what is in the journal; dies after the chosen change."""
    return resume(journal.read(), deadly(segments), deadly(layouts), deadly(journal).save)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    bootstrap, folder, changes = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    layouts = RecordingLayouts(OwnedStore(SqliteStore(folder / "layouts.db")))
    resume_until(Deadly(changes, _kill), FileJournal(folder), KafkaSegments(KafkaConnection(bootstrap)), layouts)
