"""`anabranch doctor`: is this machine, and this set-up, good for a run? Each check says what to do when it is not.

Neighbours: the set-up (`lab.setup`), the local run. Changes nothing.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lab.broker import check_port_is_free
from lab.java_home import SetupError, find_java, java_version
from lab.setup import LOCALFS_JAR, read_checksums, wrong_jars
from schemas.delta import open_table
from schemas.settings import Settings, SettingsError, load_settings
from schemas.tables import TABLES

LEAST_MEMORY_MB = 4_000


@dataclass(frozen=True)
class Finding:
    """One check: whether it is well, what was found, and what to do when it is not."""

    check: str
    ok: bool
    found: str
    remedy: str = ""


def examine(home: Path | None, files: list[Path]) -> list[Finding]:
    """All checks, in the order in which a new machine would fail them."""
    findings = [_python(), _guard("java", _java), _guard("packages", _packages)]
    try:
        settings = load_settings(files, home)
    except SettingsError as error:
        return [
            *findings,
            Finding("settings", False, str(error), "correct the file; conf/anabranch.toml describes every key"),
        ]
    findings.append(Finding("settings", True, f"{settings.home}/conf/anabranch.toml"))
    for check in (_jars, _disk, _memory, _ports, _local_run, _lake):
        findings += _guarded(check, settings)
    return findings


def _guard(name: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except SetupError as error:
        what, _, remedy = str(error).partition(": ")
        return Finding(name, False, what, remedy)


def _guarded(check: Callable[[Settings], Iterator[Finding]], settings: Settings) -> list[Finding]:
    found = []
    try:
        found.extend(check(settings))
    except (SetupError, OSError) as error:
        found.append(Finding(check.__name__.strip("_"), False, str(error), "see the message"))
    return found


def _python() -> Finding:
    version = sys.version.split()[0]
    return Finding(
        "python", sys.version_info >= (3, 10), version, "Python 3.10 or newer is needed: set PYTHON for make"
    )


def _java() -> Finding:
    java = find_java()
    return Finding("java", True, f"{java_version(java)} ({java})")


def _packages() -> Finding:
    lock = Path(__file__).resolve().parent.parent / "requirements.lock"
    if not lock.is_file():
        return Finding("packages", True, "no lock file here: installed as a package")
    pinned: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([A-Za-z0-9._-]+)==([^ \\;]+)", lock.read_text(), re.MULTILINE):
        pinned.setdefault(name, set()).add(version)
    wrong = []
    for name, versions in pinned.items():
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if installed not in versions:
            wrong.append(f"{name} {installed} instead of {' or '.join(sorted(versions))}")
    return Finding("packages", not wrong, "; ".join(wrong) or f"{len(pinned)} as locked", "make clean setup")


def _jars(settings: Settings) -> Iterator[Finding]:
    for name in ("spark", "kafka"):
        expected = read_checksums(settings.home / "conf" / "jars" / f"{name}.sha256")
        folder = settings.path(settings.local.jars) / name
        wrong = wrong_jars(folder, expected)
        if name == "spark" and not (folder / LOCALFS_JAR).is_file():
            wrong.append(f"{LOCALFS_JAR} is missing")
        found = "; ".join(wrong[:3]) if wrong else f"{len(expected)} with the right SHA-256"
        yield Finding(f"jars for {name}", not wrong, found, f"delete {folder} and run make setup")


def _disk(settings: Settings) -> Iterator[Finding]:
    folder = settings.path(settings.local.folder)
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free // 1_000_000
    wanted = settings.local.free_disk_mb
    yield Finding("disk", free >= wanted, f"{free:,} MB free, {wanted:,} wanted", "make room, or make reset")
    yield Finding("writable", os.access(existing, os.W_OK), str(existing), "give this user the right to write there")


def _memory(_: Settings) -> Iterator[Finding]:
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 1_000_000
    except (ValueError, OSError):
        return
    yield Finding(
        "memory", total >= LEAST_MEMORY_MB, f"{total:,} MB", f"{LEAST_MEMORY_MB:,} MB is the least for a local run"
    )
    yield Finding("cores", True, str(os.cpu_count()))


def _ports(settings: Settings) -> Iterator[Finding]:
    for what, port in (("broker", settings.local.broker_port), ("controller", settings.controller.port)):
        if port == 0:
            yield Finding(f"port of the {what}", True, "a free one is chosen")
            continue
        try:
            check_port_is_free(port, f"the {what}")
        except SetupError as error:
            yield Finding(
                f"port of the {what}", False, str(error).partition(":")[0], f"stop who holds {port}, or set 0"
            )
        else:
            yield Finding(f"port of the {what}", True, f"{port} is free")


def _local_run(settings: Settings) -> Iterator[Finding]:
    lock = settings.path(settings.local.folder) / "run.lock"
    holder = lock.read_text().strip() if lock.is_file() else ""
    alive = holder.isdigit() and Path(f"/proc/{holder}").exists()
    yield Finding("local run", True, f"alive, process {holder}" if alive else "none is running")


def _lake(settings: Settings) -> Iterator[Finding]:
    if "://" in settings.lake_path:
        return
    found = {name: open_table(settings.lake_path, table) for name, table in TABLES.items()}
    made = [name for name, table in found.items() if table is not None]
    yield Finding("lake", True, f"{len(made)} of {len(TABLES)} tables in {settings.lake_path}")
