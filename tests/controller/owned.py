"""A store whose node leads every topic that it writes, and its announcements."""

from __future__ import annotations

from contextlib import AbstractContextManager

from anabranch.controller.layouts.store import LayoutStore
from anabranch.controller.layouts.transaction import Transaction
from anabranch.controller.leadership.leaders import Leaders
from anabranch.controller.metadata.base import MetadataStore
from anabranch.controller.outbox.announcements import Announcement
from anabranch.controller.outbox.entries import StoredOutbox


class OwnedStore(LayoutStore):
    """One node on `nodes`, which are closed with it."""

    def __init__(self, nodes: MetadataStore, url: str = "http://one") -> None:
        super().__init__(nodes)
        self.nodes = nodes
        self.leaders = Leaders(nodes, url)

    def writing(self, topic: str) -> AbstractContextManager[Transaction]:
        """A change of a topic as its leader."""
        return self.write(self.leaders.lead(topic))

    def announced(self) -> list[Announcement]:
        """What waits in the outbox, in order."""
        return announced(self.nodes)

    def close(self) -> None:
        self.nodes.close()


def announced(nodes: MetadataStore) -> list[Announcement]:
    """What waits in the outbox of a store, in order."""
    outbox = StoredOutbox(nodes)
    return [record for entry in outbox.read(outbox.names()) for record in entry.records]
