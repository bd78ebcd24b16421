"""Rate and memory of copying and verifying small ledgers between two real BookKeeper clusters.

Run as `python -m benchmarks.bookies [--quick]`. Two clusters of one bookie, each under a ZooKeeper of its own, all on
this machine, with what writes and what copies; ledgers of three entries of 200 bytes, as those of schemas and cursors
are. Rounds of the same 1,000: copied, verified with all contents, deleted from the target. Fails when one differs.
Prints a table and writes benchmarks/bookies.json.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anabranch.bookkeeper.sidecar import BookKeeperAddress, BookKeeperSidecar
from anabranch.local.bookies.programs import ensure_programs
from anabranch.local.setup import ensure_jars
from benchmarks.processes import process_seconds, resident_kb
from benchmarks.record import machine_now, publish, quick_command
from schemas.settings.root import load_settings
from tests.bookkeeper.conftest import BookKeepers
from tests.harness.bookkeeper import BookKeeperCluster, start_clusters
from tests.harness.ledger_writer import LedgerWriter
from tests.harness.zookeeper import EmbeddedZooKeeper

LEDGERS, ROUNDS, QUICK_ROUNDS, CONCURRENCY = 1_000, 100, 2, 16


@quick_command
def main(quick: bool) -> None:
    """Measures, prints, writes."""
    report: dict[str, Any] = {"machine": machine_now(), "ledgers_a_round": LEDGERS, "concurrency": CONCURRENCY}
    with tempfile.TemporaryDirectory() as folder:
        rounds = _measure(Path(folder), QUICK_ROUNDS if quick else ROUNDS)
    publish("bookies", report | _summary(rounds), quick)


def _summary(rounds: list[dict[str, float]]) -> dict[str, Any]:
    rates = sorted(figures["copied_and_verified_a_minute"] for figures in rounds)
    return {
        "rounds": len(rounds),
        "copied_and_verified_a_minute": {"least": rates[0], "median": rates[len(rates) // 2], "most": rates[-1]},
        "cpu_seconds_a_round": sorted(figures["cpu_seconds"] for figures in rounds)[len(rounds) // 2],
        "resident_mb_after_each_ten_rounds": [figures["resident_mb"] for figures in rounds[9::10]],
    }


def _measure(work: Path, rounds: int) -> list[dict[str, float]]:
    with two_clusters(work, bookies=1) as keepers:
        addresses = {name: BookKeeperAddress(cluster.uri) for name, cluster in keepers.clusters.items()}
        command = keepers.programs.sidecar(work, CONCURRENCY)
        with BookKeeperSidecar(command, addresses, work / "hands.log", CONCURRENCY) as sidecar:
            ledgers = keepers.writer.write(keepers.clusters["old"].uri, LEDGERS)
            return [_round(sidecar, ledgers) for _ in range(rounds)]


@contextmanager
def two_clusters(folder: Path, bookies: int) -> Iterator[BookKeepers]:
    """The clusters `old` and `new`, each under a ZooKeeper of its own, and what writes ledgers to them."""
    settings = load_settings(environment={})
    jars, programs = ensure_jars(settings, print), ensure_programs(settings, print)
    servers = [EmbeddedZooKeeper(folder / f"zookeeper-{index}", jars.zookeeper) for index in range(2)]
    clusters = {
        name: BookKeeperCluster(folder / name, programs.jars, server, bookies=bookies)
        for name, server in zip(("old", "new"), servers, strict=True)
    }
    writer = LedgerWriter(programs, folder)
    try:
        for server in servers:
            server.start()
        start_clusters(*clusters.values())
        yield BookKeepers(clusters, programs, folder, None, writer)  # type: ignore[arg-type]
    finally:
        writer.close()
        for cluster in clusters.values():
            cluster.stop()
        for server in servers:
            server.kill()


def _round(sidecar: BookKeeperSidecar, ledgers: list[int]) -> dict[str, float]:
    sidecar.open("old", ledgers[0])
    assert sidecar.pid is not None
    before = process_seconds(sidecar.pid)
    with ThreadPoolExecutor(CONCURRENCY) as pool:

        def timed(work: Callable[[int], object]) -> tuple[float, list[object]]:
            began = time.perf_counter()
            done = list(pool.map(work, ledgers))
            return time.perf_counter() - began, done

        copying, _ = timed(lambda ledger: sidecar.copy("old", "new", ledger, time.time() + 600))
        verifying, same = timed(lambda ledger: sidecar.verify("old", "new", ledger).same)
        if not all(same):
            raise SystemExit("a copy differs")
        deleting, _ = timed(lambda ledger: sidecar.delete("new", ledger, time.time() + 600))
    return {
        "copy_seconds": round(copying, 2),
        "verify_seconds": round(verifying, 2),
        "delete_seconds": round(deleting, 2),
        "copied_and_verified_a_minute": round(60 * LEDGERS / (copying + verifying)),
        "cpu_seconds": round(process_seconds(sidecar.pid) - before, 2),
        "resident_mb": resident_kb(sidecar.pid) // 1024,
    }


if __name__ == "__main__":
    main()
