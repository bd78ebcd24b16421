"""One topic for every spelling of its name in a URL."""

from __future__ import annotations

import contextlib
import re
import time
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.auth.spelling import MAX_DECODINGS
from anabranch.controller.errors import BadRequest, ControllerError, PreconditionFailed
from anabranch.controller.topic_names import canonical_segment, namespace_of_path, plain_name, topic_of_path
from schemas.base import TOPIC_PATTERN

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)


@pytest.mark.parametrize(
    ("spelling", "canonical"),
    [
        ("orders", "orders"),
        ("odd%20name", "odd%20name"),
        ("odd%2520name", "odd%20name"),
        ("a+b", "a+b"),
        ("a%2Bb", "a+b"),
        ("%C3%BC&=", "ü&="),
        ("%c3%bc&%3d", "ü&="),
        ("a%2Fb", "a%2Fb"),
        ("a%3Fb%23c", "a%3Fb%23c"),
        ("100%25", "100%25"),
        ("100%", "100%25"),
        ("line%0Abreak", "line%0Abreak"),
        ("tab%09%E2%80%A8", "tab%09%E2%80%A8"),
    ],
)
def test_every_spelling_leads_to_the_same_name(spelling: str, canonical: str) -> None:
    assert canonical_segment(spelling) == canonical


@given(names)
def test_canonical_name_reached_quoted_or_not(name: str) -> None:
    canonical = canonical_segment(quote(name, safe=""))
    assert canonical_segment(canonical) == canonical
    assert canonical_segment(quote(canonical, safe="")) == canonical


@given(names, names, names)
def test_every_name_is_fit_for_a_message(tenant: str, namespace: str, name: str) -> None:
    topic = topic_of_path(quote(tenant, safe=""), quote(namespace, safe=""), quote(name, safe=""))
    assert re.search(TOPIC_PATTERN, topic)


def test_bytes_that_are_not_utf_8_are_refused() -> None:
    with pytest.raises(BadRequest, match="UTF-8"):
        topic_of_path("a", "b", "%ff")


def test_names_are_bounded() -> None:
    assert topic_of_path("a", "b", "x" * 1012)
    with pytest.raises(PreconditionFailed, match="1025 characters"):
        topic_of_path("a", "b", "x" * 1013)
    with pytest.raises(PreconditionFailed):
        namespace_of_path("a" * 1000, "b" * 1000)
    with pytest.raises(PreconditionFailed, match="consumer"):
        plain_name("c" * 1025, "consumer")


def test_subscription_names_are_decoded_once() -> None:
    assert plain_name("a%2520b%2Fc", "subscription") == "a%20b/c"


@given(
    st.sampled_from(["%", "%25", "%2525", "%C3%BC", "%c3", "a", "%2F", "/"]),
    st.integers(1, 65_536),
    st.integers(0, 4_096),
)
def test_hostile_segment_costs_no_time(part: str, size: int, tail: int) -> None:
    segment = (part * size)[:65_536] + "%" + "25" * tail
    began = time.process_time()
    with contextlib.suppress(ControllerError):
        canonical_segment(segment)
    assert time.process_time() - began < 0.1


def test_segment_of_many_encodings_is_refused() -> None:
    assert canonical_segment("%" + "25" * MAX_DECODINGS) == "%25"
    with pytest.raises(BadRequest, match="more than 8 times"):
        canonical_segment("%" + "25" * (MAX_DECODINGS + 1))
    with pytest.raises(PreconditionFailed, match="at most 12288"):
        canonical_segment("a" * (3 * 4 * 1024 + 1))
