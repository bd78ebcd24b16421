"""A short run of the chaos: three controllers, a real ZooKeeper, every kind of fault, and nothing found."""

from __future__ import annotations

import asyncio
from pathlib import Path

from lab.chaos.history import check
from lab.chaos.run import Chaos, Plan
from lab.setup import Jars
from lab.zookeeper import EmbeddedZooKeeper


def test_a_short_run_breaks_no_rule(jars: Jars, tmp_path: Path) -> None:
    zookeeper = EmbeddedZooKeeper(tmp_path / "zookeeper", jars.zookeeper)
    zookeeper.start()
    try:
        chaos = Chaos(tmp_path, zookeeper.address, Plan(seconds=12, topics=2, consumers=2))
        history = asyncio.run(chaos.run())
    finally:
        zookeeper.stop()
    assert check(history) == []
    assert sum(call.status == 204 for call in history.calls) > 10
    assert len(history.ends) == len(history.holdings) == 2
