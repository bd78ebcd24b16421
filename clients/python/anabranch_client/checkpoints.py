"""Positions over all segments of a topic, as opaque bytes that survive splits and merges.

A checkpoint holds an offset for every segment of the frontier: those being read, and those that are read while a child
waits for another parent. A segment that it does not name is either older than the frontier, and read, or younger, and
read from its beginning once its parents are read. So it stays valid whatever happens to the layout, until a segment of
the frontier is pruned unread. Without any offset it stands for the oldest retained messages.

Version 1, after the magic bytes `ABCK` and the byte of the version: JSON in UTF-8, then its CRC-32 in four bytes.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anabranch_client.errors import (
    CheckpointExpired,
    CheckpointOfOtherTopic,
    CheckpointUnreadable,
    ControllerUnavailable,
)
from anabranch_client.layout import Layout

MAGIC = b"ABCK"
VERSION = 1
MAX_BYTES = 16 * 1_048_576
"""Largest checkpoint that is read: one of 131,072 segments has less than half of it."""
_MAX_ID, _MAX_OFFSET = 2**53, 2**63 - 1


@dataclass(frozen=True)
class Checkpoint:
    """Next offsets of the segments at the frontier."""

    topic: str
    created_at_ms: int | None
    """Incarnation of the topic."""
    offsets: Mapping[int, int]
    """By segment id."""
    finished: frozenset[int] = frozenset()
    """Those of them that are read to their final end, while a child waits for another parent."""

    def to_bytes(self) -> bytes:
        """Return the opaque form; equal checkpoints have equal bytes."""
        content = json.dumps(
            {
                "topic": self.topic,
                "createdAtMs": self.created_at_ms,
                "offsets": {str(id): self.offsets[id] for id in sorted(self.offsets)},
                "finished": sorted(self.finished),
            },
            separators=(",", ":"),
        ).encode()
        return MAGIC + bytes([VERSION]) + content + zlib.crc32(content).to_bytes(4, "big")

    @classmethod
    def from_bytes(cls, data: bytes) -> "Checkpoint":
        """Read the opaque form. Raises `CheckpointUnreadable`."""
        if len(data) > MAX_BYTES or data[:4] != MAGIC or len(data) < 9:
            raise CheckpointUnreadable("these bytes are no checkpoint of this client: give what `checkpoint` returned")
        if data[4] != VERSION:
            raise CheckpointUnreadable(
                f"the checkpoint has version {data[4]}, this client reads version {VERSION}: use a newer client"
            )
        content = data[5:-4]
        if zlib.crc32(content) != int.from_bytes(data[-4:], "big"):
            raise CheckpointUnreadable("the checkpoint is damaged: restore it from an intact copy, or seek by time")
        try:
            return cls._from_record(json.loads(content))
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise CheckpointUnreadable("the checkpoint holds no positions: give what `checkpoint` returned") from error

    @classmethod
    def _from_record(cls, record: Any) -> "Checkpoint":
        """Read the content, whose check sum anybody can compute. Raises as the conversions do."""
        topic, created, finished = record["topic"], record["createdAtMs"], frozenset(record["finished"])
        offsets = {int(id): offset for id, offset in record["offsets"].items()}
        integers = [*offsets, *finished, *offsets.values(), *([] if created is None else [created])]
        if not isinstance(topic, str) or any(type(number) is not int for number in integers):
            raise TypeError("a part of the checkpoint is of a wrong type")
        if not finished <= offsets.keys() or any(not 0 <= id < _MAX_ID for id in offsets):
            raise ValueError("a segment of the checkpoint is none")
        if any(not 0 <= offset <= _MAX_OFFSET for offset in offsets.values()):
            raise ValueError("an offset of the checkpoint is none")
        return cls(topic, created, offsets, finished)

    def check_topic(self, layout: Layout) -> None:
        """Raise `CheckpointOfOtherTopic` unless it belongs to this incarnation of the topic."""
        if (self.topic, self.created_at_ms) != (layout.topic, layout.created_at_ms):
            other = self.topic if self.topic != layout.topic else f"an earlier topic of the name {self.topic}"
            raise CheckpointOfOtherTopic(f"the checkpoint is of {other}, not of {layout.topic}: start without it")


class Frontier:
    """Segments of a layout that are read, being read, or waiting for their parents. Pure."""

    def __init__(self, layout: Layout, checkpoint: Checkpoint | None = None) -> None:
        """Raises `CheckpointOfOtherTopic`, `CheckpointExpired`."""
        if checkpoint is not None:
            checkpoint.check_topic(layout)
        self.layout = layout
        self.offsets: dict[int, int] = dict(checkpoint.offsets) if checkpoint else {}
        self.finished: set[int] = set(checkpoint.finished) if checkpoint else set()
        self._check_retained(layout)

    def follow(self, layout: Layout) -> None:
        """Adopt a newer layout of the incarnation. Raises `CheckpointExpired` if unread segments are gone."""
        if layout.replaces(self.layout):
            self._check_retained(layout)
            self.layout = layout

    def readable(self) -> dict[int, int | None]:
        """Return the segments to read now with their next offsets; None: from the beginning."""
        read = self._segments_read()
        return {id: self.offsets.get(id) for id in self.layout.segments if id not in read and self._is_ready(id, read)}

    def advance(self, segment_id: int, offset: int) -> None:
        """Note the offset after the last delivered message of a segment."""
        self.offsets[segment_id] = offset

    def finish(self, segment_id: int) -> None:
        """Note that a sealed segment is read to its end; children whose turn has come replace it."""
        self.finished.add(segment_id)
        self.offsets.setdefault(segment_id, 0)
        read, segments = self._segments_read(), self.layout.segments
        for child in segments[segment_id].children:
            if child in segments and child not in read and self._is_ready(child, read):
                self.offsets.setdefault(child, 0)
        for id in self.finished & segments.keys():
            if segments[id].children and all(child in self.offsets for child in segments[id].children):
                self.offsets.pop(id, None)
        self.finished &= self.offsets.keys()

    def checkpoint(self) -> Checkpoint:
        """Return the present positions."""
        return Checkpoint(self.layout.topic, self.layout.created_at_ms, dict(self.offsets), frozenset(self.finished))

    def _segments_read(self) -> set[int]:
        """Return the segments that are read: finished, or an ancestor of one that was begun."""
        begun = self.offsets.keys() & self.layout.segments.keys()
        return self.finished.union(*(self.layout.ancestors(id) for id in begun))

    def _is_ready(self, id: int, read: set[int]) -> bool:
        segments = self.layout.segments
        return all(parent in read or parent not in segments for parent in segments[id].parents)

    def _check_retained(self, layout: Layout) -> None:
        """Raise `CheckpointExpired` if a segment was pruned before it was read."""
        lost = self.offsets.keys() - self.finished - layout.segments.keys()
        if lost and max(lost) > max(layout.segments):
            # Segments are numbered in the order of their creation.
            raise ControllerUnavailable(
                f"the controller's layout of {layout.topic} is older than the checkpoint: try again"
            )
        if lost:
            raise CheckpointExpired(
                f"segments {sorted(lost)} of {layout.topic} were pruned before they were read from this position: keep "
                "sealed segments for longer (controller.checkpoint_retention_seconds), or seek by time"
            )
