"""What a running job takes of the machine: cores and memory of its processes, bytes of its folders."""

from __future__ import annotations

import os
from pathlib import Path


def cpu_seconds(jvm: int) -> float:
    """Processor time so far of this process, the JVM and all that the JVM has started."""
    ticks = 0
    for pid in (jvm, os.getpid(), *descendants(jvm)):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_mb(jvm: int) -> dict[str, int]:
    """Resident memory in MiB of the driver's Python, of the JVM, and of the largest Python worker."""
    workers = [_resident(pid) for pid in descendants(jvm)]
    return {"driver": _resident(os.getpid()), "jvm": _resident(jvm), "largest worker": max(workers, default=0)}


def folder_bytes(folder: Path) -> int:
    """Size of all files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def descendants(pid: int) -> list[int]:
    """Ids of all processes below one."""
    children = [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
    return children + [found for child in children for found in descendants(child)]


def _resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) // 1024
    return 0
