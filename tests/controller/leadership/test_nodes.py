"""Controllers as processes on a real ZooKeeper: killed in an operation, frozen beyond the end of the session."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.controller.plain_http import PLAIN
from tests.harness.chaos.nodes import ControllerNode
from tests.harness.zookeeper import EmbeddedZooKeeper
from tests.waiting import wait_until

SETTINGS, CHROOT = "session_seconds = 4", "/nodes-test"


class Cluster:
    """Two nodes; calls are never redirected by themselves."""

    def __init__(self, folder: Path, zookeeper: str) -> None:
        self.zookeeper = zookeeper
        self.a, self.b = (ControllerNode(folder / name, zookeeper, CHROOT, SETTINGS) for name in "ab")
        self.http = httpx.Client(timeout=60, verify=PLAIN)

    def ask(self, node: ControllerNode, verb: str, path: str) -> int:
        """The status of a call; 0 when there is no answer."""
        try:
            return self.http.request(verb, f"{node.url}/admin/v2/scalable/acme/nodes/{path}").status_code
        except httpx.TransportError:
            return 0

    def epoch(self, node: ControllerNode, topic: str) -> int:
        found: int = self.http.get(f"{node.url}/admin/v2/scalable/acme/nodes/{topic}").json()["epoch"]
        return found

    def steps(self, node: ControllerNode, topic: str) -> list[str]:
        journal = self.http.get(f"{node.url}/admin/v2/scalable/acme/nodes/{topic}/operations").json()
        return [operation["step"] for operation in journal]


@pytest.fixture(scope="module")
def cluster(zookeeper: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    one = Cluster(tmp_path_factory.mktemp("nodes"), zookeeper.address)
    for node in (one.a, one.b):
        node.start()
    for node in (one.a, one.b):
        node.wait_until_ready()
    try:
        yield one
    finally:
        one.a.close()
        one.b.close()


@pytest.mark.parametrize("point", ["terminate-parent", "published"])
def test_killed_nodes_operation_finished_unasked(point: str, cluster: Cluster) -> None:
    """The node is killed at each step."""
    cluster.a.kill()
    cluster.a.start(["tests.controller.operations.dying_controller", point])
    cluster.a.wait_until_ready()
    assert wait_until(lambda: cluster.ask(cluster.a, "PUT", point) == 204)
    assert cluster.ask(cluster.a, "POST", f"{point}/split/0") == 0
    assert cluster.a.process is not None
    assert cluster.a.process.wait(30) == -signal.SIGKILL
    wait_until(lambda: cluster.steps(cluster.b, point) == ["done"], 20)
    assert cluster.epoch(cluster.b, point) == 1
    wait_until(lambda: cluster.ask(cluster.b, "POST", f"{point}/split/1") == 204)


def test_frozen_leader_commits_nothing_on_wake(cluster: Cluster) -> None:
    if not cluster.a.is_running():
        cluster.a.start()
        cluster.a.wait_until_ready()
    assert wait_until(lambda: cluster.ask(cluster.a, "PUT", "frozen") == 204)
    cluster.a.freeze()
    answers: list[int] = []
    # They reach the kernel's queue, and are read as the first thing after the awakening.
    late = [
        threading.Thread(target=lambda call=call: answers.append(cluster.ask(cluster.a, *call)))
        for call in [("POST", "frozen/split/0"), ("POST", "frozen/split/1"), ("PUT", "frozen/subscriptions/late")] * 3
    ]
    for thread in late:
        thread.start()
    wait_until(lambda: cluster.ask(cluster.b, "POST", "frozen/split/0") == 204, 20)
    cluster.a.thaw()
    for thread in late:
        thread.join()
    assert len(answers) == len(late)
    assert set(answers) <= {307, 503}
    assert cluster.epoch(cluster.b, "frozen") == 1
    assert cluster.steps(cluster.b, "frozen") == ["done"]
    wait_until(lambda: cluster.ask(cluster.a, "POST", "frozen/split/1") == 307)
    assert cluster.epoch(cluster.a, "frozen") == 1


def test_second_node_with_same_address_refused(cluster: Cluster, tmp_path: Path) -> None:
    if not cluster.a.is_running():
        cluster.a.start()
        cluster.a.wait_until_ready()
    assert cluster.a.process is not None
    second = ControllerNode(tmp_path, cluster.zookeeper, CHROOT, f'{SETTINGS}\nnode_url = "{cluster.a.url}/"')
    second.start()
    assert second.process is not None
    assert second.process.wait(60) == 1
    said = (tmp_path / "controller.log").read_text()
    assert f"{cluster.a.url} is held by another controller, process {cluster.a.process.pid} on " in said
    assert "controller.node_url" in said
    assert cluster.http.get(f"{cluster.a.url}/healthz").json()["outbox"] is not None
    second.close()
