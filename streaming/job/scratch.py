"""A folder for temporary files of this process, such as the working copy of the state.

Stage: start-up. A killed process cannot remove its folder: the next one does, so that repeated crashes do not fill
the disk. A live process holds the operating system's lock on a file in its folder.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

from filelock import FileLock, Timeout

from schemas.settings.root import SettingsError

_HELD = ".held"
_MAX_SOCKET_FOLDER_BYTES = 63
"""Java allows 106 bytes for paths of Unix sockets, one less than Linux, and Spark's names have 43."""


@contextmanager
def scratch_folder(root: Path) -> Iterator[Path]:
    """Create a folder in `root`, removed at the end, and remove dead processes'. Raises `SettingsError`."""
    with ExitStack() as opened:
        try:
            own = _new_folder(root, opened)
        except OSError as error:
            problem = f"no temporary files can be made in {root} ([local] folder): {error.strerror}"
            raise SettingsError(problem) from error
        yield own


def socket_folder(scratch: Path) -> AbstractContextManager[Path]:
    """Return a private folder for the Unix sockets between the JVM and its Python processes.

    It is `scratch` itself, or one in the system's temporary folder when sockets cannot be in `scratch`: PySpark 4.2
    turns the path of the state socket to lower case, and Java only accepts short paths. Spark does not authenticate
    clients of these sockets. Raises `SettingsError`.
    """
    if len(os.fsencode(scratch)) <= _MAX_SOCKET_FOLDER_BYTES and _is_lower_case(scratch):
        return nullcontext(scratch)
    parents = (Path(gettempdir()), Path("/tmp"))
    if (parent := next(filter(_is_lower_case, parents), None)) is None:
        problem = f"{scratch} and {parents[0]} have upper-case letters, which Spark's sockets cannot be below"
        raise SettingsError(f"{problem}: set [local] folder, or TMPDIR, to a path without")
    root = parent / f"anabranch-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    if root.is_symlink() or root.stat().st_uid != os.getuid():
        raise SettingsError(f"{root} belongs to somebody else: remove it, or choose a shorter path for [local] folder")
    return scratch_folder(root)


def _is_lower_case(folder: Path) -> bool:
    return str(folder) == str(folder).lower()


def _new_folder(root: Path, opened: ExitStack) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    with FileLock(root / ".lock"):
        for folder in root.glob("job-*"):
            if not _is_held(folder):
                shutil.rmtree(folder, ignore_errors=True)
        own = Path(opened.enter_context(TemporaryDirectory(prefix="job-", dir=root, ignore_cleanup_errors=True)))
        opened.enter_context(FileLock(own / _HELD))
    return own


def _is_held(folder: Path) -> bool:
    held = folder / _HELD
    if not held.exists():
        return False
    try:
        with FileLock(held, timeout=0):
            return False
    except Timeout:
        return True
