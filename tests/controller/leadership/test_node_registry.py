"""One process at a time holds the address of a node, on both kinds of store."""

from __future__ import annotations

import json
import os

import pytest

from anabranch.controller.errors import StartError
from anabranch.controller.leadership.node_registry import NodeRegistration
from anabranch.controller.metadata import store_paths
from anabranch.controller.metadata.zookeeper import ZooKeeperStore
from tests.controller.places import Place
from tests.harness.chaos.nodes import Link
from tests.harness.zookeeper import EmbeddedZooKeeper
from tests.waiting import wait_until

URL = "http://node-1:8080"


def test_address_holder_recorded_until_stop(place: Place) -> None:
    nodes = place.open()
    presence = NodeRegistration(nodes, URL, 5)
    presence.claim()
    presence.start()
    found = nodes.get(store_paths.node_path(URL))
    assert found is not None
    assert json.loads(found.value)["url"] == URL
    nodes.close()
    NodeRegistration(place.open(), URL, 5).claim()


@pytest.mark.parametrize("value", [b"", b"http://node-1:8080", b"[1]", b'{"sessionSeconds":-3.4}', b"\xff"])
def test_holder_with_blank_record_is_refused(place: Place, value: bytes) -> None:
    nodes = place.open()
    nodes.create_ephemeral(store_paths.node_path(URL), value)
    with pytest.raises(StartError, match="older release"):
        NodeRegistration(nodes, URL, -3.3).claim()


def test_silent_nodes_address_taken_after_session(
    zookeeper: EmbeddedZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    """The silent node reports that when it is back."""
    link = Link(zookeeper.address)
    first = ZooKeeperStore(link.address, "/presence", session_s=2)
    second = ZooKeeperStore(zookeeper.address, "/presence", session_s=5)
    presence = NodeRegistration(first, URL, 2)
    presence.claim()
    presence.start()
    link.cut()
    # It looks like a node that was killed: another with its address waits for the end of its session.
    NodeRegistration(second, URL, 2).claim()
    assert f"{URL} is held by process {os.getpid()} on " in caplog.text
    assert "waiting at most 8 s" in caplog.text
    link.mend()
    # The thread that finds it logs it right after.
    wait_until(lambda: presence.rival and presence.rival in caplog.text, 20)
    assert presence.rival is not None
    assert "stop one of the two" in presence.rival
    second.close()
    wait_until(lambda: presence.rival is None, 20)
    first.close()
    link.close()
