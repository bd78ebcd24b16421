"""Shared settings of routes: 204 without a body, the required role, and schemas of request bodies."""

from __future__ import annotations

from typing import Any, Final

from fastapi import Depends, Response
from starlette.requests import HTTPConnection

from anabranch.auth.callers import CALLER
from anabranch.controller.access.roles import ADMIN, OPERATE
from anabranch.controller.limits.clients import LimitedClients

_DONE: Final[dict[str, Any]] = {"status_code": 204, "response_class": Response}
OPERATES: Final[dict[str, Any]] = {**_DONE, "dependencies": OPERATE}
ADMINISTERS: Final[dict[str, Any]] = {**_DONE, "dependencies": ADMIN}


async def _count_registration(connection: HTTPConnection) -> None:
    """Respond with 429 if the client registers too often."""
    clients: LimitedClients = connection.app.state.clients
    clients.client(connection.scope[CALLER].name).register()


REGISTERS: Final[dict[str, Any]] = {**_DONE, "dependencies": [*OPERATE, Depends(_count_registration)]}


def takes(schema: dict[str, Any]) -> dict[str, Any]:
    """Return `ADMINISTERS` for a route whose body has this JSON schema."""
    return {**ADMINISTERS, "openapi_extra": {"requestBody": {"content": {"application/json": {"schema": schema}}}}}
