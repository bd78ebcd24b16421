"""The rule for numbers, against histories of which it is known what was lost."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from itertools import groupby, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.history.check.numbers import Numbered, gaps

pytestmark = pytest.mark.unit
START = datetime(2026, 11, 22, tzinfo=timezone.utc)


def row(seq: int, subject: str = "a", is_whole: bool = True, begins_anew: bool = False) -> Numbered:
    return Numbered("autoscale", subject, seq, START + timedelta(seconds=seq), is_whole, begins_anew)


@given(st.lists(st.lists(st.booleans(), max_size=12), max_size=4))
def test_each_run_of_lost_rows_is_one_gap(subjects):
    rows, lost = [], 0
    for name, kept in enumerate(subjects):
        rows += [row(seq, str(name)) for seq, is_kept in enumerate(kept, 1) if is_kept]
        runs = [is_kept for is_kept, _ in groupby(kept)]
        lost += sum(not before and after for before, after in pairwise(runs))
    assert len(list(gaps(rows))) == lost


@given(st.integers(1, 10), st.integers(1, 10))
def test_duplicated_row_is_always_a_gap(number, twice):
    rows = [row(seq) for seq in range(1, number + 1) for _ in range(2 if seq == twice else 1)]
    assert len(list(gaps(rows))) == (twice <= number)


@given(st.integers(0, 5), st.integers(1, 4), st.booleans())
def test_interrupted_batch_may_reuse_its_numbers(before, cut, is_again):
    rows = [row(seq) for seq in range(1, before + 1)]
    rows += [row(seq, is_whole=False) for seq in range(before + 1, before + cut + 1)]
    following = before + 1 if is_again else before + cut + 1
    assert list(gaps([*rows, row(following), row(following + 1)])) == []
    assert len(list(gaps([*rows, row(before + cut + 2)]))) == 1


def test_numbers_begin_again_only_where_they_may():
    assert len(list(gaps([row(1), row(2), row(1)]))) == 1
    assert list(gaps([row(1), row(2), row(1, begins_anew=True)])) == []
    assert len(list(gaps([row(1), row(3, begins_anew=True)]))) == 1
