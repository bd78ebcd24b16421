"""The parts of a limit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.executor.shards.members import part_of
from schemas.settings.root import load_settings


@given(st.integers(0, 500), st.integers(1, 64))
def test_limit_parts_sum_to_limit(limit: int, shards: int):
    limits = load_settings(environment={}).executor.brakes.model_copy(update={"actions_per_minute": limit})
    parts = [part_of(limits, shard, shards).actions_per_minute for shard in range(shards)]
    if limit == 0 or limit >= shards:
        assert sum(parts) == limit
    assert (min(parts) == 0) == (limit == 0)
