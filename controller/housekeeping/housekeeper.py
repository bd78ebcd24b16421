"""What a node does without being asked: for its own topics and, if it is the housekeeper, for those without a leader.

Stage: beside the service; lives in the event loop of the app. The housekeeper is elected among the nodes. It empties
the outbox (`controller.publishing.publisher`) and, when nodes come or go, stands for election for the topics that a dead leader
has left behind with sessions or with an operation half done: nobody may ever ask for them (PIP-468 "Failover").
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from controller.errors import ControllerError
from controller.leadership.election import Election, LeaderElectionState, Leadership
from controller.leadership.node_registry import NodeRegistration
from controller.metadata import store_paths
from controller.metadata.base import CallbackHandle, MetadataStore, StoreError
from controller.service import ScalableTopicService

log = logging.getLogger(__name__)

EVERY_SECONDS = 5.0
"""Time between two rounds: open operations are tried again, idle topics released."""
ATTEND_EVERY = 12
"""Rounds between two looks for topics without a leader when no node came or went."""
IDLE_SECONDS = 60.0
"""A topic that nobody asked for anything for so long, and that needs nothing, is released."""
PRUNE_SECONDS = 10.0
"""Time between two looks for sealed segments to prune."""


class Housekeeper:
    """The loops of a node, and its two candidacies: to be known as alive, and to be the housekeeper."""

    def __init__(self, nodes: MetadataStore, presence: NodeRegistration, session_seconds: float) -> None:
        """`session_seconds`: after so long without the store, the leaderships of this node may have ended."""
        self._nodes, self._session_seconds = nodes, session_seconds
        self.election = Election(nodes, store_paths.HOUSEKEEPER, presence.url.encode(), self._elected)
        self._presence = presence
        self._watch: CallbackHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._service: ScalableTopicService | None = None
        self._due = asyncio.Event()
        self._attend = True
        self._tasks: list[asyncio.Task[None]] = []

    async def start(
        self, service: ScalableTopicService, with_sessions: Callable[[], Collection[str]], prune_seconds: float
    ) -> None:
        """Begin all of it. Raises `StoreUnavailable`."""
        self._loop, self._service = asyncio.get_running_loop(), service
        await asyncio.to_thread(self._stand)
        self._tasks = [
            asyncio.create_task(self._keep_house(service, with_sessions)),
            asyncio.create_task(_prune_for_ever(service, prune_seconds)),
        ]

    async def stop(self) -> None:
        """End the loops; the candidacies end with the session of the store."""
        if self._service is not None:
            self._service.leaders.stopping.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._loop = None

    def _stand(self) -> None:
        self._presence.start()
        self._watch = self._nodes.watch(store_paths.NODES, lambda *_: self._wake(), below=False)
        self.election.start()

    def _elected(self, state: Leadership) -> None:
        if state.role is LeaderElectionState.LEADING:
            log.info("this node is the housekeeper")
            self._wake()

    def _wake(self) -> None:
        loop = self._loop

        def wake() -> None:
            self._attend = True
            self._due.set()

        if loop is not None:
            try:
                loop.call_soon_threadsafe(wake)
            except RuntimeError:
                log.debug("the event loop has ended")

    async def _keep_house(self, service: ScalableTopicService, with_sessions: Callable[[], Collection[str]]) -> None:
        number = 0
        while True:
            self._due.clear()
            number += 1
            try:
                if self.election.state.role is LeaderElectionState.LEADING and (
                    self._attend or number % ATTEND_EVERY == 0
                ):
                    self._attend = False
                    await asyncio.to_thread(service.attending.attend)
                await asyncio.to_thread(service.leaders.forsake, self._session_seconds)
                await asyncio.to_thread(service.resume_operations)
                await asyncio.to_thread(service.attending.release_idle, IDLE_SECONDS, with_sessions)
            except (ControllerError, StoreError) as error:
                self._attend = True
                log.warning("housekeeping cannot be done now, trying again in %.0f s: %s", EVERY_SECONDS, error)
            except Exception:
                self._attend = True
                log.exception("housekeeping failed; trying again in %.0f s", EVERY_SECONDS)
            try:
                await asyncio.wait_for(self._due.wait(), EVERY_SECONDS)
            except asyncio.TimeoutError:
                continue


async def _prune_for_ever(service: ScalableTopicService, every_seconds: float) -> None:
    while True:
        await asyncio.sleep(every_seconds)
        try:
            pruned = await asyncio.to_thread(service.prune_sealed)
        except (ControllerError, StoreError) as error:
            log.warning("pruning cannot be done now, trying again in %.0f s: %s", every_seconds, error)
        except Exception:
            log.exception("pruning failed; trying again in %.0f s", every_seconds)
        else:
            if pruned:
                log.info("pruned %d sealed segments", pruned)
