"""Schedule of progress checks in sealed segments (PIP-468 "SubscriptionCoordinator").

Stage: below the session manager, in its event loop. A subscription is looked at again after a second, and then ever
less often, up to a quarter of an hour, as long as nothing happens to it: nothing is read, no consumer comes, no layout
changes (as in Pulsar 5). One look per subscription at a time. An unanswered look is repeated soon; while Kafka is
unreachable there are no looks, and all failed ones are repeated on its return.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from anabranch.controller.segments.reach import SegmentReach
from anabranch.controller.sessions.stored import DrainLook, SubscriptionKey
from runtime.backoff import RetryBackoff

log = logging.getLogger(__name__)

DELAY_SECONDS, MAX_DELAY_SECONDS, JITTER_SECONDS = 1.0, 900.0, 0.5
"""Delay between two looks at a subscription that has sealed segments to read."""
MAX_FAILED_DELAY_SECONDS = 4.0
"""Longest delay after an unanswered look."""


@dataclass
class _Plan:
    """Schedule of one subscription."""

    backoff: RetryBackoff
    timer: asyncio.TimerHandle | None = None
    task: asyncio.Task[None] | None = None
    again: bool = False
    """Something has happened since the running look began."""
    unread: int | None = None
    """Unread messages at the last look."""
    failed: bool = False


class DrainLooks:
    """Looks of all subscriptions; `look` makes one, and returns None when no more are needed."""

    def __init__(
        self,
        look: Callable[[SubscriptionKey], Coroutine[Any, Any, DrainLook | None]],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None] | None],
        reach: SegmentReach,
    ) -> None:
        self._look, self._spawn, self._reach = look, spawn, reach
        self._plans: dict[SubscriptionKey, _Plan] = {}
        reach.on_back.append(self._look_at_what_failed)

    def changed(self, key: SubscriptionKey) -> None:
        """Look now, and then often again: something has happened to a subscription."""
        if (plan := self._plans.get(key)) is None:
            plan = self._plans[key] = _Plan(
                RetryBackoff(DELAY_SECONDS, max(DELAY_SECONDS, MAX_DELAY_SECONDS), JITTER_SECONDS)
            )
        plan.backoff.reset()
        self._begin(key, plan)

    def forget(self, key: SubscriptionKey) -> None:
        """Stop looking at a subscription that is no longer this node's, or has no sessions."""
        plan = self._plans.pop(key, None)
        if plan is not None and plan.timer is not None:
            plan.timer.cancel()

    def stop(self) -> None:
        """Stop all looks."""
        for key in list(self._plans):
            self.forget(key)

    def _begin(self, key: SubscriptionKey, plan: _Plan) -> None:
        if plan.timer is not None:
            plan.timer.cancel()
            plan.timer = None
        if plan.task is not None and not plan.task.done():
            plan.again = True
        elif self._reach.is_away:
            plan.failed = True
        else:
            plan.again = False
            plan.task = self._spawn(self._run(key, plan))

    async def _run(self, key: SubscriptionKey, plan: _Plan) -> None:
        while True:
            plan.again = False
            try:
                look = await self._look(key)
            except Exception:
                log.exception("what %s of %s has read was not found out; it is looked at again later", key[1], key[0])
                look = DrainLook(frozenset(), True, 0, False)
            if not plan.again:
                break
        if self._plans.get(key) is not plan:
            return
        if look is None or not look.is_reading:
            self.forget(key)
            return
        plan.failed = not look.answered
        if plan.failed:
            self._reach.failed()
        elif plan.unread is not None and look.unread < plan.unread:
            plan.backoff.reset()
        if look.answered:
            plan.unread = look.unread
        delay = plan.backoff.delay()
        if plan.failed:
            delay = min(delay, MAX_FAILED_DELAY_SECONDS)
        plan.timer = asyncio.get_running_loop().call_later(delay, self._begin, key, plan)

    def _look_at_what_failed(self) -> None:
        for key, plan in tuple(self._plans.items()):
            if plan.failed:
                self.changed(key)
