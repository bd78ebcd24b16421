"""Generations: a cache that compares them sees every change, and only what has changed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.kernel import generations
from engine.kernel.generations import Generations

changes = st.lists(st.sampled_from(["a", "b", "c", None]), max_size=12)


@given(changes, changes)
def test_changes_since_generation_named_once(before, after):
    known = Generations()
    for name in before:
        known.change_all() if name is None else known.change(name)
    seen, of = known.newest, {name: known.of(name) for name in "abc"}
    for name in after:
        known.change_all() if name is None else known.change(name)
    found = known.since(seen)
    if None in after:
        assert found is None
        assert all(known.of(name) > seen for name in "abc")
        return
    names = list(found)
    assert sorted(names) == sorted(set(after))
    for name in "abc":
        assert known.of(name) > seen if name in after else known.of(name) == of[name]


def test_beyond_a_bound_everything_counts_as_changed(monkeypatch):
    monkeypatch.setattr(generations, "MAX_NAMES", 2)
    known = Generations()
    seen = known.newest
    for name in "ab":
        known.change(name)
    assert sorted(known.since(seen)) == ["a", "b"]
    known.change("c")
    assert known.since(seen) is None
