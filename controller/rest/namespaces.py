"""Namespaces over REST: created, deleted and listed by the paths of Pulsar 5.

Stage: a request is read here, `controller.namespaces` does it. Of Pulsar's namespaces there is what this controller
needs: that they exist, and their auto split/merge policy (`controller.rest.policies`). Tenants are not administered: a
tenant is there when it has a namespace.
"""

from __future__ import annotations

from fastapi import APIRouter

from controller.access.roles import READ, Viewer
from controller.access.scopes import covers
from controller.errors import BadRequest, NotFound
from controller.policies import parse_json
from controller.rest.parameters import Body, Namespace, Namespaces, Tenant
from controller.rest.responses import ADMINISTERS, takes

routes = APIRouter(prefix="/admin/v2/namespaces/{tenant}", tags=["namespaces"])


@routes.get("", dependencies=READ)
def list_namespaces(namespaces: Namespaces, tenant: Tenant, viewer: Viewer) -> list[str]:
    """The namespaces of a tenant that the caller may see; 404 when there is none."""
    found = [namespace for namespace in namespaces.of_tenant(tenant) if covers(viewer, namespace)]
    if not found:
        raise NotFound(f"Tenant not found: {tenant}")
    return found


@routes.put("/{namespace}", **takes({"type": "object"}))
def create_namespace(namespaces: Namespaces, namespace: Namespace, body: Body) -> None:
    """Create a namespace; Pulsar's policies in the body are not kept."""
    if not isinstance(parse_json(body), dict | None):
        raise BadRequest("the body must be empty or a JSON object")
    namespaces.create(namespace)


@routes.delete("/{namespace}", **ADMINISTERS)
def delete_namespace(namespaces: Namespaces, namespace: Namespace) -> None:
    """Delete a namespace with its policy; one that has topics is 409, `force` or not."""
    namespaces.delete(namespace)
