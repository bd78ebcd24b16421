"""Everything on record decided again: the same by the same release, and told where it is not. The job's own engine
writes the rows."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from anabranch.cli.main import cli
from anabranch.history.replay.report import replay
from decisions.autoscale.policy import PROFILES
from decisions.topic.layout import SegmentLayout
from engine.history import history_of
from schemas.tables.rows import BATCHES, DECISIONS, HOLDS
from tests.engine.buckets import CONFIGURED, PROMPT
from tests.engine.records import consumers, layout, stats, tick
from tests.engine.test_engine import MINUTE, NOW, SECOND
from tests.engine.test_replay import NAMES, STORY, TABLES, RecordedBucket, told
from tests.examples import examples
from tests.history.test_explain import written


class InMemory:
    """The record of a bucket as one chunk; `changed`: other rows of a table."""

    def __init__(self, bucket, changed=None):
        tables = {table.name: bucket.table(table) for table in TABLES} | (changed or {})
        self._history = history_of(bucket.table(BATCHES), tables, with_ticks=True)
        self.topics = self._history.topics()

    def chunks(self):
        yield self._history

    def begun(self, names):
        return {}


def replayed(bucket, changed=None, configured=CONFIGURED, **rest):
    return replay(InMemory(bucket, changed), configured, **rest)


@given(STORY, st.sampled_from([CONFIGURED, PROMPT]))
@examples(4)
def test_release_repeats_its_answers(story, configured):
    bucket = RecordedBucket(configured=configured)
    told(story, bucket)
    found = replayed(bucket, configured=configured)
    assert found.listed == []
    assert (found.decisions, found.holds) == (len(bucket.table(DECISIONS)), len(bucket.table(HOLDS)))


def quiet(minutes=12, rate=1_200.0, configured=CONFIGURED):
    """A topic that is held all the time, at a load that the filter suppresses, and one with a decision."""
    bucket = RecordedBucket(configured=configured)
    made = SegmentLayout.create(2, NOW - MINUTE)
    bucket.batch(NOW, *(layout(made, topic=name) for name in NAMES[:2]), consumers(1, topic=NAMES[0]))
    for minute in range(minutes):
        at = NOW + SECOND + minute * MINUTE
        bucket.batch(at, stats({0: rate, 1: rate}, at, NAMES[0]), stats({0: 12_500.0}, at, NAMES[1]), tick(minute))
    return bucket


def edited(bucket, table, **columns):
    """The rows of a table, with some columns of the first of them changed."""
    rows = bucket.table(table)
    for name, change in columns.items():
        values = rows[name].to_pylist()
        values[0] = change(values[0])
        at, field = rows.schema.get_field_index(name), rows.schema.field(name)
        rows = rows.set_column(at, field, pa.array(values, field.type))
    return {table.name: rows}


def test_unrecorded_load_inferred_from_record():
    found = replayed(quiet())
    assert (found.differences, found.evaluations, found.decisions) == (0, 26, 2)


@pytest.mark.parametrize(
    ("table", "columns", "expected"),
    [
        (
            DECISIONS,
            {"gates": lambda said: said.replace("1.25", "1.26")},
            "decision 1 of topic://acme/shop/t1 at 2025-11-20 17:33:21 UTC, from its own inputs: gates was ",
        ),
        (DECISIONS, {"arguments": lambda _: '{"segments":[1]}'}, "on record is split 1, this release says split 0"),
        (DECISIONS, {"inputs": lambda said: said.replace("12500.0", "12501.0")}, "was taken on another state: loads"),
        (DECISIONS, {"inputs": lambda _: "{}"}, "its inputs cannot be read"),
        (DECISIONS, {"decision_id": lambda _: "x"}, "has the id x, not "),
        (HOLDS, {"gate": lambda _: "min-segments"}, "on record is hold min-segments, this release says hold "),
        (HOLDS, {"measured": lambda _: 0.5}, "measured was 0.5, is now "),
        (HOLDS, {"layout_digest": lambda _: "0" * 16}, "was taken on another state: layout_digest was 0000"),
        (DECISIONS, {"policy_digest": lambda _: "0" * 16}, "was taken on another policy: policy_digest was 0000"),
        (HOLDS, {"policy_digest": lambda _: "0" * 16}, "was taken on another policy: policy_digest was 0000"),
        (DECISIONS, {"engine_version": lambda _: "0.0.1"}, "has rows of engine versions 0.0.1 and "),
        (HOLDS, {"engine_version": lambda _: "0.0.1"}, "17:33:21 UTC has rows of engine versions"),
        (HOLDS, {"seq": lambda _: 7}, "hold 7 of topic://acme/shop/t0 at 2025-11-20 17:33:21 UTC should be number 1"),
    ],
)
def test_every_column_that_is_otherwise_is_told(table, columns, expected):
    bucket = quiet()
    changed = edited(bucket, table, **columns)
    found = replayed(bucket, changed)
    assert any(expected in said for said in found.listed), found.listed


def test_decision_on_many_old_loads_is_told_by_its_own_record():
    """Only two of eight segments still reported, by samples that the filter suppressed: too many cases to try all."""
    bucket, made = RecordedBucket(), SegmentLayout.create(8, NOW - MINUTE)
    bucket.batch(NOW, layout(made, topic=NAMES[0]))
    for minute in range(8):
        at, reporting = NOW + SECOND + minute * MINUTE, range(8 if minute == 0 else 2)
        bucket.batch(at, stats(dict.fromkeys(reporting, 10.0), at, NAMES[0]), tick(minute))
    assert [row["arguments"] for row in bucket.table(DECISIONS).to_pylist()] == ['{"segments":[0,1]}']
    found = replayed(bucket)
    assert (found.listed, found.untold) == ([], 0)
    other = replayed(bucket, edited(bucket, DECISIONS, arguments=lambda _: '{"segments":[2,3]}'))
    assert any("on record is merge 2+3, this release says merge 0+1" in said for said in other.listed), other.listed


@pytest.mark.parametrize("table", [DECISIONS, HOLDS])
def test_missing_record_reported_once(table):
    bucket = quiet()
    found = replayed(bucket, {table.name: bucket.table(table).slice(1)})
    assert "on record is nothing new, this release says" in found.listed[0]
    assert found.differences <= 4


def test_tick_without_row_decided_otherwise_is_reported(monkeypatch):
    """The record has a cold topic that waits for five minutes; the new release waits for two."""
    bucket = quiet(4, rate=10.0)
    newer = {name: replace(policy, merge_window_ms=2 * MINUTE) for name, policy in PROFILES.items()}
    monkeypatch.setattr("decisions.autoscale.policy.PROFILES", newer)
    *policies, told = replayed(bucket).listed
    assert told == (
        "topic://acme/shop/t0 at 2025-11-20 17:35:21 UTC: on record is nothing new, this release says merge 0+1"
    )
    # The policy that is another is told once, not of each row that was taken on it.
    assert [one.partition(": ")[2].partition(" was ")[0] for one in policies] == ["policy_digest"]


def of_versions(*versions):
    """The record of a topic that holds for another reason at every tick, with a version of the engine for each row."""
    bucket, made = RecordedBucket(), SegmentLayout.create(2, NOW - MINUTE)
    bucket.batch(NOW, layout(made, topic=NAMES[0]))
    for minute in range(len(versions)):
        at = NOW + SECOND + minute * MINUTE
        rates = {0: 5_000.0, 1: 5_000.0} if minute % 2 else {0: 10.0, 1: 10.0}
        bucket.batch(at, stats(rates, at, NAMES[0]), tick(minute))
    rows = bucket.table(HOLDS)
    assert len(rows) == len(versions)
    place = rows.schema.get_field_index("engine_version")
    return replayed(bucket, {HOLDS.name: rows.set_column(place, rows.schema.field(place), pa.array(versions))})


def test_older_version_rows_counted_not_compared():
    found = of_versions("1", "1", "2", "2", "1")
    assert (found.listed, found.versions) == ([], {"1": 3, "2": 2})


def test_single_batch_of_other_version_reported():
    found = of_versions("2", "2", "1", "2", "2")
    assert found.listed == ["the batch at 2025-11-20 17:35:21 UTC has rows of engine version 1, between those of 2"]


def test_comparison_limited_by_since_and_topic():
    bucket = quiet()
    changed = edited(bucket, DECISIONS, gates=lambda _: "[]")
    assert replayed(bucket, changed, since=NOW + 3 * MINUTE).differences == 0
    assert replayed(bucket, changed, topics=[NAMES[0]]).differences == 0
    assert replayed(bucket, changed, topics=[NAMES[1]]).differences == 1


def test_exit_code_of_replay_tells_of_differences(tmp_path):
    bucket = quiet(configured=PROMPT)
    written(bucket, tmp_path / "lake")
    (tmp_path / "s.toml").write_text(f'[lake]\npath = "{tmp_path}/lake"\n')

    def run(*arguments):
        return CliRunner().invoke(cli, ["-c", str(tmp_path / "s.toml"), "replay", *arguments], catch_exceptions=False)

    same = run()
    assert (same.exit_code, same.output) == (0, "2 decisions, 3 holds, 26 evaluations: the same\n")
    assert run("--topics", "t0,t1", "--until", "2025-11-20T17:36").output == (
        "1 decisions, 2 holds, 8 evaluations: the same\n"
    )
    assert run("--topics", "nobody").exit_code == 2
    nothing = run("--since", "2030-01-01T00:00:00Z")
    assert (nothing.exit_code, "to compare: see --since" in nothing.output) == (1, True)
    bucket.tables[HOLDS.name] = [edited(bucket, HOLDS, gate=lambda _: "min-segments")[HOLDS.name]]
    written(bucket, tmp_path / "other")
    (tmp_path / "s.toml").write_text(f'[lake]\npath = "{tmp_path}/other"\n')
    different = run()
    assert different.exit_code == 1
    assert run("--allow-differences").exit_code == 0
    assert run("--allow-differences", "--since", "2030-01-01T00:00:00Z").exit_code == 1
    assert different.output.startswith("different: topic://acme/shop/t0 at 2025-11-20 17:33:21 UTC: on record is hold")
    assert json.loads(run("--output", "json").output)["differences"] > 0
