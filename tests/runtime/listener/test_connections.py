"""Connections are counted, in all and by address, from their first moment to their last."""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress

import pytest

from runtime.listener.connections import ConnectionCounts, CountedListener
from runtime.listener.fair_queue import REFUSALS_AT_ONCE, Pace, network_of
from runtime.listener.server import allow_files

pytestmark = pytest.mark.process

Open = Callable[[str], "asyncio.Future[bool]"]


@asynccontextmanager
async def listening(
    counts: ConnectionCounts, greets: bool = True, trusts: bool = False, open_now: list[asyncio.Transport] | None = None
) -> AsyncIterator[tuple[str, int]]:
    """Yield the address of a server that says `a` to everybody."""
    open_now = [] if open_now is None else open_now

    class Greeter(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            if greets:
                number = transport.get_extra_info("socket").fileno()
                counts.greet(number, transport.abort)
                if trusts:
                    assert counts.trust(number, f"client of {number}")
            transport.write(b"a")
            self._transport = transport
            open_now.append(transport)

        def connection_lost(self, _: Exception | None) -> None:
            open_now.remove(self._transport)

    listener = CountedListener(socket.create_server(("127.0.0.1", 0)), counts)
    running = await asyncio.get_running_loop().create_server(Greeter, sock=listener)
    yield listener.getsockname()
    running.close()
    await running.wait_closed()


@asynccontextmanager
async def server(
    counts: ConnectionCounts, greets: bool = True, trusts: bool = False, open_now: list[asyncio.Transport] | None = None
) -> AsyncIterator[Open]:
    """Yield a function that connects from an address and tells whether the greeting was heard."""
    async with listening(counts, greets, trusts, open_now) as address, AsyncExitStack() as opened:

        async def connect(source: str) -> bool:
            reader, writer = await asyncio.open_connection(*address, local_addr=(source, 0))
            opened.callback(writer.close)
            try:
                heard = await reader.read(1)
            except ConnectionError:
                heard = b""
            if heard and not greets:
                assert await reader.read(1) == b""
            return heard == b"a"

        yield lambda source: asyncio.ensure_future(connect(source))


def test_oldest_unknown_connections_give_way() -> None:
    async def check() -> None:
        open_now: list[asyncio.Transport] = []
        async with server(ConnectionCounts(12, 5, 60), open_now=open_now) as connect:
            assert all([await connect("127.0.0.1") for _ in range(7)])
            assert len(open_now) == 5
            assert all([await connect("127.0.0.2") for _ in range(6)])
            assert len(open_now) == 10
            assert all([await connect(f"127.0.0.{n}") for n in (3, 4, 5, 6)])
            assert len(open_now) == 12

    asyncio.run(check())


def test_known_connections_give_way_to_nobody() -> None:
    async def check() -> None:
        async with server(ConnectionCounts(12, 5, 60), trusts=True) as connect:
            # Clients behind one address may have more, once they have shown a token.
            assert [await connect("127.0.0.1") for _ in range(13)] == [True] * 12 + [False]

    asyncio.run(check())


class Never(Pace):
    """The pace of a network whose next closing is an hour away."""

    def wait(self, network: str) -> float:
        return 3600.0


async def connected(address: tuple[str, int]) -> socket.socket:
    """Return a socket that has heard the greeting."""
    client = socket.socket()
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, address)
    assert await loop.sock_recv(client, 1) == b"a"
    return client


def is_closed(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False


def test_closed_connections_are_held_while_there_is_room() -> None:
    async def check() -> None:
        open_now: list[asyncio.Transport] = []
        with ExitStack() as opened:
            async with listening(ConnectionCounts(10, 3, 60, closings=Never()), open_now=open_now) as address:
                clients = [opened.enter_context(await connected(address)) for _ in range(10)]
                assert (len(open_now), sum(map(is_closed, clients))) == (3, 0)
                clients += [opened.enter_context(await connected(address)) for _ in range(2)]
                assert len(open_now) == 3
                assert [is_closed(client) for client in clients] == [True] * 2 + [False] * 10
            assert [is_closed(client) for client in clients] == [True] * 9 + [False] * 3

    asyncio.run(check())


def test_held_connections_give_way_to_known_ones() -> None:
    async def check() -> None:
        open_now: list[asyncio.Transport] = []
        counts = ConnectionCounts(10, 3, 60, closings=Never())
        with ExitStack() as opened:
            async with listening(counts, open_now=open_now) as address:
                for _ in range(10):
                    opened.enter_context(await connected(address))
                known = []
                for number in range(10):
                    known.append(opened.enter_context(await connected(address)))
                    assert counts.trust(open_now[-1].get_extra_info("socket").fileno(), f"client {number}")
                assert not any(map(is_closed, known))

    asyncio.run(check())


def test_closed_at_once_without_a_file_to_hold_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(number: int) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr("runtime.listener.connections.os.dup", refused)

    async def check() -> None:
        with ExitStack() as opened:
            async with listening(ConnectionCounts(10, 3, 60, closings=Never())) as address:
                clients = [opened.enter_context(await connected(address)) for _ in range(6)]
                assert [is_closed(client) for client in clients[:2]] == [True] * 2
                assert not any(map(is_closed, clients[3:]))

    asyncio.run(check())


def test_connection_closed_before_its_greeting_is_aborted() -> None:
    async def check() -> None:
        counts, aborted = ConnectionCounts(10, 3, 60, closings=Never()), list[str]()
        with CountedListener(socket.create_server(("127.0.0.1", 0)), counts) as listener, socket.socket() as client:
            client.connect(listener.getsockname())
            accepted, _ = listener.accept()
            with accepted:
                number = accepted.fileno()
                counts.close(number)
                counts.greet(number, lambda: aborted.append("closed"))
        assert aborted == ["closed"]

    asyncio.run(check())


def test_connections_left_at_full_speed_are_not_taken() -> None:
    async def check() -> None:
        counts, taken = ConnectionCounts(10, 10, 60, departures=Pace(lambda: 0.0)), list[str]()
        with CountedListener(socket.create_server(("127.0.0.1", 0)), counts) as listener:
            listener.setblocking(False)

            def connect(source: str, leaves: bool) -> None:
                with socket.create_connection(listener.getsockname(), source_address=(source, 0)) as client:
                    if leaves:
                        client.close()
                    with suppress(BlockingIOError):
                        accepted, peer = listener.accept()
                        accepted.close()
                        taken.append(peer[0])

            for _ in range(3 * REFUSALS_AT_ONCE):
                connect("127.0.0.1", leaves=True)
            assert REFUSALS_AT_ONCE <= len(taken) <= REFUSALS_AT_ONCE + 1
            taken.clear()
            connect("127.0.0.1", leaves=False)
            connect("127.0.0.2", leaves=True)
            assert taken == ["127.0.0.1", "127.0.0.2"]

    asyncio.run(check())


def test_slow_handshake_cut_and_not_counted() -> None:
    async def check() -> None:
        counts = ConnectionCounts(2, 2, 0.2)
        async with server(counts, greets=False) as connect:
            for _ in range(3):
                assert await asyncio.wait_for(connect("127.0.0.1"), 5)

    asyncio.run(check())


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8:1:2:3::4", "2001:db8:1:2:ffff::1", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("192.0.2.1", "192.0.2.2", False),
    ],
)
def test_one_of_ipv6_is_a_network(one: str, other: str, same: bool) -> None:
    assert (network_of(one) == network_of(other)) == same


def test_connections_limited_by_system_files(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(1024, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, found: limits.append(found))
    assert allow_files(500) == 500
    assert allow_files(2000) == 2000
    assert limits[-1] == (2256, 4096)
    assert allow_files(10_000) == 4096 - 256
