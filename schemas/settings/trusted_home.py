"""Trust in a settings folder that was found, not named: settings direct secrets and code execution.

Stage: under `settings`. The class of fault that git closed with `safe.directory`.
"""

import grp
import os
import pwd
import stat
from contextlib import suppress
from pathlib import Path

from schemas.settings.section import SettingsError


def check_trusted(home: Path, files: tuple[str, ...], variable: str) -> None:
    """Raise `SettingsError` unless only the user or root owns and can write a folder and these files."""
    for path in (home, *(home / file for file in files)):
        # A link is followed, and its target checked.
        with suppress(FileNotFoundError):
            if (fault := _trust_fault(path.stat())) is not None:
                raise SettingsError(
                    f"the settings of {home} were found, and not taken: {path} {fault}, who could have secrets sent "
                    f"elsewhere. If you trust it, name it: --home {home}, or {variable}"
                )


def _trust_fault(status: os.stat_result) -> str | None:
    if status.st_uid not in (0, os.geteuid()):
        return f"belongs to {_user(status.st_uid)}"
    if status.st_mode & stat.S_IWOTH:
        return "may be written by everybody"
    if status.st_mode & stat.S_IWGRP and not _is_private(status.st_gid):
        return f"may be written by all of the group {status.st_gid}"
    return None


def _is_private(group: int) -> bool:
    """Return whether a group has a single user, as many systems create one per user."""
    if group == 0:
        return True
    with suppress(KeyError):
        entry = grp.getgrgid(group)
        return entry.gr_name == pwd.getpwuid(os.geteuid()).pw_name and not entry.gr_mem
    return False


def _user(number: int) -> str:
    with suppress(KeyError):
        return pwd.getpwuid(number).pw_name
    return f"user {number}"
