"""A bucket's rows before the engine: each once, in the order of arrival, in parts, from memory or from a file."""

from __future__ import annotations

from struct import pack
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from engine.kernel.packing import unpacked_size
from streaming.operator.arrivals import in_parts

bodies = st.tuples(st.just("samples"), st.binary(max_size=9)) | st.tuples(
    st.just("raw"), st.builds(lambda size, rest: pack(">I", size) + rest, st.integers(0, 30), st.binary(max_size=5))
)
"""Samples as they are, raw rows compressed: they begin with their size."""
rows = st.lists(
    st.builds(
        lambda place, said: SimpleNamespace(place=bytes([place]), kind=said[0], body=said[1]), st.integers(0, 5), bodies
    )
)


@given(rows, st.integers(1, 30), st.integers(0, 30))
def test_rows_arrive_once_in_whole_positions(rows, part_bytes, waiting_bytes):
    parts = [list(zip(kinds, bodies, strict=True)) for kinds, bodies in in_parts(iter(rows), part_bytes, waiting_bytes)]
    ordered = sorted(rows, key=lambda row: row.place)
    assert [one for part in parts for one in part] == [(row.kind, row.body) for row in ordered]
    places, at = [], 0
    for part in parts:
        of_part = {row.place for row in ordered[at : at + len(part)]}
        at += len(part)
        assert len(of_part) == 1 or sum(unpacked_size(*one) for one in part) <= part_bytes
        assert not of_part & set(places)
        places += of_part
