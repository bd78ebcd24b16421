"""Who works while the controllers are tormented: callers over REST, watch sessions, consumers with connections.

Stage: under `lab.chaos.run`; lives in one event loop and writes down all that it sees. A name whose call got no answer
is not used again: the call may still arrive, at a node that stands frozen.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from typing import Any

import httpx
import websockets

from lab.chaos.history import Call, History, LostSession, SeenLayout

SUBSCRIPTION, BY_REST = "streams", "rest"
"""One subscription of consumers with connections, and one of consumers that are registered by REST."""
MAX_SEGMENTS = 12
TIMEOUT_S = 4.0
_PAUSE_S = 0.05
_FAULTS = (httpx.HTTPError, OSError, websockets.WebSocketException, asyncio.TimeoutError)


def seen_layout(topic: str, layout: dict[str, Any], by: str, asked_at: float, seen_at: float) -> SeenLayout:
    """What a client makes of a layout record."""
    known = {
        int(id): (segment["hashRange"]["start"], segment["hashRange"]["end"])
        for id, segment in layout["segments"].items()
    }
    active = {id: known[id] for id in known if layout["segments"][str(id)]["state"] == "ACTIVE"}
    return SeenLayout(topic, layout["epoch"], active, known, by, asked_at, seen_at)


class Topic:
    """One topic and everyone who works on it."""

    def __init__(self, name: str, urls: Sequence[str], history: History, seed: int) -> None:
        self.name, self.urls, self.history = name, urls, history
        self.path = f"/admin/v2/scalable/{name.removeprefix('topic://')}"
        self.working = asyncio.Event()
        """Cleared: nobody asks for anything new, so that things come to rest."""
        self.busy = 0
        """Calls that are under way."""
        self.consumers: list[Consumer] = []
        self._random = random.Random(seed)
        self._http = httpx.AsyncClient(timeout=TIMEOUT_S, follow_redirects=True)
        self._registered: list[str] = []
        self._numbers = self._reads = 0

    async def close(self) -> None:
        await self._http.aclose()

    async def call_for_ever(self) -> None:
        """Read, and split, merge, register or unregister, at any node, without an end."""
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
        """The layout, written down."""
        asked = time.monotonic()
        answer = await self._http.get(url + self.path)
        answer.raise_for_status()
        self._reads += 1
        by = f"read {self._reads} at {answer.url.port}"
        found = seen_layout(self.name, answer.json(), by, asked, time.monotonic())
        self.history.layouts.append(found)
        return found

    async def get(self, url: str, path: str) -> Any:
        """The JSON at a path of the topic; raises `httpx.HTTPError`."""
        answer = await self._http.get(f"{url}{self.path}{path}")
        answer.raise_for_status()
        return answer.json()

    async def create(self, url: str) -> None:
        """Made, or there already; raises `httpx.HTTPError`."""
        answer = await self._http.put(url + self.path)
        if answer.status_code != 409:
            answer.raise_for_status()

    async def _act(self, url: str) -> None:
        layout = await self.read(url)
        active = sorted(layout.active, key=lambda id: layout.active[id])
        chance = self._random.random()
        if chance < 0.3 and len(active) < MAX_SEGMENTS:
            segment = self._random.choice(active)
            await self._call("POST", url, f"/split/{segment}", "split", str(segment))
        elif chance < 0.6 and len(active) > 1:
            at = self._random.randrange(1, len(active))
            first, second = active[at - 1], active[at]
            await self._call("POST", url, f"/merge/{first}/{second}", "merge", f"{first} {second}")
        elif chance < 0.8 or not self._registered:
            self._numbers += 1
            await self._change_registration(url, "PUT", "register", f"r{self._numbers}")
        else:
            await self._change_registration(
                url, "DELETE", "unregister", self._registered.pop(self._random.randrange(len(self._registered)))
            )

    async def _change_registration(self, url: str, verb: str, kind: Any, name: str) -> None:
        path = f"/subscriptions/{BY_REST}/consumers/{name}"
        status = await self._call(verb, url, path, kind, f"{BY_REST}/{name}")
        if kind == "register" and status == 204:
            self._registered.append(name)

    async def _call(self, verb: str, url: str, path: str, kind: Any, what: str) -> int | None:
        status = None
        try:
            status = (await self._http.request(verb, url + self.path + path)).status_code
        finally:
            self.history.calls.append(Call(self.name, kind, what, status))
        return status


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
    """A consumer with a connection, which it looks for again as soon as it is lost."""

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
