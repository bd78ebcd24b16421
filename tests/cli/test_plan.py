"""`anabranch plan` on small lakes: actions and holds follow from the thresholds of the policy on record."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from anabranch.cli.main import cli
from lake.tables import create_lake
from tests.local.lake import ORDERS, batch, layout_event, layout_json, load, policy_event, write

QUIET = "topic://acme/shop/quiet"
HALVES = layout_json((0, 0, 0x7FFF), (1, 0x8000, 0xFFFF))


@pytest.fixture
def plan(tmp_path):
    """A function that writes rows to a lake and plans on it; answers exit code and output."""
    lake = str(tmp_path / "lake")
    create_lake(lake)
    settings = tmp_path / "settings.toml"
    settings.write_text(f'[lake]\npath = "{lake}"\n')

    def run(*rows, arguments=()):
        write(lake, *rows)
        result = CliRunner().invoke(cli, ["--config", str(settings), "plan", *arguments])
        return result.exit_code, result.stdout if result.exit_code < 2 and result.stdout else result.output

    return run


def of_two_topics(rate):
    """Rows of a topic with two segments, the first at that rate, and of one that is neither hot nor cold."""
    return (
        policy_event(0),
        layout_event(HALVES, 0),
        layout_event(HALVES, 0, topic=QUIET),
        load(0, rate, 1),
        load(1, 5_000, 1),
        load(0, 5_000, 1, QUIET),
        load(1, 5_000, 1, QUIET),
        batch(0, 0.1),
        batch(1, 1),
        batch(2, 2),
    )


def test_hot_segment_is_planned_to_be_split(plan):
    code, told = plan(*of_two_topics(25_000.0), arguments=("--output", "json"))
    told = json.loads(told)
    (action,) = told["actions"]
    assert code == 1
    assert (action["topic"], action["action"], action["segments"]) == (ORDERS, "split", [0])
    assert (action["reason"], action["overload"]) == ("msgRateIn", 2.5)
    assert (told["topics"], sum(told["holds"].values())) == (2, 1)


def test_nothing_to_do_ends_with_zero(plan):
    code, told = plan(*of_two_topics(5_000.0))
    assert code == 0
    assert told.startswith("0 of 2 topics would act")


def test_one_topic_is_planned_alone(plan):
    code, told = plan(*of_two_topics(25_000.0), arguments=("--topics", "quiet"))
    assert (code, told.splitlines()[0]) == (0, "0 of 1 topics would act, 0 actions in all")


def test_text_names_action_and_reason(plan):
    _, told = plan(*of_two_topics(25_000.0))
    assert f"  {ORDERS}  split 0        msgRateIn, 2.50 times the threshold" in told.splitlines()
    assert told.splitlines()[-1].endswith(f"1 held by merge-thresholds: {QUIET}")


def test_empty_lake_is_an_error(plan):
    code, told = plan()
    assert (code, "no topic is on record" in told) == (3, True)


def test_unknown_topic_is_wrong_usage(plan):
    code, told = plan(*of_two_topics(5_000.0), arguments=("--topics", "nobody"))
    assert (code, "nobody" in told) == (2, True)
