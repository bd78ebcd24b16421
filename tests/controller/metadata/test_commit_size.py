"""Commits cut to size: what is in them, and that no part is larger than it may be."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.controller.metadata.base import Append, Check, Delete, Op, Put
from anabranch.controller.metadata.commit_size import CommitLimit, CommitTooLarge

LIMIT = CommitLimit(root_bytes=20, max_bytes=5_000)
HELD = Check("/held", 7)
paths = st.lists(st.text("aü/b", min_size=1, max_size=400), max_size=3).map(lambda names: "/" + "/".join(names))
values = st.binary(max_size=900)
ops = st.one_of(
    st.builds(Put, paths, values),
    st.builds(Append, paths, values),
    st.builds(Delete, paths),
    st.builds(Check, paths, st.just(1)),
)


@given(st.lists(ops, max_size=40))
def test_parts_keep_order_within_size_limit(wanted: list[Op]) -> None:
    parts = list(LIMIT.parts(wanted, [HELD]))
    assert [op for part in parts for op in part] == wanted
    for part in parts:
        assert part
        assert len(part) == 1 or sum(map(LIMIT.bytes_of, [HELD, *part])) <= LIMIT.max_bytes
    for first, second in itertools.pairwise(parts):
        assert sum(map(LIMIT.bytes_of, [HELD, *first, second[0]])) > LIMIT.max_bytes, "as few as possible"


def test_oversized_commit_refused_with_path_and_size() -> None:
    LIMIT.check([Put("/a", bytes(4_000)), Delete("/b")])
    with pytest.raises(CommitTooLarge, match=r"/b: the change has 5[0-9]{3} bytes, ZooKeeper takes 5000 at once"):
        LIMIT.check([Put("/a", b""), Append("/b", bytes(4_300))])
