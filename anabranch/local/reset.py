"""`anabranch local reset`: delete the local run's state unless a run is alive.

The state is the lake, the broker's data, the layouts and the checkpoint.
"""

import shutil
from pathlib import Path

from anabranch.local.supervisor import end_leftovers, lock_folder
from runtime.java_home import SetupError
from schemas.settings.root import Settings

MADE = frozenset(
    {
        "clients.json",
        "collect",
        "controller",
        "kafka",
        "lake",
        "lake-digests.json",
        "load.json",
        "load.part",
        "log",
        "processes.json",
        "pulsar",
        "run.toml",
        "scratch",
        "shadow.html",
        "spark-warehouse",
        "traffic.json",
    }
)
"""Names that a local run makes in `[local] folder`; whatever else is there belongs to somebody else."""
_BESIDE = ("", ".lock", ".holder", ".rebuilding")
"""Endings of what the job makes at the place of its checkpoint."""


def check_is_local(settings: Settings) -> None:
    """Raise `SetupError` for settings that are not those of a local run in this home."""
    home = settings.home.resolve()
    for key, path in (
        ("[local] folder", settings.path(settings.local.folder)),
        ("[stream] checkpoint", settings.path(settings.stream.checkpoint)),
        ("[lake] path", Path(settings.lake_path)),
    ):
        if ("://" in settings.lake_path and key == "[lake] path") or home not in path.resolve().parents:
            raise SetupError(
                f"{key} is {path}, outside of {home}: this is no local run of this folder. Delete by hand what is to go"
            )


def state_of(settings: Settings) -> list[Path]:
    """Return what there is to delete."""
    folder, checkpoint = settings.path(settings.local.folder), settings.path(settings.stream.checkpoint)
    state = [path for path in folder.iterdir() if path.name in MADE] if folder.is_dir() else []
    beside = [checkpoint.with_name(f"{checkpoint.name}{ending}") for ending in _BESIDE]
    return sorted({path for path in (*state, *beside) if path.exists() or path.is_symlink()})


def reset(settings: Settings) -> list[Path]:
    """Delete the state and return what was deleted. Raises `SetupError` while a local run is alive."""
    folder = settings.path(settings.local.folder)
    with lock_folder(folder):
        end_leftovers(folder / "processes.json")
        removed = state_of(settings)
        for path in removed:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    return removed
