"""The model of the executor's protocol: its rules hold in every state; each protection is missed when it is gone."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.examples import only_first
from tests.executor.model import __main__ as page
from tests.executor.model.explore import broken_rules, explore
from tests.executor.model.rules import Rules


@pytest.fixture(autouse=True, scope="module")
def without_collector() -> Iterator[None]:
    """States have no cycles: the garbage collector would go through hundreds of thousands in vain."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(
    ("rules", "states"),
    [
        (Rules(faults=1, evaluations=2), 6_000),
        (Rules(faults=1, siblings=2, bundles=True), 23_000),
        *(
            pytest.param(rules, states, marks=pytest.mark.soak)
            for rules, states in (
                (Rules(faults=2), 35_000),
                (Rules(faults=1, siblings=2), 23_000),
                (Rules(faults=2, conditional=True), 35_000),
                (Rules(faults=1, evaluations=2, conditional=True), 6_000),
                (Rules(faults=1, siblings=2, conditional=True), 23_000),
            )
        ),
    ],
)
def test_rules_hold_and_decisions_end_in_any_order(rules: Rules, states: int):
    found = explore(rules)
    assert found.counterexample is None, f"\n{found.counterexample}"
    assert found.stuck is None, f"\n{found.stuck}"
    assert found.states >= states


PLANTED = {
    "fenced": "a call is made by an executor that has lost its lease",
    "intents": "a call takes effect without a durable intent",
    "lineage": "a decision ends as rejected though it was applied",
    "margin": "two executors have a call out for one topic",
    "waits": "two executors have a call out for one topic",
    "apart": "a decision ends as superseded though its own segments are as they were decided on",
}


@pytest.mark.parametrize(("protection", "broken"), PLANTED.items())
def test_removed_protection_breaks_a_rule(protection: str, broken: str):
    rules = replace(Rules(siblings=2 if protection in page.OF_SIBLINGS else 1), **{protection: False})
    explored = (explore(replace(rules, faults=faults), liveness=False, seek=broken) for faults in range(3))
    found = next(one.counterexample for one in explored if one.counterexample)
    print(found)
    assert found.broken == broken
    assert "A      take the lease" in str(found).splitlines()[1]
    assert len(found.trace) < 30


@pytest.mark.parametrize("siblings", [1, 2])
def test_older_outcome_lost_without_announcement(siblings: int):
    found = explore(Rules(faults=1, siblings=siblings, every_end=False)).stuck
    assert (found is not None) == (siblings == 2)
    if found is not None:
        assert [step.what for step in found.trace][-2:] == ["record the end", "kill -9"]


@pytest.mark.parametrize("assumption", only_first(2, ["frozen_in_between", "anew", "late"]))
def test_assumption_protects_secondary_rules_only(assumption: str):
    """A rule that rests on an assumption breaks without it; the vital ones do not."""
    rules = replace(Rules(faults=3 if assumption == "late" else 2), **{assumption: True})
    assert explore(rules, liveness=False).counterexample is not None
    for words in ("without a durable intent", "ends twice", "without an effect"):
        assert explore(replace(rules, faults=1), liveness=False, seek=words).counterexample is None


@pytest.mark.parametrize("assumption", ["frozen_in_between", "late", "anew"])
def test_layout_bound_calls_have_no_false_effect(assumption: str):
    """Holds even without the assumptions."""
    rules = replace(Rules(faults=1, conditional=True), **{assumption: True})
    for words in ("applied twice", "though it was applied", "that has ended as", "made anew since"):
        assert explore(rules, liveness=False, seek=words).counterexample is None


@pytest.mark.parametrize("assumption", ["frozen_in_between", "anew"])
def test_one_exploration_finds_every_broken_rule(assumption: str):
    rules = replace(Rules(faults=1), **{assumption: True})
    found = broken_rules(rules)
    assert found
    for words in page.RULES:
        sought = explore(rules, liveness=False, seek=words).counterexample
        assert (sought is not None) == any(words in one for one in found), words


PAGE = Path(__file__).parent / "model" / "PROTOCOL.md"


def test_page_shows_shortest_history_of_each_protection():
    written = PAGE.read_text()
    assert written.startswith(page.beginning())
    for name in page.PROTECTIONS:
        assert page.unprotected(name) in written


@pytest.mark.soak
def test_the_page_says_what_the_model_says_now():
    written = PAGE.read_text()
    explained = page.explained()
    assert "\nnone\n" not in explained, "without a protection or an assumption no rule breaks"
    assert explained in written
    assert written.endswith(page.ending())
