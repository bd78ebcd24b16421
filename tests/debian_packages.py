"""Programs of Debian packages in the project's cache, without installing them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock


def ensure_package(package: str, cache: Path, adapt: Callable[[Path], None] = lambda folder: None) -> Path:
    """Return the folder with the unpacked package, fetched once by apt, which checks its hash.

    `adapt` changes the unpacked files before others see them.
    """
    cache.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{cache}.lock"):
        if not (cache / "usr").is_dir():
            folder = cache.with_name(f"{cache.name}-{os.getpid()}")
            folder.mkdir()
            _download(package, folder)
            [archive] = folder.glob("*.deb")
            subprocess.run(["dpkg-deb", "-x", archive, folder], check=True)
            archive.unlink()
            adapt(folder)
            shutil.rmtree(cache, ignore_errors=True)
            folder.rename(cache)
    return cache


def _download(package: str, folder: Path) -> None:
    if subprocess.run(["apt-get", "download", package], cwd=folder, capture_output=True, check=False).returncode:
        (folder / "lists" / "partial").mkdir(parents=True)
        own = ["-o", f"Dir::State::lists={folder / 'lists'}", "-o", "APT::Sandbox::User="]
        subprocess.run(["apt-get", *own, "update"], capture_output=True, check=True)
        subprocess.run(["apt-get", *own, "download", package], cwd=folder, capture_output=True, check=True)
