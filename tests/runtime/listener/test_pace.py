"""Refused requests are answered at a pace by network, however many come."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runtime.listener.anonymous import MAX_PROBE_SECONDS, MAX_SOON_PROBES, AnonymousClients
from runtime.listener.bodies import BrokenOff
from runtime.listener.fair_queue import ALL_REFUSALS_PER_SECOND, REFUSALS_AT_ONCE, REFUSALS_PER_SECOND, Turns
from runtime.listener.protocol import CLIENT_LEFT


class Waiting:
    """Clients on a clock that stands still, with the time that each request would wait."""

    def __init__(self) -> None:
        self.now, self.waits = 0.0, list[float]()

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    def ask(self, clients: AnonymousClients, address: str, is_paced: bool = True) -> float:
        before = len(self.waits)

        async def turn() -> None:
            async with clients.turn({"client": (address, 1)}, is_paced):
                pass

        asyncio.run(turn())
        return self.waits[-1] if len(self.waits) > before else 0.0


@pytest.fixture
def waiting() -> Waiting:
    return Waiting()


@pytest.fixture
def clients(waiting: Waiting) -> AnonymousClients:
    sleep: Any = waiting.sleep
    return AnonymousClients(Turns(100), lambda: waiting.now, sleep)


def test_refusals_of_one_network_have_a_pace(waiting: Waiting, clients: AnonymousClients) -> None:
    waits = [waiting.ask(clients, "192.0.2.1") for _ in range(REFUSALS_AT_ONCE + 10)]
    assert waits[:REFUSALS_AT_ONCE] == [0.0] * REFUSALS_AT_ONCE
    assert waits[REFUSALS_AT_ONCE:] == pytest.approx([n / REFUSALS_PER_SECOND for n in range(1, 11)])
    assert waiting.ask(clients, "192.0.2.2") == 0.0
    assert waiting.ask(clients, "192.0.2.1", is_paced=False) == 0.0


def test_network_is_free_again_after_its_refusals(waiting: Waiting, clients: AnonymousClients) -> None:
    for _ in range(10_000):
        waiting.ask(clients, "2001:db8::1")
    assert waiting.ask(clients, "2001:db8::2") == max(waiting.waits) == 20.0
    waiting.now = 20.0 + REFUSALS_AT_ONCE / REFUSALS_PER_SECOND
    assert waiting.ask(clients, "2001:db8::3") == 0.0


def test_refusals_of_many_networks_share_a_pace(waiting: Waiting, clients: AnonymousClients) -> None:
    at_once = sum(waiting.ask(clients, f"198.51.100.{number}") == 0 for _ in range(40) for number in range(200))
    assert at_once <= 10 * ALL_REFUSALS_PER_SECOND
    waiting.now = 1.0
    soon = sum(waiting.ask(clients, f"198.51.100.{number}") < 1 for number in range(200))
    assert soon <= ALL_REFUSALS_PER_SECOND


def test_probe_waits_less_than_a_second(waiting: Waiting, clients: AnonymousClients) -> None:
    for _ in range(1_000):
        asyncio.run(clients.probe({"client": ("192.0.2.1", 1)}))
    assert len(waiting.waits) == 1_000 - REFUSALS_AT_ONCE
    assert waiting.waits[-1] == max(waiting.waits) < 1
    asyncio.run(clients.probe({"client": ("192.0.2.2", 1)}))
    assert waiting.ask(clients, "192.0.2.1") == 0.0
    assert len(waiting.waits) == 1_000 - REFUSALS_AT_ONCE


@pytest.mark.parametrize("networks", [1, 4, 200])
def test_few_of_many_waiting_probes_are_soon_answered(networks: int) -> None:
    async def check() -> None:
        waits, over = list[float](), asyncio.Event()

        async def sleep(seconds: float) -> None:
            waits.append(seconds)
            await over.wait()

        hold: Any = sleep
        clients = AnonymousClients(Turns(100), lambda: 0.0, hold)

        def probe(number: int) -> asyncio.Task[bool]:
            return asyncio.create_task(clients.probe({"client": (f"192.0.2.{number % networks}", 1)}))

        probes = [probe(number) for number in range(1_000)]
        await asyncio.sleep(0)
        soon = sum(seconds <= MAX_PROBE_SECONDS for seconds in waits)
        assert max(1, MAX_SOON_PROBES - networks) <= soon <= max(2 * MAX_SOON_PROBES, networks)
        probes.append(probe(networks - 1))
        over.set()
        assert all(await asyncio.gather(*probes))
        assert await probe(0)
        assert waits[-1] == MAX_PROBE_SECONDS

    asyncio.run(check())


def test_wait_ends_when_the_client_leaves() -> None:
    async def check() -> None:
        clients = AnonymousClients(Turns(100), lambda: 0.0)
        departure = asyncio.get_running_loop().create_future()
        scope = {"client": ("192.0.2.1", 1), "state": {CLIENT_LEFT: departure}}

        async def ask() -> None:
            async with clients.turn(scope, is_paced=True):
                pass

        for _ in range(REFUSALS_AT_ONCE):
            await ask()
            assert await clients.probe(scope)
        waiting, probe = asyncio.create_task(ask()), asyncio.create_task(clients.probe(scope))
        departure.set_result(None)
        assert not await probe
        with pytest.raises(BrokenOff):
            await waiting

    asyncio.run(check())
