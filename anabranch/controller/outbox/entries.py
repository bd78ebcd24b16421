"""The outbox: pending announcements, grouped by commit, in the order of the commits.

Stage: written by `anabranch.controller.layouts.transaction` in the commit of the change itself, emptied by
`anabranch.controller.publishing.publisher`. So neither a change nor its announcement exists without the other after a
crash.
"""

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from anabranch.controller.metadata.base import Append, Check, Delete, MetadataStore
from anabranch.controller.metadata.store_paths import OUTBOX
from anabranch.controller.outbox.announcements import Announcement


class OutboxEntry(NamedTuple):
    """Records of one commit; entries are sent in the order of their names."""

    name: str
    records: tuple[Announcement, ...]


class StoredOutbox:
    """The outbox in `nodes`."""

    def __init__(self, nodes: MetadataStore) -> None:
        self._nodes = nodes

    def names(self, after: str = "") -> list[str]:
        """Return the names of the entries after that one, in order."""
        return [name for name in self._nodes.children(OUTBOX) if name > after]

    def read(self, names: Sequence[str]) -> list[OutboxEntry]:
        """Return those of these entries that still exist."""
        nodes = self._nodes.get_all([f"{OUTBOX}/{name}" for name in names])
        return [OutboxEntry(name, _records(node.value)) for name, node in zip(names, nodes, strict=True) if node]

    def drop(self, names: Sequence[str], check: Check) -> None:
        """Delete entries whose delivery was confirmed, on condition of `check`."""
        self._nodes.commit_in_parts([check], [Delete(f"{OUTBOX}/{name}") for name in names])


def append_entry(records: Iterable[Announcement]) -> Append:
    """Return the operation that adds the records of one commit to the outbox."""
    texts = [(record.source, record.key, record.value.decode()) for record in records]
    return Append(OUTBOX, json.dumps(texts, ensure_ascii=False, separators=(",", ":")).encode())


def _records(value: bytes) -> tuple[Announcement, ...]:
    return tuple(Announcement(source, key, text.encode()) for source, key, text in json.loads(value))
