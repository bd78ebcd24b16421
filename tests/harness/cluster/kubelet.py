"""Scheduler and kubelet of a pretended node: pods are bound to it, and run or end as told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from urllib.error import HTTPError

from tests.harness.cluster.control_plane import ControlPlane

_NODE = "pretended"
_LOOK_SECONDS = 0.3
_MISSING, _CONFLICT = 404, 409


class PretendedNode:
    """Binds every pod, reports it as ready or ended, and confirms deletions."""

    def __init__(self, plane: ControlPlane, succeeds: Callable[[dict[str, Any]], bool]) -> None:
        """`succeeds` runs a pod that is to end, or pretends to, and says whether it does so with success."""
        self._plane, self._succeeds = plane, succeeds
        self._ended = threading.Event()
        self.still = threading.Lock()
        """While somebody holds this, it does nothing."""
        self._thread = threading.Thread(target=self._loop, name="pretended node", daemon=True)

    def start(self) -> None:
        """Register the node and start to look at pods."""
        self._plane.request("POST", "/api/v1/nodes", {"metadata": {"name": _NODE, "labels": {"disk": "ssd"}}})
        ready = {"type": "Ready", "status": "True", "reason": "Pretended"}
        self._plane.request("PATCH", f"/api/v1/nodes/{_NODE}/status", {"status": {"conditions": [ready]}})
        self._thread.start()

    def end(self) -> None:
        """Stop looking."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _loop(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            with self.still:
                for pod in self._plane.request("GET", "/api/v1/pods")["items"]:
                    try:
                        self._advance_pod(pod)
                    except HTTPError as error:
                        # Somebody else has changed or deleted it; the next look sees how it is now.
                        if error.code not in (_MISSING, _CONFLICT):
                            raise

    def _advance_pod(self, pod: dict[str, Any]) -> None:
        """Take one step of a pod's life: 1. bound, 2. running or ended, 3. deleted."""
        metadata, spec = pod["metadata"], pod["spec"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        if "deletionTimestamp" in metadata:
            self._plane.request("DELETE", path, {"gracePeriodSeconds": 0})
        elif "nodeName" not in spec:
            target = {"apiVersion": "v1", "kind": "Node", "name": _NODE}
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": metadata["name"]}, "target": target}
            self._plane.request("POST", f"{path}/binding", binding)
        elif pod["status"]["phase"] == "Pending":
            if spec["restartPolicy"] == "Never":
                status: dict[str, Any] = {"phase": "Succeeded" if self._succeeds(pod) else "Failed"}
            else:
                conditions = [{"type": kind, "status": "True"} for kind in ("Initialized", "ContainersReady", "Ready")]
                status = {"phase": "Running", "conditions": conditions}
            self._plane.request("PATCH", f"{path}/status", {"status": status})
