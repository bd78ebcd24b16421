"""Turns: a client at full speed leaves half of the work to another one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.listener.fair_queue import (
    AROUND_SECONDS,
    MAX_AT_WORK,
    MAX_AT_WORK_ALONE,
    TooManyCalls,
    Turns,
    let_others_go_on,
)
from tests.examples import examples


class Calls:
    """Calls that last until they are ended."""

    def __init__(self, max_waiting: int = 1000) -> None:
        self.now = 0.0
        self.turns = Turns(max_waiting, lambda: self.now)
        self.at_work: list[tuple[str, asyncio.Future[None]]] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def call(self, who: str, times: int = 1) -> None:
        for _ in range(times):
            self.tasks.append(asyncio.create_task(self._one(who)))
        await self.settle()

    async def end(self, who: str) -> None:
        one = next(found for found in self.at_work if found[0] == who)
        self.at_work.remove(one)
        one[1].set_result(None)
        await self.settle()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    def counts(self) -> dict[str, int]:
        return dict(Counter(who for who, _ in self.at_work))

    async def _one(self, who: str) -> None:
        async with self.turns.turn(who):
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.at_work.append((who, done))
            await done


@asynccontextmanager
async def calls(max_waiting: int = 1000) -> AsyncIterator[Calls]:
    one = Calls(max_waiting)
    yield one
    for task in one.tasks:
        task.cancel()
    await asyncio.gather(*one.tasks, return_exceptions=True)


def scenario(check: Callable[[Calls], Coroutine[Any, Any, None]], max_waiting: int = 1000) -> None:
    async def run() -> None:
        async with calls(max_waiting) as one:
            await check(one)

    asyncio.run(run())


def test_a_client_alone_has_a_few_calls_at_work() -> None:
    async def check(calls: Calls) -> None:
        await calls.call("busy", 20)
        assert calls.counts() == {"busy": MAX_AT_WORK_ALONE}

    scenario(check)


def test_competing_clients_run_one_call_each() -> None:
    async def check(calls: Calls) -> None:
        await calls.call("busy", 20)
        await calls.call("quiet")
        assert calls.counts() == {"busy": MAX_AT_WORK_ALONE, "quiet": 1}
        for _ in range(MAX_AT_WORK_ALONE):
            await calls.end("busy")
        assert calls.counts() == {"busy": 1, "quiet": 1}
        await calls.end("quiet")
        calls.now += AROUND_SECONDS / 2
        await calls.end("busy")
        assert calls.counts() == {"busy": 1}
        calls.now += AROUND_SECONDS
        await calls.end("busy")
        assert calls.counts() == {"busy": MAX_AT_WORK_ALONE}

    scenario(check)


def test_more_clients_than_can_be_at_work_take_turns() -> None:
    async def check(calls: Calls) -> None:
        names = [f"c{number}" for number in range(MAX_AT_WORK + 3)]
        for name in names:
            await calls.call(name, 2)
        assert len(calls.at_work) == MAX_AT_WORK
        for name in names[:3]:
            # Its second call was there before the first one of the last three clients.
            await calls.end(name)
            assert name in calls.counts()
            await calls.end(name)
        assert set(names[-3:]) <= calls.counts().keys()

    scenario(check)


def test_client_with_full_queue_refused_alone() -> None:
    async def check(calls: Calls) -> None:
        await calls.call("busy", MAX_AT_WORK_ALONE + 3)
        with pytest.raises(TooManyCalls, match="3 calls of this client wait already"):
            async with calls.turns.turn("busy"):
                raise AssertionError("it had a turn")
        await calls.call("quiet")
        assert calls.counts()["quiet"] == 1

    scenario(check, max_waiting=3)


def test_calls_that_never_wait_have_one_round_each() -> None:
    async def run() -> None:
        turns, done = Turns(1000), list[str]()

        async def call() -> None:
            async with turns.turn("busy"):
                done.append("busy")

        async with turns.turn("quiet"):
            pass
        calls = [asyncio.create_task(call()) for _ in range(100)]
        for rounds in range(1, 20):
            await asyncio.sleep(0)
            assert len(done) <= rounds
        await asyncio.gather(*calls)
        assert len(done) == 100

    asyncio.run(run())


def test_waiting_thread_may_end_its_turn_early() -> None:
    async def run() -> None:
        turns = Turns(10)
        other = asyncio.Event()

        async def call() -> None:
            async with turns.turn("busy"):
                other.set()

        async with turns.turn("quiet"), turns.turn("busy") as turn:
            task = asyncio.create_task(call())
            await asyncio.sleep(0)
            assert not other.is_set()
            await asyncio.to_thread(let_others_go_on)
            await asyncio.wait_for(other.wait(), 5)
            turn.end()
            await task
        let_others_go_on()

    asyncio.run(run())


@examples(15)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["call", "end", "cancel", "wait"])), max_size=60))
def test_every_call_gets_a_turn_within_limit(steps: list[tuple[str, str]]) -> None:
    async def check(calls: Calls) -> None:
        for who, step in steps:
            if step == "call":
                await calls.call(who)
            elif step == "end" and who in calls.counts():
                await calls.end(who)
            elif step == "cancel" and calls.tasks:
                task = calls.tasks[len(calls.tasks) // 2]
                task.cancel()
                await calls.settle()
                calls.at_work = [one for one in calls.at_work if not one[1].cancelled()]
            elif step == "wait":
                calls.now += AROUND_SECONDS
            assert all(count <= MAX_AT_WORK_ALONE for count in calls.counts().values())
        while calls.at_work:
            await calls.end(calls.at_work[0][0])
        assert all(task.done() for task in calls.tasks)
        assert calls.turns._at_work == 0
        assert not calls.turns._clients
        assert not calls.turns._queue

    scenario(check)
