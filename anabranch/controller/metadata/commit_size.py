"""Size of a commit for ZooKeeper, which closes the connection on a request above its `jute.maxbuffer`.

Stage: beside `commit_plan`, pure. A change of unbounded size is split into several commits, each of which leaves a
consistent state; one that cannot be split is measured before any work for it starts. An estimate here never falls below
the real size; the store itself measures what it sends, to the byte.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from anabranch.controller.metadata.base import Append, InvalidTreeChange, Op, Put, ancestors

MAX_COMMIT_BYTES = 900_000
"""Limit of one commit as sent.

A server accepts 1,048,575 bytes unless its `jute.maxbuffer` says otherwise.
"""
STEP_BYTES = 256
"""Maximum overhead of a step: headers, versions, the access list, and its counter's two steps."""
NAME_BYTES = 16
"""Length of the name given to an appended node, and of the replacement for the root of the tree."""


class CommitTooLarge(InvalidTreeChange):
    """A commit is larger than the store can ever accept; nothing was changed."""

    def __init__(self, path: str, size: int, most: int) -> None:
        super().__init__(path, f"the change has {size} bytes, ZooKeeper takes {most} at once")


@dataclass(frozen=True)
class CommitLimit:
    """Size limit of one commit; `root_bytes`: length of the prefix that the store adds to each path."""

    root_bytes: int
    max_bytes: int = MAX_COMMIT_BYTES

    def bytes_of(self, op: Op) -> int:
        """Return the maximum size of an operation, including the nodes above that it may have to create."""
        path, value = len(op.path.encode()), 0
        size = path + self.root_bytes + STEP_BYTES
        if isinstance(op, (Put, Append)):
            value = len(op.value)
            above = [len(ancestor.encode()) for ancestor in ancestors(op.path)]
            size += sum(above) + len(above) * (self.root_bytes + STEP_BYTES)
        if isinstance(op, Append):
            size += path + self.root_bytes + STEP_BYTES + NAME_BYTES
        return size + value

    def parts(self, ops: Iterable[Op], reserved: Iterable[Op] = ()) -> Iterator[list[Op]]:
        """Split `ops`, in order, into as few commits as hold them beside `reserved`; none is empty.

        An operation larger than a commit gets its own part: the store will reject it.
        """
        start = sum(map(self.bytes_of, reserved))
        part: list[Op] = []
        size = start
        for op in ops:
            more = self.bytes_of(op)
            if part and size + more > self.max_bytes:
                yield part
                part, size = [], start
            part.append(op)
            size += more
        if part:
            yield part

    def check(self, ops: Iterable[Op]) -> None:
        """Raise `CommitTooLarge` if one commit may not hold all of `ops`, whatever the tree contains."""
        listed = list(ops)
        size = sum(map(self.bytes_of, listed))
        if size > self.max_bytes:
            raise CommitTooLarge(max(listed, key=self.bytes_of).path, size, self.max_bytes)
