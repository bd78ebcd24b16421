"""The clients of a chaos run: callers over REST, watch sessions, consumers with connections.

Stage: under `lab.chaos.run`; runs in one event loop and records all that it sees. Calls are made by the admin
client's transport, each topic's in threads of their own; what counts is the raw status. A name whose call got no answer
is not used again: the call may still arrive, at a node that is frozen.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import websockets

from admin.answers import Response
from admin.paths import consumer_path, topic_path
from admin.transport import Transport
from lab.chaos.history import Call, ClientHistory, LostSession, SeenLayout

SUBSCRIPTION, BY_REST = "streams", "rest"
"""One subscription of consumers with connections, and one of consumers that are registered by REST."""
MAX_SEGMENTS = 12
TIMEOUT_S = 4.0
_PAUSE_S = 0.05
CALLERS = 8
"""Calls for one topic at the same time, at most; a frozen node holds each for as long as `TIMEOUT_S`."""


class CallFailed(Exception):
    """No node answered, or not with success."""


_FAULTS = (CallFailed, OSError, websockets.WebSocketException, asyncio.TimeoutError)


def seen_layout(topic: str, layout: dict[str, Any], by: str, asked_at: float, seen_at: float) -> SeenLayout:
    """What a client makes of a layout record."""
    known = {
        int(id): (segment["hashRange"]["start"], segment["hashRange"]["end"])
        for id, segment in layout["segments"].items()
    }
    active = {id: known[id] for id in known if layout["segments"][str(id)]["state"] == "ACTIVE"}
    return SeenLayout(topic, layout["epoch"], active, known, by, asked_at, seen_at)


class Topic:
    """One topic and its clients."""

    def __init__(self, name: str, urls: Sequence[str], history: ClientHistory, seed: int) -> None:
        self.name, self.urls, self.history = name, urls, history
        self.path = topic_path(name)
        self.working = asyncio.Event()
        """When cleared, clients ask for nothing new, so that things come to rest."""
        self.busy = 0
        """Calls that are under way."""
        self.consumers: list[Consumer] = []
        self._random = random.Random(seed)
        self._nodes = {
            url: Transport(url, None, user_agent="anabranch-chaos", timeout_seconds=TIMEOUT_S) for url in urls
        }
        self._threads = ThreadPoolExecutor(CALLERS, thread_name_prefix="chaos")
        self._registered: list[str] = []
        self._numbers = self._reads = 0

    def close(self) -> None:
        """Drops all connections."""
        for node in self._nodes.values():
            node.close()
        self._threads.shutdown()

    async def call_for_ever(self) -> None:
        """Read, and split, merge, register or unregister, at any node, until stopped."""
        while True:
            await self.working.wait()
            self.busy += 1
            try:
                await self._act(self._random.choice(self.urls))
            except _FAULTS:
                await asyncio.sleep(_PAUSE_S)
            finally:
                self.busy -= 1
            await asyncio.sleep(self._random.random() * _PAUSE_S)

    async def read(self, url: str) -> SeenLayout:
        """The layout, which is recorded; raises `CallFailed`."""
        asked = time.monotonic()
        answer = await self._succeed("GET", url, self.path)
        self._reads += 1
        by = f"read {self._reads} at {urlsplit(answer.url).port}"
        found = seen_layout(self.name, json.loads(answer.body), by, asked, time.monotonic())
        self.history.layouts.append(found)
        return found

    async def get(self, url: str, path: str) -> Any:
        """The JSON at a path of the topic; raises `CallFailed`."""
        return json.loads((await self._succeed("GET", url, self.path + path)).body)

    async def create(self, url: str) -> None:
        """Creates the topic, unless it exists; raises `CallFailed`."""
        await self._succeed("PUT", url, self.path, or_status=409)

    async def _act(self, url: str) -> None:
        layout = await self.read(url)
        active = sorted(layout.active, key=lambda id: layout.active[id])
        chance = self._random.random()
        if chance < 0.3 and len(active) < MAX_SEGMENTS:
            segment = self._random.choice(active)
            await self._call("POST", url, f"{self.path}/split/{segment}", "split", str(segment))
        elif chance < 0.6 and len(active) > 1:
            at = self._random.randrange(1, len(active))
            first, second = active[at - 1], active[at]
            await self._call("POST", url, f"{self.path}/merge/{first}/{second}", "merge", f"{first} {second}")
        elif chance < 0.8 or not self._registered:
            self._numbers += 1
            await self._change_registration(url, "PUT", "register", f"r{self._numbers}")
        else:
            await self._change_registration(
                url, "DELETE", "unregister", self._registered.pop(self._random.randrange(len(self._registered)))
            )

    async def _change_registration(self, url: str, verb: str, kind: Any, name: str) -> None:
        path = consumer_path(self.name, BY_REST, name)
        status = await self._call(verb, url, path, kind, f"{BY_REST}/{name}")
        if kind == "register" and status == 204:
            self._registered.append(name)

    async def _call(self, verb: str, url: str, path: str, kind: Any, what: str) -> int | None:
        status = None
        try:
            status = (await self._ask(verb, url, path)).status
        finally:
            self.history.calls.append(Call(self.name, kind, what, status))
        return status

    async def _succeed(self, verb: str, url: str, path: str, or_status: int = 200) -> Response:
        answer = await self._ask(verb, url, path)
        if not 200 <= answer.status < 300 and answer.status != or_status:
            raise CallFailed(f"{verb} {url}{path}: {answer.status}")
        return answer

    async def _ask(self, verb: str, url: str, path: str) -> Response:
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(self._threads, self._nodes[url].exchange, verb, path)
        if not isinstance(answer, Response):
            raise CallFailed(str(answer))
        return answer


class Watcher:
    """Watches a topic, at another node after every end of a session."""

    def __init__(self, topic: Topic, seed: int) -> None:
        self._topic, self._random = topic, random.Random(seed)
        self.sessions = 0

    async def run(self) -> None:
        while True:
            url = self._random.choice(self._topic.urls)
            self.sessions += 1
            by = f"watch {id(self)}-{self.sessions}"
            asked = time.monotonic()
            try:
                async with websockets.connect(_ws(url, f"{self._topic.path}/watch"), **_OPTIONS) as socket:
                    async for text in socket:
                        update = json.loads(text)
                        found = seen_layout(self._topic.name, update["layout"], by, asked, time.monotonic())
                        # What is pushed was asked for at the beginning: it may be older than what others have seen.
                        self._topic.history.layouts.append(found)
            except _FAULTS:
                await asyncio.sleep(_PAUSE_S)


class Consumer:
    """A consumer with a connection; it reconnects as soon as that is lost."""

    def __init__(self, topic: Topic, name: str, seed: int) -> None:
        self.name, self._topic, self._random = name, topic, random.Random(seed)
        self.holds: tuple[int, ...] | None = None
        """What it was assigned last; None: it has no connection."""
        self._url: str | None = None
        topic.consumers.append(self)

    async def run(self) -> None:
        while True:
            try:
                await self._connect(self._url or self._random.choice(self._topic.urls))
            except _FAULTS:
                self._url = None
            self.holds = None
            await asyncio.sleep(_PAUSE_S * 4)

    async def _connect(self, url: str) -> None:
        self._url = None
        async with websockets.connect(_ws(url, f"{self._topic.path}/consumers"), **_OPTIONS) as socket:
            hello = {"command": "register", "consumerId": 1, "subscription": SUBSCRIPTION, "consumerName": self.name}
            await socket.send(json.dumps(hello))
            async for text in socket:
                message = json.loads(text)
                if message["command"] == "assignment":
                    segments = message["assignment"]["assignedSegments"]
                    self.holds = tuple(sorted(segment["segmentId"] for segment in segments))
                elif message["command"] == "closed":
                    lost = LostSession(self._topic.name, SUBSCRIPTION, self.name, message["reason"])
                    self._topic.history.lost.append(lost)
                    return
                else:
                    self._url = message.get("controllerBrokerUrl")
                    return


_OPTIONS: dict[str, Any] = {
    "open_timeout": TIMEOUT_S,
    "ping_interval": 1,
    "ping_timeout": TIMEOUT_S,
    "close_timeout": 1,
}


def _ws(url: str, path: str) -> str:
    return f"ws{url.removeprefix('http')}{path}"
