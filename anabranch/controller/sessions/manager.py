"""Session manager: consumer sessions of the topics that this node leads (PIP-468 "Registration Flow").

Lives in one event loop. A step is stored first, by `SubscriptionRegistry`, then adopted, then sent. So a confirmed
registration survives the process. Connections and grace periods do not: when a term of this node begins, all consumers
are away and have the full grace period. A consumer registered by REST has no connection and stays until it is
unregistered by REST.

Changes made elsewhere are not followed event by event: after any change of members or layout, a coordinator is brought
up to date with the store.

Longer than other modules: one table of coordinators and a lock for each of them belong to all of its steps, and a step
in another module would need both.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from anabranch.controller.errors import ControllerError, NotFound
from anabranch.controller.metadata.base import StoreError
from anabranch.controller.segments.base import SegmentStoreError, Target
from anabranch.controller.segments.reach import SegmentReach
from anabranch.controller.segments.waiting import by_itself, on_request
from anabranch.controller.sessions.coordinator import Effects, Link, Push, SubscriptionCoordinator
from anabranch.controller.sessions.draining import DrainLooks
from anabranch.controller.sessions.messages import ConsumerAssignment, SubscriptionConsumers
from anabranch.controller.sessions.positioning import PATIENCE_SECONDS, Positioning
from anabranch.controller.sessions.registry import SubscriptionRegistry
from anabranch.controller.sessions.stored import NO_CONNECTION, DrainLook, StoredSessions, SubscriptionKey
from runtime.backoff import with_jitter
from schemas.kafka.messages import SubscriptionType

log = logging.getLogger(__name__)

RETRY_DELAY_SECONDS, RETRY_JITTER_SECONDS = 1.0, 0.5
"""Delay before a failed step is tried again."""
MIN_WAIT_SECONDS = 0.05
"""Shortest delay before expired sessions are checked."""

Tell = Callable[[Link, Push | str], None]
"""Sends an assignment to a link, or the reason why it has lost its consumer; must not block."""


class SessionManager:
    """All coordinators with sessions; others are created on demand."""

    def __init__(self, registry: SubscriptionRegistry, reach: SegmentReach, grace_seconds: float, tell: Tell) -> None:
        """`tell` is called in the event loop, after its message was stored."""
        self._registry, self._reach = registry, reach
        self._stored = StoredSessions(registry, int(grace_seconds * 1000))
        self._tell = tell
        self._locks: WeakValueDictionary[SubscriptionKey, asyncio.Lock] = WeakValueDictionary()
        self._led: dict[SubscriptionKey, SubscriptionCoordinator] = {}
        self._stale: set[SubscriptionKey] = set()
        """Subscriptions with a scheduled refresh."""
        self._lost_connections: set[int] = set()
        """Lost connections whose consumers are not yet marked as away."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: dict[SubscriptionKey, asyncio.TimerHandle] = {}
        self._looks = DrainLooks(self._look, self._spawn, reach)
        self._positioning = Positioning(registry, reach, self._spawn)
        self._seeks = 0
        """Number of seeks: progress seen before a seek is invalid after it."""
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """Start in the event loop of the manager."""
        self._loop = asyncio.get_running_loop()

    async def stop(self) -> None:
        """End all waiting; stored state stays."""
        self._loop = None
        self._looks.stop()
        for timer in self._timers.values():
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def register(self, key: SubscriptionKey, consumer: str, link: Link, type: SubscriptionType) -> None:
        """Register a consumer on `link` and send its assignment. Raises `NotFound` and `Conflict`."""
        # First, so that the loaded state is not older than the term.
        await asyncio.to_thread(self._registry.lead, key[0])
        async with self._lock(key):
            if (coordinator := self._led.get(key)) is None:
                coordinator = await asyncio.to_thread(self._stored.load, key, type, _now_ms())
            coordinator.register(consumer, link, type)  # Refused before anything is stored.

            life = coordinator.life

            async def store(after: SubscriptionCoordinator, change: Effects) -> None:
                nonlocal life
                is_new = await asyncio.to_thread(self._registry.add_consumer, *key, consumer, type, session=True)
                if life is None:
                    life = await asyncio.to_thread(self._registry.life, *key)
                if change.contested_changed:
                    await self._save(key, after)
                await self._positioning.make(key, is_new)

            try:
                await self._make(key, coordinator, lambda before: before.register(consumer, link, type), store)
            except (SegmentStoreError, StoreError):
                # It may have been registered; then it has the grace period to connect again.
                self._spawn(self._refresh(key, load=True))
                raise
            if key in self._led:
                self._led[key] = replace(self._led[key], life=life)
        # A new subscription may have sealed, empty segments.
        self._looks.changed(key)

    async def register_without_session(self, key: SubscriptionKey, consumer: str, type: SubscriptionType) -> None:
        """Register a consumer by REST, without a connection and messages. Raises `NotFound` and `Conflict`."""
        await self._positioning.make(key, await asyncio.to_thread(self._registry.add_consumer, *key, consumer, type))

    async def subscribe(self, key: SubscriptionKey, type: SubscriptionType) -> None:
        """Create a subscription without consumers, or accept such a one. Raises `NotFound` and `Conflict`."""
        await self._positioning.make(key, await asyncio.to_thread(self._registry.add_subscription, *key, type))

    async def leave(self, key: SubscriptionKey, consumer: str, link: Link) -> None:
        """Remove a consumer; a no-op if `link` is no longer its link."""
        async with self._lock(key):
            if (coordinator := self._led.get(key)) is None:
                return
            await self._make(
                key, coordinator, lambda before: before.leave(consumer, link), partial(self._store_gone, key)
            )

    def lose(self, connection: int) -> None:
        """Mark a connection as lost, so that nothing more is sent to it. `disconnect` follows."""
        self._lost_connections.add(connection)

    async def disconnect(self, keys: set[SubscriptionKey], connection: int) -> None:
        """Start the grace period of a lost connection's consumers of these subscriptions."""
        try:
            for key in keys:
                async with self._lock(key):
                    if key in self._led:
                        self._take(key, self._led[key].disconnect(connection, _now_ms()), Effects())
        finally:
            self._lost_connections.discard(connection)

    async def seek(self, key: SubscriptionKey, target: Target) -> None:
        """Move a subscription on all segments (`SubscriptionRegistry.seek`), and notify its consumers."""
        # Locked until the backlog was read again, so that nothing drained before the seek counts in between.
        async with self._lock(key):
            self._seeks += 1
            try:
                await on_request(partial(self._registry.seek, *key, target))
            finally:
                await self._look_after_seek(key)
        self._looks.changed(key)

    async def consumers(self, key: SubscriptionKey) -> SubscriptionConsumers:
        """Return all consumers of a subscription with their segments. Raises `NotFound`."""
        return SubscriptionConsumers.of(await self._as_it_stands(key))

    async def assignment(self, key: SubscriptionKey, consumer: str) -> ConsumerAssignment:
        """Return the assignment of a registered consumer, for polling clients. Raises `NotFound`."""
        coordinator = await self._as_it_stands(key)
        if (segments := coordinator.assignment.get(consumer)) is None:
            raise NotFound(f"Consumer not found: {consumer} of {key[1]} on {key[0]}")
        layout = coordinator.layout
        return ConsumerAssignment.of(key[0], Push(consumer, Link(0, 0), layout.epoch, segments, layout.created_at_ms))

    async def _as_it_stands(self, key: SubscriptionKey) -> SubscriptionCoordinator:
        """Return the coordinator of this node, or one loaded from the store."""
        async with self._lock(key):
            if (coordinator := self._led.get(key)) is None:
                await asyncio.to_thread(self._registry.sync)
                coordinator = await asyncio.to_thread(self._stored.load, key, None, _now_ms())
        if key not in self._led and coordinator.type == "STREAM" and not self._reach.is_away:
            asking = asyncio.ensure_future(on_request(partial(self._stored.find_drained, key, coordinator)))
            done, _ = await asyncio.wait({asking}, timeout=PATIENCE_SECONDS)
            if done:
                coordinator, _ = coordinator.drain(asking.result().drained)
        return coordinator

    def term_begun(self, topic: str) -> None:
        """Load the sessions of a topic, each with a full grace period from now on. From any thread."""
        self._soon(lambda: self._spawn(self._load_sessions(topic)))

    def term_ended(self, topic: str) -> None:
        """Forget all sessions of a topic. From any thread."""
        self._soon(lambda: self._forget_all([key for key in {*self._led, *self._locks} if key[0] == topic]))

    def topics(self) -> set[str]:
        """Return the topics with consumers that are connected or within their grace period. From any thread."""
        return {key[0] for key in tuple(self._led)}

    def layout_changed(self, topic: str) -> None:
        """Refresh a topic whose layout was committed or which was deleted. From any thread."""
        self._soon(lambda: self._refresh_led([key for key in self._led if key[0] == topic]))

    def members_changed(self, topic: str, subscription: str) -> None:
        """Refresh a subscription whose consumers changed or which was deleted. From any thread."""
        self._soon(lambda: self._refresh_led([(topic, subscription)]))

    def _lock(self, key: SubscriptionKey) -> asyncio.Lock:
        """Return the lock that guards the coordinator of a subscription."""
        return self._locks.setdefault(key, asyncio.Lock())

    def _refresh_led(self, keys: list[SubscriptionKey]) -> None:
        for key in keys:
            # One look that has not begun yet sees the effects of any number of changes.
            if key in self._led and key not in self._stale:
                self._stale.add(key)
                self._spawn(self._refresh(key))

    def _forget_all(self, keys: list[SubscriptionKey]) -> None:
        for key in keys:
            self._spawn(self._forget(key))

    async def _forget(self, key: SubscriptionKey) -> None:
        # Under the lock, so that a running step does not restore it.
        async with self._lock(key):
            self._led.pop(key, None)
            self._positioning.forget(key)
            self._looks.forget(key)
            if key in self._timers:
                self._timers.pop(key).cancel()

    async def _load_sessions(self, topic: str) -> None:
        try:
            names = await asyncio.to_thread(self._registry.subscriptions_with_sessions, topic)
            for name in names:
                await self._refresh((topic, name), load=True)
        except (ControllerError, StoreError) as error:
            log.warning("the sessions of %s cannot be loaded, trying again: %s", topic, error)
            self._later(topic, lambda: self._load_sessions(topic))

    async def _refresh(self, key: SubscriptionKey, load: bool = False) -> None:
        """Bring a coordinator up to date with the stored layout and members."""
        try:
            await self._refresh_now(key, load)
        except (ControllerError, StoreError) as error:
            log.warning("%s of %s cannot be read, trying again: %s", key[1], key[0], error)
            self._later(key[0], lambda: self._refresh(key, load))

    async def _refresh_now(self, key: SubscriptionKey, load: bool) -> None:
        async with self._lock(key):
            self._stale.discard(key)
            before = self._led.get(key)
            if (before is None and not load) or not self._registry.leads(key[0]):
                return
            try:
                stored = await asyncio.to_thread(self._stored.load, key, None, _now_ms())
            except NotFound as gone:
                self._drop(key, gone.reason)
                return
            if before is not None and not before.is_of(stored):
                self._drop(key, f"the topic or its subscription was deleted and made again: {key[1]} on {key[0]}")
                before = None
            if before is None:
                self._take(key, stored, Effects())
            else:
                left = before.sessions.keys() - stored.sessions.keys()
                await self._make(key, before, lambda before: before.catch_up(stored), partial(self._save_changed, key))
                for name in left:
                    self._lost(before, name, "the consumer was unregistered")
        self._looks.changed(key)

    async def _look(self, key: SubscriptionKey) -> DrainLook | None:
        """Find the sealed segments that were read to the end, asking Kafka without the lock."""
        seen, seeks = self._led.get(key), self._seeks
        if seen is None or seen.type != "STREAM":
            return None
        look = await by_itself(partial(self._stored.find_drained, key, seen))
        async with self._lock(key):
            coordinator = self._led.get(key)
            if coordinator is None or not coordinator.is_of(seen):
                return None
            if look.drained and self._seeks == seeks:
                try:
                    await self._make(
                        key, coordinator, lambda before: before.drain(look.drained), partial(self._save_changed, key)
                    )
                except (ControllerError, StoreError) as error:
                    log.warning("what %s of %s has read is not stored yet: %s", key[1], key[0], error)
                    return look._replace(is_reading=True, answered=False)
        return look

    async def _look_after_seek(self, key: SubscriptionKey) -> None:
        """Discard the drained segments from before a seek, within `_lock`."""
        coordinator = self._led.get(key)
        if coordinator is None or coordinator.type != "STREAM":
            return
        start, _ = coordinator.reset_drained(())
        look = await on_request(partial(self._stored.find_drained, key, start))

        async def store(after: SubscriptionCoordinator, _: Effects) -> None:
            # Continue if storing fails: the stored record then has fewer drained segments, never more.
            try:
                await self._save(key, after)
            except (ControllerError, StoreError) as error:
                log.warning("what %s of %s has read is not stored yet: %s", key[1], key[0], error)

        await self._make(key, coordinator, lambda before: before.reset_drained(look.drained), store)

    async def _expire(self, key: SubscriptionKey) -> None:
        async with self._lock(key):
            if key in self._timers:
                self._timers.pop(key).cancel()
            if (coordinator := self._led.get(key)) is None:
                return
            now = _now_ms()
            try:
                await self._make(key, coordinator, lambda before: before.expire(now), partial(self._store_gone, key))
            except (ControllerError, StoreError) as error:
                log.warning("consumers of %s of %s cannot be unregistered: %s", key[1], key[0], error)
                self._timers[key] = asyncio.get_running_loop().call_later(
                    _retry_delay(), lambda: self._spawn(self._expire(key))
                )

    async def _make(
        self,
        key: SubscriptionKey,
        coordinator: SubscriptionCoordinator,
        step: Callable[[SubscriptionCoordinator], tuple[SubscriptionCoordinator, Effects]],
        store: Callable[[SubscriptionCoordinator, Effects], Awaitable[None]],
    ) -> None:
        """Make a step, within `_lock`: store it, then adopt and send it.

        A consumer that has lost its connection by then cannot be notified and reads on by its earlier assignment. So
        the step is repeated without that connection and stored again, which is idempotent.
        """
        while True:
            coordinator = self._as_connected(coordinator)
            after, change = step(coordinator)
            await store(after, change)
            if self._as_connected(coordinator) is coordinator:
                self._take(key, after, change)
                return

    def _as_connected(self, coordinator: SubscriptionCoordinator) -> SubscriptionCoordinator:
        """Return the coordinator with known lost connections removed; the same object if there are none."""
        if self._lost_connections:
            links = {session.connection for session in coordinator.sessions.values() if isinstance(session, Link)}
            for connection in links & self._lost_connections:
                coordinator = coordinator.disconnect(connection, _now_ms())
        return coordinator

    async def _store_gone(self, key: SubscriptionKey, after: SubscriptionCoordinator, change: Effects) -> None:
        if names := [event.consumer for event in change.events]:
            await asyncio.to_thread(self._registry.unregister_consumers, *key, names)
        if change.contested_changed:
            await self._save(key, after)

    async def _save_changed(self, key: SubscriptionKey, after: SubscriptionCoordinator, change: Effects) -> None:
        if change.drained_changed or change.contested_changed:
            await self._save(key, after)

    async def _save(self, key: SubscriptionKey, after: SubscriptionCoordinator) -> None:
        await asyncio.to_thread(self._registry.save_progress, *key, sorted(after.drained), after.contested, after.life)

    def _take(self, key: SubscriptionKey, after: SubscriptionCoordinator, change: Effects) -> None:
        """Make a stored step the current state, and notify the consumers."""
        if all(session == NO_CONNECTION for session in after.sessions.values()):
            self._led.pop(key, None)
        else:
            self._led[key] = after
        for push in change.pushes:
            self._tell(push.link, push)
        if change.superseded is not None:
            self._tell(change.superseded, "the consumer connected again")
        # An existing timer is early enough, as all grace periods are equal; `due` scans up to ten thousand sessions.
        if key not in self._led or key in self._timers or self._loop is None:
            return
        due = after.due()
        if due is not None and due < NO_CONNECTION.until_ms:
            wait = max((due - _now_ms()) / 1000, MIN_WAIT_SECONDS)
            self._timers[key] = self._loop.call_later(wait, lambda: self._spawn(self._expire(key)))

    def _drop(self, key: SubscriptionKey, reason: str) -> None:
        coordinator = self._led.pop(key, None)
        for name in coordinator.sessions if coordinator else ():
            assert coordinator is not None
            self._lost(coordinator, name, reason)

    def _lost(self, coordinator: SubscriptionCoordinator, consumer: str, reason: str) -> None:
        session = coordinator.sessions[consumer]
        if isinstance(session, Link):
            self._tell(session, reason)

    def _later(self, topic: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Repeat work after a delay, if this node still leads the topic then."""
        if self._loop is not None and topic in self._registry.leaders.topics():
            self._loop.call_later(_retry_delay(), lambda: self._spawn(work()))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
        if self._loop is None:
            work.close()
            return None
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a step of a subscription failed: %s", error, exc_info=error)

    def _soon(self, call: Callable[[], object]) -> None:
        if (loop := self._loop) is not None:
            try:
                loop.call_soon_threadsafe(call)
            except RuntimeError:
                log.debug("the event loop has ended")


def _retry_delay() -> float:
    return with_jitter(RETRY_DELAY_SECONDS, RETRY_JITTER_SECONDS)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
