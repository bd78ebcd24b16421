"""`anabranch decisions list` and `show` on small lakes."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from anabranch.cli.main import cli
from lake.tables import create_lake
from tests.local.lake import ORDERS, at, batch, decision, layout_event, layout_json, outcome, write

QUIET = "topic://acme/shop/quiet"


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """A function that runs a command on a lake with an applied, a failed and an open decision."""
    folder = tmp_path_factory.mktemp("decisions")
    lake, settings = str(folder / "lake"), folder / "settings.toml"
    create_lake(lake)
    settings.write_text(f'[lake]\npath = "{lake}"\n')
    write(
        lake,
        layout_event(layout_json((0, 0, 0xFFFF)), 0),
        decision(60, 1, decision_id="aa1"),
        decision(120, 2, decision_id="aa2", action="merge", arguments='{"segments":[4,5]}'),
        decision(180, 1, decision_id="bb1", subject=QUIET),
        outcome("aa1", "intent", 61),
        outcome("aa1", "applied", 62),
        outcome("aa2", "intent", 121),
        outcome("aa2", "failed", 122, attempt=3, error="refused: 412"),
        *(batch(number, 60 * number) for number in (1, 2, 3)),
    )

    def run(*arguments):
        return CliRunner().invoke(cli, ["--config", str(settings), "decisions", *arguments])

    return run


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), ["bb1", "aa2", "aa1"]),
        (("--limit", "1"), ["bb1"]),
        (("--topic", "orders"), ["aa2", "aa1"]),
        (("--state", "open"), ["bb1"]),
        (("--state", "failed"), ["aa2"]),
        (("--since", at(120).isoformat()), ["bb1", "aa2"]),
        (("--until", at(120).isoformat()), ["aa1"]),
    ],
)
def test_list_has_the_newest_first(ask, arguments, expected):
    result = ask("list", *arguments, "--output", "json")
    assert [row["decision_id"] for row in json.loads(result.output)] == expected


def test_list_says_how_each_ended(ask):
    lines = ask("list", "--topic", "orders").output.splitlines()
    assert [line.split()[2:6] for line in lines] == [
        ["aa2", "failed", "merge", "4,5"],
        ["aa1", "applied", "split", "0"],
    ]


def test_list_of_an_unknown_topic_is_wrong_usage(ask):
    result = ask("list", "--topic", "nosuch")
    assert (result.exit_code, "nosuch" in result.output) == (2, True)


def test_show_has_every_step_and_error(ask):
    result = ask("show", "aa2", "--output", "json")
    assert result.exit_code == 0, result.output + str(result.exception)
    shown = json.loads(result.output)
    assert (shown["subject"], shown["status"], shown["arguments"]) == (ORDERS, "failed", {"segments": [4, 5]})
    assert [(step["status"], step["attempt"], step["error"]) for step in shown["steps"]] == [
        ("intent", 1, None),
        ("failed", 3, "refused: 412"),
    ]


def test_show_takes_the_beginning_of_an_id(ask):
    assert ask("show", "b").output.startswith("split 0 of topic://acme/shop/quiet: open")


@pytest.mark.parametrize(
    ("id", "code", "words"),
    [("aa", 1, "several decisions"), ("cc", 1, "no decision on record"), ("a' OR 1", 2, "letters")],
)
def test_show_refuses_what_is_not_one_decision(ask, id, code, words):
    result = ask("show", id)
    assert (result.exit_code, words in result.output) == (code, True)


def test_lake_that_cannot_be_read_ends_with_3(tmp_path):
    settings = tmp_path / "settings.toml"
    settings.write_text(f'[lake]\npath = "{tmp_path / "nothing"}"\n')
    assert CliRunner().invoke(cli, ["--config", str(settings), "decisions", "list"]).exit_code == 3
