"""Answers scrapes of one process' metrics, on loopback and for programs only.

Stage: under `streaming`, `executor`, `collectors` and `ledger.alerts`, on the listener that controller and page have.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from schemas.listener_settings import ListenerLimits

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from listener.server import Listener, Server

LOOPBACK = "127.0.0.1"
LIMITS = ListenerLimits(
    connections=64, connections_per_address=32, head_seconds=10, body_seconds=10, head_bytes=8_192
)  # fmt: skip


class MetricsError(RuntimeError):
    """The metrics cannot be served; the message says where, why and what to do."""


class MetricsServer:
    """A listener in a thread of its own, until `close`."""

    def __init__(self, listener: Listener, server: Server) -> None:
        self.server_port: int = listener.socket.getsockname()[1]
        self._listener, self._server = listener, server
        self._thread = threading.Thread(
            target=server.run, args=([listener.socket],), name="metrics", daemon=True
        )  # fmt: skip
        self._thread.start()

    def close(self) -> None:
        """End; harmless when it has ended."""
        self._server.stop()
        self._thread.join(5)
        self._listener.close()


def serve_metrics(registry: CollectorRegistry, port: int, key: str) -> MetricsServer:
    """Answer scrapes of http://127.0.0.1:`port`/metrics from a thread of its own; raises `MetricsError`.

    `key`: what the port is called in the settings, for the message.
    """
    # Most processes serve none, and uvicorn takes a tenth of a second to import.
    from listener.server import ListenError, Server, listen

    try:
        listener = listen(LOOPBACK, port, LIMITS, key)
    except ListenError as error:
        raise MetricsError(
            f"cannot serve metrics at {LOOPBACK}:{port}: {error.detail}; choose another {key}, or 0 for none"
        ) from error
    return MetricsServer(
        listener, Server(listener.config(metrics_app(registry), None, 1, lifespan="off"), lambda: None)
    )


def metrics_app(registry: CollectorRegistry) -> ASGIApp:
    """Return the app that answers programs on this machine, and refuses what a page in a browser asks."""
    from prometheus_client import make_asgi_app
    from starlette.responses import PlainTextResponse
    from starlette.types import Receive, Scope, Send

    from listener.anonymous import AnonymousClients, ending, refusal_of, trust
    from listener.names import NodeNames
    from listener.turns import TooManyCalls, Turns

    answer, names = make_asgi_app(registry), NodeNames(LOOPBACK)
    anonymous = AnonymousClients(Turns(LIMITS.connections))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        refusal = refusal_of(scope, names, LIMITS.head_bytes)
        if refusal is None:
            trust(scope)
        try:
            async with anonymous.turn(scope, is_refused=refusal is not None) as turn:
                if refusal is None:
                    await answer(scope, receive, ending(turn, send))
                else:
                    text = "this is for programs on this machine\n" if refusal.status == 403 else refusal.reason
                    await PlainTextResponse(text, refusal.status)(scope, receive, ending(turn, send))
        except TooManyCalls as error:
            await PlainTextResponse(str(error), 429)(scope, receive, send)

    return app
