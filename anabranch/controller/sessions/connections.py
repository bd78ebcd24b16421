"""Consumer sessions over WebSocket (PIP-468 "Registration Flow", "Consumer Session Lifecycle").

Stage: the transport of `anabranch.controller.sessions.manager`, at `…/{topic}/consumers`. One connection carries any
number of consumers of one topic, identified by ids that the client chooses. The client sends text messages:

- `{"command": "register", "consumerId": 1, "subscription": "billing", "type": "STREAM", "consumerName": "b-7"}`
- `{"command": "leave", "consumerId": 1}`

For each consumer it receives its whole assignment, at once and at every change; the reason why the consumer was
removed; or the reason why a command was refused:

- `{"command": "assignment", "consumerId": 1, "assignment": {"layoutEpoch": 3, "assignedSegments": […]}}`
- `{"command": "closed", "consumerId": 1, "reason": "…"}`
- `{"command": "error", "consumerId": 1, "status": 409, "reason": "…"}`
- `{"command": "moved", "controllerBrokerUrl": "http://…"}` before the connection ends: another node leads the topic
  now, at that address if it is known already; consumers register there.

A node that does not lead the topic redirects the first request with 307 to the leader. A consumer that loses its
connection without leaving keeps its segments for the grace period and gets them back by registering again. The same
holds after its token was replaced by another (close code 4401).
"""

import asyncio
import contextlib
import json
import logging
from typing import Annotated, Any, Literal

from fastapi import WebSocket
from pydantic import Field, TypeAdapter, ValidationError
from starlette.websockets import WebSocketDisconnect

from anabranch.controller.access.grants import REVOKED, REVOKED_REASON, Grant
from anabranch.controller.errors import ControllerError, NotLeader
from anabranch.controller.limits.clients import Client
from anabranch.controller.metadata.base import StoreError
from anabranch.controller.segments.reach import SegmentReach
from anabranch.controller.sessions.coordinator import Link, Push
from anabranch.controller.sessions.manager import SessionManager
from anabranch.controller.sessions.messages import ConsumerAssignment
from anabranch.controller.sessions.registry import SubscriptionRegistry
from anabranch.controller.sessions.stored import SubscriptionKey
from schemas.base import Name, Wire
from schemas.kafka.messages import SubscriptionType

log = logging.getLogger(__name__)

MAX_UNSENT = 1_000
"""Messages that may wait for a connection before it is closed as slow."""
MAX_CONSUMERS = 10_000
"""Maximum number of consumers of one connection."""
MAX_LOOK_SECONDS = 0.3
"""Longest wait for the address of the next leader before consumers are sent away without it."""
STOPPING, SLOW = 1012, 1013
"""WebSocket close codes (RFC 6455 registry)."""


class Register(Wire):
    """Command that registers a consumer."""

    command: Literal["register"]
    consumer_id: Annotated[int, Field(ge=0, le=2**53)]
    subscription: Name
    type: SubscriptionType = "STREAM"
    consumer_name: Name


class Leave(Wire):
    """Command that ends a consumer."""

    command: Literal["leave"]
    consumer_id: Annotated[int, Field(ge=0, le=2**53)]


_COMMANDS: TypeAdapter[Register | Leave] = TypeAdapter(Annotated[Register | Leave, Field(discriminator="command")])


class _Connection:
    """Outgoing messages of one connection, and its consumers by id."""

    def __init__(self, topic: str, client: Client) -> None:
        self.topic, self.client = topic, client
        self.consumers: dict[int, tuple[SubscriptionKey, str]] = {}
        self.unsent: asyncio.Queue[str | None] = asyncio.Queue(MAX_UNSENT)
        """Messages; None marks the end."""
        self.ended: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        """Close code and reason."""

    def send(self, **message: Any) -> None:
        text = json.dumps(message)
        if not self.client.queue(len(text)):
            self.end(SLOW, "too much waits to be sent to the consumers of this token")
            return
        try:
            self.unsent.put_nowait(text)
        except asyncio.QueueFull:
            self.client.unqueue(len(text))
            self.end(SLOW)

    async def send_all(self, socket: WebSocket) -> None:
        """Send waiting and later messages until `finish`."""
        while (text := await self.unsent.get()) is not None:
            try:
                await socket.send_text(text)
            finally:
                self.client.unqueue(len(text))
        self.end(STOPPING)

    def drop(self) -> None:
        """Discard waiting messages."""
        while not self.unsent.empty():
            self.client.unqueue(len(self.unsent.get_nowait() or ""))

    def refuse(self, consumer_id: int, status: int, reason: str, **more: str) -> None:
        self.send(command="error", consumerId=consumer_id, status=status, reason=reason, **more)

    def finish(self) -> None:
        """End the connection after all waiting messages are sent."""
        try:
            self.unsent.put_nowait(None)
        except asyncio.QueueFull:
            self.end(SLOW)

    def end(self, code: int, reason: str = "") -> None:
        if not self.ended.done():
            self.ended.set_result((code, reason))


class ConsumerConnections:
    """All connections of a controller, and the subscriptions that they take part in."""

    def __init__(self, registry: SubscriptionRegistry, reach: SegmentReach, grace_seconds: float) -> None:
        self.sessions = SessionManager(registry, reach, grace_seconds, self._tell)
        self._leaders = registry.leaders
        self._connections: dict[int, _Connection] = {}
        self._numbers = 0

    async def start(self) -> None:
        """Start in the event loop of the sessions."""
        loop = asyncio.get_running_loop()
        await self.sessions.start()

        def ended(topic: str) -> None:
            self.sessions.term_ended(topic)
            with contextlib.suppress(RuntimeError):
                asyncio.run_coroutine_threadsafe(self._move(topic), loop)

        self._leaders.on_begun.append(self.sessions.term_begun)
        self._leaders.on_ended.append(ended)

    async def _move(self, topic: str) -> None:
        """Send the consumers of a topic that this node no longer leads to its leader."""
        if not any(connection.topic == topic for connection in self._connections.values()):
            return
        try:
            # The address is a help; leaving is urgent.
            url = await asyncio.wait_for(asyncio.to_thread(self._leaders.leader, topic), MAX_LOOK_SECONDS)
        except (StoreError, asyncio.TimeoutError):
            url = None
        for connection in self._connections.values():
            if connection.topic == topic and connection.consumers:
                connection.send(command="moved", controllerBrokerUrl=url)
                connection.finish()

    def stop(self) -> None:
        """End all connections; their consumers have the grace period of the next start."""
        for connection in self._connections.values():
            connection.end(STOPPING)

    async def check_leader(self, topic: str) -> None:
        """Raise `NotLeader` if another node leads the topic."""
        await asyncio.to_thread(self._leaders.redirect, topic)

    async def serve(self, socket: WebSocket, topic: str, grant: Grant) -> None:
        """Carry one connection to its end."""
        self._numbers += 1
        number = self._numbers
        connection = self._connections[number] = _Connection(topic, grant.client)
        tasks: list[asyncio.Future[Any]] = [
            asyncio.create_task(self._receive(socket, connection, number, grant)),
            asyncio.create_task(connection.send_all(socket)),
        ]
        try:
            with grant.held(lambda: connection.end(REVOKED, REVOKED_REASON)):
                await asyncio.wait({*tasks, connection.ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._connections[number]
            self.sessions.lose(number)
            for task in tasks:
                task.cancel()
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                if not isinstance(ended, (WebSocketDisconnect, asyncio.CancelledError)):
                    log.error("a connection of consumers of %s failed: %r", topic, ended)
            connection.drop()
            await self.sessions.disconnect({key for key, _ in connection.consumers.values()}, number)
        if connection.ended.done():
            with contextlib.suppress(asyncio.TimeoutError, WebSocketDisconnect, RuntimeError):
                await asyncio.wait_for(socket.close(*connection.ended.result()), 1)

    async def _receive(self, socket: WebSocket, connection: _Connection, number: int, grant: Grant) -> None:
        while True:
            message = await socket.receive()
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(message.get("code") or 1000)
            if (text := message.get("text")) is None:
                connection.send(
                    command="error", status=400, reason="a command is a text message, this was a binary one"
                )
                continue
            try:
                command = _COMMANDS.validate_json(text)
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(str(part) for part in first["loc"])
                connection.send(
                    command="error", status=400, reason=f"{where}: {first['msg']}" if where else first["msg"]
                )
                continue
            link = Link(number, command.consumer_id)
            try:
                if isinstance(command, Register):
                    await grant.client.wait_to_register()
                async with grant.turn():
                    await self._obey(connection, link, command)
            except NotLeader as error:
                connection.refuse(command.consumer_id, error.status, error.reason, controllerBrokerUrl=error.url)
            except ControllerError as error:
                connection.refuse(command.consumer_id, error.status, error.reason)
            except StoreError as error:
                connection.refuse(command.consumer_id, 503, f"the metadata store cannot be used now: {error}")

    async def _obey(self, connection: _Connection, link: Link, command: Register | Leave) -> None:
        if isinstance(command, Register):
            await self._register(connection, link, command)
        elif command.consumer_id in connection.consumers:
            await self.sessions.leave(*connection.consumers[command.consumer_id], link)
            connection.consumers.pop(command.consumer_id, None)

    async def _register(self, connection: _Connection, link: Link, command: Register) -> None:
        key = connection.topic, command.subscription
        wanted = key, command.consumer_name
        registered = connection.consumers.get(link.consumer_id, wanted)
        if registered != wanted or len(connection.consumers) >= MAX_CONSUMERS:
            reason = "the id is another consumer's on this connection" if registered != wanted else "too many consumers"
            connection.send(command="error", consumerId=link.consumer_id, status=409, reason=reason)
            return
        connection.consumers[link.consumer_id] = wanted
        try:
            await self.sessions.register(key, command.consumer_name, link, command.type)
        except (ControllerError, StoreError):
            connection.consumers.pop(link.consumer_id, None)
            raise

    def _tell(self, link: Link, message: Push | str) -> None:
        if (connection := self._connections.get(link.connection)) is None:
            return
        if isinstance(message, str):
            connection.consumers.pop(link.consumer_id, None)
            connection.send(command="closed", consumerId=link.consumer_id, reason=message)
        else:
            assignment = ConsumerAssignment.of(connection.topic, message).model_dump(mode="json", by_alias=True)
            connection.send(command="assignment", consumerId=link.consumer_id, assignment=assignment)
