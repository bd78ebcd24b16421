"""Where samples go: the rows of the load table that a message's segments have, kept from batch to batch.

Stage: between parsing and filtering of samples. Samples of segments that no layout names yet are kept, because layouts
have a source of their own and come later now and then; but only so many, because a reporter can name any topic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import numpy.typing as npt

from engine.autoscale.loads import LoadTable
from engine.autoscale.policies import EffectivePolicy, Policies
from engine.autoscale.rows import NO_ROW
from engine.autoscale.samples import Samples
from engine.autoscale.topics import MAX_WAIT_FOR_LAYOUT_MS, BucketState, TopicState

MAX_AHEAD = 64
"""How far a segment's id may be ahead of the layout that is known; more than a topic gets in many splits."""
MAX_ROWS_WITHOUT_LAYOUT = 10_000
"""Segments of topics without a layout that a bucket keeps, 100 bytes each."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where the samples of a topic go, for a message that names exactly these segments."""

    segments: bytes
    """Ids of the segments, 64 bits each; all of them are active, or newer than the layout that is known."""
    rows: npt.NDArray[np.int64]
    """Their rows in the load table."""
    policy: EffectivePolicy
    since: int
    """When this life of the topic began: what was measured before is not its."""


@dataclass
class Routes:
    """The routes of a bucket's topics, beside the state that they are read off."""

    state: BucketState
    loads: LoadTable
    policies: Policies
    _known: dict[str, Route] = field(default_factory=dict)
    _seen: tuple[int, int, int] = (0, 0, 0)
    """The generations of layouts, rows and policies of which the known routes are."""
    _without_layout: int = 0
    """Rows of topics without a layout."""
    _counted: tuple[int, int, int] | None = None
    """The generations in which they were counted."""

    def of(self, samples: Samples, now: int) -> tuple[list[Route], npt.NDArray[np.bool_] | None]:
        """Where each message's samples go, and which samples are kept (None: all); `now`: the batch's time."""
        if self._room() < MAX_ROWS_WITHOUT_LAYOUT // 2:
            self._forget_unnamed(now)
        ends = (np.cumsum(samples.counts) * 8).tolist()
        ids = samples.segments.tobytes()
        known, routes, kept, start = self._still_valid(), [], None, 0
        for topic, end in zip(samples.topics, ends, strict=True):
            route = known.get(topic)
            if route is None or route.segments != ids[start:end]:
                segments = samples.segments[start // 8 : end // 8].tolist()
                route, wanted = self._find(topic, ids[start:end], segments, now)
                if wanted is None:
                    known[topic] = route
                else:
                    kept = np.ones(len(samples.segments), np.bool_) if kept is None else kept
                    kept[start // 8 : end // 8] = wanted
            routes.append(route)
            start = end
        # Rows that were given on the way move no others: what was found before still holds.
        self._seen = self._generations()
        return routes, kept

    def _generations(self) -> tuple[int, int, int]:
        return self.state.layouts.newest, self.loads.index.generations.newest, self.state.policy_generation

    def _still_valid(self) -> dict[str, Route]:
        """The known routes, without those of topics whose layout, rows or policy have changed."""
        layouts_seen, rows_seen, policies_seen = self._seen
        layouts, rows = self.state.layouts.since(layouts_seen), self.loads.index.generations.since(rows_seen)
        if layouts is None or rows is None or policies_seen != self.state.policy_generation:
            self._known = {}
        else:
            for topic in chain(layouts, rows):
                self._known.pop(topic, None)
        return self._known

    def _find(self, name: str, packed: bytes, segments: list[int], now: int) -> tuple[Route, list[bool] | None]:
        """The route of a message, and which of its samples are kept; None: all."""
        topic = self.state.topics.get(name)
        policy = self.policies.of(self.state, topic or TopicState(name))
        has_ended = topic is None and self.state.end_of(name, now) is not None
        wanted = [False] * len(segments) if has_ended else self._wanted(name, topic, segments)
        chosen = [i for i, keep in zip(segments, wanted, strict=True) if keep]
        rows = self._rows_of(name, chosen, has_layout=topic is not None and topic.known is not None)
        route = Route(packed, rows, policy, topic.since if topic else 0)
        return route, None if len(chosen) == len(segments) and not has_ended else wanted

    def _rows_of(self, name: str, segments: Sequence[int], has_layout: bool) -> npt.NDArray[np.int64]:
        """Their rows; what is given to a topic without a layout is counted on, so that no new count is due."""
        is_counted, before = self._counted == self._generations(), self.loads.index.rows_in(name)
        rows = self.loads.rows_of(name, segments)
        if is_counted:
            self._without_layout += 0 if has_layout else self.loads.index.rows_in(name) - before
            self._counted = self._generations()
        return rows

    def _wanted(self, name: str, topic: TopicState | None, segments: Sequence[int]) -> list[bool]:
        if topic is not None and topic.known is not None:
            active, newer = topic.active_ids, topic.known.next_segment_id
            return [i in active or newer <= i < newer + MAX_AHEAD for i in segments]
        has_row = [row != NO_ROW for row in self.loads.index.known_rows(name, segments)]
        return [True] * len(segments) if len(segments) - sum(has_row) <= self._room() else has_row

    def _room(self) -> int:
        """Rows that are left for topics without a layout."""
        if self._counted != self._generations():
            rows_in = self.loads.index.rows_in
            self._without_layout, self._counted = sum(map(rows_in, self._unnamed())), self._generations()
        return MAX_ROWS_WITHOUT_LAYOUT - self._without_layout

    def _forget_unnamed(self, now: int) -> None:
        """Forgets the loads of topics whose layouts have not come for too long."""
        for name in self._unnamed():
            self.loads.forget_before(name, now - MAX_WAIT_FOR_LAYOUT_MS)

    def _unnamed(self) -> list[str]:
        """Topics with loads and without a layout."""
        topics = self.state.topics
        return [name for name in self.loads.index.topics() if name not in topics or topics[name].known is None]
