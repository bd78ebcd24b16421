"""Every question of docs/sql.md gets the answer of answers.md, which is the one that the raw rows lead to."""

from __future__ import annotations

import pytest

from tests.query.views.by_hand import ANSWERS
from tests.query.views.cookbook import answer, asked, lake_of, questions

pytestmark = pytest.mark.xdist_group("views")


def test_there_are_thirty_five_questions():
    assert [title.partition(".")[0] for title, *_ in questions()] == [str(number) for number in range(1, 36)]


@pytest.mark.parametrize(("title", "sql", "expected"), questions(), ids=[title for title, *_ in questions()])
def test_a_question_is_answered_as_the_page_says(title, sql, expected, lake, lake_of_clusters, lake_of_switch):
    assert answer(lake_of(title, lake, lake_of_clusters, lake_of_switch), sql) == expected


def plain(row):
    """Rounded as the page shows it."""
    return tuple(float(f"{value:.9g}") if isinstance(value, float) else value for value in row)


@pytest.mark.parametrize("number", ANSWERS)
def test_an_answer_is_what_the_raw_rows_say(number, story, lake):
    sql = next(sql for title, sql, _ in questions() if title.startswith(f"{number}. "))
    found = [plain(row.values()) for row in asked(lake, sql).to_pylist()]
    assert found == [plain(row) for row in ANSWERS[number](story)]
    assert found
