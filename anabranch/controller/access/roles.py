"""Roles of tokens: each route declares the role that it needs (PIP-468 "Security Considerations").

Stage: the routes of `anabranch.controller.rest` take `dependencies=READ`, `OPERATE` or `ADMIN`. A token of a lesser
role is refused with 403, and so is one bound to other tenants and namespaces than the one in the path. Lists for a
tenant contain only what the caller may see (`Viewer`).

| role | allows | in Pulsar's terms |
| --- | --- | --- |
| read | layouts, stats, policies, operations, assignments, watch sessions | lookup |
| operate | also split, merge, subscriptions, consumers, their sessions | consume; for split and merge admin |
| admin | also creating and deleting topics, and setting policies | admin |
"""

from typing import Annotated, Any, Final, cast

from fastapi import APIRouter, Depends, FastAPI, Security, params
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase
from starlette.requests import HTTPConnection

from anabranch.auth.callers import CALLER, NEEDED, Caller, Need
from anabranch.auth.scopes import Scope, covers_resource, describe_scope, touches_tenant
from anabranch.auth.tokens import ROLES, Role, role_suffices
from anabranch.controller.errors import Forbidden
from anabranch.controller.topic_names import canonical_segment


class Needs(SecurityBase):
    """Dependency of a route on a role: 403 for a lesser role, or for another scope unless `anywhere`."""

    def __init__(self, role: Role, anywhere: bool = False) -> None:
        self.role, self.anywhere = role, anywhere
        self.scheme_name = "token"
        self.model = HTTPBearer(
            description=f"A token of the role that is named, or of a later one: {', '.join(ROLES)}."
        )

    async def __call__(self, connection: HTTPConnection) -> None:
        caller: Caller = connection.scope[CALLER]
        if not role_suffices(caller.role, self.role):
            raise Forbidden(f"this needs a token of role {self.role}; the token {caller.name} has role {caller.role}")
        if self.anywhere:
            connection.scope[NEEDED] = Need(self.role, "")
            return
        # A route without a tenant in its path is for tokens that are bound to no tenant.
        names = connection.path_params
        tenant = canonical_segment(names.get("tenant", ""))
        scope = f"{tenant}/{canonical_segment(names['namespace'])}" if "namespace" in names else tenant
        if not (touches_tenant if scope == tenant else covers_resource)(caller.scope, scope):
            raise Forbidden(f"the token {caller.name} is bound to {describe_scope(caller.scope)}; this is of {scope}")
        connection.scope[NEEDED] = Need(self.role, scope)


def _needs(role: Role, anywhere: bool = False) -> list[params.Depends]:
    return [Security(Needs(role, anywhere), scopes=[role])]


READ: Final = _needs("read")
OPERATE: Final = _needs("operate")
ADMIN: Final = _needs("admin")
READ_ANYWHERE: Final = _needs("read", anywhere=True)
"""For resources that belong to no tenant: also open to tokens bound to tenants."""


async def _viewer(connection: HTTPConnection) -> Scope:
    return cast(Caller, connection.scope[CALLER]).scope


Viewer = Annotated[Scope, Depends(_viewer)]
"""Scope of the caller, for filtering lists."""


def include_guarded(app: FastAPI, router: APIRouter) -> None:
    """Add the routes of a router to the app. Raises `TypeError` for a route that declares no role."""
    for route in router.routes:
        if role_of(route) is None:
            raise TypeError(f"the route {route} names no role: give it dependencies=READ, OPERATE or ADMIN")
    app.include_router(router)


def role_of(route: Any) -> Role | None:
    """Return the role that a route needs, None if it declares none."""
    for dependency in getattr(route, "dependencies", ()):
        if isinstance(dependency.dependency, Needs):
            return dependency.dependency.role
    return None
