"""Answers scrapes of one process' metrics, on loopback and for programs only.

Stage: under `streaming.watch` and `executor.process`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server

from schemas.addresses import is_loopback, read_authority

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

LOOPBACK = "127.0.0.1"
MAX_REQUEST_SECONDS = 10
"""Longest silence of who scrapes."""


class MetricsError(RuntimeError):
    """The metrics cannot be served; the message says where, why and what to do."""


def serve_metrics(registry: CollectorRegistry, port: int, key: str) -> WSGIServer:
    """Answers scrapes of http://127.0.0.1:`port`/metrics from a thread of its own; raises `MetricsError`.

    `key`: what the port is called in the settings, for the message.
    """
    try:
        server, _ = start_http_server(port, LOOPBACK, registry)
    except OSError as error:
        raise MetricsError(
            f"cannot serve metrics at {LOOPBACK}:{port}: {error.strerror}; choose another {key}, or 0 for none"
        ) from error
    app = server.get_app()
    assert app is not None
    server.set_app(not_for_pages(app))
    handler: Any = server.RequestHandlerClass
    server.RequestHandlerClass = type("Handler", (handler,), {"timeout": MAX_REQUEST_SECONDS})
    return server


def not_for_pages(app: WSGIApplication) -> WSGIApplication:
    """`app` on loopback, with 403 for what a page in a browser asks, also by a name of its own (DNS rebinding)."""

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        host = read_authority(environ.get("HTTP_HOST", LOOPBACK))
        by_a_page = "HTTP_ORIGIN" in environ or environ.get("HTTP_SEC_FETCH_SITE", "none") not in (
            "none",
            "same-origin",
        )
        if by_a_page or host is None or not is_loopback(host.host):
            start_response("403 Forbidden", [("Content-Type", "text/plain")])
            return [b"this is for programs on this machine\n"]
        return app(environ, start_response)

    return answer
