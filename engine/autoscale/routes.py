"""Where samples go: the rows of the load table that a message's segments have, kept from batch to batch.

Stage: inside the stateful operator, between `engine.autoscale.intake` and `engine.autoscale.loads`. Samples of segments
that no layout names yet are kept, because layouts have a source of their own and come later now and then; but only so
many, because whoever reports can name any topic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from engine.autoscale.loads import LoadTable
from engine.autoscale.policies import EffectivePolicy, Policies
from engine.autoscale.samples import Samples
from engine.autoscale.state import BucketState, TopicState

MOST_AHEAD = 64
"""How far a segment's id may be ahead of the layout that is known; more than a topic gets in many splits."""
MOST_ROWS_WITHOUT_LAYOUT = 10_000
"""Segments of topics without a layout that a bucket keeps, 100 bytes each."""


@dataclass(frozen=True)
class Route:
    """Where the samples of a topic go, for a message that names exactly these segments."""

    segments: bytes
    """Ids of the segments, 64 bits each; all of them are active, or newer than the layout that is known."""
    rows: npt.NDArray[np.int64]
    """Their rows in the load table."""
    policy: EffectivePolicy


@dataclass
class Routes:
    """The routes of a bucket's topics, beside the state that they were read off."""

    state: BucketState
    loads: LoadTable
    policies: Policies
    new_rows: set[str] = field(default_factory=set)
    """Topics that got rows in the load table; whoever has looked at it clears it."""
    _known: dict[str, Route] = field(default_factory=dict)
    _without_layout: int | None = None
    """Rows of topics without a layout; None: to be counted."""

    def forget(self, topic: str) -> None:
        """The layout of a topic or the rows of its segments are others now."""
        self._known.pop(topic, None)
        self._without_layout = None

    def clear(self) -> None:
        """A policy of many topics, or the rows of all, are others now."""
        self._known.clear()
        self._without_layout = None

    def of(self, samples: Samples) -> tuple[list[Route], npt.NDArray[np.bool_] | None]:
        """Where each message's samples go, and which samples are kept (None: all)."""
        ends = (np.cumsum(samples.counts) * 8).tolist()
        ids = samples.segments.tobytes()
        known, routes, kept, start = self._known, [], None, 0
        for topic, end in zip(samples.topics, ends, strict=True):
            route = known.get(topic)
            if route is None or route.segments != ids[start:end]:
                segments = samples.segments[start // 8 : end // 8].tolist()
                route, wanted = self._find(topic, ids[start:end], segments)
                if wanted is None:
                    known[topic] = route
                else:
                    kept = np.ones(len(samples.segments), np.bool_) if kept is None else kept
                    kept[start // 8 : end // 8] = wanted
            routes.append(route)
            start = end
        return routes, kept

    def _find(self, name: str, packed: bytes, segments: list[int]) -> tuple[Route, list[bool] | None]:
        """The route of a message, and which of its samples are kept; None: all."""
        topic = self.state.topics.get(name)
        policy = self.policies.of(self.state, topic or TopicState(name))
        wanted: list[bool] | None = self._wanted(name, topic, segments)
        chosen = [i for i, keep in zip(segments, wanted, strict=True) if keep]
        before = self.loads.rows_in(name)
        rows = self.loads.rows_of(name, chosen)
        added = self.loads.rows_in(name) - before
        if added:
            self.new_rows.add(name)
            if self._without_layout is not None and (topic is None or topic.metadata_json is None):
                self._without_layout += added
        return Route(packed, rows, policy), None if len(chosen) == len(segments) else wanted

    def _wanted(self, name: str, topic: TopicState | None, segments: Sequence[int]) -> list[bool]:
        if topic is not None and topic.layout is not None:
            active, newer = topic.active_ids, topic.layout.next_segment_id
            return [i in active or newer <= i < newer + MOST_AHEAD for i in segments]
        if self._without_layout is None:
            self._without_layout = self._count_without_layout()
        room = MOST_ROWS_WITHOUT_LAYOUT - self._without_layout
        has_row = [row >= 0 for row in self.loads.known_rows(name, segments)]
        if len(segments) - sum(has_row) <= room:
            return [True] * len(segments)
        return has_row

    def _count_without_layout(self) -> int:
        topics = self.state.topics
        names = (name for name in self.loads.topics() if name not in topics or topics[name].metadata_json is None)
        return sum(self.loads.rows_in(name) for name in names)
