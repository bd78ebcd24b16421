"""Create positions of registered subscriptions in segments, before consumers get assignments.

A new subscription needs Kafka for this; an existing one has positions unless Kafka has lost some, so it waits for Kafka
only briefly. The rest is done later: nothing of the subscription is pruned before.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from anabranch.controller.errors import ControllerError, NotFound
from anabranch.controller.metadata.base import StoreError
from anabranch.controller.segments.base import SegmentStoreError
from anabranch.controller.segments.reach import SegmentReach
from anabranch.controller.segments.waiting import by_itself, on_request
from anabranch.controller.sessions.registry import SubscriptionRegistry
from anabranch.controller.sessions.stored import SubscriptionKey
from runtime.backoff import RetryBackoff

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 1.0
"""Longest wait for the segments where an answer without them will do."""
DELAY_SECONDS, MAX_DELAY_SECONDS, JITTER_SECONDS = 1.0, 60.0, 0.5
"""Delay before failed positions are tried again."""


class Positioning:
    """Subscriptions of a node that need positions."""

    def __init__(
        self,
        registry: SubscriptionRegistry,
        reach: SegmentReach,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None] | None],
    ) -> None:
        self._registry, self._reach, self._spawn = registry, reach, spawn
        self._missing: set[SubscriptionKey] = set()
        """Registered subscriptions that have never had all of their positions."""
        self._tries: dict[SubscriptionKey, asyncio.Task[None]] = {}

    async def make(self, key: SubscriptionKey, is_new: bool) -> None:
        """Create missing positions. Raises `SegmentStoreError` if a new subscription cannot get them now."""
        if not self._registry.has_positions:
            return
        if is_new:
            self._missing.add(key)
        if key not in self._missing:
            making = self._try_until_made(key)
            if making is not None and not self._reach.is_away:
                await asyncio.wait({making}, timeout=PATIENCE_SECONDS)
            return
        try:
            if self._reach.is_away:
                raise SegmentStoreError(
                    f"{key[1]} of {key[0]} is registered and has no positions yet: the segments cannot be reached; "
                    "check that Kafka runs and can be reached, then do it again"
                )
            await on_request(partial(self._registry.position, *key))
            self._missing.discard(key)
        except (SegmentStoreError, StoreError):
            self._try_until_made(key)
            raise

    def forget(self, key: SubscriptionKey) -> None:
        """Forget a subscription that is no longer this node's."""
        self._missing.discard(key)

    def _try_until_made(self, key: SubscriptionKey) -> asyncio.Task[None] | None:
        if key not in self._tries:
            if (trying := self._spawn(self._try(key))) is None:
                return None
            self._tries[key] = trying
        return self._tries[key]

    async def _try(self, key: SubscriptionKey) -> None:
        backoff = RetryBackoff(DELAY_SECONDS, MAX_DELAY_SECONDS, JITTER_SECONDS)
        try:
            while self._registry.leads(key[0]):
                if self._reach.is_away:
                    await asyncio.sleep(DELAY_SECONDS)
                    continue
                try:
                    await by_itself(partial(self._registry.position, *key))
                    self._missing.discard(key)
                    return
                except NotFound:
                    return
                except (ControllerError, StoreError) as error:
                    log.warning("%s of %s may be without positions, trying again: %s", key[1], key[0], error)
                    if isinstance(error, SegmentStoreError):
                        self._reach.failed()
                await asyncio.sleep(backoff.delay())
        finally:
            del self._tries[key]
