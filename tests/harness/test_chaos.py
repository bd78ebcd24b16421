"""Chaos: three controllers on three ZooKeepers and Kafka, every kind of fault, and no rule broken."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from anabranch.local.broker import EmbeddedBroker
from anabranch.local.setup import Jars
from tests.harness.chaos.faults import FAULTS
from tests.harness.chaos.run import Chaos, Plan
from tests.harness.ensemble import ZooKeeperEnsemble


@pytest.mark.timeout(600)
def test_two_minutes_break_no_rule(jars: Jars, broker: EmbeddedBroker, tmp_path: Path) -> None:
    ensemble = ZooKeeperEnsemble(tmp_path, jars.zookeeper)
    said: list[str] = []
    try:
        ensemble.start()
        plan = Plan(85, seed=3, topics=2, consumers=3, round_seconds=28, renew_seconds=8)
        chaos = Chaos(tmp_path, ensemble, plan, said.append, broker.bootstrap)
        broken = asyncio.run(chaos.run())
    finally:
        ensemble.stop()
    totals = chaos.totals
    assert broken == [], said
    assert totals.changes > 20
    assert totals.announcements > 20
    assert totals.lives > len(chaos.ends) == 2, "topics were deleted and created again"
    assert totals.evictions > 0
    assert totals.held > 20
    assert totals.sent >= totals.received > 100
    assert sum(chaos.faults.values()) > 10
    assert any("ZooKeeper" in name for name in chaos.faults)
    assert set(chaos.faults) & set(FAULTS)
