"""The controller as a process: its parts put together from the settings, the port bound, uvicorn around it.

Stage: called by `anabranch controller`. All that can be wrong with the set-up is found before the first request.
"""

from __future__ import annotations

import gc
import logging
import signal
import socket
import threading
from collections.abc import Callable
from urllib.parse import urlsplit

import uvicorn
from fastapi import FastAPI

from controller.access.callers import Access
from controller.access.names import NodeNames
from controller.access.tokens import TokensError
from controller.app import create_app
from controller.errors import StartError
from controller.leadership.known_nodes import KnownNodes
from controller.limits.connections import ConnectionCounts, CountedListener, allow_files
from controller.limits.protocol import MAX_MESSAGE_BYTES, BoundedWebSocket, ConnectionLimits, bounded_http
from controller.metadata.factory import open_metadata
from controller.node import Node, NodeSettings
from controller.operations.pruning import Retention
from controller.segments.base import SegmentStore, SegmentStoreError
from controller.segments.kafka import KafkaSegments
from controller.segments.no_segments import NoSegments
from controller.service import wall_clock_ms
from controller.topic_names import namespace_of_path
from decisions.autoscale.policy import ClusterPolicy, PolicyError, read_cluster_policy
from schemas.addresses import is_loopback
from schemas.controller_settings import ControllerSettings, LimitSettings
from schemas.settings import Settings

log = logging.getLogger(__name__)

MAX_UNREAD_SECONDS = 60
"""Time after which a connection ends when its client reads nothing (Linux)."""
_NO_ERRORS = (
    "without completing handshake", "Invalid UTF-8 sequence received", "Invalid HTTP request received",
    "Unsupported upgrade request",
)  # fmt: skip
"""What uvicorn logs as errors of ours: a WebSocket that was refused or redirected, and a client's wrong bytes."""
MAX_SHUTDOWN_SECONDS = 5
"""Longest wait at a clean stop for requests that are being answered."""


def serve(settings: Settings, ready: Callable[[str], None]) -> None:
    """Run the controller until SIGTERM or SIGINT; `ready` is called with its URL once it answers.

    Raises `StartError` or `SettingsError` before anything runs.
    """
    chosen = settings.controller
    access = _access(settings)
    tls = settings.listener_context()
    counts = connection_counts(chosen.limits)
    with CountedListener(_listen(chosen, access), counts) as listening:
        url = _url(chosen, listening)
        known = _known_nodes(settings, url)
        nodes = open_metadata(settings)
        try:
            about = NodeSettings(
                url=url,
                kafka=settings.kafka_connection(),
                policy=_cluster_policy(settings),
                retention=Retention(chosen.sealed_retention_seconds, chosen.checkpoint_retention_seconds),
                snapshot_seconds=chosen.snapshot_seconds,
                session_seconds=chosen.session_seconds,
                namespaces=[namespace_of_path(*name.split("/")) for name in chosen.namespaces],
                max_subscriptions=chosen.limits.subscriptions,
                known=known,
            )
            node = Node(nodes, _segments(settings), about, wall_clock_ms)
            node.registration.claim()
            names = NodeNames(chosen.host, [url, chosen.url], [socket.gethostname(), *chosen.names])
            app = create_app(node, access, names, chosen.limits, chosen.max_body_bytes, chosen.consumer_grace_seconds)
            config = http_config(app, chosen.limits, counts)
            # The context follows its files; one that uvicorn makes would not.
            config.load()
            config.ssl = tls

            def started() -> None:
                _avoid_long_collections()
                ready(url)

            logging.getLogger("uvicorn.error").addFilter(
                lambda said: not any(words in said.getMessage() for words in _NO_ERRORS)
            )
            server = ControllerServer(config, app.state.end_sessions, started)
            # uvicorn takes these over while it runs and raises them again at its end: that must not kill the process.
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: server.stop())
            server.run(sockets=[listening])
        finally:
            nodes.close()


def connection_counts(limits: LimitSettings) -> ConnectionCounts:
    """The connections of a server, none yet; as many as the system allows files."""
    return ConnectionCounts(allow_files(limits.connections), limits.connections_per_address, limits.head_seconds)


def http_config(app: FastAPI, limits: LimitSettings, counts: ConnectionCounts) -> uvicorn.Config:
    """How uvicorn serves the app, with everything bounded that a stranger can send."""
    return uvicorn.Config(
        app,
        http=bounded_http(ConnectionLimits(limits.head_seconds, limits.body_seconds, limits.head_bytes), counts),
        ws=BoundedWebSocket,
        h11_max_incomplete_event_size=limits.head_bytes,
        ws_max_size=MAX_MESSAGE_BYTES,
        # Deflating one layout for a thousand sessions would be done a thousand times.
        ws_per_message_deflate=False,
        lifespan="on",
        # A header could say that a request came from another address.
        proxy_headers=False,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=MAX_SHUTDOWN_SECONDS,
    )


class ControllerServer(uvicorn.Server):
    """uvicorn that calls `ready` when it answers, and `end_sessions` at a stop before it waits for what is open."""

    def __init__(
        self, config: uvicorn.Config, end_sessions: Callable[[], None], ready: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(config)
        self._end_sessions = end_sessions
        self._ready = ready

    def stop(self) -> None:
        """End as soon as possible; harmless when it has ended."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._end_sessions()
        await super().shutdown(sockets)


def _avoid_long_collections() -> None:
    """A full collection of garbage stops everything: a tenth of a second with a thousand sessions.

    Objects that the start made are never collected, and old ones seldom; young garbage is collected as before.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 1_000)


def _segments(settings: Settings) -> SegmentStore:
    if settings.controller.segments == "none":
        return NoSegments()
    segments = KafkaSegments(settings.kafka_connection())
    threading.Thread(target=_log_complaints, args=[segments], name="complaints", daemon=True).start()
    return segments


def _log_complaints(segments: KafkaSegments) -> None:
    try:
        for complaint in segments.complaints():
            log.warning("%s", complaint)
    except SegmentStoreError as error:
        log.warning("%s", error)


def _cluster_policy(settings: Settings) -> ClusterPolicy:
    try:
        return read_cluster_policy(settings.policy.profile, settings.cluster_policy_text())
    except PolicyError as error:
        file = settings.path(settings.policy.cluster)
        raise StartError(f"cannot read the cluster's policy {file}, [policy] cluster: {error}") from error


def _access(settings: Settings) -> Access:
    chosen = settings.controller
    try:
        return Access(
            settings.path(chosen.tokens_file) if chosen.tokens_file else None,
            chosen.token.get_secret_value() if chosen.token else None,
        )
    except TokensError as error:
        raise StartError(f"[controller] tokens_file: {error}") from error


def _listen(chosen: ControllerSettings, access: Access) -> socket.socket:
    if not access.is_guarded and not is_loopback(chosen.host):
        raise StartError(
            f"controller.host {chosen.host} is not a loopback address and needs tokens: name a file of them in "
            "controller.tokens_file (anabranch token new), or set ANABRANCH_CONTROLLER_TOKEN"
        )
    family = socket.AF_INET6 if ":" in chosen.host else socket.AF_INET
    try:
        listening = socket.create_server((chosen.host, chosen.port), family=family, backlog=2048)
    except (OSError, UnicodeError) as error:
        detail = error.strerror if isinstance(error, OSError) else "not an address"
        raise StartError(
            f"cannot listen on {chosen.host}:{chosen.port}: {detail}; choose another controller.port (0 = a free one)"
        ) from error
    # asyncio does this for sockets that it makes itself only; without it an answer with a body takes 40 ms longer.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # The kernel cuts off a client that reads nothing, and its write buffer goes with it.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, MAX_UNREAD_SECONDS * 1000)
    return listening


def _known_nodes(settings: Settings, url: str) -> KnownNodes:
    chosen = settings.controller
    known = KnownNodes(url, chosen.nodes, store_is_closed=chosen.metadata_auth is not None)
    if chosen.nodes and not known.is_configured(url):
        raise StartError(f"this controller is {url}, and controller.nodes does not name it: add it on every node")
    if (
        chosen.zookeeper.address
        and not chosen.nodes
        and chosen.metadata_auth is None
        and not is_loopback(urlsplit(url).hostname or "")
    ):
        raise StartError(
            "anybody can write into this ZooKeeper, so the addresses of other controllers there are not believed: name "
            "all of them in controller.nodes, or let the controllers log in with ANABRANCH_CONTROLLER_METADATA_AUTH"
        )
    return known


def _url(chosen: ControllerSettings, listening: socket.socket) -> str:
    """By which clients and other nodes reach this node."""
    if chosen.node_url:
        return chosen.node_url.rstrip("/")
    host, port = listening.getsockname()[:2]
    if chosen.zookeeper.address and host in ("0.0.0.0", "::"):
        raise StartError(
            f"controller.host {host} is not an address by which others reach this node: set controller.node_url"
        )
    scheme = "https" if chosen.certificate else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
