"""The ASGI application of a node: what runs while it serves, who is let in, and how refusals are answered.

Stage: the outermost part of the controller. The routes are those of `controller.rest.topics`, `controller.rest.segments`,
`controller.watch.layout_watcher` and `controller.sessions.connections`; whatever is refused is answered with its status and
`{"reason": ...}`, never a stack trace.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from controller.access.callers import Access, include_guarded
from controller.access.gate import RequestGate
from controller.access.grants import Grants
from controller.errors import ControllerError, NotLeader
from controller.housekeeping.housekeeper import PRUNE_SECONDS
from controller.metadata.base import StoreError
from controller.node import Node
from controller.rest.segments import routes as segments_routes
from controller.rest.topics import namespaces, topics
from controller.sessions.connections import ConsumerConnections
from controller.sessions.connections import routes as consuming_routes
from controller.watch.layout_watcher import LayoutWatcher
from controller.watch.layout_watcher import routes as watching_routes

log = logging.getLogger(__name__)


class Refusal(BaseModel):
    """The body of every answer that is no success."""

    reason: str


_REFUSED: dict[int | str, dict[str, Any]] = {"4XX": {"model": Refusal, "description": "Refused; nothing was changed."}}


def create_app(
    node: Node, access: Access, max_body_bytes: int, grace_seconds: float, prune_seconds: float = PRUNE_SECONDS
) -> FastAPI:
    """The ASGI application of a node; starting it starts the publisher, the watch and the housekeeping."""
    watching = LayoutWatcher(node.nodes, node.url)
    consuming = ConsumerConnections(node.service, grace_seconds)
    grants = Grants(access)
    sessions, publisher = consuming.subscriptions, node.publisher

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watching.start()
        await consuming.start()
        node.store.on_layout.append(sessions.layout_changed)
        node.store.on_members.append(sessions.members_changed)
        await node.housekeeping.start(node.service, sessions.topics, prune_seconds)
        publisher.start()
        judging = asyncio.create_task(grants.judge_for_ever())
        yield
        judging.cancel()
        app.state.end_sessions()
        await sessions.stop()
        await node.housekeeping.stop()
        await asyncio.to_thread(publisher.stop)

    app = FastAPI(
        title="Anabranch scalable-topic controller",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=_REFUSED,
    )
    app.state.service = node.service
    app.state.segments = node.segments
    app.state.watching = watching
    app.state.consuming = consuming
    app.state.grants = grants

    def end_sessions() -> None:
        watching.stop()
        consuming.stop()

    app.state.end_sessions = end_sessions
    include_guarded(app, watching_routes)
    include_guarded(app, consuming_routes)
    include_guarded(app, topics)
    include_guarded(app, namespaces)
    include_guarded(app, segments_routes)

    @app.get("/healthz", tags=["health"], responses={503: {"description": "Failing."}})
    def health() -> JSONResponse:
        """200 when the store answers and announcements reach Kafka, 503 with the reason otherwise."""
        status = publisher.status()
        waiting, reason = None, node.presence.rival or status.error
        try:
            waiting = publisher.waiting()
        except StoreError as error:
            reason = f"the metadata store cannot be used now: {error}"
        body = {"status": "failing" if reason else "ok", "outbox": waiting, "reason": reason}
        return JSONResponse(body, 503 if reason else 200)

    app.router.default = _no_route
    _answer_errors(app)
    app.add_middleware(RequestGate, access=access, max_body_bytes=max_body_bytes)
    return app


async def _no_route(*_: object) -> None:
    """In place of Starlette's, which refuses a WebSocket without a word."""
    raise HTTPException(404)


def _answer_errors(app: FastAPI) -> None:
    def reason(status: int, text: str, headers: Any = None) -> JSONResponse:
        return JSONResponse({"reason": text}, status, headers=headers)

    @app.exception_handler(NotLeader)
    async def _(request: Request, error: NotLeader) -> JSONResponse:
        return reason(error.status, error.reason, {"Location": _at(error.url, request)})

    @app.exception_handler(ControllerError)
    async def _(request: Request, error: ControllerError) -> JSONResponse:
        return reason(error.status, error.reason)

    @app.exception_handler(HTTPException)
    async def _(request: Request, error: HTTPException) -> JSONResponse:
        asked = f"{request.scope.get('method', 'WebSocket')} {request.url.path[:200]}"
        return reason(error.status_code, f"{error.detail}: {asked}", error.headers)

    @app.exception_handler(RequestValidationError)
    async def _(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        return reason(400, f"{first['loc'][-1]}: {first['msg']}")

    @app.exception_handler(StoreError)
    async def _(request: Request, error: StoreError) -> JSONResponse:
        log.error("%s %s: the store failed: %s", request.scope.get("method", "WS"), request.url.path, error)
        return reason(503, f"the metadata store cannot be used now: {error}")

    @app.exception_handler(Exception)
    async def _(request: Request, error: Exception) -> JSONResponse:
        return reason(500, "an error inside the controller; its log says more")


def _at(url: str, request: Request) -> str:
    """What was asked for, at another node: path and query as they were sent."""
    scheme = "ws" + url.removeprefix("http") if request.scope["type"] == "websocket" else url
    query = request.scope["query_string"].decode("ascii", "replace")
    return f"{scheme}{request.scope['path']}{'?' if query else ''}{query}"
