"""Parameters of routes: parts of the node, body, validated names from the path, shared settings.

`anabranch.controller.app` stores the parts in the app's state.
"""

import re
from typing import Annotated, Any, Final, cast

from fastapi import Depends, Query, Request, Response
from starlette.requests import HTTPConnection

from anabranch.auth.callers import CALLER
from anabranch.controller import namespaces
from anabranch.controller.access.roles import ADMIN, OPERATE
from anabranch.controller.errors import PreconditionFailed
from anabranch.controller.limits.clients import LimitedClients
from anabranch.controller.service import ScalableTopicService
from anabranch.controller.sessions.connections import ConsumerConnections
from anabranch.controller.sessions.manager import SessionManager
from anabranch.controller.sessions.registry import SubscriptionRegistry
from anabranch.controller.topic_names import canonical_segment, namespace_of_path, plain_name, topic_of_path
from anabranch.controller.watch.layout_watcher import LayoutWatcher
from schemas.kafka.messages import SubscriptionType

MAX_TIME = 2**63 - 1
_DIGITS = re.compile(r"[0-9]{1,19}", re.ASCII)
_SUBSCRIPTION_TYPES = ("STREAM", "CHECKPOINT", "QUEUE")


async def _body(request: Request) -> bytes:
    return await request.body()


async def _service(request: Request) -> ScalableTopicService:
    return cast(ScalableTopicService, request.app.state.service)


async def _namespaces(request: Request) -> namespaces.Namespaces:
    return cast(namespaces.Namespaces, request.app.state.namespaces)


async def _registry(request: Request) -> SubscriptionRegistry:
    return cast(SubscriptionRegistry, request.app.state.registry)


async def _connections(connection: HTTPConnection) -> ConsumerConnections:
    return cast(ConsumerConnections, connection.app.state.connections)


async def _sessions(request: Request) -> SessionManager:
    return cast(ConsumerConnections, request.app.state.connections).sessions


async def _watcher(connection: HTTPConnection) -> LayoutWatcher:
    return cast(LayoutWatcher, connection.app.state.watcher)


async def _namespace(tenant: str, namespace: str) -> str:
    return namespace_of_path(tenant, namespace)


async def _tenant(tenant: str) -> str:
    return canonical_segment(tenant)


async def _topic(tenant: str, namespace: str, topic: str) -> str:
    return topic_of_path(tenant, namespace, topic)


async def _subscription(subscription: str) -> str:
    return plain_name(subscription, "subscription")


async def _consumer(consumer: str) -> str:
    return plain_name(consumer, "consumer")


async def _subscription_type(type: str = "STREAM") -> SubscriptionType:
    if type not in _SUBSCRIPTION_TYPES:
        raise PreconditionFailed(f"type must be one of {', '.join(_SUBSCRIPTION_TYPES)}, got: {type[:200]}")
    return cast(SubscriptionType, type)


async def _timestamp(timestamp: Annotated[str, Query(description=f"In ms since 1970, 0 to {MAX_TIME}.")] = "") -> int:
    if not _DIGITS.fullmatch(timestamp) or int(timestamp) > MAX_TIME:
        got = timestamp[:200] or "nothing"
        raise PreconditionFailed(f"timestamp must be milliseconds since 1970, 0 to {MAX_TIME}, got: {got}")
    return int(timestamp)


Body = Annotated[bytes, Depends(_body)]
Service = Annotated[ScalableTopicService, Depends(_service)]
Namespaces = Annotated[namespaces.Namespaces, Depends(_namespaces)]
Registry = Annotated[SubscriptionRegistry, Depends(_registry)]
Connections = Annotated[ConsumerConnections, Depends(_connections)]
Sessions = Annotated[SessionManager, Depends(_sessions)]
Watcher = Annotated[LayoutWatcher, Depends(_watcher)]
Tenant = Annotated[str, Depends(_tenant)]
Namespace = Annotated[str, Depends(_namespace)]
Topic = Annotated[str, Depends(_topic)]
SubscriptionName = Annotated[str, Depends(_subscription)]
Consumer = Annotated[str, Depends(_consumer)]
Type = Annotated[SubscriptionType, Depends(_subscription_type)]
Timestamp = Annotated[int, Depends(_timestamp)]

_DONE: Final[dict[str, Any]] = {"status_code": 204, "response_class": Response}
OPERATES: Final[dict[str, Any]] = {**_DONE, "dependencies": OPERATE}
ADMINISTERS: Final[dict[str, Any]] = {**_DONE, "dependencies": ADMIN}


async def _count_registration(connection: HTTPConnection) -> None:
    """Respond with 429 if the client registers too often."""
    clients: LimitedClients = connection.app.state.clients
    clients.client(connection.scope[CALLER].name).register()


REGISTERS: Final[dict[str, Any]] = {**_DONE, "dependencies": [*OPERATE, Depends(_count_registration)]}


def takes(schema: dict[str, Any]) -> dict[str, Any]:
    """Return `ADMINISTERS` for a route whose body has this JSON schema."""
    return {**ADMINISTERS, "openapi_extra": {"requestBody": {"content": {"application/json": {"schema": schema}}}}}
