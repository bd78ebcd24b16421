"""The page of differences names calls that are made, and what our controller really answers."""

from __future__ import annotations

from tests.contract.calls import CALLS
from tests.contract.differences import differences


def test_page_lines_are_real_tested_differences() -> None:
    """Every line of the page is about a call that the contract makes."""
    for call, answers in differences("Calls that differ").items():
        assert int(answers.anabranch) == CALLS[call].status
        assert int(answers.pulsar) != CALLS[call].status
    assert all(answers.pulsar != answers.anabranch for answers in differences("Behaviour that differs").values())
