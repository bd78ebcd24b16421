"""Resources used by a job or controller: cores and memory of its processes, bytes of its folders."""

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil

from streaming.job.workers import STAGE_VARIABLE


def cpu_seconds(jvm: int) -> float:
    """Processor time so far of this process, the JVM and all that the JVM has started."""
    return sum(process_seconds(pid) for pid in (jvm, os.getpid(), *descendants(jvm)))


def seconds_by_part(jvm: int) -> dict[str, float]:
    """Return the CPU seconds so far, by part.

    Parts are the driver's Python, the JVM by kind of thread, the Python workers by stage, and other processes started
    from here (a broker, feeds). Only processes that still run count; ended threads of the JVM are in "JVM, rest".
    """
    of_spark = {jvm, *descendants(jvm)}
    by_part = {
        "broker and feeds": sum(process_seconds(pid) for pid in descendants(os.getpid()) if pid not in of_spark),
        "driver's Python": process_seconds(os.getpid()),
        **dict.fromkeys(("decode workers", "state workers", *set(_THREADS.values())), 0.0),
    }
    for pid in descendants(jvm):
        with suppress(psutil.Error):
            if (stage := psutil.Process(pid).environ().get(STAGE_VARIABLE)) is not None:
                by_part[f"{stage} workers"] += process_seconds(pid)
    remainder = process_seconds(jvm)
    for thread in Path(f"/proc/{jvm}/task").iterdir():
        with suppress(OSError):
            name, times = (
                (thread / "comm").read_text().strip(),
                (thread / "stat").read_text().rpartition(")")[2].split(),
            )
            seconds = (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")
            kind = next((kind for begin, kind in _THREADS.items() if name.startswith(begin)), None)
            if kind is not None:
                by_part[kind] += seconds
                remainder -= seconds
    return {**by_part, "JVM, rest": max(remainder, 0.0)}


_THREADS = {
    "Executor task": "JVM, tasks",
    "stream execut": "JVM, the stream's thread",
    "C1 Compiler": "JVM, compiler",
    "C2 Compiler": "JVM, compiler",
    "VM Thread": "JVM, garbage",
    "GC Thread": "JVM, garbage",
}
"""The kinds of the JVM's threads, by how their names begin; the serial collector works in the VM's own thread."""


def process_seconds(pid: int) -> float:
    """Processor time so far of one process; 0 when it has ended."""
    with suppress(psutil.Error):
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)
    return 0.0


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a process of its own: what it leaves in memory is nothing to the next call."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def resident_mb(jvm: int) -> dict[str, int]:
    """Return resident memory in MiB of the driver, the JVM, the largest Python worker and all workers."""
    workers = [resident_kb(pid) // 1024 for pid in descendants(jvm)]
    return {
        "driver": resident_kb(os.getpid()) // 1024,
        "jvm": resident_kb(jvm) // 1024,
        "largest worker": max(workers, default=0),
        "all workers": sum(workers),
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
