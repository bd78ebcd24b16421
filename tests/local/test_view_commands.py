"""The commands `lake` and `traffic` at the surface: what they print and how they exit."""

from __future__ import annotations

import json
import shutil
import signal

import pytest
from click.testing import CliRunner, Result

from anabranch.cli.main import cli
from schemas.tables.rows import TABLES
from tests.local.demonstration import HOME
from tests.local.lake import dead_letter, decision, write


@pytest.fixture
def home(tmp_path):
    shutil.copytree(HOME / "conf", tmp_path / "conf")
    return tmp_path


def run(home, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["--home", str(home), *arguments])


def test_lake_create_is_idempotent(home):
    first = run(home, "lake", "create")
    assert first.exit_code == 0
    assert all((home / "var" / "lake" / name / "_delta_log").is_dir() for name in TABLES)
    assert run(home, "lake", "create").output == first.output


def test_lake_show_counts_rows_and_missing_tables(home):
    write(str(home / "var" / "lake"), decision(1, 1), decision(2, 2))
    shown = run(home, "lake", "show", "--output", "json")
    tables = {row["table"]: row for row in json.loads(shown.output)["tables"]}
    assert set(tables) == set(TABLES)
    assert (tables["decisions"]["rows"], tables["decisions"]["version"]) == (2, 1)
    assert tables["outcomes"]["rows"] is None
    assert "not made yet" in run(home, "lake", "show").output


def test_lake_show_table_prints_json_lines(home):
    write(str(home / "var" / "lake"), *(decision(number, number) for number in range(1, 6)))
    shown = run(home, "lake", "show", "decisions", "--limit", "2", "--output", "json")
    assert [json.loads(line)["decision_id"] for line in shown.output.splitlines()] == ["d4", "d5"]


def test_lake_show_escapes_markup(home):
    write(str(home / "var" / "lake"), dead_letter("[bold]not-json[/]\x1b[2J\u202e", 1))
    shown = run(home, "lake", "show", "dead_letters").output
    assert "[bold]not-json[/]" in shown
    assert shown.replace("\n", "").isprintable()


def test_lake_show_of_missing_table_gives_advice(home):
    shown = run(home, "lake", "show", "decisions")
    assert shown.exit_code == 1
    assert "anabranch lake create" in shown.output


@pytest.mark.parametrize("wrong", [("lake", "show", "nonsense"), ("traffic", "--for", "soon")])
def test_wrong_usage_exits_with_2(home, wrong):
    assert run(home, *wrong).exit_code == 2


@pytest.fixture
def own_signals():
    """Restores the handlers of Ctrl-C and SIGTERM, which the command replaces."""
    before = {name: signal.getsignal(name) for name in (signal.SIGINT, signal.SIGTERM)}
    yield
    for name, handler in before.items():
        signal.signal(name, handler)


@pytest.mark.usefixtures("own_signals")
def test_traffic_ends_by_itself_and_says_what_it_sent(home, kafka, monkeypatch):
    monkeypatch.setenv("ANABRANCH_KAFKA_BOOTSTRAP", kafka)
    monkeypatch.setenv("ANABRANCH_CONTROLLER_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("ANABRANCH_TRAFFIC__REPORT_SECONDS", "0.2")
    ended = run(home, "--config", "conf/demonstration.toml", "traffic", "--for", "1.2s")
    assert ended.exit_code == 0
    counts = json.loads((home / "var" / "traffic.json").read_text())
    assert counts["delivered"] == counts["sent"]
    assert f"sent {counts['sent']}, delivered {counts['sent']}, failed 0" in ended.output
