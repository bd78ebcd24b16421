"""The page as a process: settings, port, uvicorn around the app.

Stage: called by `anabranch web`. All that can be wrong with the set-up is found before the first request.
"""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import Callable

import uvicorn

from admin.credentials import credentials_of
from admin.topics import ScalableTopics
from admin.transport import BadAddress, Transport, check_address
from controller.access.callers import Access
from controller.access.names import NodeNames
from controller.access.tokens import TokensError
from engine.autoscale.topics import ConfiguredPolicy
from schemas.addresses import is_loopback
from schemas.settings import Settings
from schemas.web_settings import WebSettings
from web.app import create_app

MAX_CONNECTIONS = 512
"""At the same time; one more is answered with 503."""
MAX_HEAD_BYTES = 65_536
MAX_SHUTDOWN_SECONDS = 3
CONTROLLER_SECONDS = 3.0
"""That an answer of the controller is waited for."""

log = logging.getLogger(__name__)


class StartError(Exception):
    """The page cannot be served; the message says what is wrong and what to do."""


def serve(settings: Settings, configured: Callable[[], ConfiguredPolicy], ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; `ready` is called with the address once it answers.

    Raises `StartError` or `SettingsError` before anything runs.
    """
    chosen = settings.web
    access = _access(settings)
    tls = settings.web_context()
    with _listen(chosen, access) as listening:
        url = _url(chosen, listening)
        names = NodeNames(chosen.host, [url], [socket.gethostname(), *chosen.names], called="web")
        app = create_app(
            settings.lake_path, access, names, configured, tls is not None, settings.path(chosen.reports),
            _controller(settings), settings.executor.waiting_max_age_seconds, settings.executor.stuck_seconds,
        )  # fmt: skip
        config = uvicorn.Config(
            app, http="h11", ws="none", lifespan="on", proxy_headers=False, log_config=None, log_level="warning",
            access_log=False, server_header=False, limit_concurrency=MAX_CONNECTIONS,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES, timeout_graceful_shutdown=MAX_SHUTDOWN_SECONDS,
        )  # fmt: skip
        # The context follows its files; one that uvicorn makes would not.
        config.load()
        config.ssl = tls
        server = _Server(config, app.state.fleet.stop, lambda: ready(url))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: server.stop())
        server.run(sockets=[listening])


class _Server(uvicorn.Server):
    """uvicorn that says when it answers, and ends open streams before it waits for them."""

    def __init__(self, config: uvicorn.Config, end_streams: Callable[[], None], ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._end_streams, self._ready = end_streams, ready

    def stop(self) -> None:
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._end_streams()
        await super().shutdown(sockets)


def _controller(settings: Settings) -> ScalableTopics | None:
    """The interface at `[controller] url`; None: that is no address."""
    try:
        check_address(settings.controller.url)
        return ScalableTopics(Transport(
            settings.controller.url, credentials_of(settings), user_agent="anabranch-web",
            timeout_seconds=CONTROLLER_SECONDS, nodes=settings.controller.nodes, tls=settings.url_context(),
        ))  # fmt: skip
    except BadAddress as error:
        log.warning("[controller] url cannot be asked: %s", error)
        return None


def _access(settings: Settings) -> Access:
    file = settings.web.tokens_file or ("" if is_loopback(settings.web.host) else settings.controller.tokens_file)
    try:
        return Access(settings.path(file) if file else None)
    except TokensError as error:
        raise StartError(f"the tokens of the page: {error}") from error


def _listen(chosen: WebSettings, access: Access) -> socket.socket:
    if not access.is_guarded and not is_loopback(chosen.host):
        raise StartError(
            f"web.host {chosen.host} is not a loopback address and needs tokens: name a file of them in "
            "controller.tokens_file or web.tokens_file (anabranch token new)"
        )
    family = socket.AF_INET6 if ":" in chosen.host else socket.AF_INET
    try:
        return socket.create_server((chosen.host, chosen.port), family=family, backlog=128)
    except (OSError, UnicodeError) as error:
        detail = error.strerror if isinstance(error, OSError) else "not an address"
        raise StartError(
            f"cannot listen on {chosen.host}:{chosen.port}: {detail}; choose another web.port (0 = a free one)"
        ) from error


def _url(chosen: WebSettings, listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    scheme = "https" if chosen.certificate else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
