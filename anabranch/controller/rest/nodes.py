"""Route that lists the nodes that a client's token may be sent to, as Pulsar lists brokers.

Stage: used by `anabranch.admin.transport` over TLS when it is redirected to an address that is not configured.
"""

from __future__ import annotations

from fastapi import APIRouter, Request

from anabranch.controller.access.roles import READ_ANYWHERE

routes = APIRouter(prefix="/admin/v2/brokers", tags=["nodes"])


@routes.get("", dependencies=READ_ANYWHERE)
def list_nodes(request: Request) -> list[str]:
    """List `host:port` of every live, trusted node."""
    urls: list[str] = request.app.state.alive()
    return urls
