"""Several controllers on a ZooKeeper: changes per second, start, memory, and failover of topics.

Stage: a part of `benchmarks.controller`. Real processes on a real ZooKeeper of one server on the same machine. The
store is filled directly, so that ten thousand topics take seconds: each has been split once and its sealed segment is
kept for a day, so that it needs a leader at all times: the most expensive kind. Changes are measured over REST on new
topics; the floor is one small node made in ZooKeeper. Taken over: from the start of the only node, or from kill -9 of
the one that leads all, until the other leads the last topic; a session of 2 s is part of it.
"""

import os
import signal
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from kazoo.client import KazooClient

from anabranch.controller.layouts.reader import LayoutReader
from anabranch.controller.metadata import store_paths
from anabranch.controller.metadata.base import Op, Put
from anabranch.controller.metadata.zookeeper import ZooKeeperStore
from anabranch.local.setup import Jars
from benchmarks.processes import process_seconds, resident_kb
from benchmarks.record import machine_now
from benchmarks.serving import NAMESPACE, controller, rates
from decisions.topic.layout import SegmentLayout
from tests.harness.zookeeper import EmbeddedZooKeeper

MEASURED = 200
"""Topics whose creation and split are measured."""
SESSION_S = 2.0
MAX_WAIT_S = 240.0
NONE = f"{NAMESPACE}/none"
"""A topic that does not exist: the answer about it is the first one of a node that has just started."""
QUIET = 0.1
"""Share of a core."""


def measure_nodes(work: Path, jars: Jars, bootstrap: str, sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    """One row for each number of topics; seconds, KiB and calls a second."""
    return [_measure(work / f"nodes-{topics}", jars, bootstrap, topics) for topics in sizes]


def _measure(work: Path, jars: Jars, bootstrap: str, topics: int) -> dict[str, Any]:
    zookeeper = EmbeddedZooKeeper(work / "zookeeper", jars.zookeeper, heap="512m")
    zookeeper.start()
    nodes = ZooKeeperStore(zookeeper.address, "/bench", session_s=30)
    floor = _ZooKeeperFloor(zookeeper.address)
    first_node, second_node = (_settings(work, name, bootstrap, zookeeper.address) for name in ("one", "other"))
    try:
        with controller(first_node, NONE) as (_, pid, start_without):
            time.sleep(1)
            empty_kb = resident_kb(pid)
        names = _fill(nodes, topics)
        view = LayoutReader(nodes)
        began = time.monotonic()
        with controller(first_node, NONE) as (_, pid, start):
            led = _until(lambda: not view.without_leader(names)) - began
            led_kb = resident_kb(pid)
            with controller(second_node, NONE) as (url, other_pid, _):
                os.kill(pid, signal.SIGKILL)
                killed = time.monotonic()
                first = (
                    _until(lambda: httpx.post(url + _path(names[-1]) + "/split/1", timeout=60).status_code == 204)
                    - killed
                )
                over = _until(lambda: not view.without_leader(names)) - killed
                over_kb = resident_kb(other_pid)
                _wait_until_quiet(other_pid)
                calls = [f"{NAMESPACE}/new{number}" for number in range(MEASURED)]
                create = rates(url, floor, [("PUT", name) for name in calls])
                split = rates(url, floor, [("POST", f"{name}/split/0") for name in calls])
                reads = []
                with httpx.Client(base_url=url) as client:
                    for name in names[:MEASURED]:
                        asked = time.perf_counter()
                        assert client.get(_path(name)).status_code == 200
                        reads.append(1000 * (time.perf_counter() - asked))
        return {
            "topics": topics,
            "load": machine_now()["load_before"],
            "start_seconds": round(start, 2),
            "start_seconds_without": round(start_without, 2),
            "all_led_seconds": round(led, 1),
            "session_seconds": SESSION_S,
            "first_change_after_kill_seconds": round(first, 1),
            "all_taken_over_seconds": round(over, 1),
            "resident_kb": max(led_kb, over_kb),
            "memory_bytes_per_led_topic": round((max(led_kb, over_kb) - empty_kb) * 1024 / topics),
            "read_p50_ms": round(statistics.median(reads), 1),
            "creations": create,
            "splits": split,
        }
    finally:
        floor.close()
        nodes.close()
        zookeeper.stop()


def _settings(work: Path, name: str, bootstrap: str, zookeeper: str) -> Path:
    file = work / f"{name}.toml"
    file.write_text(
        f'[kafka]\nbootstrap = "{bootstrap}"\n[controller]\nport = 0\nmetadata = "zk://{zookeeper}/bench"\n'
        f"session_seconds = {SESSION_S}\nsnapshot_seconds = 86400\nsealed_retention_seconds = 86400\n"
    )
    return file


def _fill(nodes: ZooKeeperStore, topics: int) -> list[str]:
    """Topics with a sealed segment, marked as needing a leader; their names."""
    names = [f"topic://acme/shop/t{number}" for number in range(topics)]
    now = time.time_ns() // 1_000_000
    layout = SegmentLayout.create(1, now).split_segment(0, now).to_metadata().to_json().encode()
    for start in range(0, topics, 100):
        ops: list[Op] = []
        for name in names[start : start + 100]:
            ops += [Put(store_paths.topic_path(name), layout), Put(store_paths.attended_path(name), b"")]
        nodes.commit(*ops)
    return names


def _path(topic: str) -> str:
    return f"/admin/v2/scalable/{topic.removeprefix('topic://')}"


def _until(condition: Callable[[], bool]) -> float:
    """The instant at which it is true; asked now and then, so that asking costs little."""
    deadline = time.monotonic() + MAX_WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not in {MAX_WAIT_S:.0f} s")
        time.sleep(0.2)
    return time.monotonic()


def _wait_until_quiet(pid: int) -> None:
    """Waits for the new leader, which looks after each topic for a while after it took over."""
    deadline = time.monotonic() + MAX_WAIT_S
    busy = 1.0
    while busy > QUIET and time.monotonic() < deadline:
        before = process_seconds(pid)
        time.sleep(2)
        busy = (process_seconds(pid) - before) / 2


class _ZooKeeperFloor:
    """One node a commit: what ZooKeeper and its disk allow."""

    def __init__(self, address: str) -> None:
        self._client = KazooClient(address)
        self._client.start()
        self._client.ensure_path("/floor")

    def commit(self, times: int) -> None:
        for _ in range(times):
            self._client.create("/floor/n-", b"x" * 300, sequence=True)

    def close(self) -> None:
        self._client.stop()
        self._client.close()
