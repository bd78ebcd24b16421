"""Controllers with the settings of the chart's pods: tokens, names, probes, redirects to the leader's pod."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from anabranch.local.broker import free_ports
from tests.controller.plain_http import PLAIN
from tests.deploy.programs import installed_program
from tests.deploy.test_templates import CONTROLLER, by_name, variables
from tests.harness.zookeeper import EmbeddedZooKeeper

TOPIC = "/admin/v2/scalable/acme/shop/orders"
SERVICE = "x-controller.scaling.svc:8080"
TOKEN = "a-token-of-the-secret"


@contextmanager
def running_pod(environment: dict[str, str], number: int, folder: Path) -> Iterator[tuple[httpx.Client, str]]:
    """Run a pod's controller on free ports; yield a client with the token and the URL of its probes."""
    port, probes = free_ports(2)
    folder.mkdir()
    pod = f"x-controller-{number}"
    own = {name: value.replace("$(POD_NAME)", pod) for name, value in environment.items()}
    own |= {
        "PATH": os.environ["PATH"],
        "ANABRANCH_HOME": str(folder),
        "ANABRANCH_CONTROLLER__DATABASE": str(folder / "controller.db"),
        "ANABRANCH_CONTROLLER__PORT": str(port),
        "ANABRANCH_CONTROLLER__METRICS_PORT": str(probes),
    }
    command = [sys.executable, "-m", "anabranch", "serve", "controller"]
    with (
        open(folder / "log", "w") as log,
        subprocess.Popen(command, env=own, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.split()[-1:] == [f"http://{pod}.x-controller-nodes.scaling.svc:8080"], (
                folder / "log"
            ).read_text()
            headers = {"Host": SERVICE, "Authorization": f"Bearer {TOKEN}"}
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60, verify=PLAIN) as client:
                yield client, f"http://127.0.0.1:{probes}"
        finally:
            process.terminate()
            assert process.wait(30) == 0


@pytest.mark.soak
@pytest.mark.process
@pytest.mark.parametrize("replicas", [1, 3], ids=["sqlite", "zookeeper"])
def test_pods_of_the_chart_are_controllers(replicas: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    helm = installed_program("helm") or pytest.skip("there is no helm for this kind of machine")
    metadata = "sqlite"
    if replicas > 1:
        zookeeper: EmbeddedZooKeeper = request.getfixturevalue("zookeeper")
        metadata = f"zk://{zookeeper.address}/chart"
    made = by_name(helm, *CONTROLLER, f"controller.metadata={metadata}", "kafka.bootstrap=127.0.0.1:1")
    environment = {
        name: value
        for name, value in variables(made, "StatefulSet/x-controller").items()
        if isinstance(value, str) and not name.startswith("ANABRANCH_KAFKA_")
    } | {"ANABRANCH_CONTROLLER_TOKEN": TOKEN, "ANABRANCH_KAFKA_BOOTSTRAP": "127.0.0.1:1"}
    with ExitStack() as stack:
        pods = [
            stack.enter_context(running_pod(environment, number, tmp_path / str(number))) for number in range(replicas)
        ]
        answers = [client.put(TOPIC, follow_redirects=False) for client, _ in pods]
        for _, probes in pods:
            assert httpx.get(f"{probes}/livez", verify=PLAIN).status_code == 200
        leaders = {answer.headers["Location"].partition(":8080")[0] for answer in answers if answer.status_code == 307}
        assert len(leaders) == min(1, replicas - 1)
        assert leaders <= {f"http://x-controller-{number}.x-controller-nodes.scaling.svc" for number in range(replicas)}
        assert [answer.status_code for answer in answers].count(307) == replicas - 1
        client, _ = pods[0]
        assert client.get(TOPIC).status_code == 200
        assert client.get(TOPIC, headers={"Authorization": ""}).status_code == 401
        assert client.get(TOPIC, headers={"Host": "stranger.example"}).status_code == 403
