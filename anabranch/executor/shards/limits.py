"""Divide rate limits among the shards. Pure.

Stage: beside `members`. Shards count their calls separately, in different processes. The parts add up to the limit, so
all shards together never exceed it. Failures are on record and counted over all shards
(`anabranch.executor.kernel.outcomes`).
"""

from __future__ import annotations

from schemas.settings.brakes import BrakeSettings


def part_of(limits: BrakeSettings, shard: int, shards: int) -> BrakeSettings:
    """Return the limits of one shard, numbered from 0. A limit of 0 (none) stays; no part becomes 0."""
    names = ("actions_per_minute", "actions_per_minute_per_namespace")
    parts = {name: _part(getattr(limits, name), shard, shards) for name in names}
    return limits.model_copy(update=parts)


def _part(limit: int, shard: int, shards: int) -> int:
    return limit and max(1, limit // shards + (shard < limit % shards))
