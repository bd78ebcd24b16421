"""What every route of the REST interface is given: the service, the body, and names from the path, checked.

Stage: taken by `controller.rest.topics` and `controller.rest.segments`.
"""

from __future__ import annotations

import re
from typing import Annotated, cast

from fastapi import Depends, Query, Request

from controller.errors import PreconditionFailed
from controller.rest.topic_names import plain_name, topic_of_path
from controller.service import ScalableTopicService
from controller.sessions.registry import SubscriptionRegistry

MAX_TIME = 2**63 - 1
_DIGITS = re.compile(r"[0-9]{1,19}", re.ASCII)


async def _body(request: Request) -> bytes:
    return await request.body()


async def _service(request: Request) -> ScalableTopicService:
    return cast(ScalableTopicService, request.app.state.service)


async def _subscribing(request: Request) -> SubscriptionRegistry:
    return cast(ScalableTopicService, request.app.state.service).subscribing


async def _topic(tenant: str, namespace: str, topic: str) -> str:
    return topic_of_path(tenant, namespace, topic)


async def _subscription(subscription: str) -> str:
    return plain_name(subscription, "subscription")


async def _timestamp(timestamp: Annotated[str, Query(description=f"In ms since 1970, 0 to {MAX_TIME}.")] = "") -> int:
    if not _DIGITS.fullmatch(timestamp) or int(timestamp) > MAX_TIME:
        given = timestamp[:200] or "nothing"
        raise PreconditionFailed(f"timestamp must be milliseconds since 1970, 0 to {MAX_TIME}, got: {given}")
    return int(timestamp)


Body = Annotated[bytes, Depends(_body)]
Service = Annotated[ScalableTopicService, Depends(_service)]
Registry = Annotated[SubscriptionRegistry, Depends(_subscribing)]
Topic = Annotated[str, Depends(_topic)]
SubscriptionName = Annotated[str, Depends(_subscription)]
Timestamp = Annotated[int, Depends(_timestamp)]
