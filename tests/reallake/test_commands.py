"""Every command that reads a lake, on the lake of a real run; its figures against those out of the raw rows."""

from __future__ import annotations

import json
from datetime import timedelta
from itertools import combinations
from operator import truediv
from random import Random

import pytest
from click.testing import CliRunner

from anabranch.cli.main import cli
from tests.reallake.asking import answer, copied_lake, run_command
from tests.reallake.recording import RECREATED

pytestmark = [pytest.mark.local_run, pytest.mark.spark, pytest.mark.timeout(900)]

THRESHOLDS = (10_000.0, 20e6, 30_000.0, 60e6)
"""Split thresholds of conf/policies/demonstration.toml."""
POLICY = "patient:mergeWindowSeconds=30"


def instants(raw, number=3):
    """Some instants of the record, one of them its last batch."""
    batches = sorted(row["batch_at"] for row in raw.rows("batches"))
    return [*Random(7).sample(batches[len(batches) // 4 :], number - 1), batches[-1]]


def snapshots(real_lake, raw, at=None):
    for topic in raw.present():
        when = [] if at is None else ["--at", at.isoformat()]
        yield topic, json.loads(run_command(real_lake, "explain", topic, *when, "--snapshot").stdout)


def test_explain_answers_for_every_topic(real_lake, raw):
    first = {topic: of_topic[0].begins for topic, of_topic in raw.layouts.items()}
    for at in instants(raw, 2):
        for topic in raw.present():
            if topic != RECREATED and at > first[topic] + timedelta(seconds=15):
                told = answer(real_lake, "explain", topic, "--at", at.isoformat())
                assert told["topic"] == topic
                assert told["answer"]["gates"]


def test_explained_snapshot_is_what_the_record_says(real_lake, raw):
    consumers = raw.consumers()
    for topic, snapshot in snapshots(real_lake, raw):
        layout = raw.present()[topic]
        assert snapshot["layout"]["epoch"] == layout.epoch
        assert snapshot["layout"]["segments"].keys() == layout.segments.keys()
        told = {name: one["count"] for name, one in snapshot["consumers"].items() if one["count"]}
        assert told == consumers[topic], topic
        assert snapshot["policy"]["maxSegments"] == 12
        names = ("msgRateIn", "bytesRateIn", "msgRateOut", "bytesRateOut")
        told = {int(segment): tuple(load[name] for name in names) for segment, load in snapshot["loads"].items()}
        loads = raw.loads(topic)
        for segment in layout.active:
            assert told.get(segment) == loads.get(segment), (topic, segment)


def test_status_is_what_the_record_says(real_lake, raw):
    told = json.loads(run_command(real_lake, "status", "--output", "json", exit_code=1).stdout)
    present = raw.present()
    assert (told["topics"], told["activeSegments"]) == (len(present), sum(len(one.active) for one in present.values()))
    over = {}
    for topic, layout in present.items():
        loads = raw.loads(topic)
        ratios = [max(map(truediv, loads[one], THRESHOLDS)) for one in layout.active if one in loads]
        over[topic] = max(ratios, default=0)
    expected = {topic: ratio for topic, ratio in over.items() if ratio > 1}
    assert {one["topic"]: one["overload"] for one in told["overThreshold"]} == pytest.approx(expected)
    assert told["decisions"]["open"] == raw.statuses()["open"]
    assert sum(told["held"].values()) == len(raw.holds_now())
    assert told["job"]["lastBatchAt"] == raw.last_batch.isoformat()
    # The run is over.
    assert [one["state"] for one in told["executors"]].count("acting") == 0
    assert "no executor acts" in told["attention"]


def test_status_without_a_lake_fails(tmp_path):
    settings = tmp_path / "elsewhere.toml"
    settings.write_text(f'[lake]\npath = "{tmp_path}/none"\n')
    result = CliRunner().invoke(cli, ["--config", str(settings), "status"])
    assert (result.exit_code, "no table `batches`" in result.output) == (3, True)


def test_history_has_every_split_and_merge(real_lake, raw):
    for topic, of_topic in raw.layouts.items():
        told = answer(real_lake, "history", topic, "--limit", "10000")
        made = {(reach["life"], reach["segment_id"]) for reach in told["reaches"]}
        lives = sorted({one.life for one in of_topic})
        expected = {(lives.index(one.life), int(segment)) for one in of_topic for segment in one.active}
        assert len(made) == len(expected), topic
        assert {segment for _, segment in made} == {segment for _, segment in expected}


def test_replay_decides_the_same_again(real_lake, raw):
    told = answer(real_lake, "replay")
    assert (told["decisions"], told["holds"]) == (len(raw.rows("decisions")), len(raw.rows("holds")))
    assert (told["differences"], told["untold"]) == (0, 0), told["told"]


def test_backtest_counts_what_was_done(real_lake, raw):
    told = answer(real_lake, "backtest", "--policy", POLICY, "--policy", "pip-483")
    record = told["onRecord"]
    layouts = list(raw.every_layout())
    # A record ends with its last batch, or with the one that deleted the topic: what came in it may be in or out.
    ends = {(one.topic, one.life): (one.ends or raw.last_batch) - timedelta(seconds=1) for one in layouts}
    for action, counted in (("split", record["splits"]), ("merge", record["merges"])):
        made = [one for one in layouts if one.cause == action]
        assert sum(one.begins < ends[one.topic, one.life] for one in made) <= counted <= len(made)
    assert record["segmentHours"] == pytest.approx(sum(raw.segment_hours().values()), rel=0.05)
    least, most = (raw.over_threshold_minutes(THRESHOLDS, unknown) for unknown in (False, True))
    assert 0.95 * least <= record["minutesOverThreshold"] <= 1.05 * most + 0.1
    assert set(told["policies"]) == {"policy that ran", "patient", "pip-483"}
    for counts in told["policies"].values():
        assert counts["segmentHours"] > 0
        assert 0 <= counts["confidence"] <= 1


def test_backtest_takes_any_window(real_lake, raw):
    random = Random(11)
    batches = sorted(row["batch_at"] for row in raw.rows("batches"))
    topics = sorted(raw.present())
    # The steps that a record is read in are no longer than its ticks: a shorter window may hold no whole one.
    windows = {True: [], False: []}
    for since, until in combinations(batches, 2):
        windows[until - since >= timedelta(seconds=10)].append((since, until))
    for is_long in (True, True, False, False):
        since, until = random.choice(windows[is_long])
        window = ("--since", since.isoformat(), "--until", until.isoformat(), "--topics", random.choice(topics))
        command = ("backtest", "--policy", POLICY, *window, "--output", "json")
        if is_long:
            answered = json.loads(run_command(real_lake, *command).stdout)
            assert answered["topicHours"] <= (until - since).total_seconds() / 3600 + 0.01
        else:
            result = CliRunner().invoke(cli, [*real_lake.settings, *command])
            assert result.exit_code == 0 or "choose a longer window" in result.output, result.output


def test_window_without_a_whole_step_is_told(real_lake, raw):
    at = sorted(row["batch_at"] for row in raw.rows("batches"))[5]
    window = ("--since", at.isoformat(), "--until", (at + timedelta(milliseconds=3)).isoformat())
    told = run_command(real_lake, "backtest", "--policy", POLICY, *window, exit_code=1)
    assert "choose a longer window" in told.output


def test_suggest_finds_a_frontier(real_lake):
    told = answer(real_lake, "suggest", "--budget", "6")
    assert told["frontier"]
    assert {"segmentHours", "minutesOverThreshold", "reversals"} <= told["frontier"][0].keys()


def test_simulation_runs_on_the_recorded_demand(real_lake, raw):
    told = answer(real_lake, "simulate", "--demand", "lake", "--policy", "default", "--policy", "pip-483")
    assert told["complete"]
    assert {row["topic"] for row in told["policies"]["default"]["topics"]} == raw.layouts.keys()
    assert told["policies"]["default"]["splits"] > 0


def test_shadow_report_has_no_other_scaler(real_lake, raw):
    told = answer(real_lake, "shadow", "report")
    assert (told["theirs"]["splits"], told["theirs"]["merges"]) == (0, 0)
    # Ours are those that we decided and did not carry out; what is open at the end may still become either.
    statuses = raw.statuses()
    ours = told["ours"]["splits"] + told["ours"]["merges"]
    assert statuses["superseded"] <= ours <= statuses["superseded"] + statuses["open"]


def test_alert_rules_can_be_evaluated(real_lake, tmp_path):
    copy = copied_lake(real_lake, tmp_path)
    run_command(real_lake, "alerts", "--once", copy=copy)
    run_command(real_lake, "alerts", "list", copy=copy)


def test_lake_check_finds_nothing(real_lake, raw):
    told = answer(real_lake, "lake", "check")
    assert told["findings"] == []
    assert all(row["checksum"] is not None for row in raw.rows("batches"))
    for table in ("decisions", "holds", "segment_load", "events", "dead_letters", "batches", "outcomes"):
        assert told["rows"][table] == len(raw.rows(table)), table


def test_retention_of_young_rows_changes_nothing(real_lake, raw, tmp_path):
    copy, tables = copied_lake(real_lake, tmp_path), ("segment_load", "events", "holds", "decisions", "dead_letters")
    for table in tables:
        run_command(real_lake, "lake", "retain", table, "--days", "1", "--apply", copy=copy)
    told = answer(real_lake, "lake", "check", copy=copy)
    assert told["findings"] == []
    assert {table: told["rows"][table] for table in tables} == {table: len(raw.rows(table)) for table in tables}


def test_executor_status_shows_no_waiting_decision(real_lake, raw):
    told = answer(real_lake, "executor", "status")
    assert (told["waiting"], told["begun"], told["stop"]) == ([], len(raw.begun), None)
    assert told["open"] == raw.statuses()["open"]
