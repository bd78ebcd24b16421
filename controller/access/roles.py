"""What a token may do: each route names the role that it needs (PIP-468 "Security Considerations").

Stage: the routes of `controller.rest` take `dependencies=READ`, `OPERATE` or `ADMIN`; a token of a lesser role is
refused with 403.

| role | opens | in Pulsar's words |
| --- | --- | --- |
| read | layouts, stats, policies, operations, assignments, watch sessions | lookup |
| operate | that, and split, merge, subscriptions, consumers, their sessions | consume; for split and merge admin |
| admin | that, and to create and delete topics, and to set policies | admin |
"""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, FastAPI, Security, params
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase
from starlette.requests import HTTPConnection

from controller.access.callers import CALLER, NEEDED, Caller
from controller.access.tokens import ROLES, Role, suffices
from controller.errors import Forbidden


class Needs(SecurityBase):
    """The dependency of a route on a role: 403 for a token of a lesser one."""

    def __init__(self, role: Role) -> None:
        self.role = role
        self.scheme_name = "token"
        self.model = HTTPBearer(
            description=f"A token of the role that is named, or of a later one: {', '.join(ROLES)}."
        )

    async def __call__(self, connection: HTTPConnection) -> None:
        caller: Caller = connection.scope[CALLER]
        connection.scope[NEEDED] = self.role
        if not suffices(caller.role, self.role):
            raise Forbidden(f"this needs a token of role {self.role}; the token {caller.name} has role {caller.role}")


def _needs(role: Role) -> list[params.Depends]:
    return [Security(Needs(role), scopes=[role])]


READ: Final = _needs("read")
OPERATE: Final = _needs("operate")
ADMIN: Final = _needs("admin")


def include_guarded(app: FastAPI, router: APIRouter) -> None:
    """Take the routes of a router into the app. Raises `TypeError` for one that does not name the role it needs."""
    for route in router.routes:
        if role_of(route) is None:
            raise TypeError(f"the route {route} names no role: give it dependencies=READ, OPERATE or ADMIN")
    app.include_router(router)


def role_of(route: Any) -> Role | None:
    """The role that a route of a router needs, None when it names none."""
    for dependency in getattr(route, "dependencies", ()):
        if isinstance(dependency.dependency, Needs):
            return dependency.dependency.role
    return None
