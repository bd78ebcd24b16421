"""Metadata in a real ZooKeeper, which others change at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl

from anabranch.bookkeeper.metadata import (
    LedgerIds,
    MetadataChanged,
    MetadataRefused,
    MetadataUnreachable,
    PulsarMetadata,
    ZnodeWrite,
)
from anabranch.bookkeeper.records import read_cursor, read_locator
from anabranch.local.setup import Jars
from tests.bookkeeper.conftest import BookKeepers
from tests.bookkeeper.messages import made
from tests.harness.ledger_writer import LedgerWriter
from tests.harness.zookeeper import EmbeddedZooKeeper


def locator(*ledgers: int) -> bytes:
    """A schema with one version per ledger; the last is the current one."""
    entries = [
        {"version": at, "position": {"ledgerId": ledger, "entryId": 0}, "hash": b"h"}
        for at, ledger in enumerate(ledgers)
    ]
    return bytes(made("SchemaLocator", info=entries[-1], index=entries).SerializeToString())


def cursor(ledger: int) -> bytes:
    """A subscription whose position is in that ledger."""
    properties = [{"name": "owner", "value": "me"}]
    return bytes(
        made("ManagedCursorInfo", cursorsLedgerId=ledger, lastActive=7, cursorProperties=properties).SerializeToString()
    )


@pytest.fixture
def metadata(bookkeepers: BookKeepers, client: KazooClient) -> Iterator[PulsarMetadata]:
    """Metadata of a Pulsar without anything in them."""
    yield PulsarMetadata(client)
    for path in ("/schemas", "/managed-ledgers"):
        client.delete(path, recursive=True)


def put(client: KazooClient, path: str, content: bytes) -> str:
    """A znode with its parents."""
    client.create(path, content, makepath=True)
    return path


def test_schemas_topics_cursors_found_with_versions(metadata: PulsarMetadata, client: KazooClient) -> None:
    assert list(metadata.schemas()) == list(metadata.cursors()) == []
    schemas = {put(client, f"/schemas/acme/app/t{at}", locator(at)): at for at in range(300)}
    topic = put(client, "/managed-ledgers/acme/app/persistent/t", b"\x0a\x02\x08\x05")
    first = put(client, f"{topic}/first", cursor(5))
    client.set(first, cursor(6))
    put(client, "/managed-ledgers/acme/app/persistent/being-made", b"")
    put(client, "/managed-ledgers/acme/app/non-persistent/t", b"")
    # Of a V1 namespace, which has its cluster in the path.
    older = put(client, "/managed-ledgers/prop/west/ns/persistent/t", b"\x0a\x02\x08\x07")
    oldest = put(client, f"{older}/sub", cursor(9))
    schemas[put(client, "/schemas/prop/west/ns/t", locator(300))] = 300
    # And one that is called as the folder of a V2 namespace.
    odd = put(client, "/managed-ledgers/prop/west/persistent/persistent/t", b"\x0a\x02\x08\x07")
    oddest = put(client, f"{odd}/sub", cursor(10))
    found = {one.path: read_locator(one.content)[0].ledger for one in metadata.schemas()}
    assert found == schemas
    assert [one.path for one in metadata.topics()] == [topic, older, odd]
    assert [(one.path, one.version, read_cursor(one.content).ledger) for one in metadata.cursors()] == [
        (first, 1, 6),
        (oldest, 0, 9),
        (oddest, 0, 10),
    ]


def test_a_flip_is_written_whole_or_not_at_all(metadata: PulsarMetadata, client: KazooClient) -> None:
    old, new, epoch = (put(client, f"/schemas/flip/{name}", b"0") for name in ("old", "new", "epoch"))
    flip = [
        ZnodeWrite(old, b"DEPRECATED", 0),
        ZnodeWrite(new, b"ACTIVE", 0),
        ZnodeWrite(epoch, None, 0),
        ZnodeWrite("/schemas/done", b"", None),
    ]
    client.set(epoch, b"1")
    with pytest.raises(MetadataChanged, match="epoch: BadVersionError"):
        metadata.write(flip)
    assert [client.get(path)[0] for path in (old, new)] == [b"0", b"0"]
    assert client.exists("/schemas/done") is None
    flip[2] = ZnodeWrite(epoch, None, 1)
    metadata.write(flip)
    assert [client.get(path)[0] for path in (old, new)] == [b"DEPRECATED", b"ACTIVE"]
    with pytest.raises(MetadataChanged):
        metadata.write(flip)


def test_foreign_znode_refused_as_unrelated(metadata: PulsarMetadata, client: KazooClient) -> None:
    path = put(client, "/schemas/acme/app/t", locator(3))
    client.set_acls(path, [make_acl("world", "anyone", read=True, delete=True)])
    with pytest.raises(MetadataRefused, match="NoAuthError"):
        metadata.write([ZnodeWrite(path, locator(4), 0)])
    client.set_acls("/schemas/acme/app", [make_acl("world", "anyone", delete=True, admin=True)])
    with pytest.raises(MetadataRefused):
        list(metadata.schemas())
    client.set_acls("/schemas/acme/app", [make_acl("world", "anyone", all=True)])


def test_id_generators_report_and_advance(bookkeepers: BookKeepers, client: KazooClient) -> None:
    colo = bookkeepers.clusters["colo"]
    ids = LedgerIds(client, colo.root)
    assert ids.read().long is None
    began = bookkeepers.write("colo")
    assert ids.read().next == began + 1
    beyond = 3 << 32 | 17
    for _ in range(2):
        ids.advance(beyond)
    assert ids.read().next > beyond
    assert began < bookkeepers.write("colo") < 2**31, "a client that began with short ids goes on with them"
    other = LedgerWriter(bookkeepers.programs, bookkeepers.folder)
    [given] = other.write(colo.uri)
    other.close()
    assert given > beyond
    ids.advance(0)
    assert ids.read().next == given + 1


def test_lost_zookeeper_reported_within_deadline(jars: Jars, tmp_path: Path) -> None:
    server = EmbeddedZooKeeper(tmp_path, jars.zookeeper)
    server.start()
    client: Any = KazooClient(server.address)
    try:
        client.start()
        server.kill()
        metadata = PulsarMetadata(client, timeout_s=0.5)
        for ask in (lambda: metadata.read("/schemas"), lambda: metadata.write([ZnodeWrite("/schemas", b"", 0)])):
            with pytest.raises(MetadataUnreachable):
                ask()
    finally:
        server.kill()
        client.stop()
        client.close()
