"""Short chaos runs: three controllers, a real ZooKeeper, every kind of fault, and no rule broken."""

from __future__ import annotations

import asyncio
from pathlib import Path

from lab.chaos.run import Chaos, Plan
from lab.setup import Jars
from lab.zookeeper import EmbeddedZooKeeper


def test_a_short_run_breaks_no_rule(jars: Jars, tmp_path: Path) -> None:
    zookeeper = EmbeddedZooKeeper(tmp_path / "zookeeper", jars.zookeeper)
    zookeeper.start()
    said: list[str] = []
    try:
        chaos = Chaos(tmp_path, zookeeper.address, Plan(12, topics=2, consumers=2, round_seconds=6), said.append)
        broken = asyncio.run(chaos.run())
    finally:
        zookeeper.stop()
    assert broken == []
    assert chaos.totals.changes > 10
    assert chaos.totals.announcements > 10
    assert chaos.totals.assignments >= 2 * len(chaos.ends) == 4
    assert len(said) == 1, "one line a minute, and the last"
