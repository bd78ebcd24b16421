"""Layout store: topics, subscriptions, sessions, policies (PIP-468 "ScalableTopicResources").

A change and its announcement are one commit, so neither exists without the other after a crash. Every write of a topic
names the term of its leader: one leader, and one writer of a topic at a time within it, make a read and the commit
after it atomic. A namespace's policy has no leader; its write is a compare-and-set on the version read.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from anabranch.controller.errors import Conflict, PreconditionFailed, Unavailable
from anabranch.controller.layouts.reader import LayoutReader
from anabranch.controller.layouts.transaction import Transaction
from anabranch.controller.leadership.leaders import Term
from anabranch.controller.locks import NamedLocks
from anabranch.controller.metadata import store_paths
from anabranch.controller.metadata.base import (
    ABSENT,
    Delete,
    InvalidTreeChange,
    MetadataStore,
    Op,
    Put,
    VersionConflict,
)
from anabranch.controller.metadata.commit_size import CommitTooLarge
from anabranch.controller.outbox.announcements import Announcement
from anabranch.controller.outbox.entries import append_entry
from schemas.metadata import ScalableTopicMetadata

log = logging.getLogger(__name__)

MAX_GROWTH_BYTES = 16_384
"""Room reserved beside a new layout for its operation, the topic's policy and the leader's check."""


class LayoutStore(LayoutReader):
    """All topics; thread-safe."""

    def __init__(self, nodes: MetadataStore) -> None:
        super().__init__(nodes)
        self.on_layout: list[Callable[[str], None]] = []
        """Called with every topic whose layout this node has changed; must be quick."""
        self.on_members: list[Callable[[str, str], None]] = []
        """Called with topic and name of every subscription whose consumers changed; must be quick."""
        self._alone = NamedLocks()

    @contextmanager
    def write(self, term: Term) -> Iterator[Transaction]:
        """Change a topic: durable at the end of the block, undone when it raises.

        Raises `Unavailable` when the term has ended, `StoreUnavailable` when the outcome is unknown.
        """
        with self._alone.locked(term.topic):
            transaction = Transaction(self._nodes)
            yield transaction
            if ops := transaction.ops():
                self._commit(term, ops)
        for topic in transaction.layout_of:
            for tell_layout in self.on_layout:
                tell_layout(topic)
        for changed in transaction.members_of:
            for tell_members in self.on_members:
                tell_members(*changed)

    @contextmanager
    def write_policy(self) -> Iterator[Transaction]:
        """Change a namespace or its policy, from any node. Raises `Conflict` on a concurrent change."""
        transaction = Transaction(self._nodes)
        yield transaction
        try:
            self._nodes.commit(*transaction.ops())
        except VersionConflict:
            raise Conflict("somebody else changed it at the same moment; try again") from None

    def confirm(self, term: Term) -> None:
        """Raise `Unavailable` when the term has ended. For work outside of this store, which is not fenced.

        Stops a node that was frozen before; cannot stop one that freezes right after.
        """
        node = self._nodes.get(term.check.path)
        if node is None or node.version != term.version:
            raise _not_leading(term)

    def new_life(self, now_ms: int) -> int:
        """Return the creation time (ms) of a new topic: the clock's, but later than that of any deleted topic.

        So no topic shares its incarnation with an earlier one of its name, even if the clock was set back.
        """
        node = self._nodes.get(store_paths.LIVES)
        return max(now_ms, int(node.value) + 1 if node else 0)

    def end_life(self, created_at: int | None) -> None:
        """Make every new incarnation later than this one; None (unknown incarnation) changes nothing."""
        while created_at is not None:
            node = self._nodes.get(store_paths.LIVES)
            if node is not None and int(node.value) >= created_at:
                return
            try:
                self._nodes.put(store_paths.LIVES, str(created_at).encode(), node.version if node else ABSENT)
            except VersionConflict:
                log.debug("another topic was deleted at the same moment")

    def clear(self, term: Term) -> None:
        """Remove the remains of a deleted topic, in parts because there may be many.

        The journal goes last, so that it records the pending removal to the end.
        """
        top = store_paths.topic_path(term.topic)
        names = sorted(set(self._nodes.children(top)) - {"controller"}, key=lambda name: (name == "operations", name))
        paths = [path for name in names for path in self._below(top, name)]
        with self._alone.locked(term.topic), _refusals(term):
            self._nodes.commit_in_parts([term.check], [Delete(path) for path in paths])

    def check_fits(self, topic: str, metadata: ScalableTopicMetadata, announcement: Announcement | None) -> None:
        """Raise `PreconditionFailed` if the metadata store would refuse a layout with its announcement.

        Called before any step of the change: later there would be no way forward, and perhaps none back.
        """
        ops: list[Op] = [Put(store_paths.topic_path(topic), metadata.to_json().encode() + bytes(MAX_GROWTH_BYTES))]
        try:
            self._nodes.check_fits(*ops, *([append_entry([announcement])] if announcement else []))
        except CommitTooLarge as refused:
            raise PreconditionFailed(
                f"{topic} would have {len(metadata.segments)} segments: {refused}; merge segments, or have sealed ones "
                "pruned (controller.sealed_retention_seconds)"
            ) from None

    def _below(self, above: str, name: str) -> list[str]:
        """Return all paths from there on, the deepest first."""
        path = f"{above}/{name}"
        return [*(descendant for child in self._nodes.children(path) for descendant in self._below(path, child)), path]

    def _commit(self, term: Term, ops: list[Op]) -> None:
        with _refusals(term):
            self._nodes.commit(term.check, *ops)


@contextmanager
def _refusals(term: Term) -> Iterator[None]:
    """Translate errors of the metadata store into refusals of a request."""
    try:
        yield
    except VersionConflict as conflict:
        if conflict.path == term.check.path:
            raise _not_leading(term) from None
        raise Conflict(f"somebody else changed {term.topic} at the same moment; try again") from None
    except InvalidTreeChange as refused:
        raise PreconditionFailed(f"{term.topic}: {refused}") from None


def _not_leading(term: Term) -> Unavailable:
    return Unavailable(f"this node does not lead {term.topic} any more; ask again")
