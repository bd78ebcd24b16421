"""Paths of the metadata store: `/a/b`, absolute, without an empty, `.` or `..` name.

Stage: below both stores.
"""

from __future__ import annotations

ROOT = "/"


def check_path(path: str) -> str:
    """Return a valid path. Raises `ValueError` for others, and for the root, which has no value."""
    names = path.split("/")
    if names[0] or len(names) < 2 or any(name in ("", ".", "..") or not name.isprintable() for name in names[1:]):
        raise ValueError(f"{path!r} is not a path: it must look like /a/b")
    return path


def parent(path: str) -> str:
    """Return the path above; that of `/a` is the root."""
    return path.rpartition("/")[0] or ROOT


def ancestors(path: str) -> list[str]:
    """Return the paths above except the root, the highest first."""
    names = path.split("/")
    return ["/".join(names[:length]) for length in range(2, len(names))]
