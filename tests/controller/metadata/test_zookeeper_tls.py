"""The store on a ZooKeeper behind TLS: who is believed on either side, and a controller on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.controller.errors import StartError
from anabranch.controller.metadata.base import Append, ChangeKind, Put
from anabranch.controller.metadata.zookeeper import ZooKeeperStore
from anabranch.local.setup import Jars
from schemas.tls import TlsFiles, client_context
from tests import tls
from tests.controller.processes import ControllerProcess
from tests.secured_zookeeper import SecuredZooKeeper
from tests.waiting import wait_until

pytestmark = pytest.mark.process

OURS = TlsFiles(tls.certificate("client"), tls.key("client"), tls.CA)
AUTH = "anabranch:s3cret"


@pytest.fixture(scope="module")
def secured(jars: Jars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredZooKeeper]:
    """One server for the tests of this module."""
    one = SecuredZooKeeper(tmp_path_factory.mktemp("zookeeper"), jars)
    one.start()
    yield one
    one.stop()


def test_all_that_a_store_does_goes_through_tls(secured: SecuredZooKeeper) -> None:
    # By name, as certificates have names.
    address = f"localhost:{secured.secure_port}"
    first, second = (ZooKeeperStore(address, "/tls", 60, credentials=AUTH, tls=client_context(OURS)) for _ in range(2))
    seen: list[tuple[str, ChangeKind]] = []
    second.watch("/a", lambda path, kind: seen.append((path, kind)))
    # Many answers at once, and larger ones than TLS puts into one record. With sessions that long no heartbeat comes to
    # the help of an answer that TLS had decrypted before the system was asked for it.
    names = [f"/a/{number}" for number in range(300)]
    first.commit(Append("/queue", b"1"), *(Put(name, b"x" * 2_000) for name in names))
    assert [found.value for found in second.get_all(names) if found] == [b"x" * 2_000] * len(names)
    wait_until(lambda: ("/a/299", ChangeKind.CREATED) in seen)
    first.close()
    second.close()


def test_untrusted_tls_peers_refused(secured: SecuredZooKeeper) -> None:
    address = f"127.0.0.1:{secured.secure_port}"
    ours_elsewhere = TlsFiles(tls.certificate("client"), tls.key("client"))
    stranger = TlsFiles(tls.certificate("stranger"), tls.key("stranger"), tls.CA)
    for files, said in ((ours_elsewhere, "not believed.*local issuer"), (stranger, ""), (TlsFiles(ca=tls.CA), "")):
        with pytest.raises(StartError, match=f"no ZooKeeper can be used at {address}.*{said}"):
            ZooKeeperStore(address, "/tls", wait_s=2, credentials=AUTH, tls=client_context(files))
    with pytest.raises(StartError, match="does not speak TLS"):
        ZooKeeperStore(secured.address, "/tls", wait_s=2, credentials=AUTH, tls=client_context(OURS))


def test_controller_keeps_layouts_behind_tls(
    secured: SecuredZooKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANABRANCH_CONTROLLER_METADATA_AUTH", AUTH)
    service = ControllerProcess(
        tmp_path,
        more=f'metadata = "zks://127.0.0.1:{secured.secure_port}/house"\nmetadata_ca = "{tls.CA}"\n'
        f'metadata_certificate = "{tls.certificate("client")}"\nmetadata_key = "{tls.key("client")}"\n',
    )
    with service.life() as (client, _):
        assert client.put("/admin/v2/scalable/acme/tls/t").status_code == 204
        assert client.get("/admin/v2/scalable/acme/tls/t").status_code == 200
    # Over the other port, without the password: nothing can be read, and so nothing written.
    with pytest.raises(StartError, match="NoAuth"):
        ZooKeeperStore(secured.address, "/house", wait_s=5)
    assert "s3cret" not in (tmp_path / "controller.log").read_text()
