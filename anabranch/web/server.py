"""The page as a process: settings, port, the listener around the app.

Stage: called by `anabranch serve web`. All that can be wrong with the set-up is found before the first request.
"""

import logging
import socket
from collections.abc import Callable
from contextlib import closing

from anabranch.admin.answers import Response
from anabranch.admin.topics import ScalableTopics
from anabranch.admin.transport import BadAddress, Transport, check_address, controller_transport
from anabranch.auth.callers import Access
from anabranch.auth.tokens import TokensError
from anabranch.web.app import create_app
from anabranch.web.processes import Probe, Probes
from anabranch.web.telemetry import COLLECTOR, EXECUTOR, STREAM, MetricsProbe
from engine.autoscale.topics import ConfiguredPolicy
from runtime.listener.connections import ListenerLimits
from runtime.listener.names import NodeNames
from runtime.listener.server import Listener, ListenError, Server, listen, url_of
from runtime.telemetry.serving import MetricsError, serving_probes
from schemas.addresses import way_from_outside
from schemas.settings.processes import WebSettings
from schemas.settings.root import Settings

MAX_SHUTDOWN_SECONDS = 3
LIMITS = ListenerLimits(connections=1024, connections_per_address=128)
CONTROLLER_SECONDS = 3.0
"""That an answer of the controller is waited for."""

log = logging.getLogger(__name__)


class PageStartError(Exception):
    """The page cannot be served; the message says what is wrong and what to do."""


def serve(settings: Settings, configured: Callable[[], ConfiguredPolicy], ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; `ready` is called with the address once it answers.

    Raises `PageStartError` or `SettingsError` before anything runs.
    """
    chosen = settings.web
    access = _access(settings)
    tls = settings.web_context()
    with closing(_listen(chosen, access)) as listener:
        url = url_of(listener, tls is not None)
        names = NodeNames(chosen.host, [url], [socket.gethostname(), *chosen.names], called="web")
        app = create_app(
            settings.lake_path,
            access,
            names,
            configured,
            tls is not None,
            settings.path(chosen.reports),
            _controller(settings),
            settings.executor.waiting_max_age_seconds,
            settings.executor.stuck_seconds,
            LIMITS.head_bytes,
            Probes(
                _probe(settings),
                _metrics(settings, settings.stream.metrics_port, STREAM),
                _metrics(settings, settings.collect.metrics_port, COLLECTOR),
                _metrics(settings, settings.executor.metrics_port, EXECUTOR),
            ),
        )
        config = listener.config(app, tls, MAX_SHUTDOWN_SECONDS)
        server = Server(config, app.state.fleet.stop, lambda: ready(url))

        def not_ready() -> str | None:
            return None if app.state.fleet.version else "the lake has not been read yet"

        try:
            with serving_probes(server, chosen.metrics_port, "web", settings.metrics, not_ready):
                server.serve_until_signalled(listener)
        except MetricsError as error:
            raise PageStartError(str(error)) from error


def _controller(settings: Settings) -> ScalableTopics | None:
    """The interface at `[controller] url`; None: that is no address."""
    try:
        check_address(settings.controller.url)
        return ScalableTopics(controller_transport(settings, "anabranch-web", CONTROLLER_SECONDS))
    except BadAddress as error:
        log.warning("[controller] url cannot be asked: %s", error)
        return None


def _probe(settings: Settings) -> Probe | None:
    """Return a probe of the controller, which sends no token; None if its address is invalid."""
    try:
        check_address(settings.controller.url)
    except BadAddress:
        return None
    transport = controller_transport(settings, "anabranch-web", CONTROLLER_SECONDS, with_token=False)

    def status() -> int | None:
        answer = transport.exchange("GET", "/healthz")
        return answer.status if isinstance(answer, Response) else None

    return Probe(status)


def _metrics(settings: Settings, port: int, names: tuple[str, ...]) -> MetricsProbe | None:
    """Return a probe of the metrics of another process of this machine; None if it serves none."""
    if not port:
        return None
    host = settings.metrics.host
    address = "127.0.0.1" if host in ("", "0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    transport = Transport(
        f"http://{address}:{port}", None, user_agent="anabranch-web", timeout_seconds=CONTROLLER_SECONDS
    )

    def scrape() -> str | None:
        answer = transport.exchange("GET", "/metrics", {"name[]": names}, headers={"Accept": "text/plain"})
        if not isinstance(answer, Response) or answer.status != 200:
            return None
        return answer.body.decode("utf-8", "replace")

    return MetricsProbe(scrape, names)


def _access(settings: Settings) -> Access:
    if settings.web.open:
        return Access()
    chosen = settings.controller
    file = settings.web.tokens_file or chosen.tokens_file
    token = chosen.token.get_secret_value() if chosen.token else None
    try:
        return Access(settings.path(file) if file else None, token)
    except TokensError as error:
        raise PageStartError(f"the tokens of the page: {error}") from error


def _listen(chosen: WebSettings, access: Access) -> Listener:
    way = way_from_outside(chosen.host, chosen.names)
    if not access.is_guarded and way is not None:
        raise PageStartError(
            f"[web] {way} and needs tokens: name a file of them in controller.tokens_file or web.tokens_file "
            "(anabranch config token new)" + (", and leave out open" if chosen.open else "")
        )
    try:
        return listen(chosen.host, chosen.port, LIMITS, "web", backlog=512)
    except ListenError as error:
        raise PageStartError(str(error)) from error
