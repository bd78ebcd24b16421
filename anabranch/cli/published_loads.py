"""Sources of published loads for the collector of bundles: a metadata client and topic followers."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

from anabranch.admin.cluster import ClusterAdmin
from anabranch.admin.credentials import credentials_of
from anabranch.admin.load_data import BROKER_LOAD, TOP_BUNDLES, FollowedTopic
from anabranch.admin.transport import controller_transport
from anabranch.cli.metadata_client import connect_metadata
from anabranch.collectors.load_reports import PublishedLoads, UnknownLoad
from anabranch.collectors.pulsar.calls import REQUEST_SECONDS
from schemas.settings.root import Settings

METADATA_SECONDS = 60.0
"""Timeout of a request to the metadata store."""


def open_published_loads(settings: Settings, stack: ExitStack) -> PublishedLoads:
    """Connect to what the settings name; `stack` closes it. Raises `click.ClickException`."""
    credentials, chosen = credentials_of(settings), settings.bookies
    transport = controller_transport(settings, "anabranch-collect", REQUEST_SECONDS)
    stack.callback(transport.close)
    loads, tops = (
        FollowedTopic(
            settings.controller.url,
            credentials,
            topic,
            ClusterAdmin(transport).reader_progress,
            tls=settings.url_context(),
            timeout_seconds=REQUEST_SECONDS,
        )
        for topic in (BROKER_LOAD, TOP_BUNDLES)
    )
    stack.callback(loads.close)
    stack.callback(tops.close)
    if not chosen.metadata:
        return PublishedLoads(_no_store, loads, tops)
    address, chroot, _ = chosen.zookeeper
    client = connect_metadata(
        address + chroot, chosen.metadata_auth, settings.bookies_context(), chosen.session_seconds, stack
    )
    return PublishedLoads(_reader(client, METADATA_SECONDS), loads, tops)


def _no_store(paths: Iterable[str]) -> list[bytes | None]:
    raise UnknownLoad(
        'load_reports = "published" reads the modular load manager\'s reports in the metadata store: set [bookies] '
        "metadata to it, zk://HOST:PORT"
    )


def _reader(client: Any, timeout_s: float) -> Callable[[Iterable[str]], list[bytes | None]]:
    from kazoo.exceptions import KazooException, NoNodeError
    from kazoo.handlers.threading import KazooTimeoutError

    def read(paths: Iterable[str]) -> list[bytes | None]:
        loads: list[bytes | None] = []
        for path, asked in [(path, client.get_async(path)) for path in paths]:
            try:
                loads.append(asked.get(timeout=timeout_s)[0])
            except NoNodeError:
                loads.append(None)
            except (KazooException, KazooTimeoutError) as error:
                raise UnknownLoad(f"the metadata store does not give {path}: {type(error).__name__}") from None
        return loads

    return read
