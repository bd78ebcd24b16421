"""Containers of a pretended node, run as processes: settings and files of the API server, this code as image."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.docs.guides import HOME
from tests.harness.cluster.control_plane import ControlPlane

CHANGED_TAG = "changed"
"""Tag of the image whose code has another rule."""
_RULE = HOME / "decisions" / "autoscale" / "rates.py"
_BEFORE, _AFTER = "rates[0] / limits[0], RATES[0]", "2 * rates[0] / limits[0], RATES[0]"
"""Of the changed image: messages in count twice, so segments split earlier."""


def run_container(
    plane: ControlPlane, pod: dict[str, Any], folder: Path, command: list[str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the only container of a pod, or another command in it; `folder` is new and holds its volumes."""
    space, [container] = pod["metadata"]["namespace"], pod["spec"]["containers"]
    mounts = {mount["mountPath"]: folder / mount["name"] for mount in container["volumeMounts"]}
    for volume in pod["spec"]["volumes"]:
        (folder / volume["name"]).mkdir(parents=True)
        if "configMap" in volume:
            files = plane.request("GET", f"/api/v1/namespaces/{space}/configmaps/{volume['configMap']['name']}")
            for name, text in files["data"].items():
                (folder / volume["name"] / name).write_text(text)
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "TMPDIR": str(mounts["/tmp"])}
    if container["image"].endswith(f":{CHANGED_TAG}"):
        environment["PYTHONPATH"] = str(_changed_code(folder))
    for source in container.get("envFrom", ()):
        environment |= _read_secret(plane, space, source["secretRef"]["name"])
    for variable in container["env"]:
        if "value" in variable:
            environment[variable["name"]] = _mapped(variable.get("value", ""), mounts)
        elif "valueFrom" in variable:
            reference = variable["valueFrom"]["secretKeyRef"]
            environment[variable["name"]] = _read_secret(plane, space, reference["name"])[reference["key"]]
    chosen = command or [*container["command"], *container["args"]]
    return subprocess.run(chosen, env=environment, cwd=mounts["/tmp"], capture_output=True, text=True)


def _read_secret(plane: ControlPlane, space: str, name: str) -> dict[str, str]:
    secret = plane.request("GET", f"/api/v1/namespaces/{space}/secrets/{name}")
    return {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}


def _mapped(value: str, mounts: dict[str, Path]) -> str:
    for path, folder in mounts.items():
        if value == path or value.startswith(f"{path}/"):
            return f"{folder}{value.removeprefix(path)}"
    return value


def _changed_code(folder: Path) -> Path:
    code = folder / "code"
    shutil.copytree(HOME / "decisions", code / "decisions")
    rule = code / _RULE.relative_to(HOME)
    text = rule.read_text()
    assert text.count(_BEFORE) == 1, f"{_RULE} has another form: change another rule"
    rule.write_text(text.replace(_BEFORE, _AFTER))
    return code
