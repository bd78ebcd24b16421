"""Time from a decision to its layout: as recorded, and in the simulations that use it."""

from __future__ import annotations

import json
from dataclasses import replace
from statistics import median

import pytest
from click.testing import CliRunner

from anabranch.cli.main import cli
from anabranch.simulation.backtest import record
from anabranch.simulation.backtest.reading import open_history
from anabranch.simulation.backtest.record import recorded_delay
from anabranch.simulation.backtest.running import RAN, RECORD, backtest
from anabranch.simulation.topics.run import delay_in_steps
from tests.local.lake import ORDERS, batch, decision, event, layout_event, layout_json, load, millis, write
from tests.simulation.backtest.really import Seeded, really_run
from tests.simulation.backtest.test_backtest import DEFAULT, EAGER

ONE_SEGMENT = layout_json((0, 0, 65535))


def _carried_out(decision_id, seconds):
    row = layout_event(ONE_SEGMENT, seconds)
    return row.model_copy(update={"body": json.dumps({**json.loads(row.body), "decisionId": decision_id})})


def _ended(decision_id, status, seconds):
    body = {"v": 1, "type": "outcome", "topic": ORDERS, "decisionId": decision_id, "status": status}
    return event("outcome", body, seconds, cause=status)


def _answer(tmp_path, lake, tick_seconds, *command):
    settings = tmp_path / "s.toml"
    settings.write_text(f'[lake]\npath = "{lake}"\n[stream]\ntick_seconds = {tick_seconds}\n')
    answer = CliRunner().invoke(cli, ["-c", str(settings), *command])
    assert answer.exit_code == 0, answer.output
    return answer.output


def test_recorded_delay_is_the_median(tmp_path):
    lake = str(tmp_path / "lake")
    write(lake, *(decision(70, number) for number in (1, 2, 3, 4)))
    assert recorded_delay(lake) is None
    # Rows are accepted a tenth of a second after what they report.
    ends = _ended("d1", "applied", 71), _ended("d2", "applied", 75), _ended("d3", "applied", 74)
    write(lake, *ends, _ended("d4", "superseded", 70))
    assert recorded_delay(lake) == 4_100
    write(lake, _carried_out("d1", 72), _carried_out("d2", 76), _carried_out("d3", 79))
    # A repetition, and a layout that nobody decided.
    write(lake, _carried_out("d2", 200), layout_event(ONE_SEGMENT, 90))
    assert recorded_delay(lake) == 6_100
    assert recorded_delay(lake, millis(71)) is None
    assert recorded_delay(lake, end=millis(70)) is None


def test_delay_of_bundles_is_not_that_of_topics(tmp_path):
    lake = str(tmp_path / "lake")
    write(lake, decision(70, 1, family="bundles"), decision(70, 2), _ended("d1", "applied", 100))
    assert recorded_delay(lake) is None
    write(lake, _ended("d2", "applied", 74))
    assert recorded_delay(lake) == 4_100


def test_part_of_many_decisions_tells_the_delay(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "_MOST_DELAYS", 4)
    lake, looked_up = str(tmp_path / "lake"), []
    monkeypatch.setattr(record, "median", lambda delays: looked_up.extend(delays) or median(looked_up))
    write(lake, *(decision(70 + number, number) for number in range(40)))
    write(lake, *(_ended(f"d{number}", "applied", 73 + number) for number in range(40)))
    assert recorded_delay(lake) == 3_100
    assert 1 <= len(looked_up) <= 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--demand", "day", "--delay", "nan"), "nan is not a number of seconds"),
        (("--trace", "series.csv", "--delay", "5"), "--delay is for --demand"),
    ],
    ids=["no number", "traces"],
)
def test_useless_delay_is_refused(options, message):
    answer = CliRunner().invoke(cli, ["simulate", "--policy", "default", *options])
    assert answer.exit_code == 2
    assert message in answer.output


@pytest.mark.parametrize(("delay_ms", "steps"), [(0, 1), (14_999, 1), (15_000, 2), (24_999, 2), (25_000, 3)])
def test_delay_is_rounded_to_the_nearest_step(delay_ms, steps):
    assert delay_in_steps(delay_ms, 10_000) == steps


@pytest.mark.parametrize(
    ("tick_seconds", "options", "seconds"),
    [(10, (), 4.0), (10, ("--delay", "2"), 2.0), (60, (), 10.0)],
    ids=["on record", "as asked for", "within a step"],
)
def test_simulation_reports_its_delay(tmp_path, tick_seconds, options, seconds):
    lake = str(tmp_path / "lake")
    write(lake, layout_event(ONE_SEGMENT, 0), load(0, 100.0, 1), load(0, 200.0, 300))
    write(lake, decision(70), _carried_out("d1", 74))
    command = ("simulate", "--demand", "lake", "--policy", "default", *options)
    answer = json.loads(_answer(tmp_path, lake, tick_seconds, *command, "--output", "json"))
    assert answer["delaySeconds"] == seconds
    text = _answer(tmp_path, lake, tick_seconds, *command)
    assert (f"; actions take effect after {seconds:g} s" in text) is (tick_seconds == 10)


def test_backtest_reports_its_delay(tmp_path):
    lake = str(tmp_path / "lake")
    write(
        lake, layout_event(ONE_SEGMENT, 0), load(0, 100.0, 1), *(batch(second, second) for second in range(0, 600, 5))
    )
    write(lake, decision(70), _carried_out("d1", 74))
    answer = json.loads(_answer(tmp_path, lake, 10, "backtest", "--output", "json"))
    assert answer["delaySeconds"] == 4.0
    assert "note: actions take effect 4 s after their decision, as on record" in answer["about"]


def test_backtest_acts_as_late_as_the_record(tmp_path):
    lake = really_run(Seeded(4, 7), EAGER, 1, tmp_path / "lake", delay_steps=3, step_ms=30_000)
    history = open_history(lake, tmp_path / "loads", None, None, None, DEFAULT)
    assert (history.recorded_delay_ms, history.delay_ms) == (90_000, 90_000)
    results = backtest(history, {})
    recorded, again = results.totals(RECORD), results.totals(RAN)
    assert recorded["splits"] > 10
    assert results.agreement.share == 1.0
    assert again["minutesOverThreshold"] == pytest.approx(recorded["minutesOverThreshold"], rel=0.05)
    at_once = backtest(replace(history, recorded_delay_ms=None), {})
    assert at_once.agreement.share < 0.8
    assert at_once.totals(RAN)["minutesOverThreshold"] < 0.6 * recorded["minutesOverThreshold"]


@pytest.mark.parametrize(("band", "splits"), [(0.25, 0), (0.1, 1)])
@pytest.mark.parametrize("command", [("backtest",), ("simulate", "--demand", "lake")], ids=["backtest", "simulate"])
def test_commands_filter_loads_as_the_job_does(tmp_path, command, band, splits):
    """The load passes the threshold by a step of a sixth, which only the narrower band lets through."""
    lake = str(tmp_path / "lake")
    loads = load(0, 9_000.0, 1), load(0, 10_500.0, 300), load(0, 10_400.0, 800)
    write(lake, layout_event(ONE_SEGMENT, 0), *loads, *(batch(second, second) for second in range(0, 900, 60)))
    settings = tmp_path / "s.toml"
    settings.write_text(f'[lake]\npath = "{lake}"\n[stream]\nchange_threshold = {band}\n')
    command = ("-c", str(settings), *command, "--policy", "pip-483", "--output", "json")
    answer = json.loads(CliRunner().invoke(cli, command).output)
    assert answer["policies"]["pip-483"]["splits"] == splits


@pytest.mark.parametrize(("tick_seconds", "is_soon"), [(10, True), (60, False)])
def test_backtest_evaluates_at_the_ticks_of_the_job(tmp_path, tick_seconds, is_soon):
    """A load that rises in the middle of a minute is split within ten seconds and a step, or after the minute."""
    lake = str(tmp_path / "lake")
    loads = load(0, 5_000.0, 1), load(0, 15_000.0, 330)
    write(lake, layout_event(ONE_SEGMENT, 0), *loads, *(batch(second, second) for second in range(0, 900, 5)))
    answer = json.loads(_answer(tmp_path, lake, tick_seconds, "backtest", "--policy", "pip-483", "--output", "json"))
    counts = answer["policies"]["pip-483"]
    assert (counts["splits"], counts["minutesOverThreshold"] * 60 <= 11) == (1, is_soon)
