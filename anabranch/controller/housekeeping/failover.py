"""Take over topics without a request, and release idle ones (PIP-468 "Failover").

Stage: called by the housekeeper. Topics with sessions, an open operation or sealed segments to prune need a leader at
all times; the others have one only while requests arrive.
"""

import contextlib
import itertools
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor

from anabranch.controller.errors import ControllerError
from anabranch.controller.layouts.store import LayoutStore
from anabranch.controller.leadership.leaders import Leaders
from anabranch.controller.operations.pruning import Pruning
from anabranch.controller.operations.runner import OperationRunner

MAX_CONCURRENT_TAKEOVERS = 8
"""Topics without a leader that are taken over concurrently: most of the time is spent waiting."""
MAX_RELEASED = 200
"""Idle topics released per round, so that other work is not delayed."""


class TopicFailover:
    """Takeover and release of a node's topics without a request."""

    def __init__(self, store: LayoutStore, leaders: Leaders, operations: OperationRunner, pruning: Pruning) -> None:
        self._store, self._leaders, self._operations, self._pruning = store, leaders, operations, pruning
        self._sealed_found = False
        """True once this node has searched for sealed segments that an earlier setting kept without limit."""

    def take_over(self) -> None:
        """Stand for election for the topics that need a leader and have none."""
        needed = self._store.topics_needing_leader()
        if not self._pruning.keeps_all and not self._sealed_found:
            needed += [
                topic for topic, layout in self._store.layouts(self._store.all_topics()) if b'"SEALED"' in layout
            ]
        with ThreadPoolExecutor(MAX_CONCURRENT_TAKEOVERS) as pool:
            list(pool.map(self._take_over, self._store.without_leader(sorted(set(needed)))))
        self._sealed_found = True

    def _take_over(self, topic: str) -> None:
        if not self._leaders.stopping.is_set():
            with contextlib.suppress(ControllerError):
                self._leaders.lead(topic)

    def release_idle(self, seconds: float, with_sessions: Callable[[], Collection[str]]) -> None:
        """Release the topics that need no leader and had no request for `seconds`."""
        idle, sessions = self._leaders.idle(seconds), with_sessions()
        unneeded = (topic for topic in idle if topic not in sessions and self._needs_nothing(topic))
        for topic in itertools.islice(unneeded, MAX_RELEASED):
            if self._store.has_topic(topic):
                self._leaders.release(topic, seconds)
                continue
            with contextlib.suppress(ControllerError), self._operations.locked(topic) as term:
                self._store.clear(term)
                self._leaders.release(topic)

    def _needs_nothing(self, topic: str) -> bool:
        settled = self._operations.is_settled(topic) and not self._pruning.has_sealed(topic)
        return settled and self._leaders.term(topic) is not None
