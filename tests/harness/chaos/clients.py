"""Clients of a chaos run: REST calls on topics and subscriptions, and watch sessions.

Stage: under `tests.harness.chaos.run`; runs in one event loop and records all that it sees. Clients read, split, merge,
register, delete and create. Calls are made by the admin client's transport, each topic's in threads of their own; what
counts is the raw status. A name whose call got no answer is not used again: the call may still arrive, at a node that
is frozen, even in the topic's next life.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import websockets

from anabranch.admin.answers import Response
from anabranch.admin.paths import consumer_path, topic_path
from anabranch.admin.transport import Transport
from tests.harness.chaos.history import Call, ClientHistory, SeenAbsent, SeenLayout

if TYPE_CHECKING:
    from tests.harness.chaos.consumers import Consumer

SUBSCRIPTION, BY_REST = "streams", "rest"
"""One subscription of consumers with connections, and one of consumers that are registered by REST."""
LIFE = "life"
"""The property of a topic that counts how often it was deleted and created again."""
MAX_SEGMENTS = 12
TIMEOUT_S = 4.0
PAUSE_S = 0.1
CALLERS = 8
"""Calls for one topic at the same time, at most; a frozen node holds each for as long as `TIMEOUT_S`."""
LATE_S = 30.0
"""A call without an answer may take effect for so long."""


class CallFailed(Exception):
    """No node answered, or not with success."""


FAULTS = (CallFailed, OSError, websockets.WebSocketException, asyncio.TimeoutError)


def seen_layout(topic: str, layout: dict[str, Any], by: str, asked_at: float, seen_at: float) -> SeenLayout:
    """Return a layout record as a client sees it."""
    known = {
        int(id): (segment["hashRange"]["start"], segment["hashRange"]["end"])
        for id, segment in layout["segments"].items()
    }
    active = {id: known[id] for id in known if layout["segments"][str(id)]["state"] == "ACTIVE"}
    return SeenLayout(topic, layout["epoch"], active, known, by, asked_at, seen_at, int(layout["properties"][LIFE]))


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
        self.last_life = -1
        """Of the creation that was begun last."""
        self.life: int | None = None
        """The present life while it is certain that the topic exists, None from its deletion to its creation."""
        self.made_at: dict[int, int] = {}
        """By life: when the controller says that it began, which Kafka's topics have in their names (ms)."""
        self._exists_since = 0.0
        self._in_doubt_until = 0.0
        self._late: deque[tuple[float, Call]] = deque()
        """Calls without an answer, with the instants at which they were given up."""
        self._random = random.Random(seed)
        self._nodes = {
            url: Transport(url, None, user_agent="anabranch-chaos", timeout_seconds=TIMEOUT_S) for url in urls
        }
        self._threads = ThreadPoolExecutor(CALLERS, thread_name_prefix="chaos")
        self._registered: list[str] = []
        self._numbers = self._reads = 0

    def close(self) -> None:
        """Drop all connections."""
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
            except FAULTS:
                await asyncio.sleep(PAUSE_S)
            finally:
                self.busy -= 1
            await asyncio.sleep(self._random.random() * PAUSE_S)

    async def renew_for_ever(self, seconds: float) -> None:
        """Delete the topic and create it again, now and then: `seconds` apart on average."""
        while True:
            await self.working.wait()
            await asyncio.sleep(self._random.uniform(0.5, 1.5) * seconds)
            await self.working.wait()
            self.busy += 1
            try:
                await self.delete()
                await self.create()
            finally:
                self.busy -= 1

    async def create(self) -> None:
        """Create the next life of the topic, which does not exist, however long that takes."""
        self.last_life += 1
        self._registered.clear()
        self._carry_late_calls()
        properties = json.dumps({LIFE: str(self.last_life)})
        while True:
            url = self._random.choice(self.urls)
            try:
                answer = await self._ask("PUT", url, self.path, properties)
                # 409: by an attempt before this one that got no answer.
                if answer.status == 204 or (answer.status == 409 and await self._is_of_this_life(url)):
                    break
            except FAULTS:
                pass
            await asyncio.sleep(PAUSE_S)
        self._exists_since, self.life = time.monotonic(), self.last_life

    async def delete(self) -> None:
        """Delete the topic, however long that takes."""
        self.life = None
        for consumer in self.consumers:
            consumer.let_go()
        while True:
            try:
                answer = await self._ask("DELETE", self._random.choice(self.urls), self.path)
                # 404: by an attempt before this one that got no answer.
                if answer.status in (204, 404):
                    return
            except FAULTS:
                # It may still arrive, and then delete the next life.
                self._in_doubt_until = time.monotonic() + LATE_S
            await asyncio.sleep(PAUSE_S)

    async def read(self, url: str) -> SeenLayout:
        """The layout, which is recorded; raises `CallFailed`."""
        asked = time.monotonic()
        answer = await self._succeed("GET", url, self.path)
        self._reads += 1
        by = f"read {self._reads} at {urlsplit(answer.url).port}"
        record = json.loads(answer.body)
        found = seen_layout(self.name, record, by, asked, time.monotonic())
        self.made_at[found.life] = record["createdAtMs"]
        self.history.layouts.append(found)
        return found

    async def get(self, url: str, path: str) -> Any:
        """The JSON at a path of the topic; raises `CallFailed`."""
        return json.loads((await self._succeed("GET", url, self.path + path)).body)

    async def _is_of_this_life(self, url: str) -> bool:
        return (await self.read(url)).life == self.last_life

    def _carry_late_calls(self) -> None:
        """Carry unanswered calls into the new life, where they may still take effect."""
        while self._late and self._late[0][0] < time.monotonic() - LATE_S:
            self._late.popleft()
        self.history.calls += [replace(call, life=self.last_life) for _, call in self._late]

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
        path, life = consumer_path(self.name, BY_REST, name), self.life
        status = await self._call(verb, url, path, kind, f"{BY_REST}/{name}")
        if kind == "register" and status == 204 and life is not None and life == self.life:
            self._registered.append(name)

    async def _call(self, verb: str, url: str, path: str, kind: Any, what: str) -> int | None:
        status, life, before = None, self.life, self.last_life
        try:
            status = (await self._ask(verb, url, path)).status
        finally:
            if life is not None and life == self.life:
                self.history.calls.append(Call(self.name, kind, what, status, life))
            else:
                for possible in {before, self.last_life}:
                    self.history.calls.append(Call(self.name, kind, what, None, possible))
            if status is None:
                self._late.append((time.monotonic(), Call(self.name, kind, what, None)))
        return status

    async def _succeed(self, verb: str, url: str, path: str) -> Response:
        answer = await self._ask(verb, url, path)
        if not 200 <= answer.status < 300:
            raise CallFailed(f"{verb} {url}{path}: {answer.status}")
        return answer

    async def _ask(self, verb: str, url: str, path: str, body: str | None = None) -> Response:
        loop, asked, life = asyncio.get_running_loop(), time.monotonic(), self.life
        answer = await loop.run_in_executor(self._threads, self._nodes[url].exchange, verb, path, None, body)
        if not isinstance(answer, Response):
            raise CallFailed(str(answer))
        exists = life is not None and life == self.life and time.monotonic() > self._in_doubt_until
        if answer.status == 404 and b"topic not found" in answer.body and exists:
            by = f"{verb} at {urlsplit(answer.url).port}"
            self.history.absences.append(SeenAbsent(self.name, by, self._exists_since, asked))
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
                async with websockets.connect(ws(url, f"{self._topic.path}/watch"), **OPTIONS) as socket:
                    async for text in socket:
                        update = json.loads(text)
                        found = seen_layout(self._topic.name, update["layout"], by, asked, time.monotonic())
                        # What is pushed was asked for at the beginning: it may be older than what others have seen.
                        self._topic.history.layouts.append(found)
            except FAULTS:
                await asyncio.sleep(PAUSE_S)


OPTIONS: dict[str, Any] = {"open_timeout": TIMEOUT_S, "ping_interval": 1, "ping_timeout": TIMEOUT_S, "close_timeout": 1}


def ws(url: str, path: str) -> str:
    """The WebSocket address of a path at a node."""
    return f"ws{url.removeprefix('http')}{path}"
