"""Where samples go: the rows of the load table that a message's segments have, kept from batch to batch.

Stage: between parsing and filtering of samples. Samples of segments that no layout names yet are kept, because layouts
have a source of their own and come later now and then; but only so many, because a reporter can name any topic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from engine.autoscale.loads import LoadTable
from engine.autoscale.policies import EffectivePolicy, Policies
from engine.autoscale.rows import NO_ROW
from engine.autoscale.samples import Samples
from engine.autoscale.topics import BucketState, TopicState

MAX_AHEAD = 64
"""How far a segment's id may be ahead of the layout that is known; more than a topic gets in many splits."""
MAX_ROWS_WITHOUT_LAYOUT = 10_000
"""Segments of topics without a layout that a bucket keeps, 100 bytes each."""


@dataclass(slots=True)
class Route:
    """Where the samples of a topic go, for a message that names exactly these segments."""

    segments: bytes
    """Ids of the segments, 64 bits each; all of them are active, or newer than the layout that is known."""
    rows: npt.NDArray[np.int64]
    """Their rows in the load table."""
    policy: EffectivePolicy
    generation: tuple[int, int, int]
    """What it was made of: the generations of the topic's layout and rows, and of the policies."""
    checked: int
    """The generation of the whole bucket in which it was last found to hold."""


@dataclass
class Routes:
    """The routes of a bucket's topics, beside the state that they are read off."""

    state: BucketState
    loads: LoadTable
    policies: Policies
    _known: dict[str, Route] = field(default_factory=dict)
    _without_layout: int = 0
    """Rows of topics without a layout."""
    _counted: int = -1
    """The generation of the whole bucket in which they were counted."""

    def of(self, samples: Samples) -> tuple[list[Route], npt.NDArray[np.bool_] | None]:
        """Where each message's samples go, and which samples are kept (None: all)."""
        ends = (np.cumsum(samples.counts) * 8).tolist()
        ids = samples.segments.tobytes()
        known, routes, kept, start = self._known, [], None, 0
        generation = self._generation()
        for topic, end in zip(samples.topics, ends, strict=True):
            route = known.get(topic)
            if route is None or route.segments != ids[start:end] or (
                route.checked != generation and not self._still_holds(topic, route, generation)
            ):  # fmt: skip
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

    def _generation(self) -> int:
        """Of the whole bucket: grows with each change of a layout, of rows or of a policy."""
        return self.state.layouts.newest + self.loads.index.generations.newest + self.state.policy_generation

    def _generation_of(self, topic: str) -> tuple[int, int, int]:
        state = self.state
        return state.layouts.of(topic), self.loads.index.generations.of(topic), state.policy_generation

    def _still_holds(self, topic: str, route: Route, generation: int) -> bool:
        if route.generation != self._generation_of(topic):
            return False
        route.checked = generation
        return True

    def _find(self, name: str, packed: bytes, segments: list[int]) -> tuple[Route, list[bool] | None]:
        """The route of a message, and which of its samples are kept; None: all."""
        topic = self.state.topics.get(name)
        policy = self.policies.of(self.state, topic or TopicState(name))
        wanted = self._wanted(name, topic, segments)
        chosen = [i for i, keep in zip(segments, wanted, strict=True) if keep]
        rows = self._rows_of(name, chosen, has_layout=topic is not None and topic.metadata_json is not None)
        route = Route(packed, rows, policy, self._generation_of(name), self._generation())
        return route, None if len(chosen) == len(segments) else wanted

    def _rows_of(self, name: str, segments: Sequence[int], has_layout: bool) -> npt.NDArray[np.int64]:
        """Their rows; what is given to a topic without a layout is counted on, so that no new count is due."""
        is_counted, before = self._counted == self._generation(), self.loads.index.rows_in(name)
        rows = self.loads.rows_of(name, segments)
        if is_counted:
            self._without_layout += 0 if has_layout else self.loads.index.rows_in(name) - before
            self._counted = self._generation()
        return rows

    def _wanted(self, name: str, topic: TopicState | None, segments: Sequence[int]) -> list[bool]:
        if topic is not None and topic.layout is not None:
            active, newer = topic.active_ids, topic.layout.next_segment_id
            return [i in active or newer <= i < newer + MAX_AHEAD for i in segments]
        if self._counted != self._generation():
            self._without_layout, self._counted = self._count_without_layout(), self._generation()
        room = MAX_ROWS_WITHOUT_LAYOUT - self._without_layout
        has_row = [row != NO_ROW for row in self.loads.index.known_rows(name, segments)]
        if len(segments) - sum(has_row) <= room:
            return [True] * len(segments)
        return has_row

    def _count_without_layout(self) -> int:
        topics = self.state.topics
        names = (name for name in self.loads.index.topics() if name not in topics or topics[name].metadata_json is None)
        return sum(self.loads.index.rows_in(name) for name in names)
