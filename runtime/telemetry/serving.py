"""Serve metrics and probes of one process to programs: `/metrics`, `/livez` and `/readyz` on one port."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from runtime.listener.connections import ListenerLimits
from runtime.telemetry.health import UNWATCHED, Heartbeat, ProcessHealth
from schemas.addresses import is_loopback
from schemas.settings.processes import MetricsSettings

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from runtime.listener.names import NodeNames
    from runtime.listener.server import Listener, Server

LOOPBACK = MetricsSettings(host="127.0.0.1", names=())
LIMITS = ListenerLimits(connections=64, connections_per_address=32, head_seconds=10, body_seconds=10, head_bytes=8_192)
PROBE_SECONDS = 5.0
"""Longest duration of a probe; a slower process counts as failing."""

STALLED_SECONDS = 60.0
"""Time without a turn of the event loop after which a listener counts as stalled."""


class MetricsError(RuntimeError):
    """The metrics cannot be served; the message says where, why and what to do."""


class MetricsServer:
    """A listener in its own thread, until `close`."""

    def __init__(self, listener: Listener, server: Server) -> None:
        self.server_port: int = listener.socket.getsockname()[1]
        self._listener, self._server = listener, server
        self._thread = threading.Thread(target=server.run, args=([listener.socket],), name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving; idempotent."""
        self._server.stop()
        self._thread.join(5)
        self._listener.close()


def serve_metrics(
    registry: CollectorRegistry,
    port: int,
    key: str,
    settings: MetricsSettings = LOOPBACK,
    part: str = "",
    health: ProcessHealth = UNWATCHED,
) -> MetricsServer:
    """Serve metrics and probes at a port, from a separate thread. Raises `MetricsError`.

    `key`: name of the port in the settings, for the message. `part`: name of the process; if given, its own metrics are
    added to `registry`.
    """
    # Most processes serve none, and uvicorn takes a tenth of a second to import.
    from runtime.listener.names import NodeNames
    from runtime.listener.server import ListenError, Server, listen

    try:
        listener = listen(settings.host, port, LIMITS, key)
    except ListenError as error:
        raise MetricsError(
            f"cannot serve metrics at {settings.host}:{port}: {error.detail}; choose another {key}, or 0 for none"
        ) from error
    if part:
        registry.register(ProcessMetrics(part, health))
        ProcessCollector(registry=registry)
    app = metrics_app(registry, health, NodeNames(settings.host, (), settings.names, called="metrics"))
    return MetricsServer(listener, Server(listener.config(app, None, 1, lifespan="off"), lambda: None))


@contextmanager
def serving_probes(
    server: Server, port: int, section: str, settings: MetricsSettings, not_ready: Callable[[], str | None]
) -> Iterator[None]:
    """Serve metrics and probes of a process that is itself a listener, during the block; port 0: do not.

    `section`: section of the settings, and name of the process. Raises `MetricsError`.
    """
    if not port:
        yield
        return
    heartbeat = Heartbeat("the event loop", STALLED_SECONDS)
    server.beat = heartbeat.beat
    health = ProcessHealth(heartbeat.fault, not_ready)
    with closing(serve_metrics(CollectorRegistry(), port, f"{section}.metrics_port", settings, section, health)):
        yield


class ProcessMetrics(Collector):
    """Version, liveness and readiness of a process."""

    def __init__(self, part: str, health: ProcessHealth) -> None:
        self._part, self._health = part, health

    def collect(self) -> Iterator[Metric]:
        """Return the current metrics."""
        info = GaugeMetricFamily("anabranch_build_info", "Version of a process.", labels=["part", "version"])
        info.add_metric([self._part, version("anabranch")], 1)
        yield info
        for name, text, fault in (
            ("anabranch_live", "1 while the loops of a process make progress, as /livez.", self._health.stalled()),
            ("anabranch_ready", "1 while a process does its work, as /readyz.", self._health.unready()),
        ):
            family = GaugeMetricFamily(name, text, labels=["part"])
            family.add_metric([self._part], int(fault is None))
            yield family


def metrics_app(
    registry: CollectorRegistry, health: ProcessHealth = UNWATCHED, names: NodeNames | None = None
) -> ASGIApp:
    """Return an app that serves programs and refuses requests of web pages.

    Requests from beyond this machine have a pace by network.
    """
    from prometheus_client import make_asgi_app
    from starlette.responses import PlainTextResponse
    from starlette.types import Receive, Scope, Send

    from runtime.listener.anonymous import AnonymousClients, ConnectionRefusal, end_turn, refusal_of, trusted_refusal
    from runtime.listener.bodies import BrokenOff, replay_body
    from runtime.listener.fair_queue import TooManyCalls, Turns
    from runtime.listener.names import NodeNames

    scrape, names = make_asgi_app(registry), names or NodeNames(LOOPBACK.host, called="metrics")
    anonymous = AnonymousClients(Turns(LIMITS.connections))
    probes: dict[str, Callable[[], str | None]] = {"/livez": health.stalled, "/readyz": health.unready}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        refusal = refusal_of(scope, names, LIMITS.head_bytes)
        probe = probes.get(scope["path"]) if refusal is None else None
        is_known = refusal is None and is_loopback(scope["client"][0])
        if is_known:
            refusal = trusted_refusal(scope, "this machine")
            is_known = refusal is None
        if refusal is None and scope["method"] not in ("GET", "HEAD"):
            # An answer of 200 to CONNECT would be the end of HTTP.
            probe, refusal = None, ConnectionRefusal(405, "GET and HEAD only")
        # Without the body, which the app for metrics would wait for, and its turn with it.
        receive = replay_body(b"", receive)
        if probe is not None:
            # It waits for nobody else, however many connections and requests there are.
            if not is_known and not await anonymous.probe(scope):
                return
            fault = await _run_probe(probe)
            await PlainTextResponse(f"{fault or 'ok'}\n", 503 if fault else 200)(scope, receive, send)
            return
        try:
            async with anonymous.turn(scope, is_paced=not is_known) as turn:
                answer: ASGIApp = scrape
                if refusal is not None:
                    answer = PlainTextResponse(f"{refusal.reason}\n", refusal.status, refusal.headers)
                await answer(scope, receive, end_turn(turn, send))
        except TooManyCalls as error:
            await PlainTextResponse(str(error), 429)(scope, receive, send)
        except BrokenOff:
            return

    return app


async def _run_probe(probe: Callable[[], str | None]) -> str | None:
    """Run a probe in another thread: it may wait for the loop that it checks."""
    try:
        return await asyncio.wait_for(asyncio.to_thread(probe), PROBE_SECONDS)
    except asyncio.TimeoutError:
        return f"no answer within {PROBE_SECONDS:g} s"
