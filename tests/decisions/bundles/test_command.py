"""`anabranch decisions decide` on snapshots of clusters: the family by the shape, tables, and garbage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from anabranch.cli.bundles import decisions as bundle_decisions
from anabranch.cli.bundles.decisions import decide_line
from anabranch.cli.main import cli
from decisions.bundles.configuration import DEFAULTS, PROFILES, Configuration, ConfigurationError
from decisions.bundles.gates import SENTENCES, BundleGate, gates_table
from tests.decisions.bundles.clusters import broker, bundle, cluster
from tests.decisions.test_commands import HOT

SNAPSHOT = cluster({"a": broker(0, [10, 20, 30, 40], cpu=90), "b": broker(10, [1], cpu=5)}, "OverloadShedder")


def run(*arguments, text):
    return CliRunner().invoke(cli, ["decide", *arguments], input=text)


def test_topics_and_clusters_stand_in_one_file():
    shaped = {key: value for key, value in SNAPSHOT.items() if key != "family"}
    result = run(text="\n".join([HOT, json.dumps(SNAPSHOT), json.dumps(shaped)]))
    topic, named, by_shape = (json.loads(line) for line in result.stdout.splitlines())
    assert (topic["action"], named["family"], result.exit_code) == ("split", "bundles", 0)
    assert named == by_shape
    assert named["decisions"] == [
        {
            "action": "unload",
            "bundle": bundle(3),
            "sourceBroker": "a",
            "destinationBroker": "b",
            "reason": "OverloadShedder",
        }
    ]


def test_explanation_covers_moved_and_kept_bundles():
    shown = run("--explain", text=json.dumps(SNAPSHOT)).stdout
    assert f"unload {bundle(3)} from a to b, because of OverloadShedder" in shown
    assert "What was picked before it is enough." in shown


def test_an_explanation_obeys_no_escape_sequence():
    evil = cluster({"a\x1b[2J": broker(0, [1, 2], cpu=90), "b\u202e": broker(10, [])}, "OverloadShedder")
    assert run("--explain", text=json.dumps(evil)).stdout.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"configuration": {"minUnloadMessage": "many"}}, "configuration.minUnloadMessage"),
        ({"configuration": {"loadBalancerLoadSheddingStrategy": "Mine"}}, "none of OverloadShedder"),
        ({"profile": "9"}, "profile"),
        ({"brokers": {"a": {"lastStats": {"": {}}}}}, "lastStats"),
        ({"now": "today"}, "now"),
    ],
)
def test_what_cannot_be_read_is_an_error_in_its_place(change, problem):
    result = run(text=json.dumps(SNAPSHOT | change) + "\n" + json.dumps(SNAPSHOT))
    first, second = (json.loads(line) for line in result.stdout.splitlines())
    assert problem in first["error"]
    assert (second["action"], result.exit_code) == ("unload", 1)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def answered_or_refused(snapshot):
    """Whether a line is decided, or refused by an error that the command shows; anything else is raised."""
    try:
        return json.loads(decide_line(json.dumps(snapshot).encode(), explain=False))["family"] == "bundles"
    except (ValidationError, ConfigurationError) as error:
        return bool(str(error))


@given(st.dictionaries(st.sampled_from([*SNAPSHOT, "state", "topics", "operation", "isolationPolicies"]), _JSON))
def test_garbage_in_any_field_is_answered(changes):
    assert answered_or_refused(SNAPSHOT | changes)


@given(st.dictionaries(st.sampled_from(sorted(DEFAULTS)), _JSON, max_size=3))
def test_garbage_in_any_setting_is_answered(configuration):
    assert answered_or_refused(SNAPSHOT | {"configuration": configuration})


def test_configuration_text_reads_like_json():
    text = {name: ",".join(value) if isinstance(value, tuple) else str(value) for name, value in DEFAULTS.items()}
    assert Configuration(text).values == Configuration({}).values


def test_deprecated_and_unknown_names_differ():
    conf = Configuration({"loadBalancerBandwithInResourceWeight": 0.5, "zookeeperServers": "a"})
    assert (conf.number("loadBalancerBandwidthInResourceWeight"), conf.ignored) == (0.5, ["zookeeperServers"])


def test_profiles_say_what_differs_from_4():
    five, old = Configuration({}, "5.0"), Configuration({}, "2.10")
    assert (five.text("loadBalancerLoadSheddingStrategy"), five.number("maxUnloadPercentage")) == ("AvgShedder", 0.5)
    assert old.number("loadBalancerDirectMemoryResourceWeight") == 1.0
    assert all(name in DEFAULTS for changes in PROFILES.values() for name in changes)


def test_a_misspelt_key_is_told_or_refused():
    text = json.dumps(SNAPSHOT | {"isolationPolicy": {}})
    warned = run(text=f"{text}\n{text}")
    assert warned.exit_code == 0
    assert warned.stderr.count("isolationPolicy is not known") == 1
    refused = run("--strict", text=text)
    assert refused.exit_code == 1
    assert "isolationPolicy" in json.loads(refused.stdout)["error"]
    assert run("--strict", text=json.dumps(SNAPSHOT)).exit_code == 0


def test_internal_error_spares_other_lines(monkeypatch):
    def failing(snapshot):
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(bundle_decisions, "decide", failing)
    result = run(text=json.dumps(SNAPSHOT) + "\n{}")
    first, second = (json.loads(line) for line in result.stdout.splitlines())
    assert "ZeroDivisionError: a fault of ours" in first["error"]
    assert "topic" in second["error"]
    assert result.exit_code == 1


def test_every_gate_has_a_sentence_and_is_in_the_page():
    assert set(SENTENCES) == set(BundleGate)
    page = (Path(__file__).parents[3] / "docs" / "bundles.md").read_text()
    assert gates_table() in page, "run: python -m decisions.bundles.gates, and put the table into docs/bundles.md"


def test_the_page_shows_what_its_example_answers():
    page = (Path(__file__).parents[3] / "docs" / "bundles.md").read_text()
    example = page.split("```json\n")[1].split("```")[0]
    shown = page.split("```text\n")[1].split("```")[0]
    assert run("--explain", text=json.dumps(json.loads(example))).stdout.strip() == shown.strip()
