"""Routes of namespaces (create, delete, list) and of nodes, by the paths of Pulsar 5.

Of Pulsar's namespaces this controller supports only their existence and their auto split/merge policy
(`anabranch.controller.rest.policies`). Tenants are not administered: a tenant exists if it has a namespace.
"""

from fastapi import APIRouter, Request

from anabranch.auth.scopes import covers_resource
from anabranch.controller.access.roles import READ, READ_ANYWHERE, Viewer
from anabranch.controller.errors import BadRequest, NotFound
from anabranch.controller.policies import parse_json
from anabranch.controller.rest.parameters import ADMINISTERS, Body, Namespace, Namespaces, Tenant, takes

routes = APIRouter(prefix="/admin/v2/namespaces/{tenant}", tags=["namespaces"])
node_routes = APIRouter(prefix="/admin/v2/brokers", tags=["nodes"])


@routes.get("", dependencies=READ)
def list_namespaces(namespaces: Namespaces, tenant: Tenant, viewer: Viewer) -> list[str]:
    """List the namespaces of a tenant that the caller may see; 404 if there is none."""
    visible = [namespace for namespace in namespaces.of_tenant(tenant) if covers_resource(viewer, namespace)]
    if not visible:
        raise NotFound(f"Tenant not found: {tenant}")
    return visible


@routes.put("/{namespace}", **takes({"type": "object"}))
def create_namespace(namespaces: Namespaces, namespace: Namespace, body: Body) -> None:
    """Create a namespace; Pulsar's policies in the body are ignored."""
    if not isinstance(parse_json(body), dict | None):
        raise BadRequest("the body must be empty or a JSON object")
    namespaces.create(namespace)


@routes.delete("/{namespace}", **ADMINISTERS)
def delete_namespace(namespaces: Namespaces, namespace: Namespace) -> None:
    """Delete a namespace with its policy; 409 if it has topics, regardless of `force`."""
    namespaces.delete(namespace)


@node_routes.get("", dependencies=READ_ANYWHERE)
def list_nodes(request: Request) -> list[str]:
    """List `host:port` of every live, trusted node, to which a client's token may be sent.

    `anabranch.admin.transport` asks over TLS when it is redirected to an address that is not configured.
    """
    urls: list[str] = request.app.state.alive()
    return urls
