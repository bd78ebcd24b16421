"""Schemas and cursors of a real broker of Pulsar 5: their ledgers copied, their records stamped, and read by the broker
again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from kazoo.client import KazooClient

from anabranch.bookkeeper.metadata import PulsarMetadata, ZnodeWrite
from anabranch.bookkeeper.records import (
    SchemaPosition,
    read_cursor,
    read_data_ledgers,
    read_locator,
    stamp_cursor,
    stamp_locator,
)
from anabranch.bookkeeper.sidecar import BookKeeperAddress
from anabranch.local.bookies.programs import ensure_programs
from anabranch.local.setup import Jars
from schemas.settings.root import load_settings
from tests.bookkeeper.conftest import KeptSidecar, soon
from tests.bookkeeper.pulsar_like import CommandsHere
from tests.harness.bookkeeper import BookKeeperCluster
from tests.harness.pulsar.cluster import PulsarCluster
from tests.waiting import wait_until

pytestmark = [pytest.mark.pulsar, pytest.mark.soak, pytest.mark.timeout(300)]

NAMESPACE, PUBLISHED, SKIPPED, PATIENCE_S = "public/switch", 10, 4, 60
_TEXT = '{"name":"","schema":"","type":"STRING","properties":{}}'


@dataclass
class Brokered:
    """A broker, its metadata, the sidecar over its bookies (`old`) and others (`new`), a client of its interface."""

    cluster: PulsarCluster
    metadata: PulsarMetadata
    sidecar: KeptSidecar
    client: httpx.Client
    new: BookKeeperCluster

    def put_schema(self, fields: int) -> None:
        """One more version of the schema of topic `t`."""
        columns = [{"name": f"f{at}", "type": ["null", "string"], "default": None} for at in range(fields)]
        schema = json.dumps({"type": "record", "name": "R", "fields": columns})
        body = {"type": "AVRO", "schema": schema, "properties": {}}
        answer = self.client.post(f"/admin/v2/schemas/{NAMESPACE}/t/schema", json=body)
        assert answer.status_code == 200, answer.text

    def schema_fields(self) -> list[int]:
        """How many fields each version of that schema has, as the broker reads it from its ledgers."""
        answer = self.client.get(f"/admin/v2/schemas/{NAMESPACE}/t/schemas")
        assert answer.status_code == 200, answer.text
        return [len(json.loads(one["data"])["fields"]) for one in answer.json()["getSchemaResponses"]]

    def publish(self) -> bool:
        """Messages to topic `c` by REST; whether they were taken."""
        messages = [{"payload": f"m{at}"} for at in range(PUBLISHED)]
        body = {"valueSchema": _TEXT, "producerName": "test", "messages": messages}
        answer = self.client.post(f"/topics/persistent/{NAMESPACE}/c", json=body)
        return answer.status_code == 200 and "messageId" in answer.text

    def backlog(self) -> int | None:
        """Messages of topic `c` that its subscription has not acknowledged; None: not known now."""
        answer = self.client.get(f"/admin/v2/persistent/{NAMESPACE}/c/stats")
        return answer.json()["subscriptions"]["s"]["msgBacklog"] if answer.status_code == 200 else None


@pytest.fixture(scope="module")
def brokered(pulsar_jars: Path, jars: Jars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokered]:
    """A cluster with a schema of two versions, and a subscription whose position is in a ledger."""
    folder = tmp_path_factory.mktemp("brokered")
    cluster = PulsarCluster(folder / "pulsar", pulsar_jars, jars.zookeeper, "320m")
    programs = ensure_programs(load_settings(environment={}), print)
    try:
        cluster.start(1)
        new = BookKeeperCluster(folder / "new", programs.jars, cluster.zookeeper, root="/second/ledgers")
        new.start()
        addresses = {
            "old": BookKeeperAddress(f"zk+hierarchical://{cluster.zookeeper.address}/ledgers"),
            "new": BookKeeperAddress(new.uri),
        }
        zookeeper = KazooClient(cluster.zookeeper.address)
        zookeeper.start()
        with (
            ExitStack() as stack,
            httpx.Client(base_url=cluster.brokers[0].admin_url, timeout=30, follow_redirects=True) as client,
        ):
            sidecar = KeptSidecar(programs.sidecar(folder / "hands"), addresses, folder / "hands.log")
            stack.callback(sidecar.end)
            one = Brokered(cluster, PulsarMetadata(zookeeper), sidecar, client, new)
            assert client.put(f"/admin/v2/namespaces/{NAMESPACE}", json={}).status_code == 204
            for topic in ("t", "c"):
                assert client.put(f"/admin/v2/persistent/{NAMESPACE}/{topic}").status_code == 204
            one.put_schema(1)
            one.put_schema(2)
            subscription = f"/admin/v2/persistent/{NAMESPACE}/c/subscription/s"
            assert client.put(subscription).status_code == 204
            wait_until(one.publish, PATIENCE_S)
            assert client.post(f"{subscription}/skip/{SKIPPED}").status_code == 204
            assert one.backlog() == PUBLISHED - SKIPPED
            yield one
        zookeeper.stop()
        zookeeper.close()
        new.stop()
    finally:
        cluster.stop()


def change(metadata: PulsarMetadata, path: str, to: Callable[[bytes], bytes]) -> None:
    """Change a record by compare-and-set, as a step does."""
    record = metadata.read(path)
    assert record is not None
    metadata.write([ZnodeWrite(path, to(record.content), record.version)])


def test_killed_broker_schemas_and_cursors_copied(brokered: Brokered) -> None:
    [broker], metadata, sidecar = brokered.cluster.brokers, brokered.metadata, brokered.sidecar
    broker.kill()
    schema_path = f"/schemas/{NAMESPACE}/t"
    cursor_path = f"/managed-ledgers/{NAMESPACE}/persistent/c/s"

    def locator() -> tuple[SchemaPosition, ...]:
        [found] = [read_locator(one.content) for one in metadata.schemas() if one.path == schema_path]
        return found

    schema = locator()
    [cursor] = [read_cursor(one.content) for one in metadata.cursors() if one.path == cursor_path]
    [data] = [read_data_ledgers(one.content) for one in metadata.topics() if one.path == cursor_path[:-2]]
    assert [one.version for one in schema] == [0, 1]
    assert cursor.ledger >= 0
    assert sidecar.open("old", data[0].ledger).custom["component"]

    sidecar.seal("old", cursor.ledger)
    for ledger in {one.ledger for one in schema} | {cursor.ledger}:
        assert sidecar.copy("old", "new", ledger, soon()).how == "copied"
        assert sidecar.verify("old", "new", ledger).same
    assert sidecar.open("new", schema[0].ledger).custom["pulsar/schemaId"]
    assert sidecar.open("new", cursor.ledger).custom["pulsar/cursor"]

    stamps = {one.ledger: f"new:{one.ledger}" for one in schema}
    change(metadata, schema_path, lambda content: stamp_locator(content, stamps))
    change(metadata, cursor_path, lambda content: stamp_cursor(content, f"new:{cursor.ledger}"))
    brokered.cluster.begin(broker)
    assert wait_until(brokered.backlog, PATIENCE_S) == PUBLISHED - SKIPPED
    assert brokered.schema_fields() == [1, 2]

    # This broker keeps no field of a schema's record that it does not know; promoting again puts it back.
    brokered.put_schema(3)
    assert {one.stamp for one in locator()} == {None}
    change(metadata, schema_path, lambda content: stamp_locator(content, stamps))
    assert [one.stamp for one in locator()] == [*stamps.values(), None]
    assert brokered.schema_fields() == [1, 2, 3]

    # The position is in the znode now; the ledger in the stamp's value says that it is of another time.
    assert brokered.client.put(f"/admin/v2/persistent/{NAMESPACE}/c/unload").status_code == 204
    record = metadata.read(cursor_path)
    assert record is not None
    assert (read_cursor(record.content).ledger, read_cursor(record.content).stamp) == (-1, f"new:{cursor.ledger}")


def test_live_switch_loses_no_position_or_schema(brokered: Brokered, tmp_path: Path) -> None:
    """As with brokers that route by attribution, which this one does not: it reads on from the old cluster."""
    [broker] = brokered.cluster.brokers
    address = brokered.cluster.zookeeper.address
    uris = {"old": f"zk+hierarchical://{address}/ledgers", "new": brokered.new.uri}
    commands = CommandsHere(address, tmp_path, brokered.sidecar, uris, "attribution", broker.admin_url)
    assert brokered.client.post(f"/admin/v2/persistent/{NAMESPACE}/c/subscription/s/skip/1").status_code == 204
    left, fields = wait_until(brokered.backlog, PATIENCE_S), brokered.schema_fields()
    schema_path = f"/schemas/{NAMESPACE}/t"
    # As if nothing had ever been promoted.
    change(
        brokered.metadata,
        schema_path,
        lambda content: stamp_locator(content, dict.fromkeys(one.ledger for one in read_locator(content))),
    )
    for name, uri in uris.items():
        commands.ok("register", "--name", name, "--metadata-service-uri", uri)
    commands.ok("precheck", "--name", "new", "--advance")
    # This one is registered, so nobody is believed who says that brokers are stopped.
    for acting in (("switch", "--target", "new", "--no-dry-run"), ("cleanup", "--src-cluster", "new", "--no-dry-run")):
        refused = commands.run(*acting, "--brokers", "stopped")
        assert (refused.returncode, "are registered now, such as" in refused.stderr) == (1, True)
    before = {one.path: one.content for one in (*brokered.metadata.schemas(), *brokered.metadata.cursors())}
    commands.ok("switch", "--target", "new")
    assert before == {one.path: one.content for one in (*brokered.metadata.schemas(), *brokered.metadata.cursors())}

    commands.run("switch", "--target", "new", "--no-dry-run")
    found = commands.answer("status")
    assert (found["failedLedgers"], found["notPromoted"]) == ([], [])
    assert {one["kind"] for one in found["attributions"]} <= {"data"}
    assert wait_until(brokered.backlog, PATIENCE_S) == left
    assert brokered.schema_fields() == fields
    paths = {one.path: one.content for one in brokered.metadata.schemas()}
    assert {one.stamp for one in read_locator(paths[schema_path])} == {
        f"new:{one.ledger}" for one in read_locator(paths[schema_path])
    }
    # A data ledger that it has begun since is on the old cluster and has no stamp, which is found out.
    violations = commands.answer("check", "--contents")
    assert {(one["invariant"], "/schemas/" in one["object"]) for one in violations} <= {("I1", False), ("I2", False)}

    # It takes the stamps away with the next version, which it makes on the old cluster: that one nobody can place.
    brokered.put_schema(len(fields) + 1)
    again = commands.run("switch", "--target", "new", "--no-dry-run")
    assert again.returncode == 1
    assert "after the bootstrap record" in again.stdout
    record = brokered.metadata.read(schema_path)
    assert record is not None
    stamps = [one.stamp for one in read_locator(record.content)]
    assert (stamps[-1], None in stamps[:-1]) == (None, False)
    assert len(brokered.schema_fields()) == len(fields) + 1
