"""A backtest against really running: the same seeded demand under two policies, each recorded in a lake of its own as
the job writes it; then each policy backtested on the history of the other."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import pytest
from click.testing import CliRunner

from anabranch.cli.main import cli
from anabranch.simulation.backtest.policies import diff, read_candidate
from anabranch.simulation.backtest.reading import NoHistory, open_history
from anabranch.simulation.backtest.running import RAN, RECORD, backtest, resolved
from engine.autoscale.topics import ConfiguredPolicy
from tests.engine.records import tick
from tests.engine.test_replay import RecordedBucket
from tests.history.test_explain import written
from tests.simulation.backtest.really import MINUTE, NOW, Seeded, really_over, really_run

TOPICS, HOURS, STEP_MS = 4, 1, 20_000
DEFAULT = ConfiguredPolicy("default", None)
EAGER = ConfiguredPolicy(
    "default",
    json.dumps(
        {
            "splitMsgRateInThreshold": 7000.0,
            "mergeMsgRateInThreshold": 1500.0,
            "mergeCooldownSeconds": 120,
            "mergeWindowSeconds": 120,
        }
    ),
)


@pytest.fixture(scope="module")
def lakes(tmp_path_factory):
    """The lake of each policy that really ran."""
    folder = tmp_path_factory.mktemp("lakes")
    return {
        name: really_run(Seeded(TOPICS, 7), policy, HOURS, folder / name, step_ms=STEP_MS)
        for name, policy in (("default", DEFAULT), ("eager", EAGER))
    }


@pytest.fixture(scope="module")
def found(lakes, tmp_path_factory):
    """The history of each, and both policies on it."""
    both = {}
    for name, lake in lakes.items():
        # What the job says of its policy at its start is on record: what is configured now does not count.
        history = open_history(
            lake, tmp_path_factory.mktemp("loads"), None, None, None, ConfiguredPolicy("pip-483", None)
        )
        other = {"eager": EAGER} if name == "default" else {"default": DEFAULT}
        both[name] = history, backtest(history, other)
    return both


@pytest.mark.parametrize("name", ["default", "eager"])
def test_the_policy_that_ran_does_again_what_it_did(found, name):
    history, one = found[name]
    assert resolved(history.ran) == resolved({"default": DEFAULT, "eager": EAGER}[name])
    said = one.agreement
    assert said.matched > 20
    assert said.share > {"default": 0.9, "eager": 0.75}[name]
    mine, really = one.totals(RAN), one.totals(RECORD)
    assert mine["segmentHours"] == pytest.approx(really["segmentHours"], rel=0.03)


@pytest.mark.parametrize(("ran", "other"), [("default", "eager"), ("eager", "default")])
def test_another_policy_is_predicted_as_it_really_ran(found, ran, other):
    history, one = found[ran]
    predicted, really = one.totals(other), found[other][1].totals(RECORD)
    for name in ("splits", "merges"):
        assert predicted[name] == pytest.approx(really[name], rel=0.2), name
    assert predicted["segmentHours"] == pytest.approx(really["segmentHours"], rel=0.3)
    over = really_over(found[other][0], history.ran)
    assert predicted["minutesOverThreshold"] == pytest.approx(over, abs=0.05 * 60 * TOPICS * HOURS)
    assert one.confidence(other).confidence < one.confidence(RAN).confidence


def test_confidence_says_what_it_is_made_of(found):
    assumed = found["default"][1].confidence("eager")
    assert assumed.by_kind["gap"] == 0
    assert min(assumed.by_kind[kind] for kind in ("ceiling", "band", "uneven", "carried")) > 0
    assert 0 < assumed.confidence < 1
    assert assumed.any_kind <= sum(assumed.by_kind.values())


def test_a_part_of_the_time_and_of_the_topics(lakes, found, tmp_path):
    history, _ = found["default"]
    since = datetime.fromtimestamp(history.began_at / 1000 + 1_800, timezone.utc)
    half = open_history(lakes["default"], tmp_path, since, None, "t0[12]", DEFAULT)
    one = backtest(half, {})
    assert [topic.topic[-3:] for topic in one.topics] == ["t01", "t02"]
    assert one.topic_hours == pytest.approx(2 * (HOURS / 2 - STEP_MS / 3_600_000), rel=0.01)
    # What the job remembers of returned loads and regretted merges is in no table: the time before is simulated too.
    assert one.agreement.share >= 0.85
    mine, really = one.totals(RAN), one.totals(RECORD)
    assert mine["segmentHours"] == pytest.approx(really["segmentHours"], rel=0.03)
    # What is on record of the half is what is on record of the whole, less the time before.
    before = open_history(lakes["default"], tmp_path / "before", None, since, "t0[12]", DEFAULT)
    whole = open_history(lakes["default"], tmp_path / "whole", None, None, "t0[12]", DEFAULT)
    counts = [backtest(part, {}).totals(RECORD) for part in (whole, before)]
    for name in ("splits", "merges", "segmentHours", "minutesOverThreshold", "consumerMinutesWaiting"):
        assert really[name] == pytest.approx(counts[0][name] - counts[1][name], abs=0.4), name


def settings(tmp_path, lake):
    (tmp_path / "s.toml").write_text(f'[lake]\npath = "{lake}"\n')
    return ["-c", str(tmp_path / "s.toml")]


def invoke(tmp_path, lake, *arguments):
    return CliRunner().invoke(cli, [*settings(tmp_path, lake), *arguments])


def test_the_command_as_text_json_and_html(lakes, tmp_path):
    (tmp_path / "small.toml").write_text("maxSegments = 2\n")
    given = ["backtest", "--policy", str(tmp_path / "small.toml"), "--policy", "slow:mergeWindowSeconds=30m"]
    text = invoke(tmp_path, lakes["default"], *given)
    assert text.exit_code == 0, text.output
    rows = [line.split("  ")[0] for line in text.output.splitlines()]
    assert [row for row in rows if row in (RECORD, RAN, "small", "slow")][:4] == [RECORD, RAN, "small", "slow"]
    assert "of actions agree within a tick" in text.output
    told = json.loads(invoke(tmp_path, lakes["default"], *given, "--output", "json").output)
    assert told["policies"]["small"]["minutesAtCap"] > 0 == told["policies"]["slow"]["minutesAtCap"]
    assert told["policies"]["slow"]["merges"] < told["policies"][RAN]["merges"]
    assert len(told["topics"]) == TOPICS
    file = tmp_path / "out.html"
    assert invoke(tmp_path, lakes["default"], *given, "--output", "html", "--file", str(file)).exit_code == 0
    assert "Plotly.newPlot" in file.read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--policy", "x:splitMsgRateInThreshold=3"], "must be greater than mergeMsgRateInThreshold"),
        (["--policy", "x:nonsense=3"], "unknown key 'nonsense'"),
        (["--policy", "nowhere.toml"], "no name:key=value, and no file that can be read"),
        (["--policy", "default", "--policy", "default"], "two policies are named default"),
        (["--topics", "none-*"], "no topic on record fits --topics none-*; there are 4, as topic://acme/shop/t00"),
        (["--since", "2027-01-01T00:00:00Z"], "nothing is on record between 2027-01-01 00:00:00 UTC and now"),
        (["--since", "2026-01-01T00:30", "--until", "2026-01-01T00:10"], "--since has to be before --until"),
        (["--scratch", "nowhere/at/all"], "Invalid value for --scratch: there is no folder nowhere/at/all"),
        (["--policy", "on record:maxSegments=3"], "'on record' is a row of every backtest: give the policy another"),
    ],
)
def test_errors_say_what_to_do(lakes, tmp_path, arguments, said):
    run = invoke(tmp_path, lakes["default"], "backtest", *arguments)
    assert run.exit_code != 0
    assert said in " ".join(run.output.split())


def test_short_history_reports_its_length(lakes, tmp_path):
    run = invoke(tmp_path, lakes["default"], "backtest", "--since", "2025-12-01T00:00:00Z", "--topics", "t00")
    assert run.exit_code == 0
    assert "note: the record begins 2026-01-01T00:00:00Z, later than --since 2025-12-01T00:00:00Z" in run.output


def test_a_policy_that_is_no_text_is_named(lakes, tmp_path):
    (tmp_path / "picture.toml").write_bytes(b"\x94\xff\x00")
    run = invoke(tmp_path, lakes["default"], "backtest", "--policy", str(tmp_path / "picture.toml"))
    assert run.exit_code == 2
    assert "picture.toml is no TOML file: it is not text in UTF-8" in " ".join(run.output.split())


def test_an_empty_lake_has_no_history(tmp_path):
    with pytest.raises(NoHistory, match="no batch of the job is on record"):
        open_history(str(tmp_path / "none"), tmp_path, None, None, None, DEFAULT)


def test_a_lake_without_layouts_has_no_history(tmp_path):
    bucket = RecordedBucket()
    bucket.batch(NOW, tick(NOW))
    bucket.batch(NOW + 10 * MINUTE, tick(NOW + 10 * MINUTE))
    lake = written(bucket, tmp_path / "lake")
    with pytest.raises(NoHistory, match=f"no layout of any topic is on record in {lake}: does something announce"):
        open_history(lake, tmp_path, None, None, None, DEFAULT)


def test_policy_settings_overlay_the_one_that_ran():
    name, policy = read_candidate("calm:mergeWindowSeconds=20m,maxSegments=8", EAGER)
    assert name == "calm"
    assert json.loads(policy.override) == json.loads(EAGER.override) | {"mergeWindowSeconds": 1200, "maxSegments": 8}


def test_diff_changes_set_and_adds_missing_keys():
    text = "# Ours.\nmaxSegments = 64 # many\nminSegments = 2\n"
    changed = diff(text, {"maxSegments": 8, "mergeWindowSeconds": 600}, "conf/policies/default.toml")
    assert changed.splitlines()[0] == "--- a/conf/policies/default.toml"
    assert [line for line in changed.splitlines()[3:] if line[0] in "+-"] == [
        "-maxSegments = 64 # many",
        "+maxSegments = 8",
        "+mergeWindowSeconds = 600",
    ]


@pytest.mark.process
def test_parts_in_processes_of_their_own_say_the_same(lakes, found, tmp_path, monkeypatch):
    monkeypatch.setattr("anabranch.simulation.backtest.reading.part_topics", lambda *_: 3)
    history = open_history(lakes["default"], tmp_path, None, None, None, DEFAULT)
    assert [len(part) for part in history.parts] == [3, 1]
    one = backtest(history, {"eager": EAGER}, processes=2)
    assert one == found["default"][1]
