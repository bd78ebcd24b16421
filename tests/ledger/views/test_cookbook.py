"""Every statement of docs/cookbook.md gives the answer that stands there."""

from __future__ import annotations

import pytest

from tests.ledger.views.cookbook import answer, lake_of, questions


def test_there_are_thirty_five_questions():
    assert [title.partition(".")[0] for title, *_ in questions()] == [str(number) for number in range(1, 36)]


@pytest.mark.parametrize(("title", "sql", "expected"), questions(), ids=[title for title, *_ in questions()])
def test_a_question_is_answered_as_the_page_says(title, sql, expected, lake, lake_of_clusters, lake_of_switch):
    assert answer(lake_of(title, lake, lake_of_clusters, lake_of_switch), sql) == expected, (
        "python -m tests.ledger.views.cookbook --mend"
    )
