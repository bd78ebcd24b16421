"""A run: rounds of work under faults, rest and a look at who owns what after each, and a look at everything at the end.

Stage: above the clients and the nodes; `lab.chaos.__main__` and a test call it.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import httpx

from controller.metadata.zookeeper import ZooKeeperStore
from controller.outbox import Outbox
from controller.store import LayoutStore
from decisions.layout import SegmentLayout
from lab.chaos.clients import SUBSCRIPTION, Consumer, Topic, Watcher, seen_layout
from lab.chaos.history import End, History, Holding
from lab.chaos.nodes import ControllerNode
from schemas.messages import ConsumerEvent, LayoutEvent, Rejected, parse_message

NODES = 3
SESSION_S = 1.5
GRACE_S = 60.0
"""Longer than any fault, so that nobody is put out who comes back."""
REST_S = 60.0
"""Longest time until things have come to rest."""
CHROOT = "/chaos"


@dataclass(frozen=True)
class Plan:
    """How much of what."""

    seconds: float
    seed: int = 1
    topics: int = 3
    consumers: int = 3
    """With a connection, of each topic."""
    round_seconds: float = 12.0


class Chaos:
    """Controllers on the ZooKeeper at an address, and everything that is done to them."""

    def __init__(self, folder: Path, zookeeper: str, plan: Plan, say: Callable[[str], None] = print) -> None:
        self.history = History()
        self.faults: dict[str, int] = dict.fromkeys(("kill", "freeze", "cut"), 0)
        settings = f"session_seconds = {SESSION_S}\nconsumer_grace_seconds = {GRACE_S}"
        self._nodes = [ControllerNode(folder / f"node{at}", zookeeper, CHROOT, settings) for at in range(NODES)]
        self._zookeeper, self._plan, self._say = zookeeper, plan, say
        self._random = random.Random(plan.seed)
        self._topics: list[Topic] = []

    async def run(self) -> History:
        """All of it; `lab.chaos.history.check` says what it was worth."""
        try:
            await asyncio.to_thread(self._start_all)
            self._topics = [self._topic(number) for number in range(self._plan.topics)]
            for topic in self._topics:
                await _until(lambda topic=topic: topic.create(self._nodes[0].url), "a topic is created")
            tasks = [asyncio.create_task(work) for work in self._work()]
            try:
                await self._rounds()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                for topic in self._topics:
                    await topic.close()
            await asyncio.to_thread(self._look_at_the_end)
        finally:
            for node in self._nodes:
                await asyncio.to_thread(node.close)
        return self.history

    def _start_all(self) -> None:
        for node in self._nodes:
            node.start()
        for node in self._nodes:
            node.wait_until_ready()

    def _topic(self, number: int) -> Topic:
        urls = [node.url for node in self._nodes]
        return Topic(f"topic://acme/chaos/t{number}", urls, self.history, self._plan.seed * 100 + number)

    def _work(self) -> Iterable[asyncio.Future[None] | object]:
        seeds = itertools.count(self._plan.seed * 10_000)
        for topic in self._topics:
            yield from (topic.call_for_ever() for _ in range(2))
            yield Watcher(topic, next(seeds)).run()
            for number in range(self._plan.consumers):
                yield Consumer(topic, f"c{number}", next(seeds)).run()

    async def _rounds(self) -> None:
        end = time.monotonic() + self._plan.seconds
        for number in itertools.count(1):
            for topic in self._topics:
                topic.working.set()
            until = min(end, time.monotonic() + self._plan.round_seconds)
            while time.monotonic() < until:
                await self._torment()
            await self._rest()
            done = sum(call.status == 204 for call in self.history.calls)
            faults = ", ".join(f"{count} {name}" for name, count in self.faults.items())
            self._say(f"round {number}: {done} changes done, {len(self.history.layouts)} layouts seen; {faults}")
            if time.monotonic() >= end:
                return

    async def _torment(self) -> None:
        """One fault at one node, for a while; the others go on."""
        await asyncio.sleep(self._random.uniform(0.2, 2.0))
        node = self._random.choice(self._nodes)
        seconds = self._random.choice([SESSION_S * 0.4, SESSION_S * 1.5, SESSION_S * 2.5])
        fault = self._random.choice(list(self.faults))
        self.faults[fault] += 1
        if fault == "kill":
            await asyncio.to_thread(node.kill)
            await asyncio.sleep(self._random.uniform(0, 1))
            node.start()
            await asyncio.to_thread(node.wait_until_ready)
        elif fault == "freeze":
            node.freeze()
            await asyncio.sleep(seconds)
            node.thaw()
        else:
            node.link.cut()
            await asyncio.sleep(seconds)
            node.link.mend()

    async def _rest(self) -> None:
        """Nobody asks for anything more; then every consumer has a connection, and every segment one owner."""
        for topic in self._topics:
            topic.working.clear()
        for topic in self._topics:
            await _until(lambda topic=topic: self._is_calm(topic), f"{topic.name} comes to rest")
            self.history.holdings.append(await self._holding(topic))

    async def _is_calm(self, topic: Topic) -> None:
        """Raises unless all calls have ended, all operations too, and all consumers know the newest layout."""
        if topic.busy:
            raise _NotYet("calls are under way")
        for operation in await topic.get(self._nodes[0].url, "/operations"):
            if operation["step"] not in ("done", "superseded"):
                raise _NotYet(f"an operation is at {operation['step']}")
        if any(consumer.holds is None for consumer in topic.consumers):
            raise _NotYet("a consumer has no connection")
        holding = await self._holding(topic)
        if sorted(segment for held in holding.held.values() for segment in held) != sorted(holding.wanted):
            raise _NotYet(f"segments are not shared out yet: {holding}")

    async def _holding(self, topic: Topic) -> Holding:
        """What consumers were told; without segments of its own every sealed segment is drained at once."""
        layout = await topic.read(self._nodes[0].url)
        held = {consumer.name: consumer.holds or () for consumer in topic.consumers}
        return Holding(topic.name, SUBSCRIPTION, frozenset(layout.active), held)

    def _look_at_the_end(self) -> None:
        nodes = ZooKeeperStore(self._zookeeper, CHROOT)
        try:
            store, outbox = LayoutStore(nodes), Outbox(nodes)
            records = [record for entry in outbox.read(outbox.names()) for record in entry.records]
            messages = [parse_message(record.source, record.key.encode(), record.value) for record in records]
            assert not any(isinstance(message, Rejected) for message in messages)
            for topic in self._topics:
                stored = store.topic(topic.name)
                assert stored is not None, f"{topic.name} is gone"
                SegmentLayout.from_metadata(stored.metadata).check()
                now = time.monotonic()
                record = stored.metadata.model_dump(mode="json", by_alias=True)
                consumers = {
                    found.name: frozenset(members.consumers)
                    for found in store.subscriptions(topic.name)
                    if found.name != SUBSCRIPTION and (members := store.members(topic.name, found.name))
                }
                events = [one for one in messages if isinstance(one, LayoutEvent) and one.topic == topic.name]
                counts = {
                    name: tuple(
                        one.consumers
                        for one in messages
                        if isinstance(one, ConsumerEvent) and one.topic == topic.name and one.subscription == name
                    )
                    for name in consumers
                }
                unfinished = [one for one in store.operations(topic.name) if not one.has_ended]
                self.history.ends.append(
                    End(
                        layout=seen_layout(topic.name, record, "the store", now, now),
                        open_operations=tuple(f"{one.kind} {one.id}" for one in unfinished),
                        consumers=consumers,
                        announced_epochs=tuple(one.layout.epoch for one in events),
                        announced_counts=counts,
                    )
                )
        finally:
            nodes.close()


class _NotYet(Exception):
    pass


async def _until(attempt: Callable[[], object], what: str) -> None:
    """Try until it does not raise; `TimeoutError` after `REST_S`."""
    end = time.monotonic() + REST_S
    while True:
        try:
            await attempt()  # type: ignore[misc]
            return
        except (_NotYet, httpx.HTTPError, OSError) as error:
            if time.monotonic() > end:
                raise TimeoutError(f"not in {REST_S:.0f} s: {what}: {error!r}") from error
        await asyncio.sleep(0.1)
