"""Patterns of isolation policies: what RE2 cannot express is widened, so that nothing of it is missed."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decisions.bundles.patterns import MAX_PATTERN, inexact_reason, matching_texts


@pytest.mark.parametrize(
    ("pattern", "may_match", "never"),
    [
        ("bank/(?!test).*", "bank/gold", "shop/gold"),
        ("(?<=b)a?bank/.+", "bank/x", "shop/x"),
        (r"(a|b)/\1x", "a/ax", "c/ax"),
        (r"(?<n>a+)/\k<n>", "aa/aa", "b/aa"),
        ("a++b", "aab", "ac"),
        ("(?>ab|a)c", "abc", "bc"),
        (r"\Q(?=\E(?!x)y", "(?=y", "y"),
        (r"\\(?=x)x", r"\x", "x"),
    ],
)
def test_an_inexact_pattern_is_widened(pattern, may_match, never):
    assert inexact_reason(pattern) is not None
    assert may_match in matching_texts(pattern, (may_match,))
    assert never not in matching_texts(pattern, (never,))


@pytest.mark.parametrize("pattern", ["(", "[", "[a-z&&[^b]]", "[a[bc]]", "(?!a", "a)|(b", "a" * (MAX_PATTERN + 1)])
def test_unsupported_pattern_may_match_all(pattern):
    assert inexact_reason(pattern) is not None
    assert "any/thing" in matching_texts(pattern, ("any/thing",))


@pytest.mark.parametrize("pattern", ["gold-.*", "(?i)a|b", r"b\.c:\d+", "[^a-c]x{2,3}", "[()]+"])
def test_a_plain_pattern_is_exact(pattern):
    assert inexact_reason(pattern) is None


ATOMS = st.sampled_from(["a", "b", "/", ".", "[ab]", "[^a]", r"\w", r"\(", "a*", "b+?", "(?:a|b/)", r"\Qa+\E"])
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: (
        st.builds("({})".format, inner)
        | st.builds("{}{}".format, inner, inner)
        | st.builds("{}|{}".format, inner, inner)
        | st.builds("(?:{})*".format, inner)
        | st.builds("(?={}){}".format, inner, inner)
        | st.builds("(?!{}){}".format, inner, inner)
        | st.builds(r"({})\1".format, inner)
    ),
    max_leaves=6,
)


@given(PATTERNS, st.text("ab/(+", max_size=5))
def test_what_matches_by_look_around_is_never_missed(pattern, text):
    try:
        found = re.fullmatch(pattern.replace(r"\Qa+\E", r"a\+"), text)
    except re.error:
        return
    assert not found or text in matching_texts(pattern, (text,))
