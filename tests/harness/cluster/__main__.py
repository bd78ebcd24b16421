"""Install, upgrade, drain and remove the chart on a Kubernetes of our own: `make cluster`.

The commands of docs/deploy.md run word for word, with values for what they leave open. A pretended node reports pods as
running. The upgrade gate runs for real, as a process with the pod's settings, on a lake in an object store: that of a
local run made first (a minute or two), or a copy of `--lake FOLDER`. Before all this, `schemas` checks the manifests
against ten releases. Ends with 1 at the first surprise.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from deploy.generate import CHART
from tests.deploy.programs import installed_program
from tests.docs.guides import HOME, blocks
from tests.harness.cluster.containers import CHANGED_TAG, run_container
from tests.harness.cluster.control_plane import ControlPlane
from tests.harness.cluster.kubelet import PretendedNode
from tests.harness.cluster.programs import ensure_operator_resources
from tests.harness.cluster.schemas import check_schemas
from tests.lake.object_store import ObjectStore
from tests.local.running import Run, applied_ids, end
from tests.waiting import wait_until

SPACE = "scaling"
_TRIAL = "trial"
"""Where manifests are tried before anything is installed."""
_STRICT = "pod-security.kubernetes.io/enforce=restricted"
POLICY = "splitCooldownSeconds = 45"
_EVERYTHING = CHART / "ci" / "everything-values.yaml"


class Cluster:
    """kubectl and helm on a control plane, as in a terminal."""

    def __init__(self, plane: ControlPlane, tools: Path) -> None:
        """`tools`: folder for a link to helm."""
        helm = installed_program("helm")
        assert helm is not None, "there is no helm for this kind of machine"
        (tools / "helm").symlink_to(helm)
        self._environment = {
            **os.environ,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "KUBECONFIG": str(plane.kubeconfig),
            "HELM_CACHE_HOME": str(tools),
        }

    def run(self, command: str, text: str = "", fails: str = "") -> str:
        """Return the output of a command, which ends with 0; or else fails with this in its message."""
        print(f"$ {command}", flush=True)
        done = subprocess.run(
            ["sh", "-c", command], input=text, capture_output=True, text=True, env=self._environment, cwd=HOME
        )
        assert (done.returncode != 0) == bool(fails), f"{done.stdout}{done.stderr}"
        assert fails in done.stderr, f"{done.stdout}{done.stderr}"
        return done.stdout

    def read(self, kind: str) -> dict[str, Any]:
        """Return the objects of a kind by name."""
        answer = json.loads(self.run(f"kubectl -n {SPACE} get {kind} -o json"))
        return {entry["metadata"]["name"]: entry for entry in answer["items"]}


def check_values(cluster: Cluster) -> None:
    """The server accepts every complete set of values, and no pod that asks for more than restricted rights."""
    for file in ensure_operator_resources():
        cluster.run(f"kubectl create -f {file}")
    cluster.run("kubectl wait --for=condition=Established crd --all --timeout=60s")
    cluster.run(f"kubectl create namespace {_TRIAL} && kubectl label namespace {_TRIAL} {_STRICT}")
    strictly = "--dry-run=server --validate=strict --warnings-as-errors"
    unrestricted = f"kubectl -n {_TRIAL} create deployment bare --image=x --dry-run=server --warnings-as-errors"
    cluster.run(unrestricted, fails="would violate PodSecurity")
    for values in sorted((CHART / "ci").glob("*.yaml")):
        manifests = cluster.run(f"helm template anabranch {CHART} -n {_TRIAL} -f {values}")
        accepted = cluster.run(f"kubectl -n {_TRIAL} apply {strictly} -f -", manifests)
        print(f"{values.name}: {len(accepted.splitlines())} objects accepted")


class Gates:
    """Runs pods of the upgrade gate for real; all else that is to end succeeds unseen."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        """`folder` gets the volumes of each pod."""
        self._plane, self._folders = plane, (folder / f"pod-{number}" for number in count())
        self.answers: list[str] = []
        """What each gate wrote, in order."""

    def succeeds(self, pod: dict[str, Any]) -> bool:
        """Run a pod of the gate."""
        if pod["metadata"]["labels"].get("app.kubernetes.io/component") != "gate":
            return True
        done = run_container(self._plane, pod, next(self._folders))
        self.answers.append(done.stdout + done.stderr)
        print(f"gate of {pod['spec']['containers'][0]['image']}: {done.returncode}\n{self.answers[-1][-600:]}")
        return done.returncode == 0

    def run(self, pod: dict[str, Any], command: list[str]) -> str:
        """Return what a command writes with the settings of a pod; it must end with 0."""
        done = run_container(self._plane, pod, next(self._folders), command)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def install(cluster: Cluster, gates: Gates, store: ObjectStore) -> None:
    """Follow the guide in a namespace that restricts pods, and wait for every pod."""
    [guide] = [block for block in blocks("docs/deploy.md") if block.run_by == "tests/harness/cluster/__main__.py"]
    *commands, report = guide.commands
    for command in commands:
        cluster.run(command.replace("=…", "=x"))
        if "create namespace" in command:
            cluster.run(f"kubectl label namespace {SPACE} {_STRICT}")
        if "secret generic lake" in command:
            patch = json.dumps({"stringData": store.environment})
            cluster.run(f"kubectl -n {SPACE} patch secret lake --type merge -p {shlex.quote(patch)}")
    cluster.run(f"kubectl -n {SPACE} rollout status --timeout=120s deploy,statefulset")
    pods = cluster.read("pods")
    assert "anabranch-job-0" in pods
    [executor, _] = [pod for name, pod in pods.items() if name.startswith("anabranch-executor-")]
    print(gates.run(executor, shlex.split(report.partition(" -- ")[2])))
    cluster.run(f"kubectl -n {SPACE} run bare --image=x", fails='violates PodSecurity "restricted:latest"')


def upgrade(cluster: Cluster, gates: Gates) -> None:
    """Another rule is stopped by its gate unless it is meant; the same rules pass, with a changed policy."""
    change = f"helm -n {SPACE} upgrade anabranch {CHART} --reuse-values --timeout 900s"

    def images() -> set[str]:
        made = [*cluster.read("deployments").values(), *cluster.read("statefulsets").values()]
        return {entry["spec"]["template"]["spec"]["containers"][0]["image"].rpartition(":")[2] for entry in made}

    before = images()
    cluster.run(f"{change} --set image.tag={CHANGED_TAG}", fails="pre-upgrade hooks failed")
    assert images() == before
    assert "different: " in gates.answers[-1], gates.answers
    cluster.run(f"{change} --set image.tag={CHANGED_TAG} --set upgradeGate.allowDifferences=true")
    assert images() == {CHANGED_TAG}
    unknown = f"{change} --set image.tag=next --set-string policy='splitCooldown = 45'"
    cluster.run(unknown, fails="pre-upgrade hooks failed")
    assert "splitCooldownSeconds" in gates.answers[-1], gates.answers
    strict = f"{change} --set upgradeGate.allowDifferences=false"
    cluster.run(f"{strict} --set image.tag=next --set-string policy={POLICY!r}")
    assert images() == {"next"}
    assert ": the same" in gates.answers[-1], gates.answers
    assert cluster.read("configmaps")["anabranch"]["data"]["policy.toml"].strip() == POLICY
    cluster.run(f"kubectl -n {SPACE} rollout status --timeout=120s deploy,statefulset")
    cluster.run(f"helm -n {SPACE} upgrade anabranch {CHART} --reuse-values --set excutor.mode=act", fails="excutor")


def drain(cluster: Cluster, node: PretendedNode) -> None:
    """Of two executors one may be evicted at a time."""

    def allowed() -> int:
        return int(cluster.read("poddisruptionbudgets")["anabranch-executor"]["status"]["disruptionsAllowed"])

    def evict(name: str, fails: str = "") -> None:
        order = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": SPACE}}
        path = f"/api/v1/namespaces/{SPACE}/pods/{name}/eviction"
        cluster.run(f"kubectl create --raw {path} -f -", json.dumps(order), fails)

    def executors() -> list[str]:
        return sorted(name for name in cluster.read("pods") if name.startswith("anabranch-executor-"))

    # The last upgrade's old pod may still end.
    wait_until(lambda: allowed() == 1 and len(executors()) == 2, 60, 1)
    first, second = executors()
    with node.still:
        evict(first)
        evict(second, "disruption budget")
    wait_until(lambda: first not in cluster.read("pods") and allowed() == 1, 60, 1)
    evict(second)


def install_everything(cluster: Cluster) -> None:
    """All that can be switched on, beside what runs."""
    cluster.run(f"helm -n {SPACE} install all {CHART} -f {_EVERYTHING}")
    cluster.run(f"kubectl -n {SPACE} rollout status --timeout=120s deploy,statefulset")
    cluster.run(f"helm -n {SPACE} uninstall all --wait")


def remove(cluster: Cluster, store: ObjectStore) -> None:
    """Removal leaves what the guide says, and what others made."""
    objects = store.keys()
    cluster.run(f"helm -n {SPACE} uninstall anabranch --wait")
    assert "state-anabranch-job-0" in cluster.read("persistentvolumeclaims")
    assert {"pulsar", "lake"} <= set(cluster.read("secrets"))
    assert "anabranch" in cluster.read("serviceaccounts")
    assert "anabranch-hooks" in cluster.read("configmaps")
    assert "anabranch" not in cluster.read("configmaps")
    assert store.keys() == objects
    for kind in ("deployments", "statefulsets", "cronjobs", "networkpolicies", "poddisruptionbudgets"):
        assert not cluster.read(kind), kind


def record_lake(folder: Path) -> Path:
    """Return the lake of a local run with a dozen applied decisions."""
    folder.mkdir()
    run = Run(folder, "--without", "page", settings="[traffic]\npeak_msg_rate_in = 60000\n")
    try:
        wait_until(lambda: len(applied_ids(run)) > 10, 900, 1)
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(300) == 0, run.output
    finally:
        end(run)
    return folder / "lake"


def main() -> None:
    """Run all steps; raises at the first surprise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lake", type=Path, help="a lake with decisions of the last day")
    recorded: Path | None = parser.parse_args().lake
    check_schemas()
    with TemporaryDirectory() as name:
        folder = Path(name)
        lake = recorded or record_lake(folder / "run")
        plane, store = ControlPlane(folder / "plane"), ObjectStore()
        (folder / "tools").mkdir()
        cluster, gates = Cluster(plane, folder / "tools"), Gates(plane, folder)
        node = PretendedNode(plane, gates.succeeds)
        try:
            for file in lake.rglob("*"):
                if file.is_file():
                    store.put(f"anabranch/{file.relative_to(lake)}", file.read_bytes())
            plane.start()
            node.start()
            check_values(cluster)
            install(cluster, gates, store)
            upgrade(cluster, gates)
            drain(cluster, node)
            install_everything(cluster)
            remove(cluster, store)
        finally:
            node.end()
            plane.end()
            store.close()
    print("docs/deploy.md: install, upgrade, drain and removal on a Kubernetes of our own: as promised")


if __name__ == "__main__":
    main()
