"""The controller as a process: assembles its parts from the settings, binds the port, runs uvicorn.

Stage: called by `anabranch serve controller`. All faults of the configuration are found before the first request.
"""

import asyncio
import gc
import logging
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from urllib.parse import urlsplit

from anabranch.auth.callers import Access
from anabranch.auth.tokens import TokensError
from anabranch.controller.app import create_app
from anabranch.controller.errors import StartError
from anabranch.controller.leadership.known_nodes import KnownNodes
from anabranch.controller.metadata.base import MetadataStore
from anabranch.controller.metadata.factory import open_metadata
from anabranch.controller.metadata.zookeeper import ZooKeeperStore
from anabranch.controller.node import Node, NodeSettings
from anabranch.controller.operations.pruning import Retention
from anabranch.controller.segments.base import SegmentStore, SegmentStoreError
from anabranch.controller.segments.kafka import KafkaSegments
from anabranch.controller.segments.no_segments import NoSegments
from anabranch.controller.service import wall_clock_ms
from anabranch.controller.topic_names import namespace_of_path
from decisions.autoscale.policy import ClusterPolicy, PolicyError, read_cluster_policy
from runtime.listener.connections import ListenerLimits
from runtime.listener.names import NodeNames
from runtime.listener.server import WEBSOCKETS, Listener, ListenError, Server, listen, url_of
from runtime.telemetry.serving import PROBE_SECONDS, MetricsError, serving_probes
from schemas.addresses import are_here, is_loopback, way_from_outside
from schemas.settings.controller import ControllerSettings
from schemas.settings.root import Settings

log = logging.getLogger(__name__)

MAX_SHUTDOWN_SECONDS = 5
"""Longest wait at a clean stop for running requests."""


def serve(settings: Settings, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; `ready` gets the URL. First raises `StartError`, `SettingsError`."""
    chosen = settings.controller
    access = _access(settings)
    tls = settings.listener_context()
    with closing(_listen(chosen, access)) as listener:
        url = _url(chosen, listener)
        _check_nodes(settings, url)
        nodes = open_metadata(settings)
        try:
            known_nodes = _known_nodes(settings, url, nodes, access.is_guarded)
            about = NodeSettings(
                url=url,
                kafka=settings.kafka_connection(),
                policy=_cluster_policy(settings),
                retention=Retention(chosen.sealed_retention_seconds, chosen.checkpoint_retention_seconds),
                snapshot_seconds=chosen.snapshot_seconds,
                session_seconds=chosen.session_seconds,
                namespaces=[namespace_of_path(*name.split("/")) for name in chosen.namespaces],
                max_subscriptions=chosen.limits.subscriptions,
                known=known_nodes,
            )
            node = Node(nodes, _segments(settings), about, wall_clock_ms)
            node.registration.claim()
            names = NodeNames(chosen.host, [url, chosen.url], [socket.gethostname(), *chosen.names])
            app = create_app(node, access, names, chosen.limits, chosen.consumer_grace_seconds)

            loops: list[asyncio.AbstractEventLoop] = []

            def started() -> None:
                _avoid_long_collections()
                loops.append(asyncio.get_running_loop())
                ready(url)

            def not_ready() -> str | None:
                if not loops:
                    return "the controller is starting"
                report = asyncio.run_coroutine_threadsafe(app.state.health.report(), loops[0]).result(PROBE_SECONDS)
                return "failing: /healthz with a token says why" if report.reason else None

            config = listener.config(app, tls, MAX_SHUTDOWN_SECONDS, **WEBSOCKETS)
            server = Server(config, app.state.end_sessions, started)
            with serving_probes(server, chosen.metrics_port, "controller", settings.metrics, not_ready):
                server.serve_until_signalled(listener)
        except MetricsError as error:
            raise StartError(str(error)) from error
        finally:
            nodes.close()


def _avoid_long_collections() -> None:
    """Tune garbage collection: a full one stops everything for 100 ms with a thousand sessions.

    Objects created during the start are never collected, and old ones rarely; young garbage is collected as before.
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


def _listen(chosen: ControllerSettings, access: Access) -> Listener:
    way = way_from_outside(chosen.host, chosen.names, (chosen.node_url, chosen.url))
    if not access.is_guarded and way is not None:
        raise StartError(
            f"[controller] {way} and needs tokens: name a file of them in controller.tokens_file (anabranch "
            "token new), or set ANABRANCH_CONTROLLER_TOKEN"
        )
    limits = chosen.limits
    try:
        return listen(
            chosen.host, chosen.port, ListenerLimits(limits.connections, limits.connections_per_address), "controller"
        )
    except ListenError as error:
        raise StartError(str(error)) from error


def _check_nodes(settings: Settings, url: str) -> None:
    """Raise `StartError` if other nodes could not be trusted, as far as the settings show."""
    chosen = settings.controller
    if chosen.nodes and not KnownNodes(url, chosen.nodes).is_configured(url):
        raise StartError(f"this controller is {url}, and controller.nodes does not name it: add it on every node")
    if chosen.zookeeper.address and not chosen.nodes and chosen.metadata_auth is None and not _is_here(url):
        raise StartError(
            "anybody can write into this ZooKeeper, so the addresses of other controllers there are not believed: name "
            "all of them in controller.nodes, or let the controllers log in with ANABRANCH_CONTROLLER_METADATA_AUTH"
        )


def _known_nodes(settings: Settings, url: str, store: MetadataStore, is_guarded: bool) -> KnownNodes:
    """Return the trusted addresses. Raises `StartError` when others could have written those in the store."""
    chosen = settings.controller
    fault = None
    if not isinstance(store, ZooKeeperStore) or chosen.metadata_auth is None:
        fault = "nobody logs in to it"
    elif store.open_node is not None:
        fault = f"{store.open_node} was made without the log-in, and everybody can write there"
    elif not chosen.zookeeper.is_encrypted and not are_here(chosen.zookeeper.address):
        fault = "it is spoken to without TLS (zk://), so that the password can be read on the way"
    nodes = KnownNodes(url, chosen.nodes, store_is_closed=fault is None, is_guarded=is_guarded)
    if fault is not None and chosen.zookeeper.address and not chosen.nodes and not _is_here(url):
        raise StartError(
            f"the addresses of other controllers in ZooKeeper at {chosen.zookeeper.address} are not believed: {fault}. "
            "Mend that, or name all controllers in controller.nodes"
        )
    return nodes


def _is_here(url: str) -> bool:
    return is_loopback(urlsplit(url).hostname or "")


def _url(chosen: ControllerSettings, listener: Listener) -> str:
    """Return the URL by which clients and other nodes reach this node."""
    if chosen.node_url:
        return chosen.node_url.rstrip("/")
    if chosen.zookeeper.address and chosen.host in ("0.0.0.0", "::"):
        raise StartError(
            f"controller.host {chosen.host} is not an address by which others reach this node: set controller.node_url"
        )
    return url_of(listener, bool(chosen.certificate))
