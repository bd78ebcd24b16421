"""How large a commit is for ZooKeeper, which refuses a request above its `jute.maxbuffer` by closing the connection.

Stage: beside `commit_plan`, pure. A change that may be of any size is cut into several commits, after each of which all
is well; what cannot be cut is measured before anything is done for it. An estimate here is never below what is sent;
the store itself measures what it sends, to the byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from controller.metadata.base import Append, InvalidTreeChange, Op, Put
from controller.metadata.path_syntax import ancestors

MAX_COMMIT_BYTES = 900_000
"""Of one commit as it is sent. A server takes 1,048,575 bytes unless its `jute.maxbuffer` says otherwise."""
STEP_BYTES = 256
"""What a step adds to its path and value at most: headers, versions, the access list, and its counter's two steps."""
NAME_BYTES = 16
"""Of the name that an append is given, and of what stands for the root of the tree."""


class CommitTooLarge(InvalidTreeChange):
    """A commit is larger than the store can ever take; nothing was changed."""

    def __init__(self, path: str, size: int, most: int) -> None:
        super().__init__(path, f"the change has {size} bytes, ZooKeeper takes {most} at once")


@dataclass(frozen=True)
class CommitLimit:
    """What one commit of a store can hold; `root_bytes`: what the store puts before each path."""

    root_bytes: int
    max_bytes: int = MAX_COMMIT_BYTES

    def bytes_of(self, op: Op) -> int:
        """What an operation adds to a commit at most, the nodes above it that it may have to make included."""
        path, value = len(op.path.encode()), 0
        found = path + self.root_bytes + STEP_BYTES
        if isinstance(op, (Put, Append)):
            value = len(op.value)
            above = [len(one.encode()) for one in ancestors(op.path)]
            found += sum(above) + len(above) * (self.root_bytes + STEP_BYTES)
        if isinstance(op, Append):
            found += path + self.root_bytes + STEP_BYTES + NAME_BYTES
        return found + value

    def parts(self, ops: Iterable[Op], reserved: Iterable[Op] = ()) -> Iterator[list[Op]]:
        """`ops` in their order, cut into as few commits as hold them beside `reserved`; none is empty.

        An operation that is larger than a commit is alone: the store will say so.
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
        """Raises `CommitTooLarge` when one commit may not hold all of `ops`, whatever is in the tree."""
        listed = list(ops)
        size = sum(map(self.bytes_of, listed))
        if size > self.max_bytes:
            raise CommitTooLarge(max(listed, key=self.bytes_of).path, size, self.max_bytes)
