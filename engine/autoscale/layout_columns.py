"""What a topic's layout brings to the columns of its fleet, worked out once, when the layout comes.

Stage: beside `engine.autoscale.topics`, which keeps and stores it; `engine.autoscale.fleet_view` lays topics side by
side by it, also after a start, without reading a layout.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Mapping
from itertools import chain
from struct import pack
from typing import Any, NamedTuple

import numpy as np

from decisions.topic.layout import SegmentLayout

SEGMENT = np.dtype([("id", "<i8"), ("shown", "<i4"), ("kept", "<i4"), ("is_single_hash", "?")])
"""An active segment: `shown` is its merge depth by the layout, `kept` the one that is kept through pruning (guard
`explicitLineage`)."""


class LayoutColumns(NamedTuple):
    """A layout in columns."""

    epoch: int
    digest: str
    """Of the layout's record: holds are on record with it."""
    override: str | None
    """The topic's own policy override, JSON."""
    segments: bytes
    """A `SEGMENT` for each active segment, in the order of their hash ranges."""

    def stored(self) -> list[Any]:
        """As JSON can hold it."""
        return [self.epoch, self.digest, self.override, b64encode(self.segments).decode()]

    @classmethod
    def of_stored(cls, stored: list[Any]) -> LayoutColumns:
        """The inverse of `stored`."""
        epoch, digest, override, segments = stored
        return cls(epoch, digest, override, b64decode(segments))


def layout_columns(layout: SegmentLayout, record: str, merge_depths: Mapping[int, int]) -> LayoutColumns:
    """The columns of a layout; `record` is its record as JSON, `merge_depths` are those that were kept."""
    fields = []
    for segment in layout.active:
        number = segment.segment_id
        shown = layout.merge_depth(number) if segment.parent_ids else 0
        fields.append((number, shown, max(shown, merge_depths.get(number, 0)), segment.start == segment.end))
    policy = layout.auto_scale_policy
    return LayoutColumns(
        layout.epoch,
        layout_digest(record),
        policy.known_json() if policy else None,
        pack("<" + "qii?" * len(fields), *chain.from_iterable(fields)),
    )


def layout_digest(record: str) -> str:
    """The digest of a layout by its record, JSON."""
    return hashlib.blake2b(record.encode(), digest_size=8).hexdigest()
