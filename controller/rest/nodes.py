"""The nodes of the cluster, as Pulsar lists its brokers: those that a client's token may go to.

Stage: asked by `admin.transport` over TLS when it is sent on to an address that is not configured.
"""

from __future__ import annotations

from fastapi import APIRouter, Request

from controller.access.roles import READ_ANYWHERE

routes = APIRouter(prefix="/admin/v2/brokers", tags=["nodes"])


@routes.get("", dependencies=READ_ANYWHERE)
def list_nodes(request: Request) -> list[str]:
    """`host:port` of every node that runs and is known."""
    found: list[str] = request.app.state.alive()
    return found
