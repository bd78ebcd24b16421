"""The chart's objects against the API of ten Kubernetes releases: `python -m tests.harness.cluster.schemas`.

kubeconform checks what Helm renders from each complete set of values, with JSON Schemas made from the releases' own
OpenAPI documents and from the operators' CRDs. Fields that a release does not know are errors. Go fetches
the releases once, some minutes; 24 MB stay in the project's cache.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from filelock import FileLock

from deploy.generate import CHART
from tests.deploy.programs import installed_program
from tests.harness.cluster.programs import CACHE, ensure_operator_resources, run_go

RELEASES = ["1.29.6", "1.30.14", "1.31.14", "1.32.13", "1.33.13", "1.34.0", "1.34.4", "1.35.4", "1.36.3", "1.37.2"]
"""The newest that the Go proxy has of each minor since the chart's `kubeVersion`, and a first one."""
_KUBECONFORM = "github.com/yannh/kubeconform/cmd/kubeconform@v0.7.0"
_FOLDER = CACHE / "kubernetes-schemas"
_CUSTOM = _FOLDER / "custom"
_NAME = "{{.ResourceKind}}{{.KindSuffix}}.json"
_LOOSE = {
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": ["string", "integer"]},
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": ["string", "number"]},
}
"""Definitions that say `string` and mean more."""
_NAMED = ("properties", "definitions")
"""Keys of schemas by name."""


def strict(schema: Any) -> Any:
    """Return a schema that refuses fields which it does not name."""
    if isinstance(schema, list):
        return [strict(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {
        # By name: a field may be called `properties`, too.
        key: {name: strict(entry) for name, entry in value.items()} if key in _NAMED else strict(value)
        for key, value in schema.items()
    }
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        closed.setdefault("additionalProperties", False)
    return closed


def release_schemas(document: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield name and content of a release's files, as kubeconform looks for them."""
    definitions = {**document["definitions"], **_LOOSE}
    yield "all", strict({"definitions": definitions})
    for name, definition in definitions.items():
        for kind in definition.get("x-kubernetes-group-version-kind", ()):
            yield _file_name(**kind), {"$ref": f"all.json#/definitions/{name}"}


def custom_schemas(definition: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield name and content of the files of a custom resource."""
    spec = definition["spec"]
    for version in spec["versions"]:
        name = _file_name(spec["group"], version["name"], spec["names"]["kind"])
        yield name, strict(version["schema"]["openAPIV3Schema"])


def _file_name(group: str, version: str, kind: str) -> str:
    return "-".join(part for part in (kind, group.partition(".")[0], version) if part).lower()


def ensure_schemas() -> Path:
    """Return the folder with kubeconform and a folder of schemas for each release. Raises as `ensure_kubernetes`."""
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{_FOLDER}.lock"):
        for release in RELEASES:
            if not (_FOLDER / f"v{release}").is_dir():
                _write_release(_FOLDER / f"v{release}", _openapi(release))
        _CUSTOM.mkdir(exist_ok=True)
        for file in ensure_operator_resources():
            _write(_CUSTOM, custom_schemas(yaml.safe_load(file.read_text())))
        if not (_FOLDER / "kubeconform").exists():
            run_go(_FOLDER, "install", _KUBECONFORM, GOBIN=str(_FOLDER))
    return _FOLDER


def _openapi(release: str) -> dict[str, Any]:
    """Return a release's document; the rest of the release is not kept."""
    with TemporaryDirectory(dir=CACHE) as name:
        variables = {"GOMODCACHE": name, "GOFLAGS": "-modcacherw"}
        module = json.loads(
            run_go(Path(name), "mod", "download", "-json", f"k8s.io/kubernetes@v{release}", **variables)
        )
        document: dict[str, Any] = json.loads((Path(module["Dir"]) / "api/openapi-spec/swagger.json").read_bytes())
    return document


def _write_release(folder: Path, document: dict[str, Any]) -> None:
    unfinished = folder.with_suffix(".unfinished")
    unfinished.mkdir(exist_ok=True)
    _write(unfinished, release_schemas(document))
    unfinished.rename(folder)


def _write(folder: Path, files: Iterator[tuple[str, Any]]) -> None:
    for name, schema in files:
        (folder / f"{name}.json").write_text(json.dumps(schema))


def conform(manifests: str, release: str) -> subprocess.CompletedProcess[str]:
    """Return what kubeconform says about manifests on a release."""
    folder = ensure_schemas()
    places = [f"-schema-location={place}/{_NAME}" for place in (folder / f"v{release}", _CUSTOM)]
    command = [folder / "kubeconform", "-strict", "-summary", *places, "-"]
    return subprocess.run(command, input=manifests, capture_output=True, text=True, check=False)


def check_schemas() -> None:
    """Raise `AssertionError` if a release refuses an object, or does not notice an unknown field."""
    helm = installed_program("helm")
    assert helm is not None, "there is no helm for this kind of machine"
    for values in sorted((CHART / "ci").glob("*.yaml")):
        for release in RELEASES:
            template = [helm, "template", "anabranch", str(CHART), "-f", str(values), f"--kube-version={release}"]
            manifests = subprocess.run(template, check=True, capture_output=True, text=True).stdout
            done = conform(manifests, release)
            assert done.returncode == 0, f"{release}, {values.name}: {done.stdout}{done.stderr}"
            unknown = conform(manifests.replace("readOnlyRootFilesystem:", "readOnlyRoot:"), release)
            assert "readOnlyRoot" in unknown.stdout, f"{release} takes any field: {unknown.stdout}{unknown.stderr}"
            print(f"Kubernetes {release}, {values.name}: {done.stdout.strip()}", flush=True)


if __name__ == "__main__":
    check_schemas()
