"""What a running job or controller takes of the machine: cores and memory of its processes, bytes of its folders."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import psutil


def cpu_seconds(jvm: int) -> float:
    """Processor time so far of this process, the JVM and all that the JVM has started."""
    return sum(process_seconds(pid) for pid in (jvm, os.getpid(), *descendants(jvm)))


def process_seconds(pid: int) -> float:
    """Processor time so far of one process; 0 when it has ended."""
    with suppress(psutil.Error):
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)
    return 0.0


def resident_mb(jvm: int) -> dict[str, int]:
    """Resident memory in MiB of the driver's Python, of the JVM, and of the largest Python worker."""
    workers = [resident_kb(pid) // 1024 for pid in descendants(jvm)]
    return {
        "driver": resident_kb(os.getpid()) // 1024,
        "jvm": resident_kb(jvm) // 1024,
        "largest worker": max(workers, default=0),
    }


def resident_kb(pid: int) -> int:
    """Resident memory of one process, KiB; 0 when it has ended."""
    with suppress(psutil.Error):
        return int(psutil.Process(pid).memory_info().rss // 1024)
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
    with suppress(psutil.Error):
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return []
