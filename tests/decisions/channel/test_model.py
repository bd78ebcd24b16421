"""The channel in every order of steps: its promises hold, each protection is needed, and where upstream breaks one."""

from __future__ import annotations

from pathlib import Path

import pytest

from decisions.bundles.channel.records import Store
from tests.decisions.channel.__main__ import BOUNDS, FINDINGS, PROTECTIONS, assumed, lines, without
from tests.decisions.channel.explore import explore
from tests.decisions.channel.world import Rules
from tests.examples import only_first


@pytest.mark.parametrize("store", Store)
def test_rules_hold_and_runs_settle_in_two_rounds(store: Store):
    found = explore(Rules(store=store, commands=("assign", "unload"), faults=1))
    assert not found.broken, f"\n{found.counterexample}"
    assert found.states > 2_000
    assert found.rounds <= 2


@pytest.mark.soak
def test_the_page_is_what_the_exploration_finds():
    page = "\n".join(lines()) + "\n"
    kept = (Path(__file__).parent / "explored.md").read_text()
    assert page == kept, "run: python -m tests.decisions.channel > tests/decisions/channel/explored.md"
    assert page.count("| all holds |") == len(BOUNDS)


BROKEN = {
    "versions": "a record goes back to an older version",
    "force_is_newer": "a record goes back to an older version",
    "stops": "two serve the left half",
    "monitors": "parent stays with A, which is dead",
    "forces": "it goes on for ever",
    "rolls_on": "parent stays Splitting",
    "looks": "parent stays with A, which is dead",
    "children_first": "the parent is gone and a child has no owner",
}


@pytest.mark.parametrize("protection", PROTECTIONS)
def test_removed_protection_breaks_a_promise(protection: str):
    found = without(protection)
    assert BROKEN[protection] in found.broken
    assert len(found.trace) < 15


@pytest.mark.parametrize("assumption", only_first(1, FINDINGS))
def test_upstream_rules_allow_two_owners(assumption: str):
    assert explore(assumed(assumption)).broken.startswith("two owners")


def test_store_refuses_message_older_than_tombstone():
    assert not explore(assumed("late", Store.METADATA)).broken
