"""Why a topic is held, worked out from the lake's rows: the job's own engine writes them, without Spark."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import pytest
from click.testing import CliRunner
from deltalake import write_deltalake

from anabranch.cli import cli
from decisions.topic.layout import SegmentLayout
from lake.tables import create_table
from ledger.why import NotOnRecord, why
from schemas.tables import BATCHES, DECISIONS, EVENTS, HOLDS, SEGMENT_LOAD
from tests.engine.buckets import CONFIGURED
from tests.engine.records import consumers, layout, stats, tick
from tests.engine.test_engine import MINUTE, NOW, SECOND
from tests.engine.test_replay import NAMES, RecordedBucket

COLD, WARM = {0: 10.0, 1: 10.0}, {0: 5_000.0, 1: 5_000.0}
TABLES = (EVENTS, SEGMENT_LOAD, DECISIONS, HOLDS, BATCHES)


def written(bucket, lake, without=()):
    for table in TABLES:
        rows = bucket.table(table)
        write_deltalake(create_table(lake, table), rows.slice(0, 0) if table in without else rows, mode="append")
    return str(lake)


def at(millis):
    return datetime.fromtimestamp(millis / 1000, timezone.utc)


@pytest.fixture(scope="module")
def bucket():
    """A topic that is warm, then cold and waits for its window; and another one beside it."""
    bucket = RecordedBucket()
    made = SegmentLayout.create(2, NOW - MINUTE)
    bucket.batch(NOW, *(layout(made, topic=name) for name in NAMES[:2]), consumers(1, topic=NAMES[0]))
    bucket.batch(NOW + SECOND, stats(WARM, NOW, NAMES[0]), tick(1))
    bucket.batch(NOW + MINUTE, stats(COLD, NOW + MINUTE, NAMES[0]), tick(2))
    for minute in range(2, 5):
        bucket.batch(NOW + minute * MINUTE, stats(COLD, NOW + minute * MINUTE, NAMES[0]), tick(minute + 1))
    return bucket


def test_every_gate_is_told_although_the_row_of_the_hold_names_one(bucket, tmp_path):
    lake = written(bucket, tmp_path / "lake")
    found = why(lake, NAMES[0], None, CONFIGURED)
    assert (found.answer.gate.value, found.hold["gate"], found.held_since) == (
        "merge-window", "merge-window", NOW + MINUTE
    )  # fmt: skip
    assert {reading.gate.value for reading in found.answer.gates} >= {"max-segments", "merge-cooldown", "merge-window"}
    assert (found.doubts, found.assumed_fresh) == ([], [])
    assert found.answer.binding.measured == 3 * MINUTE


def test_an_instant_in_the_past_is_answered_as_it_was_then(bucket, tmp_path):
    lake = written(bucket, tmp_path / "lake")
    found = why(lake, NAMES[0], at(NOW + 30 * SECOND), CONFIGURED)
    assert (found.answer.gate.value, found.hold["gate"]) == ("merge-thresholds", "merge-thresholds")
    with pytest.raises(NotOnRecord, match=r"no layout of topic://acme/shop/t0 is on record up to"):
        why(lake, NAMES[0], at(NOW - 1), CONFIGURED)


def test_constant_load_that_no_table_shows_is_taken_to_be_as_fresh_as_the_hold_on_record_says(tmp_path):
    bucket = RecordedBucket()
    bucket.batch(NOW, layout(SegmentLayout.create(2, NOW - MINUTE), topic=NAMES[0]))
    for minute in range(30):
        bucket.batch(NOW + minute * MINUTE, stats(WARM, NOW + minute * MINUTE, NAMES[0]), tick(minute))
    found = why(written(bucket, tmp_path / "lake"), NAMES[0], None, CONFIGURED)
    assert (found.answer.gate.value, found.assumed_fresh) == ("merge-thresholds", [0, 1])


def test_a_history_that_is_too_short_is_said(bucket, tmp_path):
    found = why(written(bucket, tmp_path / "lake", without=[SEGMENT_LOAD]), NAMES[0], None, CONFIGURED)
    assert "gate was merge-thresholds, is now load-missing" in found.doubts[0]


def test_the_command_prints_the_gates_or_the_snapshot_for_another_policy(bucket, tmp_path):
    written(bucket, tmp_path / "lake")
    settings = tmp_path / "settings.toml"
    settings.write_text(f'[lake]\npath = "{tmp_path / "lake"}"\n')
    run = CliRunner().invoke(cli, ["-c", str(settings), "why", NAMES[0]], catch_exceptions=False)
    assert run.exit_code == 0
    assert " >> merge-window " in run.output
    assert "on record: hold 2, merge-window (measured 0ms, limit 5m0s then), since 2025-11-20T17:34:20Z" in run.output
    run = CliRunner().invoke(cli, ["-c", str(settings), "why", NAMES[0], "--snapshot"], catch_exceptions=False)
    assert json.loads(run.output)["consumers"] == {"billing": {"type": "STREAM", "count": 1}}
