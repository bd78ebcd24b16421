"""The file of rules: what it may say, and how it is told that it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.alerts.asking import Asking
from anabranch.alerts.rules import RulesError, read_rules, rules_of
from lake.tables import create_lake
from tests.local.lake import at

pytestmark = pytest.mark.unit

SHIPPED = Path(__file__).parents[2] / "conf" / "alerts.yaml"
RULE = {"name": "R", "sql": "SELECT 1", "summary": "s"}


def wrong(content):
    with pytest.raises(RulesError) as caught:
        rules_of(content, "alerts.yaml")
    return str(caught.value)


def test_shipped_rules_documented_and_runnable(tmp_path):
    rules = read_rules(SHIPPED)
    docs = (SHIPPED.parents[1] / "docs" / "alerts.md").read_text()
    create_lake(tmp_path / "lake")
    asking = Asking(str(tmp_path / "lake"), at(0))
    for rule in rules.rules:
        assert asking.matches(rule) == [], rule.name
        assert f"### {rule.name}\n" in docs
        assert rule.runbook == f"docs/alerts.md#{rule.name.lower()}"


def test_durations_are_seconds_or_have_a_unit():
    [rule] = rules_of({"rules": [{**RULE, "for": "2m"}]}, "f").rules
    assert rule.for_ == 120
    [rule] = rules_of({"rules": [{**RULE, "for": 90}]}, "f").rules
    assert rule.for_ == 90


@pytest.mark.parametrize(("lake", "seconds"), [("var/lake", 15), ("file:///lake", 15), ("s3://bucket/lake", 30)])
def test_default_interval_is_longer_on_object_store(lake, seconds):
    assert rules_of({"rules": [RULE]}, "f").interval_seconds(lake) == seconds
    assert rules_of({"interval": "5s", "rules": [RULE]}, "f").interval_seconds(lake) == 5


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([], "holds no rules"),
        ({"rules": []}, "rules:"),
        ({"rules": [{**RULE, "abov": 1}]}, "rules.0 (R).abov: Extra inputs are not permitted"),
        ({"rules": [{**RULE, "for": "soon"}]}, "'soon' is no duration; write 90s, 2m, 1h or 3d"),
        ({"rules": [{**RULE, "above": 1, "below": 2}]}, "above and below: give one of them"),
        ({"rules": [RULE, RULE]}, "two rules are called R"),
        ({"rules": [{**RULE, "name": "AlertRuleFails"}]}, "the name AlertRuleFails is taken"),
        ({"rules": [{**RULE, "name": "a b"}]}, "'a b' is no name"),
        ({"rules": [{**RULE, "destinations": ["x"]}]}, "no destination is called 'x'; there are: none"),
        ({"rules": [RULE], "destinations": {"a": {"kind": "mail"}}}, "destinations.a"),
        ({"rules": [RULE], "destinations": {"a": {"kind": "slack"}}}, "give one of url and url_variable"),
        (
            {"rules": [RULE], "destinations": {"a": {"kind": "webhook", "url": "ftp://x"}}},
            "is no address like https://",
        ),
    ],
)
def test_wrong_rules_are_told_with_their_place(content, said):
    assert said in wrong(content)
    assert "alerts.yaml" in wrong(content)


def test_a_file_that_is_no_yaml_or_not_there_is_told(tmp_path):
    (tmp_path / "a.yaml").write_text("rules: [")
    with pytest.raises(RulesError, match="is no YAML"):
        read_rules(tmp_path / "a.yaml")
    with pytest.raises(RulesError, match="cannot read the alert rules"):
        read_rules(tmp_path / "b.yaml")
    (tmp_path / "c.yaml").write_text("!!python/object/apply:os.system ['true']")
    with pytest.raises(RulesError, match="is no YAML"):
        read_rules(tmp_path / "c.yaml")
