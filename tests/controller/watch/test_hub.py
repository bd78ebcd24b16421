"""Watching layouts: the newest to everyone, never an older one after it, and no client waits for a slow one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.controller.errors import NotFound
from anabranch.controller.watch.hub import MAX_MISSED, CloseReason, LayoutUpdate, WatchHub, WatchSession
from tests.controller.watch.observing import open_sessions
from tests.examples import only_first

TOPIC = "topic://acme/shop/orders"


class Store:
    """What is committed, by topic; a load sees it at its end, after others had their turn."""

    def __init__(self, **layouts: LayoutUpdate) -> None:
        self.layouts = {TOPIC: layouts["first"]} if layouts else {}
        self.loads = 0

    async def load(self, topic: str) -> LayoutUpdate:
        self.loads += 1
        await asyncio.sleep(0)
        if topic not in self.layouts:
            raise NotFound(f"Scalable topic not found: {topic}")
        return self.layouts[topic]


def update(epoch: int, text: str = "{}") -> LayoutUpdate:
    return LayoutUpdate(epoch, text)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 60))


async def turns(count: int = 3) -> None:
    """Lets every task run that can."""
    for _ in range(count):
        await asyncio.sleep(0)


async def rest_of(session: WatchSession) -> list[int]:
    return [one.epoch async for one in session]


@pytest.mark.parametrize("count", only_first(1, [2_000, 5_000]))
def test_thousands_of_sessions_see_newest_epoch(count: int) -> None:
    async def scenario() -> None:
        hub = WatchHub(Store(first=update(0)).load)
        sessions = await asyncio.gather(*(hub.subscribe(TOPIC) for _ in range(count)))
        watching = [asyncio.create_task(rest_of(session)) for session in sessions]
        for epoch in range(1, 30):
            hub.publish(TOPIC, update(epoch))
            hub.publish(TOPIC, update(max(0, epoch - 2)))  # an announcement that comes late
            if epoch % 3 == 0:
                await turns(1)
        await turns()
        hub.stop()
        for seen in await asyncio.gather(*watching):
            assert seen[-1] == 29
            assert seen == sorted(set(seen))
        assert open_sessions(hub) == 0

    run(scenario())


def test_slow_session_cut_off_without_delay() -> None:
    """The others get every epoch in the same turn."""

    async def scenario() -> None:
        hub = WatchHub(Store(first=update(0)).load)
        slow, *quick = [await hub.subscribe(TOPIC) for _ in range(1000)]
        cut = asyncio.create_task(slow.until_closed())
        watching = [asyncio.create_task(rest_of(session)) for session in quick]
        await turns()
        for epoch in range(1, MAX_MISSED + 3):
            assert open_sessions(hub) == (1000 if epoch <= MAX_MISSED + 1 else 999)
            hub.publish(TOPIC, update(epoch))
            await turns(1)
        assert await cut is CloseReason.SLOW
        assert await rest_of(slow) == []
        hub.stop()
        assert all(seen == list(range(MAX_MISSED + 3)) for seen in await asyncio.gather(*watching))

    run(scenario())


def test_session_lives_while_it_reads_in_time() -> None:
    async def scenario() -> None:
        hub = WatchHub(Store(first=update(0)).load)
        session = await hub.subscribe(TOPIC)
        for epoch in range(1, 5 * MAX_MISSED + 1):
            hub.publish(TOPIC, update(epoch))
            if epoch % MAX_MISSED == 0:
                assert (await session.__anext__()).epoch == epoch
        assert session.closed_because is None

    run(scenario())


def test_resuming_client_gets_later_epochs_only() -> None:
    async def scenario() -> None:
        hub = WatchHub(Store(first=update(7)).load)
        behind, level = await hub.subscribe(TOPIC, since_epoch=5), await hub.subscribe(TOPIC, since_epoch=7)
        assert (await behind.__anext__()).epoch == 7
        waiting = asyncio.create_task(level.__anext__())
        await turns()
        assert not waiting.done()
        hub.publish(TOPIC, update(8))
        assert (await waiting).epoch == 8

    run(scenario())


def test_client_ahead_of_topic_starts_again() -> None:
    async def scenario() -> None:
        hub = WatchHub(Store(first=update(0)).load)
        ahead = await hub.subscribe(TOPIC, since_epoch=9)
        assert await rest_of(ahead) == []
        assert ahead.closed_because is CloseReason.AHEAD
        again = await hub.subscribe(TOPIC)
        assert (await again.__anext__()).epoch == 0

    run(scenario())


def test_same_epoch_sent_only_with_new_text() -> None:
    async def scenario() -> None:
        hub = WatchHub(Store(first=update(3, "old policy")).load)
        session = await hub.subscribe(TOPIC)
        assert await session.__anext__() == update(3, "old policy")
        hub.publish(TOPIC, update(3, "old policy"))
        waiting = asyncio.create_task(session.__anext__())
        await turns()
        assert not waiting.done()
        hub.publish(TOPIC, update(3, "new policy"))
        assert await waiting == update(3, "new policy")

    run(scenario())


def test_change_during_load_is_not_missed() -> None:
    async def scenario() -> None:
        hub = WatchHub(Store(first=update(0)).load)
        subscribing = asyncio.create_task(hub.subscribe(TOPIC))
        await turns(1)
        hub.publish(TOPIC, update(1))
        assert (await (await subscribing).__anext__()).epoch == 1

    run(scenario())


def test_missing_topic_refused_without_trace() -> None:
    async def scenario() -> None:
        hub = WatchHub(Store().load)
        with pytest.raises(NotFound):
            await hub.subscribe(TOPIC)
        assert open_sessions(hub) == 0

    run(scenario())


def test_topic_deletion_ends_only_its_sessions() -> None:
    async def scenario() -> None:
        store = Store(first=update(5))
        store.layouts["topic://acme/shop/other"] = update(1)
        hub = WatchHub(store.load)
        gone, other = await hub.subscribe(TOPIC), await hub.subscribe("topic://acme/shop/other")
        hub.forget(TOPIC)
        assert await rest_of(gone) == []
        assert gone.closed_because is CloseReason.DELETED
        assert (await other.__anext__()).epoch == 1
        store.layouts[TOPIC] = update(0, "made again")
        assert await (await hub.subscribe(TOPIC)).__anext__() == update(0, "made again")

    run(scenario())


def test_deletion_during_load_ends_waiting_session() -> None:
    async def scenario() -> None:
        hub = WatchHub(Store(first=update(5)).load)
        subscribing = asyncio.create_task(hub.subscribe(TOPIC))
        await turns(1)
        hub.forget(TOPIC)
        session = await subscribing
        assert session.closed_because is CloseReason.DELETED
        assert await rest_of(session) == []
        assert open_sessions(hub) == 0

    run(scenario())


def test_layout_loaded_once_per_watched_period() -> None:
    async def scenario() -> None:
        store = Store(first=update(0))
        hub = WatchHub(store.load)
        first, second = await hub.subscribe(TOPIC), await hub.subscribe(TOPIC)
        assert store.loads == 1
        first.close()
        second.close()
        hub.publish(TOPIC, update(1))
        store.layouts[TOPIC] = update(2)
        assert (await (await hub.subscribe(TOPIC)).__anext__()).epoch == 2

    run(scenario())


steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(0, 9)),
        st.tuples(st.just("take"), st.integers(0, 3)),
        st.tuples(st.just("come"), st.none() | st.integers(0, 9)),
    ),
    max_size=40,
)


@given(steps)
def test_random_steps_reach_newest_epoch_upwards(order: list[tuple[str, int | None]]) -> None:
    async def scenario() -> None:
        store = Store(first=update(0))
        hub = WatchHub(store.load)
        sessions: list[tuple[WatchSession, list[int]]] = []
        for kind, number in order:
            if kind == "publish" and number is not None:
                store.layouts[TOPIC] = max(store.layouts[TOPIC], update(number))
                hub.publish(TOPIC, update(number))
            elif kind == "come":
                sessions.append((await hub.subscribe(TOPIC, number), [] if number is None else [number]))
            elif number is not None and number < len(sessions):
                await take(*sessions[number])
        for session, seen in sessions:
            await take(session, seen)
            assert seen == sorted(set(seen))
            newest = store.layouts[TOPIC].epoch
            assert session.closed_because is CloseReason.AHEAD or seen[-1] == newest

    async def take(session: WatchSession, seen: list[int]) -> None:
        """What can be taken without waiting."""
        taking = asyncio.create_task(session.__anext__())
        await turns()
        if taking.done() and taking.exception() is None:
            seen.append(taking.result().epoch)
        else:
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)

    run(scenario())
