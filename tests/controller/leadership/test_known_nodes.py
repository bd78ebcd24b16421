"""Whose address clients are sent to: anybody may have written it where the metadata store has no login."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.sync.client import connect

from anabranch.controller.errors import NotLeader, StartError, Unavailable
from anabranch.controller.leadership.known_nodes import KnownNodes
from anabranch.controller.leadership.leaders import Leaders
from anabranch.controller.metadata.sqlite import SqliteStore
from anabranch.controller.metadata.store_paths import leader_path, node_path
from anabranch.controller.server import serve
from schemas.settings.root import load_settings
from tests.controller.conftest import NOWHERE, RunningController, run_controller

TOPIC = "topic://acme/shop/orders"
THIEF = "http://thief.example:8080"


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "metadata.db")
    yield store
    store.close()


OWN, TWO = "http://one:8080", "http://two:8080"


@pytest.mark.parametrize(
    ("known", "url", "believed"),
    [
        (KnownNodes(OWN), OWN, True),
        (KnownNodes(OWN), "http://ONE:8080/", True),
        (KnownNodes(OWN), TWO, False),
        (KnownNodes(OWN), "http://one:8081", False),
        (KnownNodes(OWN), "http://127.0.0.1:8080", False),
        (KnownNodes(OWN, [TWO]), TWO, True),
        (KnownNodes(OWN, [TWO]), "https://two:8080", False),
        (KnownNodes(OWN, [TWO]), "http://two:8080@thief.example", False),
        (KnownNodes(OWN, [TWO]), "http://two:8080/x", False),
        (KnownNodes(OWN, [TWO]), "http://two:8080?x", False),
        (KnownNodes(OWN, [TWO]), "javascript://two:8080", False),
        (KnownNodes(OWN, [TWO]), "http://two:8080\r\nX: y", False),
        (KnownNodes(OWN, [TWO]), "http://two:8080/\r\n", False),
        (KnownNodes(OWN, [TWO]), "http://two:8080#@thief.example", False),
        (KnownNodes(OWN, [TWO]), "", False),
        (KnownNodes(OWN, [TWO]), "http://[::b", False),
        (KnownNodes(OWN, store_is_closed=True), TWO, True),
        (KnownNodes(OWN, store_is_closed=True), "https://two", True),
        (KnownNodes("https://one", [TWO], store_is_closed=True), TWO, False),
        (KnownNodes("https://one", ["https://two"]), "https://two:443", True),
        (KnownNodes("http://127.0.0.1:1"), "http://127.0.0.1:2", True),
        (KnownNodes("http://127.0.0.1:1"), "http://[::1]:2", True),
        (KnownNodes("http://127.0.0.1:1", is_guarded=True), "http://127.0.0.1:2", False),
        (KnownNodes("http://127.0.0.1:1", ["http://127.0.0.1:2"], is_guarded=True), "http://127.0.0.1:2", True),
        (KnownNodes("http://127.0.0.1:1"), THIEF, False),
        (KnownNodes("https://127.0.0.1:1"), "http://127.0.0.1:2", False),
    ],
)
def test_address_trusted_by_settings_or_login(known: KnownNodes, url: str, believed: bool) -> None:
    assert known.believe(url) == believed


def test_known_nodes_are_announced(nodes: SqliteStore) -> None:
    for url in (OWN, TWO, THIEF, "https://two", "copier"):
        nodes.create_ephemeral(node_path(url), b"{}")
    assert KnownNodes(OWN, [TWO, "https://two"]).alive(nodes) == ["one:8080", "two:8080"]
    assert KnownNodes("http://[::1]:1").alive(nodes) == ["[::1]:1"]


def test_a_leader_that_nobody_knows_is_no_redirect(nodes: SqliteStore) -> None:
    nodes.create_ephemeral(leader_path(TOPIC), THIEF.encode())
    leaders = Leaders(nodes, OWN, KnownNodes(OWN, [TWO]))
    for ask in (leaders.lead, leaders.redirect):
        with pytest.raises(Unavailable, match=r"thief\.example:8080', is not one of controller\.nodes"):
            ask(TOPIC)
    assert leaders.leader(TOPIC) is None
    with pytest.raises(NotLeader):
        Leaders(nodes, OWN, KnownNodes(OWN, [THIEF])).lead(TOPIC)


@pytest.mark.process
def test_no_redirect_to_injected_store_address(tmp_path: Path) -> None:
    with run_controller(tmp_path / "layouts.db", token="s3cret") as controller:
        controller.service.create_topic(TOPIC, 1, {})
        assert controller.node.leaders.release(TOPIC)
        controller.nodes.create_ephemeral(leader_path(TOPIC), THIEF.encode())
        controller.nodes.create_ephemeral(node_path(THIEF), b"{}")
        own = controller.url.removeprefix("http://")
        headers = {"Authorization": "Bearer s3cret"}
        path = "/admin/v2/scalable/acme/shop/orders"
        refused = controller.client.post(f"{path}/split/0", headers=headers)
        assert (refused.status_code, "location" in refused.headers) == (503, False)
        assert "controller.nodes" in refused.json()["reason"]
        assert controller.client.get("/admin/v2/brokers", headers=headers).json() == [own]
        with connect(f"ws://{own}{path}/watch", additional_headers=headers) as watch:
            assert "thief" not in str(watch.recv(10))
        consumers = controller.client.get(f"{path}/subscriptions/s/consumers/c", headers=headers)
        assert consumers.status_code == 503


def start(home: Path, **controller: object) -> None:
    lines = "\n".join(f"{key} = {value!r}" for key, value in {"port": 0, **controller}.items())
    (home / "more.toml").write_text(f'[kafka]\nbootstrap = "{NOWHERE}"\n[controller]\n{lines}\n'.replace("'", '"'))
    environment = {"ANABRANCH_CONTROLLER_TOKEN": "s3cret"}
    serve(load_settings([home / "more.toml"], environment=environment).model_copy(update={"home": home}), print)


@pytest.mark.process
def test_open_zookeeper_requires_node_list(tmp_path: Path) -> None:
    several = {"metadata": "zk://127.0.0.1:1/x", "host": "0.0.0.0", "node_url": OWN}
    with pytest.raises(StartError, match=r"name all of them in controller\.nodes, or let the controllers log in"):
        start(tmp_path, **several)
    with pytest.raises(StartError, match=rf"this controller is {OWN}, and controller\.nodes does not name it"):
        start(tmp_path, nodes=[TWO], **several)


def test_a_running_controller_lists_itself(controller: RunningController) -> None:
    assert controller.client.get("/admin/v2/brokers").json() == [controller.url.removeprefix("http://")]
