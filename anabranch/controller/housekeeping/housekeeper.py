"""Background loops of a node, for its own topics and, as housekeeper, for those without a leader.

Stage: lives in the event loop of the app. The nodes elect one housekeeper, which alone empties the outbox
(`anabranch.controller.publishing.publisher`). When nodes come or go, it also stands for election for the topics that a
dead leader has left with sessions or an open operation: there may never be a request for them (PIP-468 "Failover").
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection

from anabranch.controller.errors import ControllerError
from anabranch.controller.housekeeping.failover import TopicFailover
from anabranch.controller.leadership.election import Election, Leadership
from anabranch.controller.leadership.leaders import Leaders, TermWatch
from anabranch.controller.leadership.node_registry import NodeRegistration
from anabranch.controller.metadata import store_paths
from anabranch.controller.metadata.base import CallbackHandle, MetadataStore, StoreError
from anabranch.controller.operations.pruning import Pruning
from anabranch.controller.operations.runner import OperationRunner
from anabranch.controller.segments.base import SegmentStoreError
from anabranch.controller.segments.reach import SegmentReach
from anabranch.controller.segments.waiting import by_itself

log = logging.getLogger(__name__)

ROUND_SECONDS = 5.0
"""Time between two rounds, which retry open operations and release idle topics."""
FAILOVER_ROUNDS = 12
"""Rounds between two searches for topics without a leader when no node came or went."""
IDLE_SECONDS = 60.0
"""A topic without a request for this long that needs no leader is released."""
PRUNE_SECONDS = 10.0
"""Time between two searches for sealed segments to prune."""


class Housekeeper:
    """Background loops of a node, and its candidacies for its address and for housekeeper."""

    def __init__(
        self,
        nodes: MetadataStore,
        registration: NodeRegistration,
        leaders: Leaders,
        operations: OperationRunner,
        pruning: Pruning,
        failover: TopicFailover,
        reach: SegmentReach,
        session_seconds: float,
    ) -> None:
        """`session_seconds`: without the store for this long, the leaderships of this node may have ended."""
        self._nodes, self._registration, self._leaders = nodes, registration, leaders
        self._operations, self._pruning, self._failover = operations, pruning, failover
        self._reach, self._session_seconds = reach, session_seconds
        self._term_watch = TermWatch(leaders, session_seconds)
        self.election = Election(nodes, store_paths.HOUSEKEEPER, registration.url.encode(), self._elected)
        self._watch: CallbackHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due, self._resuming_due = asyncio.Event(), asyncio.Event()
        self._failover_due = True
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, with_sessions: Callable[[], Collection[str]], prune_seconds: float) -> None:
        """Start all loops; `with_sessions` returns the topics that have sessions. Raises `StoreUnavailable`."""
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._stand)
        self._tasks = [
            asyncio.create_task(self._keep_house(with_sessions)),
            asyncio.create_task(self._resume()),
            asyncio.create_task(self._prune(prune_seconds)),
        ]
        self._reach.on_back += [self._resuming_due.set, self._pruning.look_again]

    async def stop(self) -> None:
        """End the loops; the candidacies end with the session of the store."""
        self._leaders.stopping.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._loop = None

    def _stand(self) -> None:
        self._registration.start()
        self._term_watch.start()
        self._watch = self._nodes.watch(store_paths.NODES, lambda *_: self._wake(), below=False)
        self.election.start()

    def _elected(self, leadership: Leadership) -> None:
        if leadership.is_leading:
            log.info("this node is the housekeeper")
            self._wake()

    def _wake(self) -> None:
        loop = self._loop

        def wake() -> None:
            self._failover_due = True
            self._due.set()
            self._resuming_due.set()

        if loop is not None:
            try:
                loop.call_soon_threadsafe(wake)
            except RuntimeError:
                log.debug("the event loop has ended")

    async def _keep_house(self, with_sessions: Callable[[], Collection[str]]) -> None:
        number = 0
        while True:
            self._due.clear()
            number += 1
            try:
                if self.election.leadership.is_leading and (self._failover_due or number % FAILOVER_ROUNDS == 0):
                    self._failover_due = False
                    await asyncio.to_thread(self._failover.take_over)
                    self._resuming_due.set()
                await asyncio.to_thread(self._leaders.end_unconfirmed, self._session_seconds)
                await asyncio.to_thread(self._failover.release_idle, IDLE_SECONDS, with_sessions)
            except (ControllerError, StoreError) as error:
                self._failover_due = True
                log.warning("housekeeping cannot be done now, trying again in %.0f s: %s", ROUND_SECONDS, error)
            except Exception:
                self._failover_due = True
                log.exception("housekeeping failed; trying again in %.0f s", ROUND_SECONDS)
            try:
                await asyncio.wait_for(self._due.wait(), ROUND_SECONDS)
            except asyncio.TimeoutError:
                continue

    async def _resume(self) -> None:
        """Resume open operations, in a separate task because an operation may wait for Kafka."""
        while True:
            self._resuming_due.clear()
            try:
                if not self._reach.is_away:
                    await by_itself(self._operations.resume_open)
            except SegmentStoreError:
                self._reach.failed()
            except Exception:
                log.exception("operations cannot be resumed; trying again in %.0f s", ROUND_SECONDS)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._resuming_due.wait(), ROUND_SECONDS)

    async def _prune(self, every_seconds: float) -> None:
        while True:
            await asyncio.sleep(every_seconds)
            if self._reach.is_away:
                continue
            try:
                pruned = await by_itself(self._pruning.prune)
            except (ControllerError, StoreError) as error:
                log.warning("pruning cannot be done now, trying again in %.0f s: %s", every_seconds, error)
                if isinstance(error, SegmentStoreError):
                    self._reach.failed()
            except Exception:
                log.exception("pruning failed; trying again in %.0f s", every_seconds)
            else:
                if pruned:
                    log.info("pruned %d sealed segments", pruned)
