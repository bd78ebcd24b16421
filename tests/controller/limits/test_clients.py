"""What one token can take of a controller: sessions, registrations, calls that wait, messages that nobody reads."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from anabranch.auth.tokens import add_token
from anabranch.controller import health
from anabranch.controller.errors import TooMany
from anabranch.controller.limits.clients import BURST_SECONDS, ClientLimits, LimitedClients
from anabranch.controller.metadata.sqlite import SqliteStore
from anabranch.controller.sessions.connections import SLOW, _Connection
from runtime.listener.fair_queue import MAX_AT_WORK_ALONE
from tests.controller.conftest import LIMITS, RunningController, run_controller
from tests.controller.plain_http import PLAIN
from tests.waiting import wait_until

PATH = "/admin/v2/scalable/acme/limits/t"
FEW = LIMITS.model_copy(
    update={
        "sessions": 3,
        "registrations_per_second": 1.0,
        "subscriptions": 4,
        "waiting_calls": 2,
        "waiting_bytes": 65_536,
    }
)


class Limited:
    """A controller with narrow limits and tokens of its own for each test."""

    def __init__(self, running: RunningController, file: Path) -> None:
        self.running, self._file = running, file
        self._admin = self.client("the-admin")
        self._admin.put(PATH).raise_for_status()

    def client(self, name: str) -> httpx.Client:
        token = add_token(self._file, name, "admin")
        return httpx.Client(
            base_url=self.running.url, headers={"Authorization": f"Bearer {token}"}, timeout=20, verify=PLAIN
        )

    def connect(self, client: httpx.Client, path: str) -> ClientConnection:
        headers = {"Authorization": client.headers["Authorization"]}
        return connect(self.running.url.replace("http", "ws", 1) + PATH + path, additional_headers=headers)


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Limited]:
    home = tmp_path_factory.mktemp("limited")
    add_token(home / "tokens", "first", "read")
    with run_controller(home / "layouts.db", tokens_file=home / "tokens", limits=FEW) as running:
        yield Limited(running, home / "tokens")


@contextlib.contextmanager
def stuck(running: RunningController, reads: bool = False) -> Iterator[None]:
    """Within the block the metadata store answers no writes, or no reads either."""
    store = running.nodes
    assert isinstance(store, SqliteStore)
    with store._lock, store._read_lock if reads else contextlib.nullcontext():
        yield


@pytest.mark.process
def test_sessions_limited_per_token(limited: Limited) -> None:
    client, other = limited.client("watcher"), limited.client("other-watcher")
    with contextlib.ExitStack() as held:
        held.enter_context(limited.connect(client, "/watch"))
        held.enter_context(limited.connect(client, "/consumers"))
        stream = held.enter_context(client.stream("GET", f"{PATH}/watch"))
        assert stream.status_code == 200
        refused = client.get(f"{PATH}/watch")
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "5")
        assert refused.json() == {"reason": "watcher has 3 sessions at this node, and more are not possible"}
        for path in ("/watch", "/consumers"):
            with pytest.raises(InvalidStatus) as caught:
                limited.connect(client, path)
            assert caught.value.response.status_code == 429
        with limited.connect(other, "/watch"):
            pass

    def again() -> int:
        with client.stream("GET", f"{PATH}/watch") as answer:
            return answer.status_code

    wait_until(lambda: again() == 200)


@pytest.mark.process
def test_token_registration_rate_limited(limited: Limited) -> None:
    """A caller beyond the rate waits."""
    client, burst = limited.client("registering"), int(FEW.registrations_per_second * BURST_SECONDS)
    # The connection takes the first of the burst; from then on one is added each second, however slow the calls are.
    began = time.monotonic()
    with limited.connect(client, "/consumers") as connection:
        found = [client.put(f"{PATH}/subscriptions/s/consumers/c0")]
        while found[-1].status_code == 204:
            found.append(client.put(f"{PATH}/subscriptions/s/consumers/c{len(found)}"))
        assert found[-1].status_code == 429
        assert burst <= len(found) <= burst + time.monotonic() - began, "and one more for each second that went by"
        assert 1 <= int(found[-1].headers["Retry-After"]) <= 2
        assert "registering registers more than 1 times a second" in found[-1].json()["reason"]
        connection.send(json.dumps({"command": "register", "consumerId": 1, "subscription": "s", "consumerName": "c"}))
        assert json.loads(connection.recv(30))["command"] == "assignment"
        assert len(found) < burst + time.monotonic() - began
    assert limited.client("another").put(f"{PATH}/subscriptions/s/consumers/d").status_code == 204


@pytest.mark.process
def test_a_topic_has_so_many_subscriptions(limited: Limited) -> None:
    client = limited.client("subscribing")
    client.put(f"{PATH}2").raise_for_status()
    names = [client.put(f"{PATH}2/subscriptions/s{n}").status_code for n in range(5)]
    assert names == [204] * 4 + [429]
    refused = client.put(f"{PATH}2/subscriptions/s9/consumers/c")
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "60")
    assert client.put(f"{PATH}2/subscriptions/s0").status_code == 204


@pytest.mark.process
def test_calls_queue_by_token_and_health_does_not(limited: Limited) -> None:
    client, calls = limited.client("calling"), MAX_AT_WORK_ALONE + FEW.waiting_calls + 6
    with ThreadPoolExecutor(calls) as pool:
        with stuck(limited.running):
            asked = [pool.submit(client.put, f"{PATH}-{n}") for n in range(calls)]
            # Those that are one too many are answered while the others wait.
            wait_until(lambda: sum(one.done() for one in asked) >= 6)
            # Who waited with them would wait until this is over.
            probe = httpx.get(f"{limited.running.url}/healthz", timeout=30, verify=PLAIN)
            assert probe.json() == {"status": "failing"}
        statuses = [one.result().status_code for one in asked]
    assert statuses.count(429) >= 6
    assert statuses.count(204) == calls - statuses.count(429) >= FEW.waiting_calls
    assert "wait already" in next(one.result().json()["reason"] for one in asked if one.result().status_code == 429)


@pytest.mark.process
def test_incoming_bodies_count_as_waiting_bytes(limited: Limited) -> None:
    client, other = limited.client("dribbling"), limited.client("other-dribbling")
    head = (
        f"PUT {PATH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {client.headers['Authorization']}\r\n"
        "Content-Type: application/json\r\nContent-Length: 40000\r\n\r\n"
    ).encode()
    address = client.base_url.host, client.base_url.port
    with contextlib.ExitStack() as held:
        for _ in range(2):
            connection = held.enter_context(socket.create_connection(address, timeout=5))
            connection.sendall(head + b" " * 30_000)
        wait_until(lambda: client.post(f"{PATH}/autoScalePolicy", content=b" " * 10_000).status_code == 429)
        late = held.enter_context(socket.create_connection(address, timeout=5))
        late.sendall(head + b" " * 30_000)
        assert late.recv(65_536).startswith(b"HTTP/1.1 429 ")
        assert other.post(f"{PATH}/autoScalePolicy", content=b" " * 10_000).status_code == 204
    wait_until(lambda: client.post(f"{PATH}/autoScalePolicy", content=b" " * 60_000).status_code == 204)


@pytest.mark.process
def test_health_answers_without_store_details(limited: Limited, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "MAX_LOOK_SECONDS", 0.2)
    client = limited.client("probing")
    with stuck(limited.running, reads=True):
        full, public = client.get("/healthz"), httpx.get(f"{limited.running.url}/healthz", verify=PLAIN)
    assert (full.status_code, full.json()["outbox"]) == (503, None)
    assert "has not answered" in full.json()["reason"]
    assert (public.status_code, public.json()) == (503, {"status": "failing"})
    wait_until(lambda: client.get("/healthz").json()["outbox"] is not None)
    assert "127.0.0.1:1" in client.get("/healthz").json()["reason"]
    assert httpx.get(f"{limited.running.url}/healthz", verify=PLAIN).json() == {"status": "failing"}


LIMITS_OF_ONE = ClientLimits(waiting_calls=9, sessions=2, waiting_bytes=1000, registrations_per_second=2)


def test_waiting_bytes_counted_per_token() -> None:
    """They count over all connections of the token until sent or dropped."""

    async def check() -> None:
        client = LimitedClients(LIMITS_OF_ONE).client("slow")
        one, other = _Connection("t", client), _Connection("t", client)
        one.send(text="x" * 600)
        other.send(text="x" * 600)
        assert not one.ended.done()
        assert other.ended.result()[0] == SLOW
        one.drop()
        assert client.queue(1000)
        assert not client.queue(1)

    asyncio.run(check())


def test_registrations_come_back_with_time() -> None:
    now = [0.0]
    client = LimitedClients(LIMITS_OF_ONE, lambda: now[0]).client("c")

    def registered() -> int:
        count = 0
        with contextlib.suppress(TooMany):
            while True:
                client.register()
                count += 1
        return count

    assert registered() == 20
    now[0] = 1.0
    assert registered() == 2
    now[0] = 1000.0
    assert registered() == 20
    with pytest.raises(TooMany) as caught:
        client.register()
    assert caught.value.retry_seconds == 1


def test_a_session_that_fails_does_not_count_any_more() -> None:
    client = LimitedClients(LIMITS_OF_ONE).client("c")
    for _ in range(5):
        with contextlib.suppress(RuntimeError), client.session():
            raise RuntimeError
    with client.session(), client.session(), pytest.raises(TooMany), client.session():
        pass
