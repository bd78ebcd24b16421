"""Routes of subscriptions and their consumers, over REST and WebSocket (PIP-468 "Registration Flow").

Stage: `SubscriptionRegistry` stores them, `ConsumerConnections` carries sessions and defines the messages on the
WebSocket; all on the leader of the topic.
"""

from fastapi import APIRouter, Response, WebSocket

from anabranch.controller.access.grants import Granted
from anabranch.controller.access.roles import OPERATE, READ
from anabranch.controller.rest.parameters import (
    OPERATES,
    REGISTERS,
    Connections,
    Consumer,
    Registry,
    Sessions,
    SubscriptionName,
    Timestamp,
    Topic,
    Type,
)
from anabranch.controller.segments.waiting import waits_for_segments

routes = APIRouter(prefix="/admin/v2/scalable/{tenant}/{namespace}", tags=["consumers"])


@routes.put("/{topic}/subscriptions/{subscription}", **REGISTERS)
async def create_subscription(sessions: Sessions, topic: Topic, subscription: SubscriptionName, type: Type) -> None:
    """Create a subscription; a no-op if it exists with this type."""
    await sessions.subscribe((topic, subscription), type)


@routes.delete("/{topic}/subscriptions/{subscription}", **OPERATES)
@waits_for_segments
def delete_subscription(registry: Registry, topic: Topic, subscription: SubscriptionName) -> None:
    """Delete a subscription with its sessions."""
    registry.delete_subscription(topic, subscription)


@routes.post("/{topic}/subscriptions/{subscription}/seek", **OPERATES)
async def seek_subscription(
    sessions: Sessions, topic: Topic, subscription: SubscriptionName, timestamp: Timestamp
) -> None:
    """Move a subscription on every segment to the first message at or after a time, or to the end."""
    await sessions.seek((topic, subscription), timestamp)


@routes.post("/{topic}/subscriptions/{subscription}/skip-all", **OPERATES)
async def clear_backlog(sessions: Sessions, topic: Topic, subscription: SubscriptionName) -> None:
    """Move a subscription past the last message of every segment."""
    await sessions.seek((topic, subscription), "latest")


@routes.put("/{topic}/subscriptions/{subscription}/consumers/{consumer}", **REGISTERS)
async def register_consumer(
    sessions: Sessions, topic: Topic, subscription: SubscriptionName, consumer: Consumer, type: Type
) -> None:
    """Register a consumer session (not in Pulsar's REST); a known name changes nothing."""
    await sessions.register_without_session((topic, subscription), consumer, type)


@routes.delete("/{topic}/subscriptions/{subscription}/consumers/{consumer}", **OPERATES)
def unregister_consumer(registry: Registry, topic: Topic, subscription: SubscriptionName, consumer: Consumer) -> None:
    """Unregister a consumer session (not in Pulsar's REST)."""
    registry.unregister_consumer(topic, subscription, consumer)


@routes.get("/{topic}/subscriptions/{subscription}/consumers/{consumer}", dependencies=READ, response_class=Response)
async def get_assignment(
    connections: Connections, topic: Topic, subscription: SubscriptionName, consumer: Consumer
) -> Response:
    """Return the segments assigned to a registered consumer (not in Pulsar's REST)."""
    await connections.check_leader(topic)
    assignment = await connections.sessions.assignment((topic, subscription), consumer)
    return Response(assignment.to_json(), media_type="application/json")


@routes.get("/{topic}/subscriptions/{subscription}/consumers", dependencies=READ, response_class=Response)
async def get_consumers(connections: Connections, topic: Topic, subscription: SubscriptionName) -> Response:
    """Return all consumers of a subscription with their segments (not in Pulsar's REST)."""
    await connections.check_leader(topic)
    consumers = await connections.sessions.consumers((topic, subscription))
    return Response(consumers.to_json(), media_type="application/json")


@routes.websocket("/{topic}/consumers", dependencies=OPERATE)
async def consume(socket: WebSocket, connections: Connections, topic: Topic, grant: Granted) -> None:
    """Carry sessions of consumers of a topic; see `anabranch.controller.sessions.connections`."""
    await connections.check_leader(topic)
    with grant.client.session():
        await socket.accept()
        await connections.serve(socket, topic, grant)
