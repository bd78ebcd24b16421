"""ASGI application of a node: lifespan, admission and routes.

Every request passes `anabranch.controller.access.gate` first; the routes are those of `anabranch.controller.rest`.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from anabranch.auth.callers import CALLER, STRANGER, Access
from anabranch.controller.access.gate import RequestGate
from anabranch.controller.access.grants import Grants
from anabranch.controller.access.roles import include_guarded
from anabranch.controller.errors import TooMany
from anabranch.controller.health import NodeHealth
from anabranch.controller.housekeeping.housekeeper import PRUNE_SECONDS
from anabranch.controller.limits.clients import ClientLimits, LimitedClients
from anabranch.controller.node import Node
from anabranch.controller.rest import namespaces, policies, segments, subscriptions, topics, watch
from anabranch.controller.rest.refusals import REFUSED, install_error_handlers
from anabranch.controller.sessions.connections import ConsumerConnections
from anabranch.controller.watch.layout_watcher import LayoutWatcher
from runtime.listener.anonymous import AnonymousClients
from runtime.listener.fair_queue import Turns
from runtime.listener.names import NodeNames
from schemas.settings.controller import LimitSettings

ROUTES = (
    watch.routes,
    subscriptions.routes,
    topics.routes,
    policies.topic_routes,
    policies.namespace_routes,
    namespaces.routes,
    segments.routes,
    namespaces.node_routes,
)


def create_app(
    node: Node,
    access: Access,
    names: NodeNames,
    limits: LimitSettings,
    grace_seconds: float,
    prune_seconds: float = PRUNE_SECONDS,
) -> FastAPI:
    """Build the ASGI application of a node; its start starts publisher, watch and housekeeping."""
    watcher = LayoutWatcher(node.nodes, node.url, node.known.believe, node.owners)
    connections = ConsumerConnections(node.registry, node.reach, grace_seconds)
    grants = Grants(access)
    clients = LimitedClients(
        ClientLimits(limits.waiting_calls, limits.sessions, limits.waiting_bytes, limits.registrations_per_second)
    )
    health = NodeHealth(
        node.publisher.waiting, lambda: access.failure or node.registration.rival or node.publisher.status().error
    )
    sessions, publisher = connections.sessions, node.publisher

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watcher.start()
        await connections.start()
        node.store.on_layout.append(sessions.layout_changed)
        node.store.on_members.append(sessions.members_changed)
        await node.housekeeper.start(sessions.topics, prune_seconds)
        publisher.start()
        checking = asyncio.create_task(grants.check_for_ever())
        yield
        checking.cancel()
        app.state.end_sessions()
        await sessions.stop()
        await node.housekeeper.stop()
        await node.reach.stop()
        await asyncio.to_thread(publisher.stop)
        health.stop()

    app = FastAPI(
        title="Anabranch scalable-topic controller",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=REFUSED,
    )
    app.state.service = node.service
    app.state.namespaces = node.namespaces
    app.state.segments = node.segments
    app.state.registry = node.registry
    app.state.watcher = watcher
    app.state.connections = connections
    app.state.grants = grants
    app.state.clients = clients
    app.state.alive = lambda: node.known.alive(node.nodes)

    def end_sessions() -> None:
        watcher.stop()
        connections.stop()

    app.state.end_sessions, app.state.health = end_sessions, health
    for routes in ROUTES:
        include_guarded(app, routes)

    @app.get("/healthz", tags=["health"], responses={503: {"description": "Failing."}})
    async def answer_probe(request: Request) -> JSONResponse:
        """Return 200 if the store answers and announcements reach Kafka, else 503; a token gets the reason."""
        report = await health.report()
        return JSONResponse(report.body(request.scope[CALLER] is not STRANGER), 503 if report.reason else 200)

    app.router.default = _no_route
    install_error_handlers(app)
    app.add_middleware(
        RequestGate,
        access=access,
        names=names,
        clients=clients,
        anonymous=AnonymousClients(Turns(limits.connections, refusal=TooMany)),
    )
    return app


async def _no_route(*_: object) -> None:
    """Respond with 404 in place of Starlette's default, which refuses a WebSocket without a reason."""
    raise HTTPException(404)
