"""The model of a switch: its rules hold in every state; each protection is missed when it is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.decisions.bookkeeper.model.__main__ import SMALL, WITHOUT
from tests.decisions.bookkeeper.model.explore import explore
from tests.decisions.bookkeeper.model.state import Rules

PAGE = Path(__file__).parent / "model" / "explored.md"


@pytest.mark.parametrize("rules", SMALL, ids=[", ".join((*one.commands, *one.others)) for one in SMALL])
def test_every_order_keeps_one_active_and_ends(rules: Rules) -> None:
    """Nothing is lost and every switch ends."""
    found = explore(rules)
    assert found.broken is None, f"\n{found}"
    assert found.states > 200


LONG = ("a deadline that is fixed", "term and directive in every")
"""Searches of a second or two each: left to `make soak`."""


@pytest.mark.parametrize(
    ("words", "rules", "broken"),
    [pytest.param(*one, id=one[0][:30], marks=[pytest.mark.soak] * one[0].startswith(LONG)) for one in WITHOUT],
)
def test_removed_protection_breaks_a_rule(words: str, rules: Rules, broken: str) -> None:
    found = explore(rules)
    assert broken in (found.broken or "")
    assert len(found.history) <= 40
    assert f"Without {words}:\n\n```\n{found}\n```" in PAGE.read_text(), (
        "python -m tests.decisions.bookkeeper.model > tests/decisions/bookkeeper/model/explored.md"
    )
