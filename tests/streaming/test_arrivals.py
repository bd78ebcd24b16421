"""A bucket's rows before the engine: each once, in the order of arrival, in parts, from memory or from a file."""

from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from streaming.arrivals import in_parts

rows = st.lists(
    st.builds(
        lambda place, kind, body: SimpleNamespace(place=bytes([place]), kind=kind, body=body),
        st.integers(0, 5), st.sampled_from(["raw", "samples"]), st.binary(max_size=9),
    )
)  # fmt: skip


@given(rows, st.integers(1, 30), st.integers(0, 30))
def test_every_row_comes_once_by_place_and_no_place_is_parted(rows, part_bytes, waiting_bytes):
    parts = [list(zip(kinds, bodies, strict=True)) for kinds, bodies in in_parts(iter(rows), part_bytes, waiting_bytes)]
    ordered = sorted(rows, key=lambda row: row.place)
    assert [one for part in parts for one in part] == [(row.kind, row.body) for row in ordered]
    places, at = [], 0
    for part in parts:
        of_part = {row.place for row in ordered[at : at + len(part)]}
        at += len(part)
        assert len(of_part) == 1 or sum(len(body) for _, body in part) <= part_bytes
        assert not of_part & set(places)
        places += of_part
