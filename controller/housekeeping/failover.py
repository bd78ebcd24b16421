"""Which topics this node leads although nobody asks, and which it leads no more (PIP-468 "Failover").

Stage: beside the service, called by the housekeeping. Topics with sessions, with an operation half done or with sealed
segments to prune want a leader at all times; the others have one while somebody asks for something.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor

from controller.errors import ControllerError
from controller.layouts.store import LayoutStore
from controller.leadership.leaders import Leaders
from controller.operations.pruning import Pruning
from controller.operations.runner import OperationRunner

ATTENDED_AT_ONCE = 8
"""Topics without a leader that are taken over at the same time: mostly it is waiting."""
RELEASED_AT_ONCE = 200
"""Idle topics that are released in one round, so that it disturbs nobody."""


class TopicFailover:
    """The topics of a node that come and go without a request."""

    def __init__(self, store: LayoutStore, leaders: Leaders, operations: OperationRunner, pruning: Pruning) -> None:
        self._store, self._leaders, self._operations, self._pruning = store, leaders, operations, pruning
        self._looked_for_sealed = False
        """Whether topics with sealed segments that an earlier setting kept for ever were looked for."""

    def attend(self) -> None:
        """Stand for election for the topics that want a leader and have none (PIP-468 "Failover")."""
        wanted = self._store.attended_topics()
        if not self._pruning.keeps_all and not self._looked_for_sealed:
            wanted += [
                topic for topic, layout in self._store.layouts(self._store.all_topics()) if b'"SEALED"' in layout
            ]
        with ThreadPoolExecutor(ATTENDED_AT_ONCE) as pool:
            list(pool.map(self._attend, self._store.without_leader(sorted(set(wanted)))))
        self._looked_for_sealed = True

    def _attend(self, topic: str) -> None:
        if not self._leaders.stopping.is_set():
            with contextlib.suppress(ControllerError):
                self._leaders.lead(topic)

    def release_idle(self, seconds: float, with_sessions: Callable[[], Collection[str]]) -> None:
        """Lead those topics no more that nobody has asked for anything in so many seconds, and that need nothing."""
        idle, sessions = self._leaders.idle(seconds), with_sessions()
        unneeded = (topic for topic in idle if topic not in sessions and self._needs_nothing(topic))
        for topic in itertools.islice(unneeded, RELEASED_AT_ONCE):
            if self._store.has_topic(topic):
                self._leaders.release(topic, seconds)
                continue
            with contextlib.suppress(ControllerError), self._operations.alone(topic) as term:
                self._store.clear(term)
                self._leaders.release(topic)

    def _needs_nothing(self, topic: str) -> bool:
        settled = self._operations.is_settled(topic) and not self._pruning.has_sealed(topic)
        return settled and self._leaders.term(topic) is not None
