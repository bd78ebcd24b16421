"""etcd, API server and controllers of one Kubernetes on loopback."""

from __future__ import annotations

import json
import secrets
import ssl
import subprocess
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from anabranch.local.broker import free_ports
from anabranch.local.processes import tethered
from tests.harness.cluster.programs import ensure_etcd, ensure_kubernetes
from tests.waiting import wait_until

_START_SECONDS = 180
_STOP_SECONDS = 20
_MERGE_PATCH = "application/merge-patch+json"
_NO_NODES = "-node-lifecycle-controller,-node-ipam-controller,-taint-eviction-controller"
"""Controllers that would take away a node that reports no heartbeats."""


class ControlPlane:
    """One Kubernetes without nodes. Ends at the latest with the thread that started it (Linux)."""

    def __init__(self, folder: Path) -> None:
        """`folder` holds its state, logs and keys."""
        self._folder = folder
        self._token = secrets.token_hex()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._etcd_port, peer_port, port = free_ports(3)
        self._peer, self.url = f"http://127.0.0.1:{peer_port}", f"https://127.0.0.1:{port}"
        self.kubeconfig = folder / "kubeconfig"
        """For kubectl and helm, as an administrator."""
        self._tls = ssl.create_default_context()
        # It makes its certificate itself, in a folder of ours.
        self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE

    def start(self) -> None:
        """Start everything and wait until the API server is ready."""
        programs = ensure_kubernetes()
        self._write_files()
        etcd = f"http://127.0.0.1:{self._etcd_port}"
        self._run(
            [str(ensure_etcd()), f"--data-dir={self._folder / 'etcd'}", "--unsafe-no-fsync"],
            [f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}"],
            [f"--listen-peer-urls={self._peer}", f"--initial-advertise-peer-urls={self._peer}"],
            [f"--initial-cluster=default={self._peer}"],
        )
        keys = self._folder / "accounts.key"
        self._run(
            [str(programs / "kube-apiserver"), f"--etcd-servers={etcd}", f"--cert-dir={self._folder / 'certificates'}"],
            ["--bind-address=127.0.0.1", f"--secure-port={self.url.rpartition(':')[2]}"],
            ["--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.0.0.0/24"],
            ["--authorization-mode=RBAC", f"--token-auth-file={self._folder / 'tokens.csv'}"],
            ["--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={keys}"],
            [f"--service-account-signing-key-file={keys}"],
        )
        wait_until(self._is_ready, _START_SECONDS, 0.2)
        self._run(
            [str(programs / "kube-controller-manager"), f"--kubeconfig={self.kubeconfig}", "--leader-elect=false"],
            [f"--service-account-private-key-file={keys}", "--secure-port=0", f"--controllers=*,{_NO_NODES}"],
        )

    def end(self) -> None:
        """End all of it."""
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the answer to a request. Raises `urllib.error.HTTPError`."""
        kind = _MERGE_PATCH if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind}
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.url + path, data, headers, method=method)
        with urlopen(request, timeout=30, context=self._tls) as response:
            answer: dict[str, Any] = json.load(response)
            return answer

    def _is_ready(self) -> bool:
        for process in self._processes:
            assert process.poll() is None, f"{process.args!r} ended: see the logs in {self._folder}"
        try:
            return bool(self.request("GET", "/api/v1/namespaces/default"))
        except (HTTPError, URLError, OSError):
            return False

    def _write_files(self) -> None:
        self._folder.mkdir(parents=True)
        (self._folder / "tokens.csv").write_text(f"{self._token},admin,admin,system:masters\n")
        subprocess.run(["openssl", "genrsa", "-out", self._folder / "accounts.key", "2048"], check=True)
        cluster = {"server": self.url, "insecure-skip-tls-verify": True}
        configuration = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "local", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": self._token}}],
            "contexts": [{"name": "local", "context": {"cluster": "local", "user": "admin"}}],
            "current-context": "local",
        }
        # JSON is YAML.
        self.kubeconfig.write_text(json.dumps(configuration))
        self.kubeconfig.chmod(0o600)

    def _run(self, *arguments: list[str]) -> None:
        command = [argument for group in arguments for argument in group]
        with open(self._folder / f"{Path(command[0]).name}.log", "ab") as log:
            self._processes.append(
                subprocess.Popen(tethered(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            )
