"""Chromium with its driver, located or installed, for the page's tests and pictures.

Stage: set-up. Debian's packages `chromium` and `chromium-driver`, which fit each other. As root on a machine with apt
they are installed when they are missing; elsewhere it is said what to install.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock

from runtime.java_home import SetupError

_PACKAGES = ("chromium", "chromium-driver")
_LOCK = Path(tempfile.gettempdir()) / "anabranch-browser.lock"


class Browser(NamedTuple):
    """Two programs."""

    chromium: Path
    driver: Path


def ensure_browser(say: Callable[[str], None] = lambda _: None) -> Browser:
    """Chromium and its driver. Raises `SetupError` with what to install."""
    with FileLock(_LOCK):
        if (found := _found()) is not None:
            return found
        apt = shutil.which("apt-get")
        if apt is None or os.geteuid() != 0:
            raise SetupError(
                "there is no Chromium with its driver on the PATH: install Debian's packages chromium and "
                "chromium-driver, or your system's Chromium and a chromedriver of the same version"
            )
        say("installing Chromium and its driver (once, 120 MB) …")
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in ([apt, "update"], [apt, "install", "--yes", "--no-install-recommends", *_PACKAGES]):
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                said = (done.stderr.strip() or done.stdout.strip())[-500:]
                raise SetupError(f"Chromium could not be installed: {' '.join(command)}: {said}")
        if (found := _found()) is None:
            raise SetupError("Chromium was installed, and is not on the PATH")
        return found


def _found() -> Browser | None:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    return None if chromium is None or driver is None else Browser(Path(chromium), Path(driver))
