"""How routes answer: 204 without a body, to a caller with the role; and what the bodies of requests look like."""

from __future__ import annotations

from typing import Any, Final

from fastapi import Response

from controller.access.roles import ADMIN, OPERATE

_DONE: Final[dict[str, Any]] = {"status_code": 204, "response_class": Response}
OPERATES: Final[dict[str, Any]] = {**_DONE, "dependencies": OPERATE}
ADMINISTERS: Final[dict[str, Any]] = {**_DONE, "dependencies": ADMIN}


def takes(schema: dict[str, Any]) -> dict[str, Any]:
    """`ADMINISTERS`, for a route whose body has this JSON schema."""
    return {**ADMINISTERS, "openapi_extra": {"requestBody": {"content": {"application/json": {"schema": schema}}}}}
