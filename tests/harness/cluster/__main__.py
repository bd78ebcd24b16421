"""A server-side dry run of the chart on an API server of our own: `make cluster`. Raises at the first surprise."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from deploy.generate import CHART
from tests.deploy.programs import installed_program
from tests.docs.guides import HOME
from tests.harness.cluster.control_plane import ControlPlane
from tests.harness.cluster.programs import ensure_operator_resources

_TRIAL = "trial"
"""Where manifests are tried before anything is installed."""
_STRICT = "pod-security.kubernetes.io/enforce=restricted"


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


def check_values(cluster: Cluster) -> None:
    """The server accepts every complete set of values, and no pod that asks for more than restricted rights."""
    for file in ensure_operator_resources():
        cluster.run(f"kubectl create -f {file}")
    cluster.run("kubectl wait --for=condition=Established crd --all --timeout=60s")
    cluster.run(f"kubectl create namespace {_TRIAL} && kubectl label namespace {_TRIAL} {_STRICT}")
    strictly = "--dry-run=server --validate=strict --warnings-as-errors"
    cluster.run(f"kubectl -n {_TRIAL} create serviceaccount default")
    cluster.run(f"kubectl -n {_TRIAL} run bare --image=x", fails='violates PodSecurity "restricted:latest"')
    unrestricted = f"kubectl -n {_TRIAL} create deployment bare --image=x --dry-run=server --warnings-as-errors"
    cluster.run(unrestricted, fails="would violate PodSecurity")
    for values in sorted((CHART / "ci").glob("*.yaml")):
        manifests = cluster.run(f"helm template anabranch {CHART} -n {_TRIAL} -f {values}")
        accepted = cluster.run(f"kubectl -n {_TRIAL} apply {strictly} -f -", manifests)
        print(f"{values.name}: {len(accepted.splitlines())} objects accepted")


def main() -> None:
    """Run all steps; raises at the first surprise."""
    with TemporaryDirectory() as folder:
        plane = ControlPlane(Path(folder) / "plane")
        (Path(folder) / "tools").mkdir()
        cluster = Cluster(plane, Path(folder) / "tools")
        try:
            plane.start()
            check_values(cluster)
        finally:
            plane.end()
    print("the API server accepts the chart")


if __name__ == "__main__":
    main()
