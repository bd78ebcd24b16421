"""Responses for refusals and errors: a status and `{"reason": ...}`, never a stack trace."""

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from anabranch.controller.errors import ControllerError, NotLeader, TooMany
from anabranch.controller.metadata.base import StoreError

log = logging.getLogger(__name__)


class Refusal(BaseModel):
    """Body of every response that is not a success."""

    reason: str


REFUSED: dict[int | str, dict[str, Any]] = {"4XX": {"model": Refusal, "description": "Refused; nothing was changed."}}


def install_error_handlers(app: FastAPI) -> None:
    """Turn all exceptions raised by a request into a `Refusal`."""

    def reason(status: int, text: str, headers: Any = None) -> JSONResponse:
        return JSONResponse({"reason": text}, status, headers=headers)

    @app.exception_handler(NotLeader)
    async def _(request: Request, error: NotLeader) -> JSONResponse:
        return reason(error.status, error.reason, {"Location": _redirect_url(error.url, request)})

    @app.exception_handler(TooMany)
    async def _(request: Request, error: TooMany) -> JSONResponse:
        return reason(error.status, error.reason, {"Retry-After": str(error.retry_seconds)})

    @app.exception_handler(ControllerError)
    async def _(request: Request, error: ControllerError) -> JSONResponse:
        return reason(error.status, error.reason)

    @app.exception_handler(HTTPException)
    async def _(request: Request, error: HTTPException) -> JSONResponse:
        request_line = f"{request.scope.get('method', 'WebSocket')} {request.url.path[:200]}"
        return reason(error.status_code, f"{error.detail}: {request_line}", error.headers)

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


def _redirect_url(url: str, request: Request) -> str:
    """Return the requested URL at another node, with path and query as sent."""
    scheme = "ws" + url.removeprefix("http") if request.scope["type"] == "websocket" else url
    query = request.scope["query_string"].decode("ascii", "replace")
    return f"{scheme}{request.scope['path']}{'?' if query else ''}{query}"
