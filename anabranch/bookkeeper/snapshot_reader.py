"""Snapshot reader of a switch: registry, records, ledgers and id counters of all clusters.

Reading changes nothing anywhere. A cluster that cannot be reached has its reason in place of a listing; a record that
cannot be read is in the snapshot with its fault.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

from anabranch.bookkeeper.data_ledgers import DataLedgers, count_data_ledgers
from anabranch.bookkeeper.guard import registered_brokers
from anabranch.bookkeeper.metadata import LedgerIds, MetadataRefused, MetadataUnreachable, PulsarMetadata, ZnodeRecord
from anabranch.bookkeeper.process import SidecarLost
from anabranch.bookkeeper.records import STAMP_PROPERTY, read_cursor, read_locator
from anabranch.bookkeeper.registry import Registry, RegistryStore
from anabranch.bookkeeper.sidecar import BookKeeperSidecar, LedgerRefused
from anabranch.bookkeeper.wire import BadRecord
from decisions.bookkeeper.seen import ledgers_beside
from schemas.bookies import (
    BookieSnapshot,
    CursorRecord,
    Generators,
    LedgerSeen,
    Operation,
    Position,
    Progress,
    Request,
    Routing,
    SchemaRecord,
    SwitchSettings,
)
from schemas.ids import digest

Depth = Literal["registry", "identity", "ids", "ledgers", "whole"]
"""How much is read: the registry; which cluster each is; all ids; the ledgers of schemas and cursors too; those
of topics too."""
BROKERS = "brokers"
"""Owner of every cursor while brokers run: which of them has its topic is theirs to know."""


@dataclass
class BookieSnapshotReader:
    """Reads the snapshots of one Pulsar cluster, from which the steps of a switch are decided."""

    store: RegistryStore
    metadata: PulsarMetadata
    reach: Callable[[Registry], BookKeeperSidecar]
    """Ledgers of the clusters of a registry."""
    ids: Callable[[str], LedgerIds]
    """By metadata service URI; raises `MetadataUnreachable`, or `ValueError` for an URI that has no ids."""
    cluster: str
    routing: Routing
    settings: SwitchSettings
    now: Callable[[], int] = field(default=lambda: time.time_ns() // 1_000_000)
    """ms since 1970."""

    def read_snapshot(
        self,
        operation: Operation,
        depth: Depth,
        request: Request | None = None,
        progress: Progress | None = None,
        registry: Registry | None = None,
        like: BookieSnapshot | None = None,
    ) -> BookieSnapshot:
        """Return a snapshot; the records of topics, which are many, may be taken from an earlier one, `like`.

        Raises `BadRegistry`, and `MetadataUnreachable` or `MetadataRefused` of Pulsar's metadata.
        """
        registry = self.store.read() if registry is None else registry
        snapshot = BookieSnapshot(
            cluster=self.cluster,
            now=self.now(),
            operation=operation,
            request=request or Request(),
            clusters=list(registry.clusters),
            bootstrap=registry.bootstrap,
            directive=registry.directive,
            routing=self.routing,
            settings=self.settings,
            progress=progress or Progress(),
            registered_brokers=registered_brokers(self.metadata),
        )
        uris = {cluster.name: cluster.metadata_service_uri for cluster in registry.clusters}
        if depth == "identity":
            asked = snapshot.request
            if asked.name is not None and asked.metadata_service_uri is not None:
                uris.setdefault(asked.name, asked.metadata_service_uri)
            return snapshot.model_copy(update={"generators": self._generators(uris, {})})
        if depth == "registry" or not uris:
            return snapshot
        sidecar, names = self.reach(registry), list(uris)
        if depth == "ids":
            listings = {name: _list_ledgers(sidecar, name) for name in names}
            return snapshot.model_copy(update={"generators": self._generators(uris, listings)})
        schemas, cursors = self._schemas(), self._cursors()
        # Ledgers after records: what a record names was made before.
        listings = {name: _list_ledgers(sidecar, name) for name in names}
        named = set(_named_ledgers(schemas, cursors, snapshot.progress))
        data = DataLedgers()
        if depth == "whole":
            data = count_data_ledgers(self.metadata.topics(), registry, listings, named)
        elif like is not None:
            data = DataLedgers(dict(like.data_ledgers), list(like.topics))
        wanted = named | data.ids()
        ledgers = {}
        with ThreadPoolExecutor(self.settings.migration_concurrency) as pool:
            for name, listing in listings.items():
                if isinstance(listing, str):
                    continue
                # Before a cluster is forgotten, whatever else is on it is looked at.
                everything = operation == "unregister" and name == snapshot.request.name and not data.where.get(name)
                opened = sorted(listing if everything else listing & wanted)
                seen = pool.map(lambda ledger, name=name: see_ledger(sidecar, name, ledger), opened)
                ledgers[name] = [ledger for ledger in seen if ledger is not None]
        return snapshot.model_copy(
            update={
                "schemas": schemas,
                "cursors": cursors,
                "topics": data.topics,
                "data_ledgers": data.where,
                "ledgers": ledgers,
                "generators": self._generators(uris, listings),
            }
        )

    def _generators(self, uris: Mapping[str, str], listings: Mapping[str, set[int] | str]) -> dict[str, Generators]:
        """Read ids and identity of clusters; what cannot be read whole is unknown, with the reason."""
        generators = {}
        for name, uri in uris.items():
            listing = listings.get(name)
            if isinstance(listing, str):
                generators[name] = Generators(reachable=False, error=listing)
                continue
            try:
                ids = self.ids(uri).read()
            except (MetadataUnreachable, MetadataRefused, ValueError) as error:
                generators[name] = Generators(reachable=False, error=f"the ids of {name} cannot be read: {error}")
                continue
            largest = None if listing is None else max(listing, default=-1)
            generators[name] = Generators(short=ids.short, long=ids.long, instance=ids.instance, largest=largest)
        return generators

    def _schemas(self) -> list[SchemaRecord]:
        return [schema_of(record) for record in self.metadata.schemas()]

    def _cursors(self) -> list[CursorRecord]:
        owner = BROKERS if self.routing == "attribution" else None
        return [cursor_of(record, owner) for record in self.metadata.cursors()]


def schema_of(record: ZnodeRecord) -> SchemaRecord:
    """A schema's locator."""
    try:
        located = read_locator(record.content)
    except BadRecord as error:
        return SchemaRecord(path=record.path, version=record.version, error=str(error))
    positions = [
        Position(
            version=position.version,
            ledger=position.ledger,
            entry=position.entry,
            stamp=position.stamp,
            hash=position.hash,
        )
        for position in located
    ]
    return SchemaRecord(path=record.path, version=record.version, positions=positions)


def cursor_of(record: ZnodeRecord, owner: str | None) -> CursorRecord:
    """A subscription's znode; `owner` is who has its topic."""
    try:
        cursor = read_cursor(record.content)
    except BadRecord as error:
        return CursorRecord(path=record.path, version=record.version, ledger=-1, owner=owner, error=str(error))
    return CursorRecord(
        path=record.path,
        version=record.version,
        ledger=cursor.ledger,
        stamp=cursor.stamp,
        owner=owner,
        mark_delete=list(cursor.mark_delete),
        individually_deleted=digest(cursor.holes.hex()) if cursor.holes else None,
        properties={
            **cursor.numbers,
            **{name: value for name, value in cursor.properties.items() if name != STAMP_PROPERTY},
        },
    )


def see_ledger(sidecar: BookKeeperSidecar, cluster: str, ledger: int) -> LedgerSeen | None:
    """A ledger without a change; None: there is none. Of one that cannot be read, why."""
    try:
        opened = sidecar.open(cluster, ledger)
    except LedgerRefused as error:
        if error.name.startswith("NoSuchLedger"):
            return None
        return LedgerSeen(id=ledger, readable=False, error=str(error))
    except SidecarLost as error:
        return LedgerSeen(id=ledger, readable=False, error=str(error))
    return LedgerSeen(
        id=ledger,
        closed=opened.closed,
        last=opened.last,
        length=opened.length,
        custom=dict(opened.custom),
        quorums=list(opened.quorums),
        created_at=opened.made,
        readable=opened.unreadable is None,
        error=opened.unreadable,
    )


def _named_ledgers(
    schemas: Iterable[SchemaRecord], cursors: Iterable[CursorRecord], progress: Progress
) -> Iterator[int]:
    for schema in schemas:
        yield from (record.ledger for record in schema.positions)
    yield from (record.ledger for record in cursors if record.ledger >= 0)
    yield from (number for _, number in ledgers_beside(cursors))
    yield from (record.ledger for record in progress.verified)


def _list_ledgers(sidecar: BookKeeperSidecar, cluster: str) -> set[int] | str:
    """All ids of a cluster, or why they are not known."""
    try:
        return set(sidecar.ledgers(cluster))
    except (LedgerRefused, SidecarLost) as error:
        return f"{cluster} cannot be reached: {error}"
