"""The session manager: the consumer sessions of the topics that this node leads (PIP-468 "Registration Flow").

Stage: between `controller.sessions.connections`, which carries messages, and the coordinators, which are values. Lives
in one event loop. A step is stored first, by `SubscriptionRegistry`, and only then taken over and told. So a
registration that a consumer was told of survives the process. Connections and grace periods do not: when a term of this
node begins, all consumers are away and have the whole grace period. A consumer that was registered by REST has no
connection and stays until it is unregistered by REST.

What others change is not followed event by event: after any change of members or layout, a coordinator is brought to
what the store holds.

Longer than other files: one table of coordinators and a lock for each of them belong to all of its steps, and a step
that lived elsewhere would have to be told of both.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from controller.errors import ControllerError, NotFound
from controller.metadata.base import StoreError
from controller.retries import with_jitter
from controller.segments.base import SegmentStoreError, Target
from controller.segments.reach import SegmentReach
from controller.segments.waiting import by_itself, on_request
from controller.sessions.coordinator import Effects, Link, Push, SubscriptionCoordinator
from controller.sessions.draining import DrainLooks
from controller.sessions.messages import ConsumerAssignment, SubscriptionConsumers
from controller.sessions.positioning import PATIENCE_SECONDS, Positioning
from controller.sessions.registry import SubscriptionRegistry
from controller.sessions.stored import NO_CONNECTION, DrainLook, StoredSessions, SubscriptionKey
from schemas.messages import SubscriptionType

log = logging.getLogger(__name__)

RETRY_DELAY_SECONDS, RETRY_JITTER_SECONDS = 1.0, 0.5
"""Time before a step that failed is tried again."""
MIN_WAIT_SECONDS = 0.05
"""Shortest time before expired sessions are looked at."""

Tell = Callable[[Link, Push | str], None]
"""Sends an assignment to a link, or says why the link has lost its consumer; must not wait."""


class SessionManager:
    """All coordinators with sessions; the others are made when they are asked for."""

    def __init__(self, registry: SubscriptionRegistry, reach: SegmentReach, grace_seconds: float, tell: Tell) -> None:
        """`tell` is called in the event loop, after what it tells was stored."""
        self._registry, self._reach = registry, reach
        self._stored = StoredSessions(registry, int(grace_seconds * 1000))
        self._tell = tell
        self._locks: WeakValueDictionary[SubscriptionKey, asyncio.Lock] = WeakValueDictionary()
        self._led: dict[SubscriptionKey, SubscriptionCoordinator] = {}
        self._stale: set[SubscriptionKey] = set()
        """Those that are to be refreshed and are not yet looked up."""
        self._lost_connections: set[int] = set()
        """Those that are gone while their consumers are not yet known to be away."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: dict[SubscriptionKey, asyncio.TimerHandle] = {}
        self._looks = DrainLooks(self._look, self._spawn, reach)
        self._positioning = Positioning(registry, reach, self._spawn)
        self._seeks = 0
        """How often a subscription was moved: what was seen before says nothing of what was read after it."""
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """Called in the event loop that all of this lives in."""
        self._loop = asyncio.get_running_loop()

    async def stop(self) -> None:
        """Ends all waiting; what is stored stays."""
        self._loop = None
        self._looks.stop()
        for timer in self._timers.values():
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def register(self, key: SubscriptionKey, consumer: str, link: Link, type: SubscriptionType) -> None:
        """A consumer registers on `link` and is sent its assignment. `NotFound`, `Conflict`."""
        # First, so that what is loaded is not older than the term.
        await asyncio.to_thread(self._registry.lead, key[0])
        async with self._lock(key):
            coordinator = self._led.get(key)
            if coordinator is None:
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
                # It may be registered, and then has the grace period to connect again.
                self._spawn(self._refresh(key, load=True))
                raise
            if key in self._led:
                self._led[key] = replace(self._led[key], life=life)
        # A subscription that is new may find segments that are sealed and empty.
        self._looks.changed(key)

    async def register_without_session(self, key: SubscriptionKey, consumer: str, type: SubscriptionType) -> None:
        """A consumer registers by REST: it needs no connection, and is sent nothing. `NotFound`, `Conflict`."""
        await self._positioning.make(key, await asyncio.to_thread(self._registry.add_consumer, *key, consumer, type))

    async def subscribe(self, key: SubscriptionKey, type: SubscriptionType) -> None:
        """Create a subscription without consumers; nothing happens to one of this type. `NotFound`, `Conflict`."""
        await self._positioning.make(key, await asyncio.to_thread(self._registry.add_subscription, *key, type))

    async def leave(self, key: SubscriptionKey, consumer: str, link: Link) -> None:
        """A consumer leaves; nothing happens when `link` is not its link any more."""
        async with self._lock(key):
            coordinator = self._led.get(key)
            if coordinator is None:
                return
            await self._make(
                key, coordinator, lambda before: before.leave(consumer, link), partial(self._store_gone, key)
            )

    def lose(self, connection: int) -> None:
        """A connection is gone: what is not told to it yet never will be. `disconnect` follows."""
        self._lost_connections.add(connection)

    async def disconnect(self, keys: set[SubscriptionKey], connection: int) -> None:
        """A connection is gone, with its consumers of these subscriptions: they have the grace period to come back."""
        try:
            for key in keys:
                async with self._lock(key):
                    if key in self._led:
                        self._take(key, self._led[key].disconnect(connection, _now_ms()), Effects())
        finally:
            self._lost_connections.discard(connection)

    async def seek(self, key: SubscriptionKey, target: Target) -> None:
        """Move a subscription on all segments (`SubscriptionRegistry.seek`), and tell its consumers what follows."""
        # Locked until the backlog was read again: nothing that was drained before may count as drained in between.
        async with self._lock(key):
            self._seeks += 1
            try:
                await on_request(partial(self._registry.seek, *key, target))
            finally:
                await self._look_after_seek(key)
        self._looks.changed(key)

    async def consumers(self, key: SubscriptionKey) -> SubscriptionConsumers:
        """All consumers of a subscription and what each has to read. `NotFound`."""
        return SubscriptionConsumers.of(await self._as_it_stands(key))

    async def assignment(self, key: SubscriptionKey, consumer: str) -> ConsumerAssignment:
        """What a registered consumer has to read, for those who ask instead of being told. `NotFound`."""
        coordinator = await self._as_it_stands(key)
        segments = coordinator.assignment.get(consumer)
        if segments is None:
            raise NotFound(f"Consumer not found: {consumer} of {key[1]} on {key[0]}")
        layout = coordinator.layout
        return ConsumerAssignment.of(key[0], Push(consumer, Link(0, 0), layout.epoch, segments, layout.created_at_ms))

    async def _as_it_stands(self, key: SubscriptionKey) -> SubscriptionCoordinator:
        """The subscription as it is led here, or as it is stored."""
        async with self._lock(key):
            coordinator = self._led.get(key)
            if coordinator is None:
                await asyncio.to_thread(self._registry.sync)
                coordinator = await asyncio.to_thread(self._stored.load, key, None, _now_ms())
        if key not in self._led and coordinator.type == "STREAM" and not self._reach.is_away:
            asking = asyncio.ensure_future(on_request(partial(self._stored.find_drained, key, coordinator)))
            done, _ = await asyncio.wait({asking}, timeout=PATIENCE_SECONDS)
            if done:
                coordinator, _ = coordinator.drain(asking.result().drained)
        return coordinator

    def term_begun(self, topic: str) -> None:
        """From any thread: all that were connected to the leader before have a whole grace period from now on."""
        self._soon(lambda: self._spawn(self._load_sessions(topic)))

    def term_ended(self, topic: str) -> None:
        """From any thread: nothing that is known of a topic's sessions counts any more."""
        self._soon(lambda: self._forget_all([key for key in {*self._led, *self._locks} if key[0] == topic]))

    def topics(self) -> set[str]:
        """Those with consumers that are connected or within their grace period; from any thread."""
        return {key[0] for key in tuple(self._led)}

    def layout_changed(self, topic: str) -> None:
        """From any thread: the layout of a topic was committed, or the topic is deleted."""
        self._soon(lambda: self._refresh_led([key for key in self._led if key[0] == topic]))

    def members_changed(self, topic: str, subscription: str) -> None:
        """From any thread: consumers of a subscription were registered or unregistered, or it is deleted."""
        self._soon(lambda: self._refresh_led([(topic, subscription)]))

    def _lock(self, key: SubscriptionKey) -> asyncio.Lock:
        """The lock under which the coordinator of a subscription is changed."""
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
        # Under the lock, so that a step that is under way does not bring it back.
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
        """Bring a coordinator to the layout and the members that are stored."""
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
        """Find the sealed segments that were read to the end.

        Kafka is asked without the lock: nothing else of the subscription waits for that.
        """
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
        """Within `_lock`: what was drained before the subscription was moved does not count."""
        coordinator = self._led.get(key)
        if coordinator is None or coordinator.type != "STREAM":
            return
        start, _ = coordinator.reset_drained(())
        look = await on_request(partial(self._stored.find_drained, key, start))

        async def store(after: SubscriptionCoordinator, _: Effects) -> None:
            # Also when it is not stored: what is stored then has fewer drained segments, never more.
            try:
                await self._save(key, after)
            except (ControllerError, StoreError) as error:
                log.warning("what %s of %s has read is not stored yet: %s", key[1], key[0], error)

        await self._make(key, coordinator, lambda before: before.reset_drained(look.drained), store)

    async def _expire(self, key: SubscriptionKey) -> None:
        async with self._lock(key):
            if key in self._timers:
                self._timers.pop(key).cancel()
            coordinator = self._led.get(key)
            if coordinator is None:
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
        """Make a step, within `_lock`: it is stored, then taken over and told.

        Who has lost the connection by then cannot be told, and reads on what it was told before. So the step is made
        again without that connection, and stored again: to store is to bring the store to what it is to be.
        """
        while True:
            coordinator = self._as_connected(coordinator)
            after, change = step(coordinator)
            await store(after, change)
            if self._as_connected(coordinator) is coordinator:
                self._take(key, after, change)
                return

    def _as_connected(self, coordinator: SubscriptionCoordinator) -> SubscriptionCoordinator:
        """With all connections gone that are known to be; the same object when none is."""
        if self._lost_connections:
            links = {one.connection for one in coordinator.sessions.values() if isinstance(one, Link)}
            for connection in links & self._lost_connections:
                coordinator = coordinator.disconnect(connection, _now_ms())
        return coordinator

    async def _store_gone(self, key: SubscriptionKey, after: SubscriptionCoordinator, change: Effects) -> None:
        gone = [event.consumer for event in change.events]
        if gone:
            await asyncio.to_thread(self._registry.unregister_consumers, *key, gone)
        if change.contested_changed:
            await self._save(key, after)

    async def _save_changed(self, key: SubscriptionKey, after: SubscriptionCoordinator, change: Effects) -> None:
        if change.drained_changed or change.contested_changed:
            await self._save(key, after)

    async def _save(self, key: SubscriptionKey, after: SubscriptionCoordinator) -> None:
        await asyncio.to_thread(self._registry.save_progress, *key, sorted(after.drained), after.contested, after.life)

    def _take(self, key: SubscriptionKey, after: SubscriptionCoordinator, change: Effects) -> None:
        """Make a stored step the present state, and tell the consumers."""
        if all(session == NO_CONNECTION for session in after.sessions.values()):
            self._led.pop(key, None)
        else:
            self._led[key] = after
        for push in change.pushes:
            self._tell(push.link, push)
        if change.superseded is not None:
            self._tell(change.superseded, "the consumer connected again")
        # A timer that is set is early enough, as all grace periods are the same; `due` looks at ten thousand sessions.
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
        """Do it again in a while, if the topic is this node's by then."""
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
        loop = self._loop
        if loop is not None:
            try:
                loop.call_soon_threadsafe(call)
            except RuntimeError:
                log.debug("the event loop has ended")


def _retry_delay() -> float:
    return with_jitter(RETRY_DELAY_SECONDS, RETRY_JITTER_SECONDS)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
