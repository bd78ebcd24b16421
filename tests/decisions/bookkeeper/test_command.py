"""`anabranch decisions decide` on snapshots of switches: beside those of topics, tables, and garbage."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from anabranch.cli.bookies.decisions import decide_line
from anabranch.cli.main import cli
from decisions.bookkeeper.gates import SENTENCES, BookieGate, gates_table
from schemas.bookies import Request
from tests.decisions.bookkeeper.world import before_switch, changed, in_switch, schema
from tests.decisions.test_commands import HOT

SWITCH = changed(before_switch(), operation="switch", request=Request(target="new")).to_json()


def run(*arguments: str, text: str) -> Result:
    return CliRunner().invoke(cli, ["decide", *arguments], input=text)


def test_topics_and_switches_stand_in_one_file() -> None:
    result = run(text="\n".join([HOT, SWITCH, in_switch().to_json()]))
    topic, switch, following = (json.loads(line) for line in result.stdout.splitlines())
    assert (topic["action"], switch["action"], following["action"], result.exit_code) == ("split", "switch", "steps", 0)
    assert [(one["action"], one["ledger"]) for one in following["steps"]] == [("copy", 1), ("copy", 2), ("copy", 3)]


def test_an_explanation_has_the_steps_and_every_gate() -> None:
    shown = run("--explain", text=in_switch().to_json()).stdout
    assert "BUILD  copy    1       /schemas/t/n/s" in shown
    assert "ids-apart" in shown


def test_an_explanation_obeys_no_escape_sequence() -> None:
    evil = in_switch(before_switch(schemas=[schema(1, path="/schemas/t/n/\x1b[2J\u202e")]))
    assert run("--explain", text=evil.to_json()).stdout.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"family":"bookies"}', "now"),
        ('{"family":"bookies","now":"today"}', "now"),
        ('{"family":"bookies","now":1,"operation":"destroy"}', "operation"),
        ('{"family":"bookies","now":1,"clusters":[{"name":"a b","metadataServiceUri":"zk://a"}]}', "clusters.0.name"),
        ('{"family":"bookies","now":1,"settings":{"migrationConcurrency":0}}', "migrationConcurrency"),
    ],
)
def test_malformed_line_answered_in_place(line: str, problem: str) -> None:
    result = run(text=f"{line}\n{SWITCH}")
    first, second = map(json.loads, result.stdout.splitlines())
    assert problem in first["error"]
    assert (second["action"], result.exit_code) == ("switch", 1)


MISSPELT = (
    '{"family":"bookies","now":1,"clusterz":[],"generators":{"old":{"shrt":4}},"schemas":[{"path":"/s","versions":2}]}'
)


def test_misspelt_keys_are_named_at_any_depth() -> None:
    result = run(text=f"{MISSPELT}\n{SWITCH}")
    assert {line.split()[2] for line in result.stderr.splitlines()} == {"clusterz", "shrt", "versions"}
    assert result.exit_code == 0
    refused = run("--strict", text=f"{MISSPELT}\n{SWITCH}")
    first, second = map(json.loads, refused.stdout.splitlines())
    assert first["error"] == "no snapshot of this family has 'clusterz', 'shrt', 'versions'"
    assert (second["action"], refused.exit_code) == ("switch", 1)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(list(json.loads(SWITCH))), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(list(json.loads(SWITCH))), JSON, max_size=6))
def test_any_snapshot_gets_answer_or_error(over: dict[str, object]) -> None:
    line = json.dumps({**json.loads(SWITCH), **over, "family": "bookies"}).encode()
    answered = fault = None
    try:
        answered = decide_line(line, explain=True)
    except ValidationError as error:
        fault = str(error)
    assert bool(answered) != bool(fault)


def test_every_gate_has_a_sentence_and_a_row() -> None:
    assert set(SENTENCES) == set(BookieGate)
    assert gates_table().count("\n| `") == len(BookieGate)
