"""`anabranch reset`: forgets the local run (lake, broker data, layouts, checkpoints) unless one is alive."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from lab.java_home import SetupError
from lab.supervisor import end_leftovers, lock_folder
from schemas.settings import Settings, load_settings


def reset(settings: Settings) -> list[Path]:
    """Deletes the state, and answers what was deleted; raises `SetupError` while a local run is alive."""
    folder = settings.path(settings.local.folder)
    checkpoints = settings.path(settings.stream.checkpoint).parent
    with lock_folder(folder):
        end_leftovers(folder / "processes.json")
        kept = {"README.md", "run.lock"}
        gone = [
            path for root in (folder, checkpoints) if root.is_dir() for path in root.iterdir() if path.name not in kept
        ]
        for path in gone:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
    return gone


if __name__ == "__main__":
    try:
        removed = reset(load_settings())
    except SetupError as error:
        sys.exit(f"anabranch: {error}")
    print(f"forgot {len(removed)} files and folders of earlier runs" if removed else "nothing to forget")
