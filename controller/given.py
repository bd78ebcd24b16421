"""What every route of the REST interface is given: the service, the body, and names from the path, checked.

Stage: taken by `controller.rest` and `controller.segments_rest`.
"""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Depends, Request

from controller.names import plain_name, topic_of_path
from controller.service import ScalableTopicService
from controller.subscribing import Subscribing


async def _body(request: Request) -> bytes:
    return await request.body()


async def _service(request: Request) -> ScalableTopicService:
    return cast(ScalableTopicService, request.app.state.service)


async def _subscribing(request: Request) -> Subscribing:
    return cast(ScalableTopicService, request.app.state.service).subscribing


async def _topic(tenant: str, namespace: str, topic: str) -> str:
    return topic_of_path(tenant, namespace, topic)


async def _subscription(subscription: str) -> str:
    return plain_name(subscription, "subscription")


Body = Annotated[bytes, Depends(_body)]
Service = Annotated[ScalableTopicService, Depends(_service)]
Subscriptions = Annotated[Subscribing, Depends(_subscribing)]
Topic = Annotated[str, Depends(_topic)]
Subscription = Annotated[str, Depends(_subscription)]
