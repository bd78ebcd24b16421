"""Kubernetes' API server and controllers, built once by Go into the project's cache; Debian's etcd; operators' CRDs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from filelock import FileLock

from runtime.java_home import SetupError
from tests.debian_packages import ensure_package
from tests.harness.cluster.spark_operator import spark_application_definition

VERSION = "1.37.2"
CACHE = Path(__file__).resolve().parents[3] / ".cache"
PROGRAMS = ("kube-apiserver", "kube-controller-manager")
_OPERATOR = "github.com/prometheus-operator/prometheus-operator"
_OPERATOR_VERSION = "0.85.0"


def ensure_etcd() -> Path:
    """Return the path of `etcd`."""
    return ensure_package("etcd-server", CACHE / "etcd") / "usr" / "bin" / "etcd"


def ensure_kubernetes() -> Path:
    """Return the folder with `PROGRAMS`; building them takes 15 minutes or more of two cores.

    Raises `SetupError` without Go, and `subprocess.CalledProcessError` if it fails.
    """
    folder = CACHE / f"kubernetes-{VERSION}"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not all((folder / program).exists() for program in PROGRAMS):
            with TemporaryDirectory(dir=CACHE) as module:
                _build(Path(module), folder)
    return folder


def ensure_operator_resources() -> list[Path]:
    """Return the files that define what the chart makes for operators of Prometheus and Spark.

    Raises as `ensure_kubernetes`.
    """
    folder = CACHE / f"prometheus-operator-{_OPERATOR_VERSION}"
    files = [folder / f"monitoring.coreos.com_{kind}.yaml" for kind in ("podmonitors", "prometheusrules")]
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not all(file.exists() for file in files):
            upstream = json.loads(run_go(folder, "mod", "download", "-json", f"{_OPERATOR}@v{_OPERATOR_VERSION}"))
            for file in files:
                shutil.copyfile(Path(upstream["Dir"]) / "example" / "prometheus-operator-crd" / file.name, file)
        spark = folder / "sparkapplications.json"
        spark.write_text(json.dumps(spark_application_definition()))
    return [*files, spark]


def run_go(folder: Path, *arguments: str, **variables: str) -> str:
    """Return what Go writes. Raises as `ensure_kubernetes`."""
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        raise SetupError("Kubernetes is built with Go: install it")
    environment = {**os.environ, **variables}
    return subprocess.run(
        [go, *arguments], cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def _build(module: Path, folder: Path) -> None:
    """Build in a module of our own: upstream's replaces its libraries by folders that a download does not have."""
    upstream = json.loads(run_go(module, "mod", "download", "-json", f"k8s.io/kubernetes@v{VERSION}"))
    original = json.loads(run_go(module, "mod", "edit", "-json", upstream["GoMod"]))
    libraries = VERSION.replace("1.", "v0.", 1)
    replaced = [entry["Old"]["Path"] for entry in original["Replace"]]
    replacements = [f"-replace={path}={path}@{libraries}" for path in replaced]
    packages = [f"k8s.io/kubernetes/cmd/{program}" for program in PROGRAMS]
    imports = "\n".join(f'import _ "{package}"' for package in packages)
    (module / "programs.go").write_text(f"//go:build programs\n\npackage programs\n\n{imports}\n")
    run_go(module, "mod", "init", "programs")
    run_go(module, "mod", "edit", f"-require=k8s.io/kubernetes@v{VERSION}", *replacements)
    run_go(module, "mod", "tidy", "-e")
    # Helm and kubectl refuse a server that does not know its version.
    major, minor, _ = VERSION.split(".")
    known = {"gitVersion": f"v{VERSION}", "gitMajor": major, "gitMinor": minor}
    flags = " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in known.items())
    run_go(module, "build", "-trimpath", f"-ldflags=-s -w {flags}", "-o", f"{folder}/", *packages)
