"""Resources of the `anabranch bookies` commands: metadata store, BookKeeper clusters and the sidecar.

Each is opened when it is first needed and closed at the end. The sidecar handles the clusters' ledgers.
"""

import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click

from anabranch.admin.plain import PlainTopics
from anabranch.admin.transport import controller_transport
from anabranch.bookkeeper.guard import SwitchGuard
from anabranch.bookkeeper.metadata import LedgerIds, MetadataRefused, MetadataUnreachable, PulsarMetadata
from anabranch.bookkeeper.record import progress_of, read_steps, subject_of
from anabranch.bookkeeper.registry import BadRegistry, Registry, RegistryStore
from anabranch.bookkeeper.sidecar import BookKeeperAddress, BookKeeperSidecar
from anabranch.bookkeeper.snapshot_reader import BookieSnapshotReader
from anabranch.bookkeeper.term import SwitchTerm
from anabranch.cli.context import Context
from anabranch.cli.exits import Unreachable, failing_on
from anabranch.cli.metadata_client import connect_metadata
from anabranch.cli.reports import reading_lake
from decisions.bookkeeper.uris import BadUri, read_uri
from schemas.bookies import BookieSnapshot, Operation, Progress, Request
from schemas.printable import printable
from schemas.settings.root import Settings

REQUEST_SECONDS = 60.0
"""Timeout of a request to ZooKeeper or BookKeeper; ten times as long for reading a ledger's contents."""
SIDECAR_HEAP = "192m"
"""Heap of the Java program that copies ledgers."""


class Bookies:
    """One Pulsar cluster and its BookKeeper clusters."""

    def __init__(self, settings: Settings, stack: ExitStack) -> None:
        self.settings, self._stack = settings, stack
        chosen = settings.bookies
        address, chroot, _ = chosen.zookeeper
        self.client = self._connected(address, settings.bookies_context(), chroot, logs_in=True)
        self.metadata = PulsarMetadata(self.client, REQUEST_SECONDS)
        self.store = RegistryStore(self.metadata)
        self._ensembles: dict[str, Any] = {}
        self._sidecar: tuple[tuple[tuple[str, str], ...], BookKeeperSidecar] | None = None
        self.reader = BookieSnapshotReader(
            self.store, self.metadata, self.sidecar, self.ids, chosen.cluster, chosen.brokers, chosen.switch
        )
        self.guard = SwitchGuard(self.metadata, chosen.brokers, self.ids)
        self.name = f"{socket.gethostname()}:{os.getpid()}"

    @property
    def lake(self) -> str:
        """Path of the lake that has the steps."""
        return self.settings.lake_path

    def read_snapshot(self, operation: Operation, depth: Any, request: Request | None = None) -> BookieSnapshot:
        """A snapshot with all that is on record of the directive."""
        registry = self.store.read()
        return self.reader.read_snapshot(operation, depth, request, self.progress(registry), registry)

    def progress(self, registry: Registry) -> Progress:
        """Return the recorded progress of the directive."""
        if (directive := registry.directive) is None:
            return Progress()
        return progress_of(directive, read_steps(self.lake, subject_of(self.settings.bookies.cluster, directive)))

    def sidecar(self, registry: Registry) -> BookKeeperSidecar:
        """Return the ledgers of these clusters; the program is started at the first question."""
        key = tuple((cluster.name, cluster.metadata_service_uri) for cluster in registry.clusters)
        if self._sidecar is None or self._sidecar[0] != key:
            if self._sidecar is not None:
                self._sidecar[1].close()
            self._sidecar = key, self._new_sidecar(dict(key))
        return self._sidecar[1]

    def ids(self, uri: str) -> LedgerIds:
        """The generators of ids behind a metadata service URI. Raises `MetadataUnreachable`, `BadUri`."""
        service = read_uri(uri)
        address = ",".join(sorted(service.members))
        if address not in self._ensembles:
            # The registry is a znode: it decides where credentials go only as far as the settings agree.
            ensemble = self.settings.bookies.ensemble_of(service.members)
            context = self.settings.bookies_context(ensemble.is_encrypted if ensemble else None)
            try:
                self._ensembles[address] = self._connected(address, context, "", logs_in=ensemble is not None)
            except click.ClickException as error:
                raise MetadataUnreachable(error.message) from None
        return LedgerIds(self._ensembles[address], "/" + "/".join(service.root), REQUEST_SECONDS)

    def term(self) -> SwitchTerm:
        """The right to act."""
        return SwitchTerm(self.client, self.metadata, self.store.path, self.name)

    def owners(self) -> PlainTopics | None:
        """The brokers at `[controller] url`; None: they are not to be asked."""
        settings = self.settings
        if settings.bookies.brokers != "attribution":
            return None
        seconds = REQUEST_SECONDS
        return PlainTopics(controller_transport(settings, "anabranch-bookies", seconds, deadline_seconds=seconds))

    def _new_sidecar(self, clusters: dict[str, str]) -> BookKeeperSidecar:
        from anabranch.local.bookies.programs import ensure_programs
        from runtime.java_home import SetupError

        chosen = self.settings.bookies
        folder = self.settings.path(self.settings.local.folder) / "bookies"
        folder.mkdir(parents=True, exist_ok=True)
        with failing_on(SetupError):
            programs = ensure_programs(self.settings, lambda text: click.echo(text, err=True))
        command = programs.sidecar(folder, chosen.migration_concurrency, SIDECAR_HEAP)
        properties, addresses = _properties(self.settings), {}
        for name, uri in clusters.items():
            ensemble = chosen.ensemble_of(read_uri(uri).members)
            if ensemble is not None and ensemble.is_encrypted:
                raise click.ClickException(
                    f"the cluster {name} is at a ZooKeeper that the settings reach by TLS (zks://); the program that "
                    "copies ledgers has none: give it an address without TLS, through a tunnel on this machine"
                )
            if ensemble is None and properties:
                click.echo(
                    f"Warning: {_unlisted_text(name)}, so [bookies] client_properties are not sent there", err=True
                )
            addresses[name] = BookKeeperAddress(uri, properties if ensemble is not None else {})
        log_file = folder / "hands.log"
        sidecar = BookKeeperSidecar(command, addresses, log_file, chosen.migration_concurrency, REQUEST_SECONDS)
        self._stack.callback(sidecar.close)
        return sidecar

    def _connected(self, address: str, context: ssl.SSLContext | None, chroot: str, logs_in: bool) -> Any:
        chosen = self.settings.bookies
        if chosen.metadata_auth is not None and not logs_in:
            click.echo(f"Warning: {_unlisted_text(address)}, so the log-in is not sent there", err=True)
        log_in = chosen.metadata_auth if logs_in else None
        return connect_metadata(address + chroot, log_in, context, chosen.session_seconds, self._stack)


@contextmanager
def opened_bookies(context: Context, metadata: str | None, brokers: str | None) -> Iterator[Bookies]:
    """The cluster of the settings, with these instead of theirs; faults become a line for people."""
    from lake.lease import LeaseLost

    settings = context.settings
    update = {"metadata": _uri(metadata) if metadata else settings.bookies.metadata}
    update |= {"brokers": brokers} if brokers else {}
    chosen = settings.bookies.model_copy(update=update)
    if not chosen.metadata:
        raise click.UsageError("which metadata store? Give --metadata HOST:PORT, or [bookies] metadata in the settings")
    settings = settings.model_copy(update={"bookies": chosen})
    context.warn("bookies", settings)
    with ExitStack() as stack:
        refusals = (BadRegistry, MetadataRefused, LeaseLost, BadUri)
        try:
            with reading_lake(settings.lake_path, *refusals, action="read or written"):
                bookies = Bookies(settings, stack)
                if settings.bookies.metadata_auth is not None:
                    warn_of_open_node(bookies.store)
                yield bookies
        except MetadataUnreachable as error:
            raise Unreachable(printable(str(error))) from error
        except BrokenPipeError as error:
            # Exit code 0, as of other commands, would say that a switch is done.
            raise click.ClickException("standard output was closed before the end: run it again") from error


def _unlisted_text(name: str) -> str:
    return f"{printable(name)} is not one of [bookies] clusters"


def warn_of_open_node(store: RegistryStore) -> None:
    """Warn of the first znode of the registry that was made before anybody logged in; it stays open."""
    nodes = [store.path, *(f"{store.path}/{name}" for name in store.metadata.children(store.path))]
    if (open_node := next(filter(store.metadata.is_open, nodes), None)) is not None:
        click.echo(
            f"Warning: {printable(open_node)} in ZooKeeper was made without a log-in, and whoever reaches it can name "
            f"another cluster there: set the access lists of {store.path} and its children to our user with "
            "world:anyone:r",
            err=True,
        )


def _uri(metadata: str) -> str:
    return metadata if "://" in metadata else f"zk://{metadata}"


def _properties(settings: Settings) -> dict[str, str]:
    """Of BookKeeper's client, as in a file of Java properties."""
    if not settings.bookies.client_properties:
        return {}
    file = Path(settings.path(settings.bookies.client_properties))
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"cannot read {file}, [bookies] client_properties: {error}") from error
    pairs = (line.partition("=") for line in map(str.strip, lines) if line and not line.startswith("#"))
    return {name.strip(): value.strip() for name, equals, value in pairs if equals}
