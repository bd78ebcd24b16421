"""The page of differences names calls that are made, and what our controller really answers."""

from __future__ import annotations

from tests.contract.calls import CALLS
from tests.contract.differences import differences


def test_every_line_of_the_page_is_about_a_call_that_is_made_and_a_real_difference() -> None:
    for call, answers in differences("Calls that differ").items():
        assert int(answers.anabranch) == CALLS[call].status
        assert int(answers.pulsar) != CALLS[call].status
    assert all(answers.pulsar != answers.anabranch for answers in differences("Behaviour that differs").values())
