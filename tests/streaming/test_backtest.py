"""The workers of Spark make of a history what one process makes of it."""

from __future__ import annotations

import pytest

from anabranch.simulation.backtest.by_spark import parts_by_spark
from anabranch.simulation.backtest.reading import open_history
from anabranch.simulation.backtest.running import backtest
from engine.autoscale.topics import ConfiguredPolicy
from tests.simulation.backtest.really import Seeded, really_run

pytestmark = pytest.mark.spark
DEFAULT, STRICT = ConfiguredPolicy("default", None), ConfiguredPolicy("default", '{"maxSegments":2}')


@pytest.mark.soak
def test_spark_workers_match_one_process(spark, tmp_path, monkeypatch):
    lake = really_run(Seeded(3, 5), DEFAULT, 0.25, tmp_path / "lake")
    monkeypatch.setattr("anabranch.simulation.backtest.reading.part_topics", lambda *_: 1)
    history = open_history(lake, tmp_path / "loads", None, None, None, DEFAULT)
    assert len(history.parts) == 3
    here = backtest(history, {"strict": STRICT})
    there = backtest(history, {}, parts=parts_by_spark(spark, history, {"strict": STRICT}))
    assert sorted(there.topics, key=lambda one: one.topic) == here.topics
    assert there.series == here.series
    assert here.totals("strict")["splits"] > 0
