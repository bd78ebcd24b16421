"""What a running job or controller takes of the machine: cores and memory of its processes, bytes of its folders."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def cpu_seconds(jvm: int) -> float:
    """Processor time so far of this process, the JVM and all that the JVM has started."""
    return sum(process_seconds(pid) for pid in (jvm, os.getpid(), *descendants(jvm)))


def process_seconds(pid: int) -> float:
    """Processor time so far of one process."""
    fields = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def resident_mb(jvm: int) -> dict[str, int]:
    """Resident memory in MiB of the driver's Python, of the JVM, and of the largest Python worker."""
    workers = [resident_kb(pid) // 1024 for pid in descendants(jvm)]
    return {
        "driver": resident_kb(os.getpid()) // 1024,
        "jvm": resident_kb(jvm) // 1024,
        "largest worker": max(workers, default=0),
    }


def resident_kb(pid: int) -> int:
    """Resident memory of one process, KiB."""
    for line in _read(Path(f"/proc/{pid}/status")).splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


def folder_bytes(folder: Path) -> int:
    """Size of all files below a folder."""
    total = 0
    for file in folder.rglob("*"):
        with suppress(OSError):
            total += file.stat().st_size if file.is_file() else 0
    return total


def descendants(pid: int) -> list[int]:
    """Ids of all processes below one."""
    with suppress(OSError):
        texts = [_read(task / "children") for task in Path(f"/proc/{pid}/task").iterdir()]
        children = [int(child) for text in texts for child in text.split()]
        return children + [found for child in children for found in descendants(child)]
    return []


def _read(file: Path) -> str:
    """What a file says; nothing when what it tells of has ended meanwhile."""
    try:
        return file.read_text()
    except OSError:
        return ""
