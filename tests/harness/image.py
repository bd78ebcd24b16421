"""Build both images of deploy/Containerfile and run them as containers: `python -m tests.harness.image`.

Needs root on Linux, and Debian's packages buildah, runc and mmdebstrap. The base is made of Debian's packages too, or
is that of `--base IMAGE`. Containers run as 10001 on a read-only root, without capabilities or a network. Takes about
ten minutes and 5 GB below `--folder`. Ends with 1 at the first surprise.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.docs.guides import HOME
from tests.local.test_install import NO_SOURCES

BUDGETS_MB = {"app": 400, "job": 1300}
"""Of /opt/anabranch in each image, in megabytes."""
_USER = 10001
_STATE, _PROGRAMS = "/var/lib/anabranch", "opt/anabranch"
_CERTIFICATES = "/etc/ssl/certs"
_BASE_PACKAGES = "python3,python3-venv,python-is-python3,ca-certificates"
_SNAPSHOTS = HOME / "docs" / "examples" / "snapshots.jsonl"
_RUN_SECONDS = 120


class Builder:
    """Images of the Containerfile in a store of their own."""

    def __init__(self, folder: Path, base: str | None) -> None:
        """`base`: image to build on; without one it is made of Debian's packages."""
        self._folder, self._context = folder, folder / "context"
        (folder / "tmp").mkdir()
        shutil.copytree(HOME, self._context, ignore=NO_SOURCES)
        wheel = [sys.executable, "-m", "uv", "build", "--quiet", "--wheel", "--out-dir", "dist", "."]
        subprocess.run(wheel, cwd=self._context, check=True)
        self._base = base or self._make_base()

    def build(self, target: str) -> str:
        """Build one image; returns its name."""
        file = self._context / "deploy" / "Containerfile"
        self._buildah_build(file, self._context, target, "--target", target, "--build-arg", f"BASE={self._base}")
        return target

    @contextmanager
    def mounted(self, image: str) -> Iterator[tuple[Path, dict[str, Any]]]:
        """The image's files, and its settings of OCI."""
        container = self._buildah("from", "--pull-never", image)
        try:
            settings = json.loads(self._buildah("inspect", "--type", "image", image))["OCIv1"]["config"]
            yield Path(self._buildah("mount", container)), settings
        finally:
            self._buildah("rm", container)

    def _make_base(self) -> str:
        context = self._folder / "base"
        context.mkdir()
        include = f"--include={_BASE_PACKAGES}"
        subprocess.run(
            ["mmdebstrap", "--quiet", "--variant=minbase", include, "bookworm", context / "base.tar"], check=True
        )
        # uv reads no certificates of the system unless told so.
        lines = ("FROM scratch", "ADD base.tar /", f"ENV SSL_CERT_FILE={_CERTIFICATES}/ca-certificates.crt")
        (context / "Containerfile").write_text("\n".join(lines))
        self._buildah_build(context / "Containerfile", context, "base")
        shutil.rmtree(context)
        return "localhost/base"

    def _buildah_build(self, file: Path, context: Path, name: str, *options: str) -> None:
        # The machine's certificates, which may have more authorities than Debian; what a step writes there is dropped.
        own = [
            "--isolation",
            "chroot",
            "--network",
            "host",
            "--layers",
            "--volume",
            f"{_CERTIFICATES}:{_CERTIFICATES}:O",
        ]
        self._buildah("build", *own, *options, "--file", str(file), "--tag", name, str(context))

    def _buildah(self, *arguments: str) -> str:
        store = ["--root", str(self._folder / "storage"), "--runroot", str(self._folder / "run")]
        environment = os.environ | {"TMPDIR": str(self._folder / "tmp")}
        done = subprocess.run(["buildah", *store, *arguments], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout.strip()


def run_container(
    image: tuple[Path, dict[str, Any]], folder: Path, arguments: Sequence[str], stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command of an image to its end; `folder` is its bundle, and `folder`/state its /var/lib/anabranch.

    Its network is a loopback of its own.
    """
    root, settings = image
    state = folder / "state"
    state.mkdir(parents=True, exist_ok=True)
    os.chown(state, _USER, _USER)
    # Of those who named no other user, which is part of the test.
    user, group = map(int, settings["User"].split(":"))
    scratch = {"type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", "mode=1777"]}
    specification = {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": user, "gid": group},
            "args": [*settings["Entrypoint"], *arguments],
            "env": settings["Env"],
            "cwd": settings["WorkingDir"],
            "capabilities": {},
            "noNewPrivileges": True,
        },
        "root": {"path": str(root), "readonly": True},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
            {"destination": "/dev/shm", **scratch},
            {"destination": "/tmp", **scratch},
            {"destination": _STATE, "type": "bind", "source": str(state), "options": ["rbind", "rw"]},
        ],
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")]},
    }
    (folder / "config.json").write_text(json.dumps(specification))
    command = ["runc", "--root", str(folder / "runc"), "run", "--bundle", str(folder)]
    return subprocess.run([*command, f"image-{os.getpid()}"], input=stdin, capture_output=True, text=True)


def check_image(image: tuple[Path, dict[str, Any]], folder: Path, target: str) -> None:
    """Check size and bill of materials, then decide."""
    root, _ = image
    size = sum(file.lstat().st_blocks * 512 for file in (root / _PROGRAMS).rglob("*")) / 1e6
    print(f"{target}: {size:.0f} of at most {BUDGETS_MB[target]} MB", flush=True)
    assert size <= BUDGETS_MB[target]

    bill = json.loads((root / _PROGRAMS / "sbom.json").read_text())
    listed = {
        re.sub(r"[-_.]+", "_", component["name"]).lower() for component in bill["components"] if "purl" in component
    }
    [packages] = (root / _PROGRAMS).glob("lib/python3*/site-packages")
    installed = {re.sub(r"[-_.]+", "_", path.name.split("-")[0]).lower() for path in packages.glob("*.dist-info")}
    assert listed == installed, listed ^ installed
    jars = list((root / _PROGRAMS).rglob("*.jar"))
    assert len(jars) == sum("hashes" in component for component in bill["components"])
    print(f"{target}: {len(listed)} packages and {len(jars)} jars listed", flush=True)

    started = time.monotonic()
    done = run_container(image, folder, ["decide", "-"], _SNAPSHOTS.read_text())
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(_SNAPSHOTS.read_text().splitlines())
    print(f"{target}: decided after {time.monotonic() - started:.1f} s", flush=True)


def check_local_run(image: tuple[Path, dict[str, Any]], folder: Path) -> None:
    """Run the whole system in one container."""
    options = ["run", "--local", "--no-screen", "--for", f"{_RUN_SECONDS}s", "--report", f"{_STATE}/report.json"]
    done = run_container(image, folder, options)
    assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
    report = json.loads((folder / "state" / "report.json").read_text())
    assert report["integrity"]["ok"], report["integrity"]
    assert report["restarts"] == 0, report["parts"]
    assert report["applied"], report["decisions"]
    print(f"job: {report['batches']['count']} batches, applied {report['applied']}", flush=True)


def main() -> None:
    """Build, check and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", help="image to build on, instead of Debian's packages")
    parser.add_argument("--folder", type=Path, help="where images are made and removed again")
    options = parser.parse_args()
    with TemporaryDirectory(prefix="anabranch-image-", dir=options.folder) as name:
        builder = Builder(Path(name), options.base)
        for target in BUDGETS_MB:
            started = time.monotonic()
            built = builder.build(target)
            print(f"{target}: built in {time.monotonic() - started:.0f} s", flush=True)
            with builder.mounted(built) as image:
                check_image(image, Path(name) / target, target)
                if target == "job":
                    check_local_run(image, Path(name) / target)


if __name__ == "__main__":
    main()
