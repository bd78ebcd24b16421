"""A real Alertmanager, from the Debian package, in the project's cache, without installing it.

Debian's build reads its templates below /usr/share. In our copy of the program that path is a relative one of the same
length, and it runs in the folder that the package was unpacked to.
"""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from anabranch.local.broker import free_ports
from anabranch.local.processes import tethered
from tests.debian_packages import ensure_package
from tests.waiting import wait_until

PACKAGE = "prometheus-alertmanager"
_PROGRAM = f"usr/bin/{PACKAGE}"
_ABSOLUTE, _RELATIVE = b"/usr/share/prometheus/alertmanager", b"usr/share/prometheus//alertmanager"
_CONFIGURATION = """
route: {{receiver: test, group_by: ["..."], group_wait: 0s, group_interval: {group_interval}, repeat_interval: 4h}}
receivers: [{{name: test, webhook_configs: [{{url: "{url}", send_resolved: true}}]}}]
"""


def ensure_alertmanager(cache: Path) -> Path:
    """Return the program, fetched once by apt."""
    return ensure_package(PACKAGE, cache, _use_relative_path) / _PROGRAM


def _use_relative_path(folder: Path) -> None:
    program = folder / _PROGRAM
    program.write_bytes(program.read_bytes().replace(_ABSOLUTE, _RELATIVE))


class RealAlertmanager:
    """One process on loopback, which tells a webhook. Its port and data survive kill -9."""

    def __init__(self, program: Path, folder: Path, receiver: str, group_interval: str = "1s") -> None:
        self._program, self._folder, self._port = program, folder, free_ports(1)[0]
        folder.mkdir()
        (folder / "alertmanager.yml").write_text(_CONFIGURATION.format(url=receiver, group_interval=group_interval))
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        with open(self._folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                tethered(
                    [
                        str(self._program),
                        f"--config.file={self._folder / 'alertmanager.yml'}",
                        f"--storage.path={self._folder / 'data'}",
                        f"--web.listen-address=127.0.0.1:{self._port}",
                        "--cluster.listen-address=",
                        "--data.maintenance-interval=1s",
                    ]
                ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._program.parents[2],
            )
        wait_until(self._answers, 30)

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def alerts(self) -> list[dict[str, Any]]:
        """What it knows and has not resolved."""
        with urlopen(f"{self.url}/api/v2/alerts", timeout=10) as answer:
            found: list[dict[str, Any]] = json.load(answer)
        return found

    def remembers(self, at: float) -> bool:
        """Whether what it told until an instant (seconds since 1970) is on its disk."""
        log = self._folder / "data" / "nflog"
        return log.is_file() and log.stat().st_mtime > at

    def _answers(self) -> bool:
        try:
            return bool(self.alerts() is not None)
        except (URLError, OSError):
            return False
