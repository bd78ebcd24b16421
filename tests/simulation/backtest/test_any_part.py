"""Any part of a record with a file of each batch, by time and by topics: sane rows, or an error that says why."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import numpy as np
import pytest
from click.testing import CliRunner

from anabranch.cli.main import cli
from anabranch.simulation.backtest.reading import open_history
from anabranch.simulation.backtest.running import RAN, RECORD, backtest
from decisions.autoscale.policy import PROFILES
from decisions.topic.layout import SegmentLayout
from engine.autoscale.topics import ConfiguredPolicy
from engine.kernel.settings import EngineSettings
from tests.engine.records import configured, layout, policy, stats, tick
from tests.engine.test_replay import RecordedBucket
from tests.examples import only_first
from tests.harness.raw_rows import counts_of
from tests.local.lake import ORDERS, batch, consumer_event, layout_event, layout_json, load, millis, policy_event, write
from tests.local.lake import at as at_second
from tests.simulation.backtest.lakes import written_by_batch
from tests.simulation.backtest.really import MINUTE, NOW, Seeded, really_run

DEFAULT = ConfiguredPolicy("default", None)
LIMITS = PROFILES["default"].split_thresholds
PARTS, STEP = 10, 20_000


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Forty minutes of five topics, whose first and last are as quiet as they can be."""
    folder = tmp_path_factory.mktemp("lake") / "lake"
    return really_run(Seeded(5, 11), DEFAULT, 2 / 3, folder, batches=1, step_ms=STEP)


def at(instant):
    return f"{datetime.fromtimestamp(instant / 1000, timezone.utc):%FT%T.%fZ}"


def invoke(tmp_path, lake, *arguments):
    (tmp_path / "s.toml").write_text(f'[lake]\npath = "{lake}"\n')
    return CliRunner().invoke(cli, ["-c", str(tmp_path / "s.toml"), *arguments, "--output", "json"])


@pytest.mark.parametrize("seed", only_first(2, range(PARTS)))
def test_part_of_a_record_has_sane_rows(lake, tmp_path, seed):
    random = np.random.default_rng(seed)
    begin, end = sorted(random.integers(-5 * MINUTE, 45 * MINUTE, 2).tolist())
    given = ["--topics", str(random.choice(["*", "t0[13]", "acme/shop/t02", "topic://acme/*/t04"]))]
    given += ["--since", at(NOW + begin)] if random.random() < 0.8 else []
    given += ["--until", at(NOW + end)] if random.random() < 0.8 else []
    found = invoke(tmp_path, lake, "backtest", "--policy", "pip-483", *given)
    searched = invoke(tmp_path, lake, "suggest", "--budget", "2", *given)
    assert {type(one.exception) for one in (found, searched)} <= {type(None), SystemExit}
    assert found.exit_code == searched.exit_code
    if found.exit_code:
        assert "on record between" in found.output
        return
    told = json.loads(found.output)
    hours = told["topicHours"]
    assert 0 < hours <= 5 * 2 / 3 + 0.01
    for counts in (told["onRecord"], *told["policies"].values()):
        assert all(value >= 0 for name, value in counts.items() if name not in ("guessed",))
        assert hours * 0.999 <= counts["segmentHours"] <= 16 * hours
        assert counts["minutesOverThreshold"] <= 60 * hours * 1.001
    assert {one["topic"] for one in told["topics"]} <= {f"topic://acme/shop/t{number:02}" for number in range(5)}
    assert 0 <= json.loads(searched.output)["today"]["confidence"] <= 1


def test_row_on_record_is_what_the_raw_rows_say(lake, tmp_path):
    history = open_history(lake, tmp_path, None, None, None, DEFAULT)
    told = backtest(history, {}).totals(RECORD)
    raw = counts_of(lake, history.began_at, history.ends_at, LIMITS)
    assert told["segmentHours"] == pytest.approx(raw["segmentHours"], rel=0.002)
    assert told["minutesOverThreshold"] == pytest.approx(raw["minutesOverThreshold"], abs=1.0)
    layouts = sum(one.counts[RECORD]["splits"] - one.counts[RECORD]["merges"] for one in backtest(history, {}).topics)
    assert layouts == sum(
        len(one.announced[-1].layout.active) - len(one.announced[0].layout.active) for one in history.part(0)
    )


def test_recreated_topic_without_lives_counts_twice(tmp_path):
    lake = str(tmp_path / "lake")

    def announced(created, cause, seconds):
        said = layout_json((0, 0, 65535))
        said["segments"]["0"] |= {"createdAtMs": millis(created), "parentIds": [], "childIds": []}
        return layout_event(said, seconds, cause)

    write(
        lake,
        announced(0, "snapshot", 0),
        announced(0, "snapshot", 300),
        announced(0, "deleted", 3600),
        announced(3700, "snapshot", 3700),
        load(0, 100.0, 1),
        load(0, 120.0, 3701),
        policy_event(0),
        *(batch(second, second) for second in range(0, 7200, 60)),
    )
    history = open_history(lake, tmp_path / "rows", None, None, None, DEFAULT)
    assert [len(one.announced) for one in history.part(0)] == [1, 1]
    assert [round((one.ends_at - one.began_at) / 60_000) for one in history.part(0)] == [60, 57]
    assert backtest(history, {}).totals(RECORD)["segmentHours"] == pytest.approx(117 / 60, abs=0.02)


@pytest.mark.parametrize("is_said", [True, False], ids=["said", "silent"])
def test_late_consumers_of_an_ended_life_wait_for_nothing(tmp_path, is_said):
    lake = str(tmp_path / "lake")

    def of_life(created, row):
        body = json.loads(row.body) | ({"topicCreatedAt": millis(created)} if is_said else {})
        return row.model_copy(update={"body": json.dumps(body)})

    def announced(created, cause, seconds):
        said = layout_json((0, 0, 65535))
        said["segments"]["0"] |= {"createdAtMs": millis(created), "parentIds": [], "childIds": []}
        return of_life(created, layout_event(said, seconds, cause))

    late = of_life(0, consumer_event("billing", 9, 1800, accepted_at=at_second(5400), kafka_offset=5_400_000))
    write(
        lake,
        announced(0, "created", 0),
        of_life(0, consumer_event("billing", 3, 1800)),
        announced(0, "deleted", 3600),
        announced(3700, "created", 3700),
        of_life(3700, consumer_event("billing", 1, 3800)),
        late,
        load(0, 100.0, 1),
        load(0, 120.0, 3701),
        policy_event(0),
        *(batch(second, second) for second in range(0, 7200, 60)),
    )
    history = open_history(lake, tmp_path / "rows", None, None, None, DEFAULT)
    waiting = backtest(history, {}).totals(RECORD)["consumerMinutesWaiting"]
    assert waiting == pytest.approx(2 * 30, abs=1)


def test_record_without_policy_uses_configured(tmp_path):
    lake = str(tmp_path / "lake")
    write(
        lake,
        layout_event(layout_json((0, 0, 65535)), 0),
        load(0, 100.0, 1),
        *(batch(second, second) for second in range(0, 3600, 60)),
    )
    found = invoke(tmp_path, lake, "backtest")
    assert found.exit_code == 0, found.output
    assert json.loads(found.output)["topicHours"] == pytest.approx(1.0, abs=0.05)


def test_minutes_over_are_by_a_topics_own_thresholds(tmp_path):
    lake = str(tmp_path / "lake")
    own = {"splitMsgRateInThreshold": 4000.0, "mergeMsgRateInThreshold": 100.0, "maxSegments": 1}
    write(
        lake,
        policy_event(0),
        layout_event(layout_json((0, 0, 65535)) | {"autoScalePolicy": own}, 0),
        load(0, 5000.0, 1),
        *(batch(second, second) for second in range(0, 7200, 60)),
    )
    history = open_history(lake, tmp_path / "rows", None, None, ORDERS, DEFAULT)
    near = ConfiguredPolicy("default", json.dumps({"splitMsgRateInThreshold": 5500.0}))
    found = backtest(history, {"pip-483": ConfiguredPolicy("pip-483", None), "near": near})
    # The filter watched the topic's own threshold, which the candidate has as well.
    assert found.confidence("near").by_kind["band"] == 0
    over = {name: found.totals(name)["minutesOverThreshold"] for name in (RECORD, RAN, "pip-483")}
    assert over == pytest.approx(dict.fromkeys(over, 119), abs=1)


def test_ticks_and_band_are_those_of_the_job(tmp_path):
    bucket = RecordedBucket(EngineSettings(0.1, 10_000))
    one = SegmentLayout.create(1, NOW)
    bucket.batch(NOW, configured({}), policy({"minSegments": 1}, "acme/shop"), layout(one, at=NOW, topic=ORDERS))
    for step in range(1, 60):
        now = NOW + step * 5_000
        bucket.batch(now, stats({0: 8_000.0}, now, ORDERS), *([tick(now)] if step % 2 else []))
    lake = written_by_batch(bucket, tmp_path / "lake")
    history = open_history(lake, tmp_path / "rows", None, None, None, DEFAULT, change_threshold=0.1)
    assert (history.tick_ms, history.phase_ms, history.step_ms) == (10_000, 5_000, 1_000)
    # The load is 10 % below 8,888 and 25 % below 10,666: a threshold between them was in doubt by 25 % only.
    near = ConfiguredPolicy("default", json.dumps({"splitMsgRateInThreshold": 9_000.0}))
    wide = open_history(lake, tmp_path / "wide", None, None, None, DEFAULT, change_threshold=0.25)
    bands = [backtest(one, {"near": near}).confidence("near").by_kind["band"] for one in (history, wide)]
    assert bands[0] == 0 < bands[1]


@pytest.mark.parametrize(
    ("apart_ms", "configured_ms", "period_ms"),
    [(10_000, 60_000, 10_000), (10_000, 10_000, 10_000), (15_000, 10_000, 10_000)],
    ids=["too frequent", "as configured", "perhaps an outage"],
)
def test_few_ticks_show_only_a_shorter_period(tmp_path, apart_ms, configured_ms, period_ms):
    bucket = RecordedBucket(EngineSettings(0.25, apart_ms))
    bucket.batch(NOW, configured({}), layout(SegmentLayout.create(1, NOW), at=NOW, topic=ORDERS))
    for number in range(1, 8):
        now = NOW + number * apart_ms
        bucket.batch(now, stats({0: 8_000.0}, now, ORDERS), tick(now))
    lake = written_by_batch(bucket, tmp_path / "lake")
    history = open_history(lake, tmp_path / "rows", None, None, None, DEFAULT, configured_ms)
    assert history.tick_ms == period_ms


def test_period_cut_to_the_record(lake, tmp_path):
    found = invoke(tmp_path, lake, "backtest", "--since", at(NOW + 50 * MINUTE))
    assert found.exit_code == 1
    begin = datetime.fromtimestamp(NOW / 1000, timezone.utc)
    assert (
        f"the record goes from {begin:%F %T} UTC to {begin + timedelta(minutes=40, milliseconds=-STEP):%F %T} UTC"
        in found.output
    )
