"""Every statement of docs/cookbook.md gives the answer that stands there."""

from __future__ import annotations

import pytest

from tests.ledger.views.cookbook import answer, is_about_clusters, questions


def test_there_are_thirty_questions():
    assert [title.partition(".")[0] for title, *_ in questions()] == [str(number) for number in range(1, 31)]


@pytest.mark.parametrize(("title", "sql", "expected"), questions(), ids=[title for title, *_ in questions()])
def test_a_question_is_answered_as_the_page_says(title, sql, expected, lake, lake_of_clusters):
    assert answer(lake_of_clusters if is_about_clusters(title) else lake, sql) == expected, (
        "python -m tests.ledger.views.cookbook --mend"
    )
