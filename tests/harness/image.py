"""Build both images of deploy/Containerfile and run them as containers: `python -m tests.harness.image`.

Needs Linux, Debian's packages buildah, runc and mmdebstrap, and root: an ordinary account runs it under
`buildah unshare --`. The base is made of Debian's packages too, or is that of `--base IMAGE`. Containers run as 10001
on a read-only root, without capabilities. Takes a quarter of an hour and 5 GB. Ends with 1 at the first surprise.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import yaml

from anabranch.local.broker import free_ports
from tests.docs.guides import HOME
from tests.local.running import Run, end
from tests.local.test_install import NO_SOURCES
from tests.waiting import wait_until

BUDGETS_MB = {"app": 400, "job": 1300}
"""Of /opt/anabranch in each image, in megabytes."""
_USER = 10001
_STATE, _PROGRAMS = "/var/lib/anabranch", "opt/anabranch"
_CERTIFICATES = "/etc/ssl/certs"
_BASE_PACKAGES = "python3,python3-venv,python-is-python3,ca-certificates"
_SNAPSHOTS = HOME / "docs" / "examples" / "snapshots.jsonl"
_RUN_SECONDS, _SERVICES_SECONDS = 120, 300
_METRICS = ("STREAM", "EXECUTOR", "COLLECT", "WEB", "ALERTS")


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


def write_bundle(
    image: tuple[Path, dict[str, Any]],
    folder: Path,
    arguments: Sequence[str],
    lake: Path | None = None,
    **variables: str,
) -> list[str]:
    """Write the bundle of a container and return the command that runs it; `folder`/state is its /var/lib/anabranch.

    With a lake, mounted at /lake, it shares the machine's network; otherwise it has a loopback of its own.
    """
    root, settings = image
    mounts = {_STATE: folder / "state"} | ({"/lake": lake} if lake else {})
    for source in mounts.values():
        source.mkdir(parents=True, exist_ok=True)
        os.chown(source, _USER, _USER)
    user, group = map(int, settings["User"].split(":"))
    scratch = {"type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", "mode=1777"]}
    namespaces = ("pid", "ipc", "uts", "mount", *(() if lake else ("network",)))
    specification = {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": user, "gid": group},
            "args": [*settings["Entrypoint"], *arguments],
            "env": [*settings["Env"], *(f"{name}={value}" for name, value in variables.items())],
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
            *(
                {"destination": target, "type": "bind", "source": str(source), "options": ["rbind", "rw"]}
                for target, source in mounts.items()
            ),
        ],
        "linux": {"namespaces": [{"type": kind} for kind in namespaces]},
    }
    (folder / "config.json").write_text(json.dumps(specification))
    return ["runc", "--root", str(folder / "runc"), "run", "--bundle", str(folder), f"{folder.name}-{os.getpid()}"]


def run_container(
    image: tuple[Path, dict[str, Any]], folder: Path, arguments: Sequence[str], stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command of an image to its end, without a network."""
    return subprocess.run(write_bundle(image, folder, arguments), input=stdin, capture_output=True, text=True)


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


def check_services(images: dict[str, tuple[Path, dict[str, Any]]], folder: Path) -> None:
    """Run the services of the compose file beside a Pulsar under load, until they have decided and the page answers."""
    names = ("topics", "job", "executor", "collector", "page", "alerts")
    services = yaml.safe_load((HOME / "deploy" / "compose.yaml").read_text())["services"]
    options = [word for part in ("collect", "stream", "executor", "web") for word in ("--without", part)]
    folder.mkdir()
    run = Run(folder, "--pulsar", *options)
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        wait_until(lambda: "traffic" in run.sessions(), _SERVICES_SECONDS, 0.5)
        bootstrap, url = run.endpoints()
        page, *ports = free_ports(1 + len(_METRICS))
        own = {
            "ANABRANCH_CONTROLLER_URL": url,
            "ANABRANCH_KAFKA_BOOTSTRAP": bootstrap,
            "ANABRANCH_WEB__PORT": str(page),
            "ANABRANCH_POLICY__CLUSTER": "conf/policies/demonstration.toml",
            **{f"ANABRANCH_{section}__METRICS_PORT": str(port) for section, port in zip(_METRICS, ports, strict=True)},
        }
        started = time.monotonic()
        for name in names:
            service = services[name]
            variables = {**service["environment"], "ANABRANCH_METRICS__HOST": "127.0.0.1", **own}
            variables["ANABRANCH_CONTROLLER_TOKEN"] = ""
            arguments = [word.replace("${REPLICATION:-3}", "1") for word in service["command"]]
            image = images["job" if "-job:" in service["image"] else "app"]
            command = write_bundle(image, folder / name, arguments, folder / "lake", **variables)
            with open(folder / f"{name}.out", "wb") as log:
                running[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            if name == "topics":
                assert running.pop(name).wait(_SERVICES_SECONDS) == 0, (folder / "topics.out").read_text()

        def observed() -> bool:
            stopped = {
                name: (folder / f"{name}.out").read_text()[-3000:] for name, one in running.items() if one.poll()
            }
            assert not stopped, stopped
            return any(row["status"] == "observed" for row in run.rows("outcomes", "status"))

        wait_until(observed, _SERVICES_SECONDS, 0.5)
        print(f"services: decided and observed after {time.monotonic() - started:.0f} s", flush=True)
        assert httpx.get(f"http://127.0.0.1:{page}/", timeout=60).status_code == 200
        for port in ports:
            assert httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=60).status_code == 200
        for process in running.values():
            process.terminate()
        assert {name: process.wait(90) for name, process in running.items()} == dict.fromkeys(running, 0)
    finally:
        for process in running.values():
            process.kill()
        run.process.send_signal(signal.SIGTERM)
        run.process.wait(180)
        end(run)


def main() -> None:
    """Build, check and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", help="image to build on, instead of Debian's packages")
    parser.add_argument("--folder", type=Path, help="where images are made and removed again")
    options = parser.parse_args()
    with TemporaryDirectory(prefix="anabranch-image-", dir=options.folder) as name, ExitStack() as stack:
        folder, images = Path(name), {}
        builder = Builder(folder, options.base)
        for target in BUDGETS_MB:
            started = time.monotonic()
            built = builder.build(target)
            print(f"{target}: built in {time.monotonic() - started:.0f} s", flush=True)
            images[target] = stack.enter_context(builder.mounted(built))
            check_image(images[target], folder / target, target)
        check_local_run(images["job"], folder / "job")
        check_services(images, folder / "services")


if __name__ == "__main__":
    main()
