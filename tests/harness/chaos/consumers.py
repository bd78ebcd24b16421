"""Consumers with connections; each tracks by its own clock and renewed lease what it holds.

Stage: beside `tests.harness.chaos.clients`. A consumer keeps a segment until the controller reassigns it, or until it
has heard nothing from the controller for the grace period: then another consumer may have it, so it lets go and
reconnects. That is all a consumer can know, and `tests.harness.chaos.ownership` judges by it.
"""

from __future__ import annotations

import asyncio
import json
import random
import time

import websockets

from tests.harness.chaos.clients import FAULTS, OPTIONS, PAUSE_S, SUBSCRIPTION, TIMEOUT_S, Topic, ws
from tests.harness.chaos.history import Held, LostSession

_PING_EVERY_S = 0.3
AWAY_CHANCE = 0.3
"""Of the ends of connections that a consumer makes: how often it stays away for longer than its grace period."""
_SESSION_S = 8.0
"""How long a consumer stays connected on average before it breaks its connection without a word."""


class Consumer:
    """Consumer that reconnects at once when its connection is lost, unless it chooses to stay away."""

    def __init__(self, topic: Topic, name: str, grace_seconds: float, seed: int) -> None:
        self.name, self._topic, self._random = name, topic, random.Random(seed)
        self._grace_s = grace_seconds
        self.holds: dict[int, str] | None = None
        """What it was assigned last, `segment://` names by id; None: nothing that it may rely on."""
        self.life = -1
        """Of the topic, in which it has that."""
        self._since: dict[int, float] = {}
        self._heard_at = self._said_hello_at = 0.0
        self._is_new = False
        """Whether nothing has come on the present connection."""
        self._url: str | None = None
        self._at = "nowhere"
        topic.consumers.append(self)

    @property
    def may_hold_until(self) -> float:
        """Deadline for letting go unless the controller is heard from before."""
        return self._heard_at + self._grace_s

    def held_now(self) -> dict[int, str]:
        """Return the segments that the consumer may read and commit now."""
        return self.holds or {} if time.monotonic() <= self.may_hold_until else {}

    async def run(self) -> None:
        """Connects, and connects again, until stopped."""
        while True:
            try:
                await self._connect(self._url or self._random.choice(self._topic.urls))
            except FAULTS:
                self._url = None
            if self._topic.working.is_set() and self._random.random() < AWAY_CHANCE:
                await asyncio.sleep(self._random.uniform(1.0, 2.0) * self._grace_s)
            await asyncio.sleep(PAUSE_S * 4)

    def report(self, why: str = "a look") -> None:
        """Record what was held until now; what is held is held on."""
        now = time.monotonic()
        until = min(now, self.may_hold_until)
        ended_by = f"{why if until == now else 'silence'} at {self._at}"
        for segment, since in self._since.items():
            if until > since:
                self._topic.history.held.append(
                    Held(self._topic.name, self.life, SUBSCRIPTION, segment, self.name, since, until, ended_by)
                )
        still = self._since if now <= self.may_hold_until else {}
        self._since = dict.fromkeys(still, now)

    def let_go(self, why: str = "letting go") -> None:
        """From now on it holds nothing."""
        self.report(why)
        self._since, self.holds = {}, None

    async def _connect(self, url: str) -> None:
        life, self._url = self._topic.life, None
        if life is None:
            return
        options = {**OPTIONS, "ping_interval": None}
        async with websockets.connect(ws(url, f"{self._topic.path}/consumers"), **options) as socket:
            self._said_hello_at, self._is_new, self._at = time.monotonic(), True, url.rpartition(":")[2]
            hello = {"command": "register", "consumerId": 1, "subscription": SUBSCRIPTION, "consumerName": self.name}
            await socket.send(json.dumps(hello))
            listening = asyncio.create_task(self._listen(socket, life))
            lasting = asyncio.create_task(self._last(socket, life))
            try:
                await asyncio.wait({listening, lasting}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                listening.cancel()
                lasting.cancel()
                await asyncio.gather(listening, lasting, return_exceptions=True)
                # Without a goodbye: its segments stay its own for the grace period.
                socket.transport.abort()
        if listening.done() and not listening.cancelled() and (error := listening.exception()):
            raise error

    async def _last(self, socket: websockets.ClientConnection, life: int) -> None:
        """Ping the controller until the connection's time, its lease, or the life of the topic ends."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._random.expovariate(1 / _SESSION_S)
        silent_since = time.monotonic()
        while self._topic.life == life and (loop.time() < end or not self._topic.working.is_set()):
            sent = time.monotonic()
            done, _ = await asyncio.wait({asyncio.ensure_future(await socket.ping())}, timeout=_PING_EVERY_S)
            if done:
                silent_since = sent
                if not self._is_new:
                    if self._has_lapsed():
                        return
                    self._heard_at = max(self._heard_at, sent)
            if time.monotonic() - silent_since > TIMEOUT_S:
                return
            await asyncio.sleep(max(0.0, sent + _PING_EVERY_S - time.monotonic()))

    async def _listen(self, socket: websockets.ClientConnection, life: int) -> None:
        async for text in socket:
            message = json.loads(text)
            if self._topic.life != life:
                return
            if message["command"] == "assignment":
                if self._has_lapsed():
                    return
                self._take(message["assignment"]["assignedSegments"], life)
            elif message["command"] == "closed":
                lost = LostSession(self._topic.name, SUBSCRIPTION, self.name, message["reason"])
                self._topic.history.lost.append(lost)
                self.let_go()
                return
            else:
                self._url = message.get("controllerBrokerUrl")
                return

    def _has_lapsed(self) -> bool:
        """Return True if this connection's message is too late to rely on, and let go.

        On a new connection the time counts from the hello.
        """
        if self._is_new:
            self._is_new = False
            if time.monotonic() > self.may_hold_until:
                self.let_go()
            self._heard_at = max(self._heard_at, self._said_hello_at)
        if time.monotonic() <= self.may_hold_until:
            return False
        self.let_go()
        return True

    def _take(self, assigned: list[dict[str, object]], life: int) -> None:
        """From now on it holds what it is assigned, and nothing else."""
        now = time.monotonic()
        self.report("another assignment")
        before = self._since if self.life == life else {}
        self.life = life
        self.holds = {int(str(one["segmentId"])): str(one["underlyingTopicName"]) for one in assigned}
        self._since = {segment: before.get(segment, now) for segment in self.holds}
